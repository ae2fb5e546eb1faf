"""The options of `python mini_mrl.py`, as types: each is what it holds and what `--help` says."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mrl.config import HELP, RunConfig
from mrl.modes import MODES

MODE_HELP = f"what is shared: {', '.join(MODES)}; or your own, FILE.py:Class"
PAIR_HELP = "tiny, qwen-smol, or hub names or directories: DIR_A,DIR_B[,...]"
BEST_PAIR = "tiny; qwen-smol where a GPU, both models and GSM8K are at hand"


def option(text: str, default: object, *names: str) -> Any:
    """An option with its help and its default, which the settings have and not the command."""
    return typer.Option(*names, help=f"{text}  [default: {default}]")


Mode = Annotated[str | None, option(MODE_HELP, RunConfig.mode)]
Pair = Annotated[str | None, option(PAIR_HELP, BEST_PAIR)]
Steps = Annotated[int | None, option(HELP["steps"], RunConfig.steps)]
Seed = Annotated[int | None, option(HELP["seed"], RunConfig.seed)]
Name = Annotated[str | None, option("directory under `runs`", "made from mode and seed")]
Placement = Annotated[str | None, option(HELP["placement"], RunConfig.placement)]
Config = Annotated[Path | None, option("a TOML file with settings", "none")]
Settings = Annotated[
    list[str] | None,
    option("KEY=VALUE for any setting (`settings` lists all), repeatable", "none", "--set"),
]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of the live view.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
Directory = Annotated[Path, typer.Argument(help="A run: runs/<name>.")]
