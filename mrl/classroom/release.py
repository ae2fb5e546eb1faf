"""`assignment release`: writes a copy of the program for students, without the solutions.

Solutions are in the folder tests/, which is not copied, and in folded blocks of the tutorial, which
are removed. The mode `sgt` is replaced by the stub of its assignment, and files that imitate peers
in the same way are left out. Other solutions cannot be removed, because the program needs them;
TEACHING.md lists them.
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
    "replay.py", "sft.py",  # each is half of sgt: imitation, but without a peer or without RL
    "one_file.py", "two_learners.py", "draw.py", "no_gate.py", "readings.py",  # with sgt's code
)  # fmt: skip
SOLUTION = re.compile(r"<details><summary>Solution</summary>.*?</details>", re.DOTALL)


def release(folder: Path) -> None:
    """Write the copy. Raises MrlError if the folder exists."""
    if folder.exists():
        raise MrlError(f"{folder} already exists; name a new folder.")

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
