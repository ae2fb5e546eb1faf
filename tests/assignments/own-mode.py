"""Reference solution; `assignment start own-mode` has the contract."""

import random
from dataclasses import dataclass

from mrl.modes import GroupsAndRecords, Mode, Receiver, TrainingBatch
from mrl.modes.peers import retokenize
from mrl.modes.solo import own_samples
from mrl.records import SuccessRecord
from mrl.samples import TrainingSample

ASSIGNMENT = "own-mode"


@dataclass
class Mine(Mode):
    """Imitates a peer's success where at most one own attempt was right."""

    name = "mine"
    consumes = SuccessRecord

    def training_samples(
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """Own samples, and imitation where one is weak."""
        batch = TrainingBatch()
        for group, successes in groups_and_records:
            batch.samples += own_samples(receiver, group)
            if sum(group.rewards) > 1 or not successes:
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
                    weight=0.5,
                    source=success.source,
                    reward=1.0,
                )
            )
        return batch
