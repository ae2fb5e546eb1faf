"""Checks for code that is not the program's: a mode's batch, and the place of an error."""

import inspect
import math
import sysconfig
import traceback

from mrl.config import DATA
from mrl.errors import MrlError
from mrl.modes import Mode, TrainingBatch
from mrl.modes.mode import Prompts
from mrl.policy import Policy
from mrl.samples import TrainingSample

LIBRARIES = ("<", *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
PROGRAM = (f"{DATA.parent / 'mrl'}/", str(DATA.parent / "mini_mrl.py"))


def place_of(error: BaseException) -> str:
    """File and line where an error began: in a mode of one's own if one took part in it."""
    frames = traceback.extract_tb(error.__traceback__)
    known = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    own = [frame for frame in known if not frame.filename.startswith(PROGRAM)]
    last = (own or known or frames)[-1]
    return f"{last.filename}, line {last.lineno}"


def checked_batch(batch: object, mode: Mode, policy: Policy, prompts: Prompts) -> TrainingBatch:
    """A mode's batch, if a policy can learn from it; else MrlError that names the mode's file."""
    where = f"{inspect.getfile(type(mode))}: training_samples of {type(mode).__name__}"
    if not isinstance(batch, TrainingBatch):
        raise MrlError(f"{where} returns {type(batch).__name__}, but must return a TrainingBatch.")

    for sample in batch.samples:
        flaw = _flaw(sample, len(policy.suppressed))
        if flaw:
            raise MrlError(f"{where} makes a sample that {flaw}.")

    most = sum(len(group.rollouts) + len(records) for group, records in prompts)
    counts = {"rescue_set": batch.rescue_set, "replaced": batch.replaced, **batch.dropped}
    for name, count in counts.items():
        if type(count) is not int or not 0 <= count <= most:
            raise MrlError(f"{where} counts {count!r} as {name}; it must be 0 to {most}.")

    for name, figure in batch.notes.items():
        if not isinstance(figure, int | float):
            raise MrlError(f"{where} notes {figure!r} as {name}; a note must be a number.")
    return batch


def _flaw(sample: object, vocabulary: int) -> str:
    """The flaw of a sample, as the end of a sentence; empty if it has none."""
    if not isinstance(sample, TrainingSample):
        return f"is a {type(sample).__name__} and no TrainingSample"

    for name in ("prompt_ids", "completion_ids"):
        ids = getattr(sample, name)
        if not ids or not all(isinstance(i, int) and 0 <= i < vocabulary for i in ids):
            return f"has {name} that are not all tokens of its receiver (0 to {vocabulary - 1})"

    if sample.loss not in ("policy", "imitation"):
        return f"has the loss {sample.loss!r}; known are policy and imitation"
    for name in ("weight", "advantage"):
        number = getattr(sample, name)
        if not isinstance(number, int | float) or not math.isfinite(number):
            return f"has the {name} {number!r}, which is no finite number"

    needs_ratio = sample.loss == "policy" and sample.has_gradient
    if needs_ratio and len(sample.behavior_logprobs) != len(sample.completion_ids):
        return "has not one of behavior_logprobs for each of completion_ids"
    return ""
