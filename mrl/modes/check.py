"""Finds mistakes in the batch of a mode of your own."""

import inspect
import math
from itertools import chain
from typing import Any

from mrl.errors import MrlError
from mrl.modes import Beginning, Mode, Receiver, TrainingBatch
from mrl.samples import TrainingSample


def check_batch(batch: object, mode: Mode, receiver: Receiver) -> TrainingBatch:
    """Return the batch of a mode, or raise MrlError for a mistake that would go unnoticed later.

    Any other mistake ends the run with its own traceback.
    """
    where = f"{_source_file(mode)}: training_samples of {type(mode).__name__}"
    if not isinstance(batch, TrainingBatch):
        raise MrlError(f"{where} returned {type(batch).__name__}; it must return a TrainingBatch.")

    for sample in batch.samples:
        mistake = _find_mistake(sample, receiver.vocab_size)
        if sample.source == receiver.name:  # it would count as a peer's sample
            mistake = "a `record` of its receiver; leave `record` empty for its own completions"
        if mistake:
            raise MrlError(f"{where} returned a sample with {mistake}.")

    for name, note in batch.notes.items():
        try:
            batch.notes[name] = _plain_number(note)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            raise MrlError(
                f"{where} returned the note {name!r} = {note!r:.100}; it must be a number."
            ) from None
    return batch


def check_beginnings(
    beginnings: object, mode: Mode, receiver: Receiver, count: int
) -> list[list[Beginning]]:
    """Return the beginnings that a mode names for `count` prompts; MrlError if one is unusable."""
    where = f"{_source_file(mode)}: beginnings of {type(mode).__name__}"
    if not isinstance(beginnings, list) or len(beginnings) != count:
        raise MrlError(f"{where} must return a list with one list for each of the {count} prompts.")

    for beginning in chain.from_iterable(beginnings):
        ids = beginning.token_ids
        if ids and (min(ids) < 0 or max(ids) >= receiver.vocab_size):
            raise MrlError(f"{where} returned token_ids with a token that its receiver lacks.")
        if len(ids) >= receiver.max_new_tokens:
            raise MrlError(
                f"{where} returned a beginning of {len(ids)} tokens, which leaves no room for the "
                f"rest: its receiver writes at most {receiver.max_new_tokens} tokens."
            )
    return beginnings


def _source_file(mode: Mode) -> str:
    """The file of a mode's class, or its module if it was written in a notebook."""
    try:
        return inspect.getfile(type(mode))
    except (OSError, TypeError):  # there is no file
        return type(mode).__module__


def _plain_number(note: Any) -> float:
    """A note as a plain number; it may be, for example, a torch tensor or a numpy scalar."""
    if isinstance(note, str | bytes):  # float() would accept these
        raise TypeError
    number = float(note)
    return note if type(note) in (int, float) else number


def _find_mistake(sample: TrainingSample, vocabulary: int) -> str:
    """What is wrong with a sample, as the end of an error sentence; empty if nothing is."""
    # checked here, because a GPU would report a bad token without naming the token or the mode
    for name in ("prompt_ids", "completion_ids"):
        ids = getattr(sample, name)
        if not ids or min(ids) < 0 or max(ids) >= vocabulary:
            return f"{name} that are empty or hold a token that its receiver does not have"
    if not math.isfinite(sample.weight * sample.advantage):
        return f"weight {sample.weight} and advantage {sample.advantage}; both must be finite"

    # a sample with an unknown loss would be trained in the wrong way, without an error
    if sample.loss not in ("policy", "imitation"):
        return f"the loss {sample.loss!r}; it must be 'policy' or 'imitation'"

    # the fields that the ratio needs at each token
    needed: list[str] = []
    if sample.loss == "policy" and sample.needs_forward:
        level = sample.objective.ratio_level if sample.objective else ""
        needed.append("behavior_logprobs")
        if level == "chunk":
            needed.append("chunk_of")  # without it, the whole completion would be one chunk

    tokens = len(sample.completion_ids)
    for name in needed:
        count = len(getattr(sample, name))
        if count != tokens:
            return f"{count} {name} for {tokens} completion_ids; there must be one per token"
    return ""
