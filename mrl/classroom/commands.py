"""`python mini_mrl.py assignment ...`: list, start, check."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

assignment = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
console = Console()


@assignment.command("list")
def list_assignments() -> None:
    """What there is, in the order of difficulty."""
    from mrl.classroom import ASSIGNMENTS

    for number, (name, (_, what)) in enumerate(ASSIGNMENTS.items(), start=1):
        console.print(f"{number}. {name:<11} {what}", highlight=False)


@assignment.command()
def start(
    name: Annotated[str, typer.Argument(help="See `assignment list`.")],
    to: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("."),
) -> None:
    """Write the file to begin with; its docstring is the contract."""
    from mrl.classroom.grading import write_stub

    for path in write_stub(name, to):
        console.print(f"Written: {path}", soft_wrap=True, highlight=False)


@assignment.command("check")
@assignment.command("grade", hidden=True)
def check_assignment(
    files: Annotated[list[Path], typer.Argument(help="Submissions, or folders of them.")],
    as_json: Annotated[bool, typer.Option("--json", help="One line a submission.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of the hidden cases; else a new one.")] = None,
) -> None:
    """Run submissions on hidden cases, each in its own process; say what came out, and points."""
    from mrl.classroom import OUT_OF
    from mrl.classroom.grading import grade_all, submissions

    with console.status("Checking ...") as status:
        grades = grade_all(submissions(files), seed, lambda text: status.update(text))
    for grade in grades:
        if as_json:
            print(json.dumps(grade.to_dict()))
            continue
        said = [f"{grade.file}: {grade.assignment or 'no assignment'}"]
        said += [f"  {f.points:g} of {f.out_of:g}  {f.text}" for f in grade.findings]
        said += [f"  Ended: {grade.trouble}"] if grade.trouble else []
        said += [f"  It printed: {grade.output}"] if grade.output else []
        said += [f"  {grade.points:g} of {OUT_OF} points"]
        console.print("\n".join(said), markup=False, highlight=False, soft_wrap=True)
