"""`assignment release`: a copy of the program for students, all of it but the solutions.

Solutions stand in one folder, tests/, which is not copied, and in one kind of block, which the
tutorial folds away. The mode `sgt` becomes the stub of its assignment, and what imitates as it does
stays here. Other answers are parts that the program needs: TEACHING.md names them.
"""

import re
import shutil
from pathlib import Path

from mrl.classroom import ROOT
from mrl.errors import MrlError

FOLDERS = ("mrl", "data")
FILES = ("pyproject.toml", "LICENSE", "TUTORIAL.md", "TUTORIAL.ipynb", "mini_mrl.py")
LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", "TEACHING.md", "Dockerfile", "gsm8k",
    "bugs.py",  # how the curves of `bug` were made
    "replay.py", "sft.py",  # half of sgt each: own successes in the same way, a peer's without RL
    "one_file.py", "two_learners.py", "draw.py", "no_gate.py", "readings.py",  # imitate as sgt does
)  # fmt: skip
SOLUTION = re.compile(r"<details><summary>Solution</summary>.*?</details>", re.DOTALL)


def release(folder: Path) -> None:
    """Write the copy; MrlError if the folder is there."""
    if folder.exists():
        raise MrlError(f"{folder}: is there already; name a new folder.")

    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=LEFT_OUT)
    for name in FILES:
        text = (ROOT / name).read_text(encoding="utf-8")
        (folder / name).write_text(SOLUTION.sub("", text), encoding="utf-8")

    stubs, modes = folder / "mrl" / "classroom" / "stubs", folder / "mrl" / "modes"
    shutil.move(stubs / "README.md", folder)
    shutil.copy(stubs / "sgt.py", modes)
    text = (modes / "__init__.py").read_text(encoding="utf-8")
    text = re.sub(r"from mrl\.modes\.(replay|sft) import \w+\n| (Replay|SFT),", "", text)
    (modes / "__init__.py").write_text(text, encoding="utf-8")
