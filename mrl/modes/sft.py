"""sft: SGT without RL. The control that tells what reinforcement learning adds to a peer's texts.

SGT does two things at once: it learns from its own attempts by RL, and it imitates a peer's success
where all of them failed. `replay` takes the peer away; this mode takes the RL away. Wherever a peer
has a verified success, one is drawn and imitated, and nothing else is learnt from:

    L_k = mean over prompts x with a peer's success of NLL_k(y_peer | x)

NLL is the mean over the receiver's tokens, as in SGT. There is no gate, and each text has weight 1.
Own attempts are sampled only because the peer learns from their successes in turn.

So this is online rejection sampling, between peers. Relatives, where a model imitates its own or a
larger model's verified texts: STaR (arXiv 2203.14465), ReST-EM (2312.06585), rejection-sampling
fine-tuning (2308.01825).
"""

import random
from dataclasses import dataclass

from mrl.modes.mode import GroupsAndRecords, Mode, Receiver, TrainingBatch
from mrl.modes.sgt import imitation_samples
from mrl.records import SuccessRecord


@dataclass
class SFT(Mode):
    """Fine-tuning on peers' verified successes, without RL."""

    name = "sft"
    consumes = SuccessRecord

    def training_samples(
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """One imitated success for each prompt where a peer has one."""
        batch = TrainingBatch()
        for group, successes in groups_and_records:
            batch.samples += imitation_samples(receiver, group, successes, 1.0, rng)
        return batch
