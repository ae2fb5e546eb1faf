"""replay: SGT without a peer. The control that tells what only a peer can give.

SGT does two things at once: it imitates a *rare success* where the receiver's own attempts teach
nothing, and it takes that success from a *peer*. This mode does the first without the second. Where
every own completion of a prompt failed, one of the receiver's own earlier verified successes is
imitated, with the same loss, the same weight and the same uniform draw as in SGT:

    L_k = L_own,k + lambda * mean over failed x of NLL_k(y_earlier | x_earlier)

The success stands behind the prompt that it once answered, because it is no answer to the prompt
that failed now. So what may be replayed there has to be chosen:

- where problems have skills, an earlier success on the *same skill*. This label is more than SGT
  is given, so the control is a strong one;
- where they have none, any earlier success that was rare: at most a quarter of its group was right.

Only successes of earlier steps are replayed. A policy that never succeeds has nothing to remember:
after n visits to prompts that it solves with probability p, G completions each, the chance that the
memory holds a success is 1 - (1 - p)^(n G), while a peer's success is there at once.

Relatives: self-imitation learning (arXiv 1806.05635) imitates own past transitions that did better
than expected; ExGRPO (arXiv 2510.02245) replays own past successes with an importance ratio.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from mrl.config import setting
from mrl.modes.mode import GroupsAndRecords, Mode, Receiver, TrainingBatch
from mrl.modes.solo import own_samples
from mrl.samples import Group, TrainingSample

NO_SKILL = "all"  # what `Problem.skill` is where a problem file names none
RARE = 0.25  # largest share of right completions in a group whose successes count as rare


@dataclass
class Replay(Mode):
    """Own objective, plus imitation of an own earlier success where all own attempts failed."""

    name = "replay"
    consumes = None
    imitation_weight: float = setting(0.1, "weight lambda of the imitation loss", least=0)
    capacity: int = setting(256, "number of newest own successes kept per skill", least=1)
    # skill -> (prompt ids, completion ids) of own successes
    _memory: dict[str, deque] = field(default_factory=dict, init=False, repr=False)

    def training_samples(
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """Own samples, and one replayed success for each prompt that failed altogether."""
        batch = TrainingBatch()
        replayed = 0
        for group, _ in groups_and_records:
            batch.samples += own_samples(receiver, group)
            successes = self._memory.get(group.problem.skill)
            if group.outcome != "all_fail" or not successes:
                continue  # an own attempt succeeded, or no success of this skill is remembered

            prompt_ids, completion_ids = rng.choice(successes)
            sample = TrainingSample(
                prompt_ids=prompt_ids,
                completion_ids=completion_ids,
                loss="imitation",
                weight=self.imitation_weight,
                reward=1.0,
            )
            batch.samples.append(sample)
            replayed += 1

        # after the loop, so that what is replayed comes from earlier steps
        for group, _ in groups_and_records:
            self._remember(group)
        batch.notes["replayed"] = replayed
        return batch

    def _remember(self, group: Group) -> None:
        """Keep a group's successes for later steps."""
        share_right = sum(group.rewards) / len(group.rewards)
        if group.problem.skill == NO_SKILL and share_right > RARE:
            return

        memory = self._memory.setdefault(group.problem.skill, deque(maxlen=self.capacity))
        for rollout in group.rollouts:
            if rollout.reward:
                memory.append((group.prompt_ids, rollout.completion_ids))

    def state(self) -> dict:
        """The memory: skill -> [prompt ids, completion ids] of each success."""
        return {skill: list(successes) for skill, successes in self._memory.items()}

    def restore(self, state: dict) -> None:
        """The memory of a checkpoint."""
        self._memory = {
            skill: deque(map(tuple, successes), self.capacity) for skill, successes in state.items()
        }
