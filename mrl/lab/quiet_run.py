"""A run of the tiny pair that prints nothing, for examples and drawings."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from mrl.runtime.run import Run
from mrl.runtime.settings import run_config
from mrl.runtime.view import make_view


@contextmanager
def quiet_run(folder: str, *settings: str) -> Iterator[Run]:
    """A run with seed 1 in `folder`, ready for `train_step`; settings: KEY=VALUE, as for --set."""
    chosen = {"seed": 1, "placement": "resident"}
    config = run_config("tiny", None, chosen, [*settings, f"runs={folder}"])
    with make_view(Console(quiet=True), config, plain=True) as view, Run(config, view) as run:
        yield run
