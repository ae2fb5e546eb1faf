"""SGT, Success-Gated Transfer (arXiv 2605.07244): imitate a peer only where one failed outright.

On a prompt where *every* own completion failed, group advantages are all zero: the receiver
learns nothing, however long it goes on failing. SGT helps exactly there. If some peer has a
verified success (the prompt is in the *rescue set*), one such success is drawn and imitated, among
those that the receiver's tokenizer can represent and that are not too long for it:

    L_k = L_own,k + lambda * mean over rescued x of NLL_k(y_peer | x)

lambda is `imitation_weight`, 0.1 in the paper. Our reading: NLL is the mean over the receiver's
tokens of the success, with its own end token if the peer had ended. It is averaged over an update's
rescued prompts, not over all prompts: a single rescued prompt has the weight that many have
together.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mrl.config import setting
from mrl.modes.mode import GroupsAndRecords, Mode, Receiver, TrainingBatch
from mrl.modes.peers import retokenize
from mrl.modes.solo import own_samples
from mrl.records import SuccessRecord
from mrl.samples import Group, TrainingSample


@dataclass
class SGT(Mode):
    """Own objective, plus imitation of one verified peer success where all own attempts failed."""

    name = "sgt"
    consumes = SuccessRecord
    imitation_weight: float = setting(0.1, "weight lambda of the imitation loss", least=0)

    def training_samples(
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """Own samples, and for each prompt of the rescue set one imitated success, if any fits."""
        batch = TrainingBatch()
        for group, successes in groups_and_records:
            batch.samples += own_samples(receiver, group)
            if group.outcome == "all_fail":  # the gate: no own attempt succeeded
                batch.samples += imitation_samples(
                    receiver, group, successes, self.imitation_weight, rng
                )
        return batch


def imitation_samples(
    receiver: Receiver,
    group: Group,
    successes: Sequence[SuccessRecord],
    weight: float,
    rng: random.Random,
) -> list[TrainingSample]:
    """One peer success about the group's prompt, as a sample to imitate; [] if none can be used.

    Drawn uniformly among those that fit the receiver's tokenizer and its length limit.
    """
    candidates = list(successes)
    while candidates:
        success = rng.choice(candidates)
        candidates.remove(success)
        completion_ids, refusal = retokenize(receiver, success)
        if refusal:
            continue  # another success may do

        sample = TrainingSample(
            prompt_ids=group.prompt_ids,
            completion_ids=completion_ids,
            loss="imitation",
            weight=weight,
            source=success.source,
            reward=1.0,
        )
        return [sample]
    return []
