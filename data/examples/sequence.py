"""One after the other: first a peer's solutions without RL, then RL alone.

`sgt` does both at once. This control separates them. Up to step `switch` the policy learns as in
mode `sft`, only from its peers' solutions. After that step it learns as in mode `solo`, only from
its own attempts. If it ends as `sgt` does, doing both at once is not needed. If it ends lower, the
reason may also be the missing gate, the weight of 1, or fewer steps of RL.

    python mini_mrl.py --mode data/examples/sequence.py:Sequence --set sequence.switch=120

The question comes from "Sequential Beats Joint" (arXiv 2609.04108), which asks it about
distillation from a teacher. We have read only the abstract.
"""

import random
from dataclasses import dataclass

from mrl.config import setting
from mrl.modes import Experience, Receiver, TrainingBatch
from mrl.modes.own import own_samples
from mrl.modes.sft import SFT


@dataclass
class Sequence(SFT):
    """A peer's solutions without RL up to a step, and RL alone after it."""

    name = "sequence"
    switch: int = setting(120, "last step that imitates peers; RL alone follows", least=0)

    def __post_init__(self) -> None:
        self.steps_done = 0

    def training_samples(
        self, receiver: Receiver, experiences: list[Experience], rng: random.Random
    ) -> TrainingBatch:
        """The samples of `sft` up to step `switch`, and the receiver's own samples after it."""
        self.steps_done += 1
        if self.steps_done <= self.switch:
            return super().training_samples(receiver, experiences, rng)

        batch = TrainingBatch()
        for experience in experiences:
            batch.samples += own_samples(receiver, experience.group)
        return batch

    def state(self) -> dict:
        """The number of steps done, so that a resumed run switches at the same step."""
        return {"steps_done": self.steps_done}

    def restore(self, state: dict) -> None:
        """Continue from a checkpoint."""
        self.steps_done = state["steps_done"]
