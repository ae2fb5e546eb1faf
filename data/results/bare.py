"""Modes whose peers publish only the box of a solution, as an API that hides its reasoning does.

Before the mode looks at what was received, each solution is cut to its last box. It is still
correct, but it no longer shows how the answer was found. Nothing else about the mode changes.

A box has no beginning, so `BareHint` never gets help: its samples are those of `solo`.

    python mini_mrl.py --mode data/results/bare.py:BareSGT
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mrl.exchange import receive
from mrl.modes import Beginning, Experience, Mode, Receiver, TrainingBatch
from mrl.modes.hint import Hint
from mrl.modes.rft import RFT
from mrl.modes.sft import SFT
from mrl.modes.sgt import SGT
from mrl.records import SuccessRecord
from mrl.verifier.plain import last_box

Experiences = Sequence[Experience[SuccessRecord]]


def cut(receiver: Receiver, experiences: Experiences) -> Experiences:
    """Cut each received solution to its box, in place, so that the log counts what was used."""
    for experience in experiences:
        boxes = [boxed(record) for record in experience.records]
        experience.received[:] = [receive(receiver, box) for box in boxes]
    return experiences


def boxed(record: SuccessRecord) -> SuccessRecord:
    """The record of a solution that is nothing but the box."""
    text = f"\\boxed{{{last_box(record.text) or ''}}}"
    return replace(record, text=text, token_lengths=(len(text.encode()),), canonical=False)


class Bare(Mode[SuccessRecord]):
    """Goes before a mode that imitates, in the list of a class's parents."""

    def training_samples(
        self, receiver: Receiver, experiences: Experiences, rng: random.Random
    ) -> TrainingBatch:
        """The samples of the mode after the cut."""
        return super().training_samples(receiver, cut(receiver, experiences), rng)


@dataclass
class BareSFT(Bare, SFT):
    """`sft` with bare boxes."""

    name = "sft-bare"


@dataclass
class BareRFT(Bare, RFT):
    """`rft` with bare boxes."""

    name = "rft-bare"


@dataclass
class BareSGT(Bare, SGT):
    """`sgt` with bare boxes."""

    name = "sgt-bare"


@dataclass
class BareHint(Hint):
    """`hint` with bare boxes."""

    name = "hint-bare"

    def beginnings(
        self, receiver: Receiver, experiences: Experiences, rng: random.Random
    ) -> list[list[Beginning]]:
        """The beginnings that `hint` names after the cut: none, because a box has no beginning."""
        return super().beginnings(receiver, cut(receiver, experiences), rng)
