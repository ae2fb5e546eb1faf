"""Reference solution; `assignment start own-mode` has the contract."""

import random
from dataclasses import dataclass

from mrl.modes import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.own import own_samples
from mrl.records import SuccessRecord
from mrl.samples import TrainingSample

ASSIGNMENT = "own-mode"


@dataclass
class Mine(Mode):
    """Imitates a peer's success where at most one own attempt was right."""

    name = "mine"
    consumes = SuccessRecord

    def training_samples(
        self, receiver: Receiver, experiences: list[Experience], rng: random.Random
    ) -> TrainingBatch:
        """Own samples, and imitation where one is weak."""
        batch = TrainingBatch()
        for experience in experiences:
            group, usable = experience.group, experience.usable
            batch.samples += own_samples(receiver, group)
            if sum(group.rewards) > 1 or not usable:
                continue
            received = rng.choice(usable)
            batch.samples.append(
                TrainingSample(
                    prompt_ids=group.prompt_ids,
                    completion_ids=received.token_ids,
                    loss="imitation",
                    weight=0.5,
                    record=received.record,
                    reward=1.0,
                )
            )
        return batch
