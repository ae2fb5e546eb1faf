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
    """A row for each student, with columns for the assignments and their parts."""
    columns: dict[str, None] = {}  # in order, each once
    rows: dict[str, dict[str, object]] = {}

    for grade in counted(grades):
        row = rows.setdefault(grade.student, {"id": grade.student, "trouble": ""})
        if grade.trouble:
            row["trouble"] += f"{grade.file}: {grade.trouble}. "
        if not grade.assignment:
            continue

        when = datetime.fromtimestamp(grade.handed_in, UTC).isoformat(timespec="seconds")
        cells = {f"{grade.assignment} ({grade.out_of})": grade.points}
        for part in grade.parts.values():
            cells[f"{grade.assignment}: {part['part']} ({part['out_of']})"] = part["points"]
        cells[f"{grade.assignment}: handed in"] = when

        columns |= dict.fromkeys(cells)
        row |= cells

    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["id", *columns, "trouble"])
        table.writeheader()
        table.writerows(rows.values())


def write_gradescope(grades: Iterable[Grade], path: Path) -> None:
    """The results of one student's submission, as Gradescope's harness reads them."""
    tests, troubles = [], []
    for grade in counted(grades):
        if grade.trouble:
            troubles.append(f"{grade.file}: {grade.trouble}")

        for part in grade.parts.values():
            name = f"{grade.assignment}: {part['part']}"
            test = {"name": name, "score": part["points"], "max_score": part["out_of"]}
            tests.append(test | {"output": part["message"]})

    score = sum(test["score"] for test in tests)
    results = {"score": score, "output": "\n".join(troubles), "tests": tests}
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
