"""Reference solution; `assignment start sgt` has the contract."""

import random
from dataclasses import dataclass

from mrl.modes import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.own import own_samples
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
        self, receiver: Receiver, experiences: list[Experience], rng: random.Random
    ) -> TrainingBatch:
        """Own samples, and one imitated success for each prompt of the rescue set."""
        batch = TrainingBatch()
        for experience in experiences:
            group, usable = experience.group, experience.usable
            batch.samples += own_samples(receiver, group)
            if group.outcome != "all_fail" or not usable:
                continue
            received = rng.choice(usable)
            batch.samples.append(
                TrainingSample(
                    prompt_ids=group.prompt_ids,
                    completion_ids=received.token_ids,
                    loss="imitation",
                    weight=self.imitation_weight,
                    record=received.record,
                    reward=1.0,
                )
            )
        return batch
