"""solo: independent policies that share nothing. This is the control in every comparison.

`solo-x2` is the control with equal resources: it doubles the completions per prompt and the
updates, to match a receiver that also learns from a peer's group.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mrl.advantages import group_advantages
from mrl.modes.mode import Experience, Mode, Receiver, TrainingBatch
from mrl.objectives import Objective
from mrl.samples import Group, TrainingSample


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


def own_samples(
    receiver: Receiver, group: Group, objective: Objective | None = None
) -> list[TrainingSample]:
    """The receiver's completions with group-relative advantages: on-policy samples of most modes.

    objective: used instead of the receiver's own objective.
    """
    import torch  # not above: the settings of modes are read without torch

    scale_by_std = (objective or receiver.objective).scale_by_std
    rewards = torch.tensor([group.rewards])  # [1, group]
    advantages = group_advantages(rewards, scale_by_std)

    # if all rewards are equal, all advantages are 0: such samples are counted, but never computed
    return samples_with(advantages[0].tolist(), group, objective)


def samples_with(
    advantages: Sequence[float], group: Group, objective: Objective | None = None
) -> list[TrainingSample]:
    """The receiver's completions in one group, with the given advantages.

    The samples hold the sampled ids, never re-encoded text: sampled ids often differ from the
    tokenizer's own encoding of their text. The ratio's denominator is the policy as it was when it
    sampled, even if a mode keeps the group and learns from it in a later step.
    """
    return [
        TrainingSample(
            prompt_ids=group.prompt_ids,
            completion_ids=rollout.completion_ids,
            advantage=advantage,
            behavior_logprobs=rollout.logprobs,
            sampled_version=rollout.version,
            objective=objective,
            rollout=rollout,
            reward=rollout.reward,
        )
        for rollout, advantage in zip(group.rollouts, advantages, strict=True)
    ]
