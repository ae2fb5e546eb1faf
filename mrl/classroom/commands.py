"""`python mini_mrl.py assignment ...`: list, start, check, release."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from mrl.classroom import ASSIGNMENTS
from mrl.classroom.checking import Grade, check, start, submissions, write_csv, write_gradescope
from mrl.classroom.release import release
from mrl.errors import MrlError
from mrl.run.view import printable

assignment = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@assignment.command("list")
def list_assignments() -> None:
    """List the assignments by their numbers in TUTORIAL.md."""
    for number, (name, task) in enumerate(ASSIGNMENTS.items(), start=1):
        print(f"{number}. {name:<11} {task}")


@assignment.command("start")
def start_assignment(
    name: Annotated[str, typer.Argument(help="See `assignment list`.")],
) -> None:
    """Write the file to begin with; its docstring is the contract."""
    for path in start(name, Path()):
        print(f"Written: {path}")


@assignment.command("release")
def release_assignments(
    folder: Annotated[Path, typer.Argument(help="A new folder, for the students' copy.")],
) -> None:
    """Write a copy of the program for students: stubs and checks, but no solutions."""
    release(folder)
    print(f"Written: {folder}; its README.md is for your students.")


@assignment.command("check")
def check_assignment(
    files: Annotated[list[Path], typer.Argument(help="Submissions, or folders of them.")],
    as_json: Annotated[bool, typer.Option("--json", help="One line for each submission.")] = False,
    seed: Annotated[int, typer.Option(help="Of the hidden cases; one number for a class.")] = 0,
    csv: Annotated[Path | None, typer.Option(help="Write a grade book here.")] = None,
    gradescope: Annotated[Path | None, typer.Option(help="Write Gradescope's JSON here.")] = None,
) -> None:
    """Run pytest on each submission, in a process of its own, and print its points."""
    if not find_spec("pytest"):  # which nothing else in the program needs
        raise MrlError('`assignment check` needs pytest: `python -m pip install "pytest>=8"`.')

    grades = []
    for path, whose in submissions(files):
        grade = check(path, whose, seed)
        grades.append(grade)
        if as_json:
            print(json.dumps(vars(grade)), flush=True)
        else:
            print_grade(grade)

        if csv:
            write_csv(grades, csv)
        if gradescope:
            write_gradescope(grades, gradescope)


def print_grade(grade: Grade) -> None:
    """Print a line for each part of a submission; one for all if they failed in the same way."""
    lines = [f"{grade.file}: {grade.assignment or 'no assignment'}"]
    messages = {part["message"] for part in grade.parts.values()}
    if not grade.points and len(messages) == 1:  # as of a stub, or a file that cannot be imported
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

    for line in lines:  # text of a submission may hold what a terminal obeys
        print(printable(line, keep=""), flush=True)
