"""Two of the bugs that assignment `bug` draws: modes that differ from `solo` in one line.

The other bugs are settings. data/results/README.md has all commands.
"""

import random

from mrl.modes import Experience, Receiver, TrainingBatch
from mrl.modes.solo import Solo


class MixedGroups(Solo):
    """Advantages are handed out as if groups were counted the other way round."""

    name = "mixed-groups"

    def training_samples(
        self, receiver: Receiver, experiences: list[Experience], rng: random.Random
    ) -> TrainingBatch:
        """Own samples with advantages that belong to others."""
        batch = super().training_samples(receiver, experiences, rng)
        own, size = (
            [sample.advantage for sample in batch.samples],
            len(experiences[0].group.rollouts),
        )
        mixed = [advantage for place in range(size) for advantage in own[place::size]]
        for sample, advantage in zip(batch.samples, mixed, strict=True):
            sample.advantage = advantage
        return batch


class Sign(Solo):
    """The loss is maximized."""

    name = "sign"

    def training_samples(
        self, receiver: Receiver, experiences: list[Experience], rng: random.Random
    ) -> TrainingBatch:
        """Own samples with advantages of the opposite sign."""
        batch = super().training_samples(receiver, experiences, rng)
        for sample in batch.samples:
            sample.advantage = -sample.advantage
        return batch
