"""Plain fine-tuning on what rescued a policy in a run of `sgt`: the same texts, without RL.

A control: how much of what `sgt` learnt from a stronger peer is imitation alone? Each step imitates
the rescues of the same step of that run, in one update, and does nothing else. Which prompts the
policy fails on now plays no part. data/results/README.md has the command and the result.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path

from mrl.config import setting
from mrl.modes import Mode, TrainingBatch
from mrl.modes.mode import Prompts
from mrl.policy import Policy
from mrl.runtime.run_directory import read_rescues
from mrl.samples import TrainingSample


@dataclass
class FineTuned(Mode):
    """Imitation of the rescues of a finished run, step by step; own completions are left out."""

    name = "fine-tuned"
    consumes = None
    run: str = setting("", "the directory of the run of sgt")
    _step: int = field(default=0, init=False, repr=False)

    def training_samples(
        self, receiver: Policy, prompts: Prompts, rng: random.Random
    ) -> TrainingBatch:
        """One sample for each text that rescued the receiver in this step of that run."""
        self._step += 1
        batch = TrainingBatch()
        for rescue in read_rescues(Path(self.run)):
            if (rescue["step"], rescue["receiver"]) != (self._step, receiver.name):
                continue
            sample = TrainingSample(
                prompt_ids=receiver.prompt_ids(rescue["prompt"]),
                completion_ids=[*receiver.codec.encode(rescue["source_text"]), receiver.end_id],
                loss="imitation",
                reward=1.0,
            )
            batch.samples.append(sample)
        return batch

    def state(self) -> dict:
        """How many steps were made."""
        return {"step": self._step}

    def restore(self, state: dict) -> None:
        """Go on behind the last step of a checkpoint."""
        self._step = state["step"]
