"""`python mini_mrl.py assignment ...`: list, start, check."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mrl.classroom import ASSIGNMENTS, OUT_OF

if TYPE_CHECKING:  # the command line starts without what only a check needs
    from mrl.classroom.checking import Grade

assignment = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
console = Console()


@assignment.command("list")
def list_assignments() -> None:
    """What there is, in the order of difficulty."""
    for number, (name, what) in enumerate(ASSIGNMENTS.items(), start=1):
        console.print(f"{number}. {name:<11} {what}", highlight=False)


@assignment.command("start")
def start_assignment(
    name: Annotated[str, typer.Argument(help="See `assignment list`.")],
    to: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("."),
) -> None:
    """Write the file to begin with; its docstring is the contract."""
    from mrl.classroom.checking import start

    for path in start(name, to):
        console.print(f"Written: {path}", soft_wrap=True, highlight=False)


@assignment.command("check")
def check_assignment(
    files: Annotated[list[Path], typer.Argument(help="Submissions, or folders of them.")],
    as_json: Annotated[bool, typer.Option("--json", help="One line a submission.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the hidden cases; else a new one.")] = None,
) -> None:
    """Run pytest on each submission, in a process of its own; say what came out, and points."""
    from mrl.classroom.checking import check_all, submissions

    for grade in check_all(submissions(files), seed):
        if as_json:
            print(json.dumps(grade.to_dict()), flush=True)
            continue
        lines = [f"{grade.file}: {grade.assignment or 'no assignment'}", *parts_in_words(grade)]
        lines += [f"  Ended: {grade.trouble}"] if grade.trouble else []
        lines += [f"  It printed: {grade.printed}"] if grade.printed else []
        lines += [f"  {grade.points} of {OUT_OF} points"]
        console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def parts_in_words(grade: "Grade") -> Iterator[str]:
    """A line a part; a message that stands above already is not repeated."""
    before = ""
    for part in grade.parts:
        points, message = part["points"], part["message"]
        words = ["right."] if points else []
        words += ["as above"] if message and message == before else [message] if message else []
        before = message
        yield f"  {points} of {part['out_of']}  {part['part']}: {' '.join(words)}"
