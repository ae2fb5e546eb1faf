"""The curves of a run in TensorBoard, a window for each figure and a line for each policy.

    pip install tensorboard
    python data/examples/to_tensorboard.py runs/sgt-s0    # writes runs/sgt-s0/tensorboard/
    tensorboard --logdir runs/sgt-s0/tensorboard

Run it again while a run goes on, and the curves grow. TensorBoard is needed by this file alone.
"""

import argparse
from pathlib import Path

from mrl.errors import MrlError
from mrl.run.directory import read_metrics


def write_events(run: Path) -> None:
    """Write a run's metrics.jsonl as event files, in a folder for each policy."""
    from torch.utils.tensorboard import SummaryWriter

    lines = read_metrics(run)
    if not lines:
        raise MrlError(f"{run}: has no finished step, so there is nothing to write.")
    for policy in sorted({line["policy"] for line in lines}):
        folder = run / "tensorboard" / policy
        for earlier in folder.glob("events.out.tfevents.*"):
            earlier.unlink()  # because two files of the same steps would be drawn as one zigzag

        with SummaryWriter(folder) as writer:
            for line in lines:
                for key, value in line.items():
                    if line["policy"] == policy and isinstance(value, int | float):
                        writer.add_scalar(key, value, line["step"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The curves of a run in TensorBoard.")
    parser.add_argument("run", type=Path, help="the folder of a run, such as runs/sgt-s0")
    try:
        write_events(parser.parse_args().run)
    except ModuleNotFoundError:
        parser.error("TensorBoard is not installed: run `pip install tensorboard`.")
    except MrlError as error:
        parser.error(str(error))
