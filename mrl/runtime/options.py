"""The options of `python mini_mrl.py`, as types: each is what it holds and what `--help` says."""

from pathlib import Path
from typing import Annotated

import typer

from mrl.config import HELP

Mode = Annotated[str | None, typer.Option(help=HELP["mode"])]
Pair = Annotated[
    str | None, typer.Option(help="tiny, qwen-smol, or hub names or directories: DIR_A,DIR_B[,...]")
]
Steps = Annotated[int | None, typer.Option(help=HELP["steps"])]
Seed = Annotated[int | None, typer.Option(help=HELP["seed"])]
Name = Annotated[str | None, typer.Option(help=HELP["name"])]
Placement = Annotated[str | None, typer.Option(help=HELP["placement"])]
Config = Annotated[Path | None, typer.Option(help="a TOML file with settings")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="KEY=VALUE for any setting (`settings` lists all), repeatable"),
]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of the live view.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Directory = Annotated[Path, typer.Argument(help="A run: runs/<name>.")]
