"""solo: independent policies, nothing shared. The control of every comparison."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mrl.advantages import group_advantages
from mrl.exchange import Record
from mrl.modes import Lesson, Mode, Receiver
from mrl.samples import Group, TrainingSample


@dataclass
class Solo(Mode):
    """Every policy learns from its own completions alone."""

    name = "solo"
    consumes = None

    def training_samples(
        self,
        receiver: Receiver,
        groups: Sequence[Group],
        peers: Mapping[str, Sequence[Record]],
        rng: random.Random,
    ) -> Lesson:
        """The receiver's own groups, scored by its own objective's advantage."""
        return Lesson(own_samples(receiver, groups))


def own_samples(receiver: Receiver, groups: Sequence[Group]) -> list[TrainingSample]:
    """Own completions with group-relative advantages: the on-policy part of most modes."""
    rewards = torch.tensor([group.rewards for group in groups])  # [prompts, group]
    advantages = group_advantages(rewards, receiver.objective.scale_by_std)
    return samples_with(advantages.tolist(), groups)


def samples_with(advantages: list[list[float]], groups: Sequence[Group]) -> list[TrainingSample]:
    """Own completions with the given advantages, [prompts][group].

    Trained on the ids that were sampled, never on re-encoded text (sampled ids are often not the
    tokenizer's own encoding of their text), against the log-probs of the moment of sampling.
    """
    return [
        TrainingSample(
            prompt_ids=group.prompt_ids,
            completion_ids=rollout.completion_ids,
            advantage=advantage,
            behavior_logprobs=rollout.logprobs,
        )
        for group, row in zip(groups, advantages, strict=True)
        for rollout, advantage in zip(group.rollouts, row, strict=True)
    ]
