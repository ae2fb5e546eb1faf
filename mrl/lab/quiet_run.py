"""A run of the tiny pair that prints nothing, for examples and drawings."""

from collections.abc import Iterator
from contextlib import contextmanager

from mrl.runtime.run import Run
from mrl.runtime.settings import run_config


@contextmanager
def quiet_run(folder: str, *settings: str) -> Iterator[Run]:
    """A run with seed 1 in `folder`, ready for `train_step`; settings: KEY=VALUE, as for --set."""
    chosen = {"seed": 1, "placement": "resident"}
    config = run_config("tiny", None, chosen, [*settings, f"runs={folder}"])
    with Run(config) as run:
        yield run
