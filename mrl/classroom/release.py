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
FOR_TEACHERS = r" \(all six:.*?TEACHING\.md\)\)"  # TEACHING.md is not in the copy
# the solution of an exercise in section 15, which draws and imitates as sgt does
SOLUTION = r"<details>(?:(?!</details>).)*class AtMostOne\(SGT\).*?</details>"
NOT_YET = (  # the first words of a copy's pages if it has sgt
    "**Copy for students:** the mode `sgt` is your assignment. What this page does with it works "
    "once yours is in `mrl/modes/sgt.py` (README.md says how); until then take `--mode solo` or "
    "`naive`. `replay`, `crossing.py`, `fine_tuned.py` and `specialist.py`, which imitate as it "
    "does, are left out."
)
WITHOUT_SGT = {  # file -> pattern -> what takes its place
    "mrl/modes/__init__.py": {"from mrl.modes.replay import Replay\n": "", " Replay,": ""},
    "mrl/config.py": {'mode: str = setting\\("sgt"': 'mode: str = setting("solo"'},
    "TUTORIAL.md": {SOLUTION: "", r"\A": f"{NOT_YET}\n\n"},
    "TUTORIAL.ipynb": {SOLUTION: "", r"\*Made from [^*]*\*": NOT_YET},
    "data/results/README.md": {r"\A": f"{NOT_YET}\n\n"},
    "mrl/runtime/RUNNING.md": {r"\A": f"{NOT_YET}\n\n"},
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

    unknown = {FOR_TEACHERS: ""}  # what the tutorial says of what the copy does not have
    for name in set(ASSIGNMENTS) - set(names):
        for path in (f"stubs/{name}.py", f"test_{name.replace('-', '_')}.py"):
            (folder / "mrl" / "classroom" / path).unlink()
        unknown[rf"\*\*Assignment \d\.\*\* `[\w. ]+ start {name}`"] = ""

    for page in ("TUTORIAL.md", "TUTORIAL.ipynb"):
        edit(folder / page, unknown)
    if "sgt" in names:
        take_out_sgt(folder)


def take_out_sgt(folder: Path) -> None:
    """Put the stub in the place of mrl/modes/sgt.py; the default mode becomes `solo`."""
    shutil.copy(HERE / "stubs" / "sgt.py", folder / "mrl" / "modes")
    (folder / "mrl" / "modes" / "replay.py").unlink()  # it does with own successes what sgt does
    # these imitate as sgt does, in plain sight
    for path in (
        "examples/one_file.py",
        "results/tiny-pair/crossing.py",
        "results/real-pair/fine_tuned.py",
        "results/both-ways/specialist.py",
    ):
        (folder / "data" / path).unlink()

    for name, edits in WITHOUT_SGT.items():
        edit(folder / name, edits)


def edit(path: Path, edits: dict[str, str]) -> None:
    """Replace patterns in a file."""
    text = path.read_text(encoding="utf-8")
    for old, new in edits.items():
        text = re.sub(old, new, text, flags=re.DOTALL)
    path.write_text(text, encoding="utf-8")
