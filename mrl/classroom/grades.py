"""What a class came to, for a grade book (CSV) and for Gradescope (results.json)."""

import csv
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from mrl.classroom.checking import Grade


def counted(grades: Iterable[Grade]) -> list[Grade]:
    """Keep, for each student and assignment, the file that was changed last.

    A file that names no assignment counts as one of its own, so that it is seen.
    """
    newest: dict[tuple[str, str], Grade] = {}
    for grade in sorted(grades, key=lambda grade: grade.handed_in):
        newest[grade.student, grade.assignment] = grade
    return sorted(newest.values(), key=lambda grade: (grade.student, grade.assignment))


def write_csv(grades: Iterable[Grade], path: Path) -> None:
    """A row for each student and assignment."""
    rows = counted(grades)
    most = max(len(grade.parts) for grade in rows)

    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        parts = [f"part {number}" for number in range(1, most + 1)]
        table.writerow(["id", "assignment", "points", "out of", "handed in", "trouble", *parts])

        for grade in rows:
            when = datetime.fromtimestamp(grade.handed_in, UTC).isoformat(timespec="seconds")
            points = [part["points"] for part in grade.parts]

            # a spreadsheet would take what begins with these signs for a formula
            student = f"'{grade.student}" if grade.student[:1] in "=+-@" else grade.student
            sums = [grade.assignment, grade.points, grade.out_of]
            table.writerow([student, *sums, when, grade.trouble, *points])


def write_gradescope(grades: Iterable[Grade], path: Path) -> None:
    """The results of one student's submission, as Gradescope's harness reads them."""
    tests, troubles = [], []
    for grade in counted(grades):
        if grade.trouble:
            troubles.append(f"{grade.file}: {grade.trouble}")

        for part in grade.parts:
            name = f"{grade.assignment}: {part['part']}"
            test = {"name": name, "score": part["points"], "max_score": part["out_of"]}
            tests.append(test | {"output": part["message"]})

    score = sum(test["score"] for test in tests)
    results = {"score": score, "output": "\n".join(troubles), "tests": tests}
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
