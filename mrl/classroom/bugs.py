"""Two of the bugs behind the curves of assignment `bug`: modes that differ from solo in a line.

The others are settings; data/README.md has all commands.
"""

import random
from dataclasses import replace

import torch

from mrl.advantages import group_advantages
from mrl.modes import Prompts, Receiver, TrainingBatch
from mrl.modes.solo import Solo, samples_with


class MixedGroups(Solo):
    """Advantages are handed out as if groups were counted the other way round."""

    name = "mixed-groups"

    def training_samples(
        self, receiver: Receiver, prompts: Prompts, rng: random.Random
    ) -> TrainingBatch:
        """Own samples with advantages that belong to others."""
        groups = [group for group, _ in prompts]
        rewards = torch.tensor([group.rewards for group in groups])
        mixed = group_advantages(rewards).T.reshape(rewards.shape)
        rows = zip(groups, mixed.tolist(), strict=True)
        return TrainingBatch([sample for group, row in rows for sample in samples_with(row, group)])


class Sign(Solo):
    """The loss is maximized."""

    name = "sign"

    def training_samples(
        self, receiver: Receiver, prompts: Prompts, rng: random.Random
    ) -> TrainingBatch:
        """Own samples with advantages of the opposite sign."""
        samples = super().training_samples(receiver, prompts, rng).samples
        return TrainingBatch([replace(sample, advantage=-sample.advantage) for sample in samples])
