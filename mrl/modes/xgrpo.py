"""XGRPO, Cross-Policy GRPO Advantage Sharing (arXiv 2605.07244; our reading): rewards alone cross.

A group that failed altogether has no gradient of its own. If a peer succeeded on the prompt, the
shared baseline says that there was something to gain:

    A_i = (r_i - mu) / (sigma + eps),   mu = (1 - peer_share) * mean_own + peer_share * mean_all

with mean_all and sigma over own and peers' rewards together (no sigma for `dr_grpo`). All own
completions of such a group are pushed down. The gradient is back, but its support stays on-policy:
no text crosses, so the receiver learns what not to say, never what to say instead.

A relative that is half a year older: ILR (arXiv 2509.26306) shares reward statistics, too.
"""

import random
from dataclasses import dataclass

import torch

from mrl.advantages import shared_baseline_advantages
from mrl.config import setting
from mrl.modes.mode import GroupsAndRecords, Mode, Receiver, TrainingBatch
from mrl.modes.solo import samples_with
from mrl.records import RewardStats


@dataclass
class XGRPO(Mode):
    """Own completions only, compared with a baseline that peers' rewards take part in."""

    name = "xgrpo"
    consumes = RewardStats
    # How much the mean of all rewards counts in the baseline. The own mean has the rest, so at 0 it
    # is the baseline. (The mean of all has the own rewards in it, too.) sigma is of all either way.
    peer_share: float = setting(
        1.0, "weight of the mean over all policies' rewards in the baseline", least=0, most=1
    )

    def training_samples(
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """Own samples with shared-baseline advantages."""
        batch = TrainingBatch()
        for group, stats in groups_and_records:
            advantages = shared_baseline_advantages(
                torch.tensor([group.rewards]),  # [1, group]
                torch.tensor([[peer.count for peer in stats]]),  # [1, peers], as the next two
                torch.tensor([[peer.mean for peer in stats]]),
                torch.tensor([[peer.std for peer in stats]]),
                self.peer_share,
                receiver.objective.scale_by_std,
            )
            batch.samples += samples_with(advantages[0].tolist(), group)
        return batch
