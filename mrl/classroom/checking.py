"""The work of `assignment start` and `check`: write stubs, check submissions, write grades.

pytest checks each submission in a separate process and reports the points of each part
(conftest.py), so that a submission that hangs or crashes loses only its own points. It still runs
with all your rights: do not check files of people whom you do not trust.
"""

import csv
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryDirectory

from mrl.classroom import ASSIGNMENTS, HERE, NOT_REACHED, OUT_OF
from mrl.classroom.curves import write_curves
from mrl.errors import MrlError
from mrl.run.view import printable

LIMIT_S = 300.0  # wall-clock limit of a whole check; conftest.py limits the CPU time of each part
NAMED = re.compile(r"""^ASSIGNMENT\s*(?::\s*\w+\s*)?=\s*["']([\w-]+)["']""", re.MULTILINE)


@dataclass
class Grade:
    """The result of one submission."""

    file: str
    student: str  # from the name of the file, or of its folder
    handed_in: float  # time of the file's last change, in seconds since 1970
    assignment: str = ""
    # name of the test -> {"part", "out_of", "points", "message"}
    parts: dict[str, dict] = field(default_factory=dict)
    trouble: str = ""  # why the check ended early, or ""
    printed: str = ""  # what the submission printed
    points: int = 0  # the sum over parts; a part that was not reached gives none of its points
    out_of: int = OUT_OF


def start(name: str, folder: Path) -> list[Path]:
    """Write the files that a student starts with, and return their paths.

    Raises MrlError for an unknown assignment, or if its file already exists.
    """
    if name not in ASSIGNMENTS:
        raise MrlError(f"There is no assignment {name!r}; choose one of {', '.join(ASSIGNMENTS)}.")
    path = folder / f"{name}.py"
    if path.exists():
        raise MrlError(
            f"{path} already exists. To start again, move it to another folder or rename it."
        )

    text = (HERE / "stubs" / f"{name}.py").read_text(encoding="utf-8")
    number = random.SystemRandom().randrange(1, 10**6)
    path.write_text(text.replace("CURVES = 0", f"CURVES = {number}"), encoding="utf-8")
    return [path, write_curves(number, folder)] if name == "bug" else [path]


def submissions(paths: Iterable[Path]) -> list[tuple[Path, str]]:
    """Find the submissions: the given files, and all Python files in the given folders.

    Each file comes with the name that identifies its student: that of the student's folder, or the
    file's own name if no folder was given. Raises MrlError if there is no file.
    """
    handed_in = []
    for path in paths:
        if not path.exists():
            raise MrlError(
                f"{path} does not exist; `assignment start NAME` writes the file to complete."
            )
        if path.is_file():
            handed_in.append((path, path.name))
            continue

        for file in sorted(path.rglob("*.py")):
            if file.is_file():  # not a folder with such a name
                handed_in.append((file, file.relative_to(path).parts[0]))

    if not handed_in:
        raise MrlError(
            "The folder contains no Python files; name submitted files, or folders that have some."
        )
    return handed_in


def check(path: Path, whose: str, seed: int = 0) -> Grade:
    """Check a submission with pytest.

    whose: the name that identifies its student, from `submissions`. seed: seed of the hidden cases;
    it should be the same for the whole class.
    """
    named = NAMED.search(path.read_text(encoding="utf-8", errors="replace"))
    assignment = named[1] if named and named[1] in ASSIGNMENTS else ""
    student = re.sub(rf"([-_ ]?{assignment})?\.py$", "", whose) or path.stem
    # a file's name may have bytes that are not UTF-8, which a CSV cannot hold
    grade = Grade(str(path), printable(student, keep=""), path.stat().st_mtime, assignment)
    if not assignment:
        grade.trouble = (
            f'the file has no line `ASSIGNMENT = "..."` with one of {", ".join(ASSIGNMENTS)}'
        )
        return grade

    with TemporaryDirectory(prefix="mrl-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        environment = os.environ | {
            "MRL_SUBMISSION": str(path.resolve()),
            "MRL_REPORT": str(folder / "report.json"),
            "MRL_SEED": str(seed),
            "OMP_NUM_THREADS": "1",  # because each thread would use memory
        }
        ended = run(assignment, folder, environment)
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))

    grade.parts, grade.printed = report["parts"], report["printed"]
    grade.points = sum(part["points"] for part in grade.parts.values())
    if any(part["message"] == NOT_REACHED for part in grade.parts.values()):
        grade.trouble = f"its process ended before the check was finished ({ended})"
    return grade


def run(assignment: str, folder: Path, environment: dict[str, str]) -> str:
    """Run pytest in a separate process; returns how it ended, in words."""
    checks = HERE / f"test_{assignment.replace('-', '_')}.py"
    command = [sys.executable, "-m", "pytest", str(checks)]
    # without the project's settings of pytest, and without pytest's additions to messages
    command += ["-c", os.devnull, "-p", "no:cacheprovider", "--assert=plain"]
    try:
        process = subprocess.run(
            command, cwd=folder, env=environment, timeout=LIMIT_S, stdout=DEVNULL, stderr=DEVNULL
        )
        return f"exit status {process.returncode}"
    except subprocess.TimeoutExpired:
        return f"stopped after {LIMIT_S:g} s; is there an endless loop?"


def write_csv(grades: Iterable[Grade], path: Path) -> None:
    """Write one row per student, with columns for the assignments and their parts.

    The newest file of each student and assignment counts. A file that names no assignment gets
    columns of its own, so that it is seen.
    """
    columns: dict[str, None] = {}  # ordered, each once
    rows: dict[str, dict[str, object]] = {}

    for grade in sorted(grades, key=lambda grade: (grade.student, grade.handed_in)):
        row = rows.setdefault(grade.student, {"id": grade.student})
        name = grade.assignment or "no assignment"
        row[f"{name} ({grade.out_of})"] = grade.points
        for part in grade.parts.values():
            row[f"{name}: {part['part']} ({part['out_of']})"] = part["points"]

        when = datetime.fromtimestamp(grade.handed_in, UTC)
        row[f"{name}: handed in"] = when.isoformat(timespec="seconds")
        row[f"{name}: trouble"] = grade.trouble
        columns |= dict.fromkeys(row)

    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(rows.values())
