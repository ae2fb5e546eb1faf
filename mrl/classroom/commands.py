"""`python mini_mrl.py assignment ...`: list, start, check, release."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from mrl.classroom import ASSIGNMENTS
from mrl.classroom.checking import Grade, check_all, start, submissions
from mrl.classroom.grades import write_csv, write_gradescope
from mrl.classroom.release import release

assignment = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@assignment.command("list")
def list_assignments() -> None:
    """List the assignments by their numbers in TUTORIAL.md."""
    for number, (name, task) in enumerate(ASSIGNMENTS.items(), start=1):
        print(f"{number}. {name:<11} {task}")


@assignment.command("start")
def start_assignment(
    name: Annotated[str, typer.Argument(help="See `assignment list`.")],
    to: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("."),
) -> None:
    """Write the file to begin with; its docstring is the contract."""
    for path in start(name, to):
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
    handed_in = submissions(files)
    grades = []

    for grade in check_all(handed_in, seed):
        grades.append(grade)
        if as_json:
            print(json.dumps(vars(grade)), flush=True)
        else:
            print_grade(grade)

        if csv:
            write_csv(grades, csv)
        if gradescope:
            write_gradescope(grades, gradescope)
        if len(handed_in) > 1:
            print(f"{len(grades)} of {len(handed_in)} checked", file=sys.stderr, flush=True)


def print_grade(grade: Grade) -> None:
    """Print a line for each part of a submission."""
    print(f"{grade.file}: {grade.assignment or 'no assignment'}")
    reasons = {"right": "right"}  # each reason for a loss is said once
    for part in grade.parts.values():
        message = reasons.get(part["message"], part["message"])
        reasons.setdefault(message, "the same")
        print(f"  {part['points']} of {part['out_of']}  {part['part']}: {message}")

    if grade.trouble:
        print(f"  Ended: {grade.trouble}")
    if grade.printed:
        print(f"  It printed: {grade.printed}")
    print(f"  {grade.points} of {grade.out_of} points", flush=True)
