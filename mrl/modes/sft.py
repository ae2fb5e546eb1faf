"""sft: SGT without RL. This control shows what a policy's own attempts add to a peer's solutions.

SGT does two things at once: a policy learns from its own attempts by RL, and it imitates a peer's
solution when all of these attempts fail. `replay` removes the peer; this mode removes the RL. For
each prompt that a peer has solved, one of the peer's solutions is drawn and imitated. The policy
learns from nothing else:

    L_k = mean over prompts x with a peer's solution of NLL_k(y_peer | x)

NLL is the mean over the receiver's tokens, as in SGT. There is no gate, and every imitated solution
has weight 1. The policy still samples, because the peer learns from its solutions in turn.

This is online rejection sampling between peers. In related work, a model imitates its own verified
completions, or those of a larger model: STaR (arXiv 2203.14465), ReST-EM (2312.06585),
rejection-sampling fine-tuning (2308.01825).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mrl.modes.mode import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.sgt import imitation_samples
from mrl.records import SuccessRecord


@dataclass
class SFT(Mode[SuccessRecord]):
    """Fine-tuning on peers' solutions, without RL."""

    name = "sft"
    consumes = SuccessRecord

    def training_samples(
        self,
        receiver: Receiver,
        experiences: Sequence[Experience[SuccessRecord]],
        rng: random.Random,
    ) -> TrainingBatch:
        """One imitated solution for each prompt that a peer has solved."""
        batch = TrainingBatch()
        for experience in experiences:
            batch.samples += imitation_samples(experience, 1.0, rng)
        return batch
