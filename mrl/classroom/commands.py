"""`python mini_mrl.py assignment ...`: list, start, check."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mrl.classroom import ASSIGNMENTS
from mrl.classroom.checking import check_all, start, submissions

assignment = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@assignment.command("list")
def list_assignments() -> None:
    """What there is, in the order of TUTORIAL.md."""
    for number, (name, what) in enumerate(ASSIGNMENTS.items(), start=1):
        print(f"{number}. {name:<11} {what}")


@assignment.command("start")
def start_assignment(
    name: Annotated[str, typer.Argument(help="See `assignment list`.")],
    to: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("."),
) -> None:
    """Write the file to begin with; its docstring is the contract."""
    for path in start(name, to):
        print(f"Written: {path}")


@assignment.command("check")
def check_assignment(
    files: Annotated[list[Path], typer.Argument(help="Submissions, or folders of them.")],
    as_json: Annotated[bool, typer.Option("--json", help="One line a submission.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the hidden cases; else a new one.")] = None,
) -> None:
    """Run pytest on each submission, in a process of its own; say what came out, and points."""
    for grade in check_all(submissions(files), seed):
        if as_json:
            print(json.dumps(vars(grade)), flush=True)
            continue
        print(f"{grade.file}: {grade.assignment or 'no assignment'}")
        before = ""
        for part in grade.parts:
            message = part["message"]
            words = "as above" if message and message == before else message
            words = f"right. {words}".rstrip() if part["points"] else words
            print(f"  {part['points']} of {part['out_of']}  {part['part']}: {words}")
            before = message
        if grade.trouble:
            print(f"  Ended: {grade.trouble}")
        if grade.printed:
            print(f"  It printed: {grade.printed}")
        print(f"  {grade.points} of {grade.out_of} points", flush=True)
