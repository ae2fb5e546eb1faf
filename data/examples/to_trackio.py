"""Show the curves of a run in trackio, with one plot per metric and one line per policy.

    pip install trackio
    python data/examples/to_trackio.py runs/sgt-s0    # writes the project mini-mrl-sgt-s0
    trackio show --project mini-mrl-sgt-s0

To add the latest steps of a run in progress, call this script again: it replaces the project. Only
this file needs trackio. wandb has `init`, `log` and `finish` under the same names, but we have not
tried it.
"""

import argparse
from pathlib import Path

from mrl.errors import MrlError
from mrl.run.directory import read_metrics


def write_runs(run: Path) -> None:
    """Write a run's metrics.jsonl as a trackio project with one run per policy."""
    import trackio

    lines = read_metrics(run)
    if not lines:
        raise MrlError(f"{run} has no finished step yet, so there is nothing to write.")
    project = f"mini-mrl-{run.resolve().name}"
    trackio.delete_project(project, force=True)  # otherwise each policy would have two lines
    for policy in sorted({line["policy"] for line in lines}):
        trackio.init(project=project, name=policy, auto_log_cpu=False, auto_log_gpu=False)
        for line in lines:
            if line["policy"] == policy:
                step = line.pop("step")
                numbers = {k: v for k, v in line.items() if isinstance(v, int | float)}
                trackio.log(numbers, step=step)
        trackio.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Show the curves of a run in trackio.")
    parser.add_argument("run", type=Path, help="run directory, for example runs/sgt-s0")
    try:
        write_runs(parser.parse_args().run)
    except ModuleNotFoundError:
        parser.error("trackio is not installed: run `pip install trackio`.")
    except MrlError as error:
        parser.error(str(error))
