"""XGRPO, Cross-Policy GRPO Advantage Sharing (arXiv 2605.07244; our reading): rewards alone cross.

A group that failed altogether has no gradient of its own. If a peer succeeded on the prompt, the
shared baseline says that there was something to gain:

    A_i = (r_i - mu) / (sigma + eps),   mu = (1 - mix) * mean_own + mix * mean_all

with mean_all and sigma over own and peers' rewards together. All own completions of such a group
are pushed down. The gradient is back, but its support stays on-policy: no text crosses, so the
receiver learns what not to say, never what to say instead.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mrl.advantages import shared_baseline_advantages
from mrl.errors import MrlError
from mrl.modes import Lesson, Mode, Receiver
from mrl.modes.solo import samples_with
from mrl.records import RewardStats
from mrl.samples import Group


@dataclass
class XGRPO(Mode):
    """Own completions only, scored against a baseline that peers' rewards take part in."""

    name = "xgrpo"
    consumes = RewardStats
    mix: float = 1.0  # 0 keeps the own mean as baseline; sigma is of all rewards either way

    def __post_init__(self) -> None:
        if not 0 <= self.mix <= 1:
            raise MrlError(f"xgrpo.mix is {self.mix}, but must be from 0 to 1.")

    def training_samples(
        self,
        receiver: Receiver,
        groups: Sequence[Group],
        peers: Mapping[str, Sequence[RewardStats]],
        rng: random.Random,
    ) -> Lesson:
        """Own samples with shared-baseline advantages."""
        said = [peers.get(group.problem.id, ()) for group in groups]
        width = max(map(len, said), default=0)
        figures = torch.zeros(3, len(groups), width)  # count, mean, std: [3, prompts, peers]
        for p, stats in enumerate(said):
            for j, peer in enumerate(stats):
                figures[:, p, j] = torch.tensor([peer.count, peer.mean, peer.std])
        rewards = torch.tensor([group.rewards for group in groups])  # [prompts, group]
        advantages = shared_baseline_advantages(
            rewards, *figures, self.mix, receiver.objective.scale_by_std
        )
        lesson = Lesson()
        for group, row in zip(groups, advantages.tolist(), strict=True):
            lesson.samples += samples_with(row, group)
        return lesson
