"""Show the curves of a run in TensorBoard, with one plot per metric and one line per policy.

    pip install tensorboard
    python data/examples/to_tensorboard.py runs/sgt-s0    # writes runs/sgt-s0/tensorboard/
    tensorboard --logdir runs/sgt-s0/tensorboard

To add the latest steps of a run in progress, call this script again. Only this file needs
TensorBoard.
"""

import argparse
from pathlib import Path

from mrl.errors import MrlError
from mrl.run.directory import read_metrics


def write_events(run: Path) -> None:
    """Write a run's metrics.jsonl as event files, one folder per policy."""
    from torch.utils.tensorboard import SummaryWriter

    lines = read_metrics(run)
    if not lines:
        raise MrlError(f"{run} has no finished step yet, so there is nothing to write.")
    for policy in sorted({line["policy"] for line in lines}):
        folder = run / "tensorboard" / policy
        for earlier in folder.glob("events.out.tfevents.*"):
            earlier.unlink()  # otherwise the same steps would be drawn twice, as a zigzag

        with SummaryWriter(folder) as writer:
            for line in lines:
                for key, value in line.items():
                    if line["policy"] == policy and isinstance(value, int | float):
                        writer.add_scalar(key, value, line["step"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Show the curves of a run in TensorBoard.")
    parser.add_argument("run", type=Path, help="run directory, for example runs/sgt-s0")
    try:
        write_events(parser.parse_args().run)
    except ModuleNotFoundError:
        parser.error("TensorBoard is not installed: run `pip install tensorboard`.")
    except MrlError as error:
        parser.error(str(error))
