"""The commands `python mini_mrl.py assignment list`, `start` and `check`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from mrl.classroom import ASSIGNMENTS
from mrl.classroom.checking import Grade, check, start, submissions, write_csv
from mrl.errors import MrlError
from mrl.run.view import printable

assignment = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@assignment.command("list")
def list_assignments() -> None:
    """List the assignments, numbered as in TUTORIAL.md."""
    for number, (name, task) in enumerate(ASSIGNMENTS.items(), start=1):
        print(f"{number}. {name:<11} {task}")


@assignment.command("start")
def start_assignment(
    name: Annotated[
        str, typer.Argument(help="Name of the assignment; `assignment list` shows all.")
    ],
) -> None:
    """Write the file that you will complete; its docstring says what it must do."""
    for path in start(name, Path()):
        print(f"Written: {path}")


@assignment.command("check")
def check_assignment(
    files: Annotated[list[Path], typer.Argument(help="Submitted files, or folders of them.")],
    seed: Annotated[
        int, typer.Option(help="Seed of the hidden test cases; use one for the whole class.")
    ] = 0,
    csv: Annotated[Path | None, typer.Option(help="CSV file of grades to write.")] = None,
) -> None:
    """Check each submission with pytest, in a separate process, and print its points."""
    if not find_spec("pytest"):  # the rest of the program works without it
        raise MrlError(
            '`assignment check` needs pytest; install it: `python -m pip install "pytest>=8"`.'
        )

    grades = []
    for path, whose in submissions(files):
        grades.append(check(path, whose, seed))
        print_grade(grades[-1])
        if csv:
            write_csv(grades, csv)


def print_grade(grade: Grade) -> None:
    """Print one line per part of a submission, or a single line if all failed in the same way."""
    lines = [f"{grade.file}: {grade.assignment or 'no assignment'}"]
    messages = {part["message"] for part in grade.parts.values()}
    if not grade.points and len(messages) == 1:  # a stub, or a file that cannot be imported
        lines.append(f"  every part: {messages.pop()}")
    else:
        for part in grade.parts.values():
            points = f"{part['points']} of {part['out_of']}"
            lines.append(f"  {points}  {part['part']}: {part['message']}")

    if grade.trouble:
        lines.append(f"  Ended: {grade.trouble}")
    if grade.printed:
        lines.append(f"  It printed: {grade.printed}")
    lines.append(f"  {grade.points} of {grade.out_of} points")

    for line in lines:  # a submission may print control characters of a terminal
        print(printable(line, keep=""), flush=True)
