"""Why do a model's own correct completions protect what it knows? Two controls for result 8.

Both start from the best of the nine cells (cells.py): a model imitates its own correct completions,
and a peer's solution with weight 0.1 if all of its own attempts failed. Each control changes which
own completions are imitated:

- `OtherSkills`: only those for products and quotients, which both models of the shipped pair write
  alike. Sums and differences, which the peer writes in another way, are not practiced. Are they
  kept all the same?
- `Stale`: only completions that the model sampled before training. They are collected in the first
  steps, in which nothing is learned. Do they protect as much as fresh ones?

    python mini_mrl.py --mode data/results/protect.py:OtherSkills
    python mini_mrl.py --mode data/results/protect.py:Stale --steps 300
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from mrl.config import setting
from mrl.modes import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.rft import own_correct_samples
from mrl.modes.sgt import imitation_samples
from mrl.records import SuccessRecord
from mrl.samples import TrainingSample
from mrl.tiny.skills import SKILLS

PRACTICED = {skill.name for skill in SKILLS if skill.operation in ("a*b", "a/b")}
Experiences = Sequence[Experience[SuccessRecord]]


def gated_samples(
    experience: Experience[SuccessRecord], rng: random.Random
) -> list[TrainingSample]:
    """A peer's solution with weight 0.1 if all attempts failed."""
    if experience.group.outcome != "all_fail":
        return []
    return imitation_samples(experience, 0.1, rng)


@dataclass
class OtherSkills(Mode[SuccessRecord]):
    """The gate, and own correct completions for products and quotients only."""

    name = "other-skills"
    consumes = SuccessRecord

    def training_samples(
        self, receiver: Receiver, experiences: Experiences, rng: random.Random
    ) -> TrainingBatch:
        """The samples of the cell, less the own completions of all other skills."""
        batch = TrainingBatch()
        for experience in experiences:
            batch.samples += gated_samples(experience, rng)
            if experience.group.problem.skill in PRACTICED:
                batch.samples += own_correct_samples(experience.group, rng)
        return batch


@dataclass
class Stale(Mode[SuccessRecord]):
    """The gate, and own correct completions that were all sampled before training."""

    name = "stale"
    consumes = SuccessRecord
    collect: int = setting(60, "first steps, in which completions are only collected", least=1)
    _step: int = field(default=0, init=False)
    # skill -> samples that imitate an own correct completion, as their (prompt ids, completion ids)
    _kept: dict[str, list[tuple[list[int], list[int]]]] = field(default_factory=dict, init=False)

    def training_samples(
        self, receiver: Receiver, experiences: Experiences, rng: random.Random
    ) -> TrainingBatch:
        """The samples of the cell, with an old completion of the same skill for each own one."""
        self._step += 1
        batch = TrainingBatch()
        for experience in experiences:
            skill = experience.group.problem.skill
            fresh = own_correct_samples(experience.group, rng)
            if self._step <= self.collect:
                kept = self._kept.setdefault(skill, [])
                kept += [(sample.prompt_ids, sample.completion_ids) for sample in fresh]
                continue

            batch.samples += gated_samples(experience, rng)
            if fresh and self._kept.get(skill):
                prompt_ids, completion_ids = rng.choice(self._kept[skill])
                batch.samples.append(
                    TrainingSample(prompt_ids, completion_ids, loss="imitation", reward=1.0)
                )
        return batch

    def state(self) -> dict:
        """The number of steps so far, and what was collected."""
        return {"step": self._step, "kept": self._kept}

    def restore(self, state: dict) -> None:
        """Restore the state from a checkpoint."""
        self._step = state["step"]
        self._kept = {
            skill: [(prompt_ids, completion_ids) for prompt_ids, completion_ids in kept]
            for skill, kept in state["kept"].items()
        }
