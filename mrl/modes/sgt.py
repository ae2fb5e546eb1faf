"""SGT, Success-Gated Transfer (arXiv 2605.07244): imitate a peer only if all attempts fail.

If *all* of the receiver's attempts at a prompt fail, all advantages of the group are zero, and the
receiver learns nothing from the prompt, however often it tries. SGT helps in exactly this case. If
a peer has a verified solution (the prompt is then in the *rescue set*), one solution is drawn and
imitated. It is drawn among the solutions that the receiver's tokenizer can represent and that are
not too long for the receiver:

    L_k = L_own,k + lambda * mean over rescued x of NLL_k(y_peer | x)

lambda is `imitation_weight`, 0.1 in the paper. Our reading of the paper: NLL is the mean over the
solution's tokens in the receiver's tokenizer, with the receiver's EOS if the peer's completion was
finished. The outer mean is over the rescued prompts of an update, not over all prompts. So the
rescued prompts of an update share the weight lambda, and a single one gets all of it. The mode only
makes the samples; learning.py computes both losses (`policy_loss`, `imitation_loss`).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mrl.config import setting
from mrl.modes.mode import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.own import own_samples
from mrl.modes.peers import peer_sample
from mrl.records import SuccessRecord
from mrl.samples import TrainingSample


@dataclass
class SGT(Mode[SuccessRecord]):
    """The policy's own objective; if all attempts fail, also imitate a peer's solution."""

    name = "sgt"
    consumes = SuccessRecord
    imitation_weight: float = setting(0.1, "weight lambda of the imitation loss", least=0)

    def training_samples(
        self,
        receiver: Receiver,
        experiences: Sequence[Experience[SuccessRecord]],
        rng: random.Random,
    ) -> TrainingBatch:
        """The receiver's samples, and an imitated solution for each prompt of the rescue set."""
        batch = TrainingBatch()
        for experience in experiences:
            batch.samples += own_samples(receiver, experience.group)
            if experience.group.outcome == "all_fail":  # the gate: none of the attempts succeeded
                batch.samples += imitation_samples(experience, self.imitation_weight, rng)
        return batch


def imitation_samples(
    experience: Experience[SuccessRecord], weight: float, rng: random.Random
) -> list[TrainingSample]:
    """One of the peers' solutions as a sample to imitate; [] if the receiver can use none.

    It is drawn uniformly among the usable solutions.
    """
    usable = experience.usable
    if not usable:
        return []
    return [peer_sample(experience.group, rng.choice(usable), "imitation", weight)]
