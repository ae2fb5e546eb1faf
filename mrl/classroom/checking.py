"""What `assignment start` and `check` do: write stubs, run pytest on submissions, add up points.

Each submission is checked by a pytest of its own process (conftest.py), which reports what each
part gained. This keeps mistakes apart; it is no security boundary: see TEACHING.md.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryDirectory

from mrl.classroom import ASSIGNMENTS, HERE, NOT_REACHED, OUT_OF
from mrl.classroom.curves import write_curves
from mrl.errors import MrlError
from mrl.runtime.view import printable

LIMIT_S = 300.0  # on the clock, for a whole check; conftest.py limits what each part computes
NAMED = re.compile(r"""^ASSIGNMENT\s*(?::\s*\w+\s*)?=\s*["']([\w-]+)["']""", re.MULTILINE)


@dataclass
class Grade:
    """The result of one submission; with `--json` its fields are a line."""

    file: str
    student: str  # by the file's name, or its folder's
    handed_in: float  # when the file was last changed, in seconds since 1970
    assignment: str = ""
    # by the name of its test, each with "part", "out_of", "points" and "message"
    parts: dict[str, dict] = field(default_factory=dict)
    trouble: str = ""  # what ended the check before its end
    printed: str = ""  # what the submission printed
    points: int = 0  # what was not reached counts as nothing
    out_of: int = OUT_OF


def start(name: str, folder: Path) -> list[Path]:
    """Write what a student begins with; MrlError if it is there already. Returns the files."""
    if name not in ASSIGNMENTS:
        raise MrlError(f"There is no assignment {name!r}; there are {', '.join(ASSIGNMENTS)}.")
    path = folder / f"{name}.py"
    if path.exists():
        raise MrlError(f"{path}: is there already; move it away to begin again.")

    text = (HERE / "stubs" / f"{name}.py").read_text(encoding="utf-8")
    number = random.SystemRandom().randrange(1, 10**6)
    path.write_text(text.replace("CURVES = 0", f"CURVES = {number}"), encoding="utf-8")
    return [path, write_curves(number, folder)] if name == "bug" else [path]


def submissions(paths: Iterable[Path]) -> list[tuple[Path, str]]:
    """The files, and the Python files of the folders, each with the name that says whose it is.

    That is the name of a student's folder, or the file's own. MrlError if there is no file.
    """
    handed_in = []
    for path in paths:
        if not path.exists():
            raise MrlError(f"{path}: there is no such file; `assignment start NAME` writes one.")
        if path.is_file():
            handed_in.append((path, path.name))
            continue

        for file in sorted(path.rglob("*.py")):
            if file.is_file():
                handed_in.append((file, file.relative_to(path).parts[0]))

    if not handed_in:
        raise MrlError("There is no Python file in that folder.")
    return handed_in


def check(path: Path, whose: str, seed: int = 0) -> Grade:
    """Run pytest on a copy of the file. All of a class get the hidden cases of one seed."""
    named = NAMED.search(path.read_text(encoding="utf-8", errors="replace"))
    assignment = named[1] if named and named[1] in ASSIGNMENTS else ""
    student = printable(re.sub(rf"([-_ ]?{assignment})?\.py$", "", whose) or path.stem, keep="")
    grade = Grade(printable(path, keep=""), student, path.stat().st_mtime, assignment)
    if not assignment:
        grade.trouble = f'has no line `ASSIGNMENT = "..."` with one of {", ".join(ASSIGNMENTS)}'
        return grade

    with TemporaryDirectory(prefix="mrl-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        shutil.copyfile(path, folder / "submission.py")
        environment = os.environ | {
            "MRL_SUBMISSION": str(folder / "submission.py"),
            "MRL_REPORT": str(folder / "report.json"),
            "MRL_SEED": str(seed),
            "OMP_NUM_THREADS": "1",  # each thread would take memory
        }
        status = run(assignment, folder, environment)
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))

    grade.parts, grade.printed = report["parts"], report["printed"]
    grade.points = sum(part["points"] for part in grade.parts.values())
    if status is None:
        grade.trouble = f"it was stopped after {LIMIT_S:g} s; is there a loop that never ends?"
    elif any(part["message"] == NOT_REACHED for part in grade.parts.values()):
        grade.trouble = f"its process ended before the check was over (exit status {status})"
    return grade


def run(assignment: str, folder: Path, environment: dict[str, str]) -> int | None:
    """Run pytest in a process of its own; return its exit status, None if it was stopped."""
    command = [sys.executable, "-P", "-m", "pytest", *pytest_arguments(assignment)]
    try:
        process = subprocess.run(
            command, cwd=folder, env=environment, timeout=LIMIT_S, stdout=DEVNULL, stderr=DEVNULL
        )
        return process.returncode
    except subprocess.TimeoutExpired:
        return None


def pytest_arguments(assignment: str) -> list[str]:
    """Its checks, without the settings of a project, and with the messages as they are written."""
    checks = HERE / f"test_{assignment.replace('-', '_')}.py"
    return [str(checks), "-c", os.devnull, "-p", "no:cacheprovider", "--assert=plain"]
