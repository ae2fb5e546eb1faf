"""What `assignment start` and `check` do: write stubs, run pytest on submissions, write points.

Each submission is checked by a pytest of its own process (conftest.py), which reports what each
part gained. This keeps mistakes apart; it is no security boundary: see TEACHING.md.
"""

import csv
import json
import os
import random
import re
import shutil
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
        ended = run(assignment, folder, environment)
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))

    grade.parts, grade.printed = report["parts"], report["printed"]
    grade.points = sum(part["points"] for part in grade.parts.values())
    if any(part["message"] == NOT_REACHED for part in grade.parts.values()):
        grade.trouble = f"its process ended before the check was over ({ended})"
    return grade


def run(assignment: str, folder: Path, environment: dict[str, str]) -> str:
    """Run pytest in a process of its own; return how that ended, in words."""
    command = [sys.executable, "-P", "-m", "pytest", *pytest_arguments(assignment)]
    try:
        process = subprocess.run(
            command, cwd=folder, env=environment, timeout=LIMIT_S, stdout=DEVNULL, stderr=DEVNULL
        )
        return f"exit status {process.returncode}"
    except subprocess.TimeoutExpired:
        return f"stopped after {LIMIT_S:g} s; is there a loop that never ends?"


def pytest_arguments(assignment: str) -> list[str]:
    """Its checks, without the settings of a project, and with the messages as they are written."""
    checks = HERE / f"test_{assignment.replace('-', '_')}.py"
    return [str(checks), "-c", os.devnull, "-p", "no:cacheprovider", "--assert=plain"]


def counted(grades: Iterable[Grade]) -> Iterable[Grade]:
    """Keep, for each student and assignment, the file that was changed last.

    A file that names no assignment counts as one of its own, so that it is seen.
    """
    newest: dict[tuple[str, str], Grade] = {}
    for grade in sorted(grades, key=lambda grade: (grade.student, grade.handed_in)):
        newest[grade.student, grade.assignment] = grade
    return newest.values()


def write_csv(grades: Iterable[Grade], path: Path) -> None:
    """Write a row for each student, with columns for the assignments and their parts."""
    columns: dict[str, None] = {}  # in order, each once
    rows: dict[str, dict[str, object]] = {}

    for grade in counted(grades):
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


def write_gradescope(grades: Iterable[Grade], path: Path) -> None:
    """Write the results of one student's submission, as Gradescope's harness reads them."""
    score, tests, troubles = 0, [], []
    for grade in counted(grades):
        score += grade.points
        if grade.trouble:
            troubles.append(f"{grade.file}: {grade.trouble}")
        for part in grade.parts.values():
            name = f"{grade.assignment}: {part['part']}"
            test = {"name": name, "score": part["points"], "max_score": part["out_of"]}
            tests.append(test | {"output": part["message"]})

    results = {"score": score, "output": "\n".join(troubles), "tests": tests}
    path.write_text(json.dumps(results), encoding="utf-8")
