"""SGT without its gate: own RL, and a peer's success imitated wherever there is one.

It tells what the gate is for. data/results/README.md has the command.
"""

import random
from dataclasses import dataclass

from mrl.modes import Experience, Receiver, TrainingBatch
from mrl.modes.own import own_samples
from mrl.modes.sgt import SGT, imitation_samples


@dataclass
class NoGate(SGT):
    """Own objective, plus imitation of one verified peer success for every prompt."""

    name = "no-gate"

    def training_samples(
        self, receiver: Receiver, experiences: list[Experience], rng: random.Random
    ) -> TrainingBatch:
        """Own samples, and for each prompt one imitated success, if any fits."""
        batch = TrainingBatch()
        for experience in experiences:
            batch.samples += own_samples(receiver, experience.group)
            batch.samples += imitation_samples(experience, self.imitation_weight, rng)
        return batch
