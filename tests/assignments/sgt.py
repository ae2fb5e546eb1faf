"""Reference solution; `assignment start sgt` has the contract."""

import random
from dataclasses import dataclass

from mrl.modes import GroupsAndRecords, Mode, Receiver, TrainingBatch
from mrl.modes.peers import retokenize
from mrl.modes.solo import own_samples
from mrl.records import SuccessRecord
from mrl.samples import TrainingSample

ASSIGNMENT = "sgt"


@dataclass
class SGT(Mode):
    """Own objective, plus imitation where all own attempts failed."""

    name = "sgt"
    consumes = SuccessRecord
    imitation_weight: float = 0.1

    def training_samples(
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """Own samples, and one imitated success for each prompt of the rescue set."""
        batch = TrainingBatch()
        for group, successes in groups_and_records:
            batch.samples += own_samples(receiver, group)
            if group.outcome != "all_fail" or not successes:
                continue
            success = rng.choice(successes)
            completion_ids, refusal = retokenize(receiver, success)
            if refusal:
                continue
            batch.samples.append(
                TrainingSample(
                    prompt_ids=group.prompt_ids,
                    completion_ids=completion_ids,
                    loss="imitation",
                    weight=self.imitation_weight,
                    source=success.source,
                    reward=1.0,
                )
            )
        return batch
