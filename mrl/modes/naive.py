"""naive: peers' rollouts as if they were one's own (the baseline of arXiv 2603.02604).

Pools as PRP does, but the ratio of a peer's completion has the receiver's *own* old log-probs
below the line, as if it had sampled the text itself:

    ratio = pi_theta(receiver's tokens) / pi_theta,old(the same tokens)

Nothing corrects for who wrote the text. The gradient is biased, most where the policies differ
most; it is known to hurt, and that is what it is here for.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mrl.advantages import group_advantages
from mrl.modes import Lesson, Mode, Receiver
from mrl.modes.peers import peer_samples
from mrl.modes.solo import samples_with
from mrl.records import RolloutRecord
from mrl.samples import Group


@dataclass
class Naive(Mode):
    """Own and peers' rollouts in one group, peers' taken for one's own."""

    name = "naive"
    consumes = RolloutRecord

    def training_samples(
        self,
        receiver: Receiver,
        groups: Sequence[Group],
        peers: Mapping[str, Sequence[RolloutRecord]],
        rng: random.Random,
    ) -> Lesson:
        """Own and peers' samples of a prompt side by side, advantages over all of them."""
        lesson = Lesson()
        for group in groups:
            records = peers.get(group.problem.id, ())
            pooled = samples_with([0.0] * len(group.rollouts), group)
            pooled += [sample for sample, _ in peer_samples(receiver, group, records, lesson)]
            rewards = torch.tensor([[sample.reward for sample in pooled]])  # [1, own + peers']
            advantages = group_advantages(rewards, receiver.objective.scale_by_std)[0]
            for sample, advantage in zip(pooled, advantages.tolist(), strict=True):
                sample.advantage = advantage
            lesson.samples += pooled
        foreign = [sample for sample in lesson.samples if sample.source and sample.can_teach]
        scored = receiver.score(
            [sample.prompt_ids for sample in foreign],
            [sample.completion_ids for sample in foreign],
        )
        for sample, old_logprobs in zip(foreign, scored, strict=True):
            sample.behavior_logprobs = old_logprobs
        return lesson
