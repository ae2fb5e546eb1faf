"""PRP, Peer Rollout Pooling (arXiv 2605.07244; our reading): peers' rollouts join the group.

The receiver's group for a prompt becomes its own G completions plus each peer's, retokenized;
advantages are taken over the pooled group. An own completion has the usual ratio. A peer's has

    ratio = pi_theta(receiver's tokens) / pi_peer,old(the peer's log-probs, carried over by THL)

clipped as the own one. It is the only mode that corrects for who wrote a text, and it pays for
that with the variance of the density ratio and with what alignment loses:

- token: a chunk's log-prob spread over its receiver tokens by bytes; approximate;
- chunk: both sides summed between shared byte boundaries; exact (our default). A chunk's ratio
  stands once in the loss, however many tokens the receiver has in it;
- sequence: the geometric mean over the whole completion, as in GSPO; exact, little variance.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from mrl.advantages import group_advantages
from mrl.errors import MrlError
from mrl.modes import Lesson, Mode, Receiver
from mrl.modes.received import peer_samples, projected
from mrl.modes.solo import samples_with
from mrl.records import RolloutRecord
from mrl.samples import Group

LEVELS = ("token", "chunk", "sequence")


@dataclass
class PRP(Mode):
    """Own and peers' rollouts in one group, peers' corrected by the density ratio."""

    name = "prp"
    consumes = RolloutRecord
    ratio_level: str = "chunk"
    clip_low: float = 0.2  # of peers' ratios; own ones follow the receiver's objective
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        if self.ratio_level not in LEVELS:
            raise MrlError(f"prp.ratio_level is {self.ratio_level!r}; use {', '.join(LEVELS)}.")
        if min(self.clip_low, self.clip_high) < 0:
            raise MrlError("prp.clip_low and prp.clip_high must be 0 or more.")

    def training_samples(
        self,
        receiver: Receiver,
        groups: Sequence[Group],
        peers: Mapping[str, Sequence[RolloutRecord]],
        rng: random.Random,
    ) -> Lesson:
        """Own and peers' samples of a prompt side by side, advantages over all of them."""
        lesson = Lesson()
        surrogate = replace(
            receiver.objective,
            ratio_level=self.ratio_level,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
        )
        for group in groups:
            pooled = samples_with([0.0] * len(group.rollouts), group)
            for sample, record in peer_samples(
                receiver, group, peers.get(group.problem.id, ()), lesson
            ):
                sample.surrogate = surrogate
                sample.behavior_logprobs, sample.chunk_of = projected(
                    receiver, record, sample.completion_ids
                )
                pooled.append(sample)
            rewards = torch.tensor([[sample.reward for sample in pooled]])  # [1, own + peers']
            advantages = group_advantages(rewards, receiver.objective.scale_by_std)[0]
            for sample, advantage in zip(pooled, advantages.tolist(), strict=True):
                sample.advantage = advantage
            lesson.samples += pooled
        return lesson
