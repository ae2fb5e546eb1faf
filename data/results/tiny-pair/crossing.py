"""A crossing of `hacpo` and `sgt`: HACPO as published, and imitation where all own attempts failed.

Tried with `--mode data/results/tiny-pair/crossing.py:Crossing`: see data/results/README.md.
"""

import random
from dataclasses import dataclass

from mrl.config import setting
from mrl.modes.hacpo import HACPO
from mrl.modes.mode import Prompts, Receiver, TrainingBatch
from mrl.modes.peers import retokenized
from mrl.samples import TrainingSample


@dataclass
class Crossing(HACPO):
    """HACPO's samples, plus one imitated peer success for each prompt that failed altogether."""

    name = "crossing"
    published_updates = 1
    imitation_weight: float = setting(0.1, "lambda, of the imitation loss", least=0)

    def training_samples(
        self, receiver: Receiver, prompts: Prompts, rng: random.Random
    ) -> TrainingBatch:
        """What HACPO makes of the prompts, and SGT's imitation behind it."""
        batch = super().training_samples(receiver, prompts, rng)
        for group, records in prompts:
            successes = [record for record in records if record.reward > 0]
            if group.outcome != "all_fail" or not successes:
                continue

            success = rng.choice(successes)
            # alignment was counted when HACPO took the same text, so this batch is thrown away
            completion_ids = retokenized(receiver, success, TrainingBatch())
            if completion_ids is not None:
                sample = TrainingSample(
                    prompt_ids=group.prompt_ids,
                    completion_ids=completion_ids,
                    loss="imitation",
                    weight=self.imitation_weight,
                    source=success.source,
                    reward=1.0,
                )
                batch.samples.append(sample)
        return batch
