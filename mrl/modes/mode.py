"""The contract of a sharing mode: the one place where strategies differ.

A mode declares the one type of record that it consumes. For each prompt of a step it gets an
`Experience`: its receiver's own group, and what the peers published about the same prompt. It turns
these into training samples. It never samples (but with `beginnings` it may ask its receiver to try
again), never touches a device and never steps an optimizer. Each policy has its own instance of the
mode, because what a mode remembers belongs to its receiver.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol

from mrl.alignment import ByteCodec
from mrl.config import PolicyConfig
from mrl.objectives import Objective
from mrl.records import CompletionRecord, R, Record
from mrl.samples import Group, SecondAttempt, TrainingSample


class Receiver(Protocol):
    """The attributes of the learning policy that a mode may use."""

    name: str
    codec: ByteCodec
    objective: Objective
    eos_id: int
    max_new_tokens: int
    vocab_size: int  # every token id of a sample must be below it

    def logprobs_of(
        self, prompts: Sequence[list[int]], completions: Sequence[list[int]]
    ) -> list[list[float]]:
        """Log-probs of completions under the receiver's weights before this step's first update.

        Returns [completions][tokens], nats.
        """
        ...


@dataclass(frozen=True)
class Received(Generic[R]):
    """A peer's record as one receiver can use it. exchange.py makes it."""

    record: R
    # The record's whole completion in the receiver's tokens. It ends in the receiver's EOS if and
    # only if the peer's completion was finished. It is empty if the receiver cannot use the text
    # (`refusal` says why), and for `RewardStats`, which have no text.
    token_ids: list[int]
    refusal: str = ""  # the name of the metric that counts it


@dataclass(frozen=True)
class Beginning:
    """The first tokens of a completion, which the receiver is to continue in its own way."""

    token_ids: list[int]  # in the receiver's tokens; without any, it starts anew
    record: CompletionRecord | None = None  # the peer's record that they are from


@dataclass
class Experience(Generic[R]):
    """What a mode gets for one prompt. `Experience[SuccessRecord]` has records of that type."""

    group: Group  # the receiver's own completions
    received: list[Received[R]]  # from its peers; the receiver has judged each text again
    # one for each beginning that the mode named, with its verdict; not part of the group
    second_attempts: list[SecondAttempt] = field(default_factory=list)

    @property
    def records(self) -> list[R]:
        """The records that were received, also those whose text the receiver cannot use."""
        return [received.record for received in self.received]

    @property
    def usable(self) -> list[Received[R]]:
        """What was received in tokens that the receiver could have written itself."""
        return [received for received in self.received if received.token_ids]


@dataclass
class TrainingBatch:
    """What a mode decides in one step for one receiver.

    A mode does not count what it left unused or what alignment lost: run/metrics.py counts this,
    because each sample points at the record or at the completion that it was made from.
    """

    samples: list[TrainingSample] = field(default_factory=list)  # learned in this order
    notes: dict[str, float] = field(default_factory=dict)  # the mode's own metrics, by name


@dataclass
class Mode(ABC, Generic[R]):
    """Base class of all modes. The fields of a mode's dataclass are its settings.

    R is the type of record that the mode consumes. `class Mine(Mode[SuccessRecord])` tells a type
    checker and an editor which one that is; `class Mine(Mode)` works as well.
    """

    name: ClassVar[str]
    consumes: ClassVar[type[Record] | None] = None  # the only type of record that it receives
    rollout_factor: ClassVar[int] = 1  # multiplies group size and updates per step
    published_updates: ClassVar[int] = 1  # updates per step in the mode's paper

    @abstractmethod
    def training_samples(
        self, receiver: Receiver, experiences: Sequence[Experience[R]], rng: random.Random
    ) -> TrainingBatch:
        """Turn what the receiver experienced into samples that it learns from.

        experiences: one for each prompt of the step.

        rng: seeded by run, step and receiver. A mode must not use any other randomness.
        """

    def beginnings(
        self, receiver: Receiver, experiences: Sequence[Experience[R]], rng: random.Random
    ) -> list[list[Beginning]]:
        """For each prompt, the beginnings from which the receiver tries again before it learns.

        The receiver samples one completion from each of them. They are judged, and then stand in
        `Experience.second_attempts`. They count neither as completions of the step nor in its
        groups. By default, nothing is tried again. rng: as in `training_samples`.
        """
        return [[] for _ in experiences]

    @property
    def tries_again(self) -> bool:
        """Whether the mode has a method `beginnings` of its own."""
        return type(self).beginnings is not Mode.beginnings

    def updates_per_step(self, config: PolicyConfig) -> int:
        """The largest number of updates per step: the policy's, times `rollout_factor`."""
        return config.updates_per_step * self.rollout_factor

    @property
    def objective_of_paper(self) -> str:
        """The objective that the mode uses instead of the policies' own; "" if it uses theirs."""
        return ""

    def state(self) -> dict:
        """What the mode remembers from step to step, as JSON values for a checkpoint."""
        return {}

    def restore(self, state: dict) -> None:  # most modes have nothing to restore
        """Restore what `state` returned."""
