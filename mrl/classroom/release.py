"""`assignment release`: a copy of the program for students, without what is for teachers."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from mrl.classroom import ASSIGNMENTS, HERE, check_name
from mrl.errors import MrlError

ROOT = HERE.parents[1]
COPIED = (
    "pyproject.toml", "LICENSE", "TUTORIAL.md", "TUTORIAL.ipynb", "mini_mrl.py", "mrl", "data",
)  # fmt: skip
LEFT_OUT = shutil.ignore_patterns("__pycache__", "TEACHING.md", "Dockerfile", "bugs.py", "gsm8k")
# the solution of an exercise in section 15, which draws and imitates as sgt does
SOLUTION = r"<details>(?:(?!</details>).)*class AtMostOne\(SGT\).*?</details>"
WITHOUT_SGT = {  # file -> pattern -> what takes its place
    "mrl/modes/sgt.py": {"MySGT": "SGT", "my-sgt": "sgt"},
    "mrl/modes/__init__.py": {"from mrl.modes.replay import Replay\n": "", " Replay,": ""},
    "mrl/config.py": {'mode: str = setting\\("sgt"': 'mode: str = setting("solo"'},
    "TUTORIAL.md": {SOLUTION: ""},
    "TUTORIAL.ipynb": {SOLUTION: ""},
}


def release(folder: Path, names: Sequence[str]) -> None:
    """Write the copy for some assignments; MrlError if the folder is there, or a name is wrong."""
    for name in names:
        check_name(name)
    if folder.exists():
        raise MrlError(f"{folder}: is there already; name a new folder.")

    folder.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=LEFT_OUT)
        else:
            shutil.copy(ROOT / name, folder)
    shutil.move(folder / "mrl" / "classroom" / "stubs" / "README.md", folder)

    for name in set(ASSIGNMENTS) - set(names):
        for path in (f"stubs/{name}.py", f"test_{name.replace('-', '_')}.py"):
            (folder / "mrl" / "classroom" / path).unlink()
    if "sgt" in names:
        take_out_sgt(folder)


def take_out_sgt(folder: Path) -> None:
    """Put the stub in the place of mrl/modes/sgt.py; the default mode becomes `solo`."""
    shutil.copy(HERE / "stubs" / "sgt.py", folder / "mrl" / "modes")
    (folder / "mrl" / "modes" / "replay.py").unlink()  # it does with own successes what sgt does
    # these two have sgt in plain sight
    (folder / "data" / "examples" / "one_file.py").unlink()
    (folder / "data" / "results" / "tiny-pair" / "crossing.py").unlink()

    for name, edits in WITHOUT_SGT.items():
        text = (folder / name).read_text(encoding="utf-8")
        for old, new in edits.items():
            text = re.sub(old, new, text, flags=re.DOTALL)
        (folder / name).write_text(text, encoding="utf-8")
