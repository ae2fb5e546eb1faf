"""The nine cells: three ways of learning from oneself, times three ways of learning from a peer.

    own       none        nothing
              correct     imitate one of the own correct completions of each prompt
              grpo        the policy's own objective
    peer      none        nothing
              gate        imitate a peer's solution with weight 0.1 if all own attempts failed
              always      imitate a peer's solution with weight 1 wherever there is one
    beside them
              always-0.1  the same with weight 0.1, which tells the gate from the weight

Own and peer samples have separate means in all cells (see `learn`), so that a weight means the same
everywhere. Five cells are modes of the program: none and always is `sft`, correct and always is
`rft`, grpo and none is `solo`, grpo and gate is `sgt`, and none and none never learns.

    python mini_mrl.py --mode data/results/cells.py:Cells \\
        --set cells.own=correct --set cells.peer=gate
"""

import random
from dataclasses import dataclass

from mrl.config import setting
from mrl.modes import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.own import own_samples
from mrl.modes.rft import own_correct_samples
from mrl.modes.sgt import imitation_samples
from mrl.records import SuccessRecord


@dataclass
class Cells(Mode[SuccessRecord]):
    """One of nine combinations of own learning and learning from a peer."""

    name = "cells"
    consumes = SuccessRecord
    own: str = setting("grpo", "own learning", choices=("none", "correct", "grpo"))
    peer: str = setting(
        "gate", "learning from a peer", choices=("none", "gate", "always", "always-0.1")
    )

    def training_samples(
        self,
        receiver: Receiver,
        experiences: list[Experience[SuccessRecord]],
        rng: random.Random,
    ) -> TrainingBatch:
        """The samples of the chosen cell, in the order of the modes that are cells."""
        batch = TrainingBatch()
        for experience in experiences:
            group = experience.group
            if self.own == "grpo":
                batch.samples += own_samples(receiver, group)
            if self.peer == "always":
                batch.samples += imitation_samples(experience, 1.0, rng)
            elif self.peer == "always-0.1" or (self.peer == "gate" and group.outcome == "all_fail"):
                batch.samples += imitation_samples(experience, 0.1, rng)
            if self.own == "correct":
                batch.samples += own_correct_samples(group, rng)
        return batch
