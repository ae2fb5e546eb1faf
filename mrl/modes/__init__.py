"""Sharing modes: the one place where strategies differ. One file a mode.

A mode declares which record type it consumes and turns (own groups, peers' records, receiver)
into training samples. It never samples, never touches a device, never steps an optimizer.

To add one, write a subclass of `Mode` in a file of this folder and name it in `MODES`.
"""

import difflib
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Protocol

from mrl.alignment import ByteCodec
from mrl.config import check_table
from mrl.errors import MrlError
from mrl.exchange import Record
from mrl.objectives import Objective
from mrl.residual import Residual
from mrl.samples import Group, TrainingSample


class Receiver(Protocol):
    """What a mode may know of the policy that is about to learn."""

    name: str
    codec: ByteCodec
    objective: Objective
    end_id: int
    max_new_tokens: int


@dataclass
class Rescue:
    """A prompt that the receiver failed on and a peer solved: shown to people, never trained on."""

    problem_id: str
    prompt: str
    skill: str
    receiver: str
    receiver_text: str  # one of its failures
    source: str
    source_text: str


@dataclass
class Lesson:
    """What a mode hands to the trainer for one receiver and step."""

    samples: list[TrainingSample]
    rescues: list[Rescue] = field(default_factory=list)
    rescue_set: int = 0  # prompts that all failed here and that a peer solved
    dropped: Counter[str] = field(default_factory=Counter)  # peers' records, by the mode's reason
    residual: Residual = field(default_factory=Residual)  # of the records that it retokenized


class Mode(ABC):
    """Base of all modes. Settings of a mode are the fields of its dataclass."""

    name: ClassVar[str]
    consumes: ClassVar[type[Record] | None] = None  # the only record type it is ever given

    @abstractmethod
    def training_samples(
        self,
        receiver: Receiver,
        groups: Sequence[Group],
        peers: Mapping[str, Sequence[Record]],
        rng: random.Random,
    ) -> Lesson:
        """Turn own groups and peers' records (by prompt id) into what the receiver learns from.

        rng: seeded by run, step and receiver; the only source of chance that a mode may use.
        """


MODES = {
    "solo": "mrl.modes.solo:Solo",
    "xgrpo": "mrl.modes.xgrpo:XGRPO",
    "sgt": "mrl.modes.sgt:SGT",
}


def make_mode(name: str, settings: dict[str, Any]) -> Mode:
    """The mode of that name with the given settings; MrlError names the nearest right name."""
    if name not in MODES:
        near = difflib.get_close_matches(name, MODES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else ""
        raise MrlError(f"There is no mode {name!r}; {hint} Modes: {', '.join(MODES)}.")
    module, class_name = MODES[name].split(":")
    mode_class = getattr(import_module(module), class_name)
    return mode_class(**check_table(settings, mode_class, f"settings.{name}"))
