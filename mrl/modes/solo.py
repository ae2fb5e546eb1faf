"""solo: independent policies that share nothing. This is the control in every comparison.

`solo-x2` is the control with equal resources: it doubles the completions per prompt and the
updates, to match a receiver that also learns from a peer's group.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mrl.modes.mode import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.own import own_samples


@dataclass
class Solo(Mode):
    """Every policy learns only from its own completions."""

    name = "solo"
    consumes = None

    def training_samples(
        self, receiver: Receiver, experiences: Sequence[Experience], rng: random.Random
    ) -> TrainingBatch:
        """The samples of the receiver's groups, with the advantages of its own objective."""
        batch = TrainingBatch()
        for experience in experiences:
            batch.samples += own_samples(receiver, experience.group)
        return batch


@dataclass
class SoloX2(Solo):
    """Like solo, with twice the rollouts and twice the updates."""

    name = "solo-x2"
    rollout_factor = 2
