"""A run of the tiny pair that prints nothing, for examples and drawings."""

from mrl.runtime.run import Run
from mrl.runtime.settings import run_config


def quiet_run(folder: str, *settings: str) -> Run:
    """A run with seed 1 in `folder`, to be used in a `with`; settings: KEY=VALUE, as for --set."""
    options = {"seed": 1, "placement": "resident"}
    return Run(run_config("tiny", None, options, [*settings, f"runs={folder}"]))
