"""Helpers of most modes: they turn the receiver's own completions into training samples."""

from collections.abc import Sequence

from mrl.advantages import group_advantages
from mrl.modes.mode import Receiver
from mrl.objectives import Objective
from mrl.samples import Group, TrainingSample


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
