"""SGT, Success-Gated Transfer (arXiv 2605.07244): imitate a peer only when all own attempts fail.

If *every* own completion of a prompt fails, all group advantages are zero, and the receiver learns
nothing from the prompt, however often it fails. SGT helps exactly there. If a peer has a verified
solution (the prompt is then in the *rescue set*), one solution is drawn and imitated. It is drawn
among those that the receiver's tokenizer can represent and that are not too long for the receiver:

    L_k = L_own,k + lambda * mean over rescued x of NLL_k(y_peer | x)

lambda is `imitation_weight`, 0.1 in the paper. Our reading: NLL is the mean over the receiver's
tokens of the solution, with its own EOS if the peer's completion was finished. The mean is over the
rescued prompts of an update, not over all prompts. So the rescued prompts of an update share the
weight lambda, and a single one gets all of it.
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
class SGT(Mode[SuccessRecord]):
    """Own objective; when all own attempts fail, also imitate one solution of a peer."""

    name = "sgt"
    consumes = SuccessRecord
    imitation_weight: float = setting(0.1, "weight lambda of the imitation loss", least=0)

    def training_samples(
        self,
        receiver: Receiver,
        groups_and_records: GroupsAndRecords[SuccessRecord],
        rng: random.Random,
    ) -> TrainingBatch:
        """Own samples, and one imitated solution for each prompt of the rescue set, if one fits."""
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
    """One peer solution of the group's prompt, as a sample to imitate; [] if none can be used.

    It is drawn uniformly among those that fit the receiver's tokenizer and its length limit.
    """
    candidates = list(successes)
    while candidates:
        success = rng.choice(candidates)
        candidates.remove(success)
        completion_ids, refusal = retokenize(receiver, success)
        if refusal:
            continue  # another solution may fit

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
