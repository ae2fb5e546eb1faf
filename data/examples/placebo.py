"""A placebo for SGT: everything is the same, but the imitated solution answers another prompt.

Would any extra text help when all attempts at a prompt fail? This control keeps the gate, the loss,
the weight and the number of imitated texts of `sgt`, and replaces the texts. Whenever `sgt`
would imitate a peer's solution, `placebo` imitates, after the same failed prompt, a verified
solution of the same peer to *another prompt of the step*:

- `Placebo` takes it from a prompt of another skill;
- `PlaceboSameSkill` takes it from another prompt of the same skill, so that it shows the correct
  interpretation of the words with the wrong numbers.

If the step has no such solution, nothing is imitated. The metrics `mode/rescuable` and
`mode/imitated` count how often `sgt` would have imitated, and how often the placebo did.

    python mini_mrl.py --mode data/examples/placebo.py:Placebo
"""

import random
from dataclasses import dataclass
from typing import ClassVar

from mrl.modes import Experience, Received, Receiver, TrainingBatch
from mrl.modes.own import own_samples
from mrl.modes.sgt import SGT, imitation_samples
from mrl.records import SuccessRecord
from mrl.samples import Group


@dataclass
class Placebo(SGT):
    """SGT, but each imitated solution answers a prompt of another skill."""

    name = "placebo"
    same_skill: ClassVar[bool] = False

    def training_samples(
        self, receiver: Receiver, experiences: list[Experience], rng: random.Random
    ) -> TrainingBatch:
        """The receiver's own samples, and a misplaced solution wherever SGT would imitate one."""
        batch = TrainingBatch(notes={"rescuable": 0, "imitated": 0})
        for experience in experiences:
            group = experience.group
            batch.samples += own_samples(receiver, group)
            if group.outcome != "all_fail":
                continue

            # what SGT would imitate; the placebo uses only the name of its source
            rescue = imitation_samples(experience, self.imitation_weight, rng)
            if not rescue:
                continue
            batch.notes["rescuable"] += 1
            candidates = self.solutions_to_other_prompts(group, rescue[0].source, experiences)
            misplaced = Experience(group, candidates)
            placebo = imitation_samples(misplaced, self.imitation_weight, rng)
            batch.notes["imitated"] += len(placebo)
            batch.samples += placebo
        return batch

    def solutions_to_other_prompts(
        self, failed: Group, source: str, experiences: list[Experience]
    ) -> list[Received[SuccessRecord]]:
        """The solutions of peer `source` to other prompts of this step, of the wanted skills."""
        candidates = []
        for experience in experiences:
            group = experience.group
            is_same_skill = group.problem.skill == failed.problem.skill
            if group is not failed and is_same_skill == self.same_skill:
                candidates += [one for one in experience.received if one.record.source == source]
        return candidates


@dataclass
class PlaceboSameSkill(Placebo):
    """SGT, but each imitated solution answers another prompt of the same skill."""

    name = "placebo-same-skill"
    same_skill = True
