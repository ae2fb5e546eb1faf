"""solo: independent policies, nothing shared. The control of every comparison.

`solo-x2` is the resource-equivalent control: twice the completions of each prompt and twice the
updates, for what a receiver pays when it also learns from a peer's group.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mrl.advantages import group_advantages
from mrl.modes.mode import GroupsAndRecords, Mode, Receiver, TrainingBatch
from mrl.objectives import Objective
from mrl.samples import Group, TrainingSample


@dataclass
class Solo(Mode):
    """Every policy learns from its own completions alone."""

    name = "solo"
    consumes = None

    def training_samples(
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """The receiver's own groups, scored by its own objective's advantage."""
        batch = TrainingBatch()
        for group, _ in groups_and_records:  # without a peer's records: nothing crosses
            batch.samples += own_samples(receiver, group)
        return batch


@dataclass
class SoloX2(Solo):
    """As solo, with twice the rollouts and twice the updates."""

    name = "solo-x2"
    rollout_factor = 2


def own_samples(
    receiver: Receiver, group: Group, objective: Objective | None = None
) -> list[TrainingSample]:
    """Own completions with group-relative advantages: the on-policy part of most modes.

    objective: an objective in place of the receiver's own.
    """
    scale_by_std = (objective or receiver.objective).scale_by_std
    rewards = torch.tensor([group.rewards])  # [1, group]
    advantages = group_advantages(rewards, scale_by_std)

    # where all rewards agree, all advantages are 0: such samples are counted and never computed
    return samples_with(advantages[0].tolist(), group, objective)


def samples_with(
    advantages: Sequence[float], group: Group, objective: Objective | None = None
) -> list[TrainingSample]:
    """Own completions of one group with the given advantages.

    Trained on the ids that were sampled, never on re-encoded text (sampled ids are often not the
    tokenizer's own encoding of their text). The ratio is to the policy as it was when it sampled,
    also if a mode keeps the group and learns from it in a later step.
    """
    return [
        TrainingSample(
            prompt_ids=group.prompt_ids,
            completion_ids=rollout.completion_ids,
            advantage=advantage,
            sampled_logprobs=rollout.logprobs,
            sampled_version=rollout.version,
            objective=objective,
            reward=rollout.reward,
        )
        for rollout, advantage in zip(group.rollouts, advantages, strict=True)
    ]
