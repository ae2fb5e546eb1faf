"""The contract of a sharing mode: the one place where strategies differ.

A mode declares the one type of record that it consumes and turns its receiver's own groups, and
the peers' records about the same prompts, into training samples. It never samples, never touches a
device and never steps an optimizer. Each policy has its own instance: what a mode remembers is its
receiver's alone.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from mrl.alignment import ByteCodec
from mrl.config import PolicyConfig
from mrl.objectives import Objective
from mrl.records import Record
from mrl.samples import Group, TrainingSample

# What a mode is given: for each prompt, the receiver's own group and the peers' records.
GroupsAndRecords = Sequence[tuple[Group, Sequence[Record]]]


class Receiver(Protocol):
    """What a mode may know of the policy that is about to learn."""

    name: str
    codec: ByteCodec
    objective: Objective
    eos_id: int
    max_new_tokens: int

    def logprobs_of(
        self, prompts: Sequence[list[int]], completions: Sequence[list[int]]
    ) -> list[list[float]]:
        """Its log-probs of completions' tokens before this step's first update, nats."""


@dataclass
class TrainingBatch:
    """What a mode decides in one step for one receiver.

    What it left unused, and what alignment cost, is worked out from the samples and from what was
    received (run/metrics.py), so a mode keeps no account of it.
    """

    samples: list[TrainingSample] = field(default_factory=list)  # in the order of learning
    notes: dict[str, float] = field(default_factory=dict)  # numbers of the mode's own, by name


@dataclass
class Mode(ABC):
    """Base of all modes. Settings of a mode are the fields of its dataclass."""

    name: ClassVar[str]
    consumes: ClassVar[type[Record] | None] = None  # the only record type it is ever given
    rollout_factor: ClassVar[int] = 1  # by which group size and updates per step are multiplied
    published_updates: ClassVar[int] = 1  # per step, where the policy's settings name no number

    @abstractmethod
    def training_samples(
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """Turn own groups and peers' records into what the receiver learns from.

        rng: seeded by run, step and receiver; the only source of chance that a mode may use.
        """

    def updates_per_step(self, config: PolicyConfig) -> int:
        """The most updates in a step: as set, or as published, times `rollout_factor`."""
        named = config.updates_per_step
        return (self.published_updates if named is None else named) * self.rollout_factor

    def state(self) -> dict:
        """What it remembers from step to step, as JSON for a checkpoint."""
        return {}

    def restore(self, state: dict) -> None:  # noqa: B027, most modes have nothing to take back
        """Take back what `state` gave."""
