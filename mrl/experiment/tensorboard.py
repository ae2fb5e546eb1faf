"""Scalars for TensorBoard, if it is installed; nothing is asked for otherwise."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path


def scalar_writer(directory: Path) -> Callable[[dict], None]:
    """A function that takes metrics lines: it writes numbers as `<policy>/<metric>`, or nothing."""
    if find_spec("tensorboard") is None:
        return lambda line: None
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(directory / "tensorboard"))

    def write(line: dict) -> None:
        for key, value in line.items():
            if isinstance(value, int | float) and key != "step":
                writer.add_scalar(f"{line['policy']}/{key}", value, line["step"])
        writer.flush()

    return write
