"""Checks for code that is not the program's: a mode's batch, and the place of an error."""

import inspect
import math
import sysconfig
import traceback

from mrl.config import DATA
from mrl.errors import MrlError
from mrl.modes import Mode, TrainingBatch
from mrl.policy import Policy
from mrl.samples import TrainingSample

LIBRARIES = ("<", *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
PROGRAM = (f"{DATA.parent / 'mrl'}/", str(DATA.parent / "mini_mrl.py"))


def place_of(error: BaseException) -> str:
    """File and line where an error began: in a mode of one's own if one took part in it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"  # it was never run, so no frame is its own

    frames = traceback.extract_tb(error.__traceback__)
    known = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    own = [frame for frame in known if not frame.filename.startswith(PROGRAM)]
    last = (own or known or frames)[-1]
    return f"{last.filename}, line {last.lineno}"


def checked_batch(batch: object, mode: Mode, policy: Policy) -> TrainingBatch:
    """A mode's batch; MrlError for a mistake in it that nothing else would show at its place.

    Any other mistake ends the run with its traceback.
    """
    where = f"{_file_of(mode)}: training_samples of {type(mode).__name__}"
    if not isinstance(batch, TrainingBatch):
        raise MrlError(f"{where} returns {type(batch).__name__}, but must return a TrainingBatch.")

    for sample in batch.samples:
        flaw = _flaw(sample, len(policy.suppressed))
        if sample.source == policy.name:  # it would be counted as a peer's
            flaw = "names its own policy as source, but of an own text the source is empty"
        if flaw:
            raise MrlError(f"{where} makes a sample that {flaw}.")

    for name, note in batch.notes.items():
        try:
            batch.notes[name] = _number(note)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            raise MrlError(f"{where} notes {note!r:.100} as {name!r}, not a number.") from None
    return batch


def _file_of(mode: Mode) -> str:
    """The file of a mode's class; of one that was written in a notebook, its module."""
    try:
        return inspect.getfile(type(mode))
    except (OSError, TypeError):  # there is no file
        return type(mode).__module__


def _number(note: object) -> float:
    """A note as a plain number, also from a scalar of torch or numpy."""
    if isinstance(note, str | bytes):  # float() would read it
        raise TypeError
    number = float(note)
    return note if type(note) in (int, float) else number


def _flaw(sample: TrainingSample, vocabulary: int) -> str:
    """The flaw of a sample, as the end of a sentence; empty if it has none."""
    # a GPU would answer a foreign token with an error that names neither token nor mode
    for name in ("prompt_ids", "completion_ids"):
        ids = getattr(sample, name)
        if not ids or min(ids) < 0 or max(ids) >= vocabulary:
            return f"has {name} that are empty or not all tokens of its receiver"
    if not math.isfinite(sample.weight * sample.advantage):
        return f"has the weight {sample.weight} and the advantage {sample.advantage}"

    # another loss would be left out, or learnt from by the policy loss and counted as imitation
    if sample.loss not in ("policy", "imitation"):
        return f"has the loss {sample.loss!r}; known are policy and imitation"

    # what a ratio needs at each token
    needed: list[str] = []
    if sample.loss == "policy" and sample.needs_forward:
        level = sample.objective.ratio_level if sample.objective else ""
        if sample.behavior_logprobs is None:
            needed.append("sampled_logprobs")  # an own text of this step
        elif level != "text":  # there only their mean counts
            needed.append("behavior_logprobs")
        if level == "chunk":
            needed.append("chunk_of")  # else the whole text would be one chunk

    for name in needed:
        if len(getattr(sample, name)) != len(sample.completion_ids):
            return f"has not one of {name} for each of completion_ids"
    return ""
