"""XGRPO, Cross-Policy GRPO Advantage Sharing (arXiv 2605.07244; our reading): share only rewards.

A group whose attempts all fail has no gradient of its own. If a peer succeeded on the prompt, the
shared baseline shows that there was something to gain:

    A_i = (r_i - mu) / (sigma + eps),   mu = (1 - peer_share) * mean_own + peer_share * mean_all

mean_all and sigma are taken over the receiver's and its peers' rewards together (`dr_grpo` uses no
sigma). If a peer succeeded, all completions of such a group become less likely. So there is a
gradient again, but its support stays on-policy: no text is shared, so the receiver learns what not
to write, and never what to write instead.

Related work: ILR (arXiv 2509.26306), half a year older, also shares reward statistics.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mrl.advantages import shared_baseline_advantages
from mrl.config import setting
from mrl.modes.mode import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.own import samples_with
from mrl.records import RewardStats


@dataclass
class XGRPO(Mode[RewardStats]):
    """The policy's own completions only, with a baseline that includes the peers' rewards."""

    name = "xgrpo"
    consumes = RewardStats
    # baseline = (1 - peer_share) * mean of the receiver's rewards + peer_share * mean of all
    # rewards, including the receiver's; sigma always uses all rewards
    peer_share: float = setting(
        1.0, "weight of the mean over all policies' rewards in the baseline", least=0, most=1
    )

    def training_samples(
        self,
        receiver: Receiver,
        experiences: Sequence[Experience[RewardStats]],
        rng: random.Random,
    ) -> TrainingBatch:
        """The receiver's samples, with advantages relative to the shared baseline."""
        import torch  # not above: the settings of modes are read without torch

        batch = TrainingBatch()
        for experience in experiences:
            group, stats = experience.group, experience.records
            advantages = shared_baseline_advantages(
                torch.tensor([group.rewards]),  # [1, group]
                torch.tensor([[peer.count for peer in stats]]),  # [1, peers], like the next two
                torch.tensor([[peer.mean for peer in stats]]),
                torch.tensor([[peer.std for peer in stats]]),
                self.peer_share,
                receiver.objective.scale_by_std,
            )
            batch.samples += samples_with(advantages[0].tolist(), group)
        return batch
