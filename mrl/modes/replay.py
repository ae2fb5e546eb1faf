"""replay: SGT without a peer. This control shows what only a peer can give.

SGT does two things at once: it imitates a *rare success* when all of a policy's attempts fail, and
it takes that success from a *peer*. This mode does the first without the second. When all of the
receiver's attempts at a prompt fail, it imitates one of the receiver's own earlier solutions, with
the same loss, the same weight and the same uniform draw as in SGT:

    L_k = L_own,k + lambda * mean over failed x of NLL_k(y_earlier | x_earlier)

The replayed completion keeps its original prompt, because it does not answer the prompt that just
failed. Which solutions are eligible?

- If problems have skills: an earlier solution of the *same skill*. SGT does not get this label, so
  the control has an advantage over SGT.
- If problems have no skills: any earlier solution that was rare, which means that at most a quarter
  of its group was correct.

Only solutions of earlier steps are replayed. A policy that never succeeds has nothing to replay:
after n visits to prompts that it solves with probability p, with G completions each, the buffer
holds a solution with probability 1 - (1 - p)^(n G). A peer's solution is there at once.

Related work: in self-imitation learning (arXiv 1806.05635), an agent imitates its own past
transitions that did better than expected; in ExGRPO (arXiv 2510.02245), a model replays its own
past successes with an importance ratio.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from mrl.config import setting
from mrl.modes.mode import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.own import own_samples
from mrl.samples import NO_SKILL, Group, TrainingSample

RARE = 0.25  # solutions count as rare if at most this share of their group is correct


@dataclass
class Replay(Mode):
    """The policy's own objective; if all attempts fail, also imitate one of its old solutions."""

    name = "replay"
    consumes = None
    imitation_weight: float = setting(0.1, "weight lambda of the imitation loss", least=0)
    capacity: int = setting(256, "number of newest solutions of the policy kept per skill", least=1)
    # the replay buffer: skill -> (prompt ids, completion ids) of the receiver's own solutions
    _buffer: dict[str, deque] = field(default_factory=dict, init=False, repr=False)

    def training_samples(
        self, receiver: Receiver, experiences: Sequence[Experience], rng: random.Random
    ) -> TrainingBatch:
        """The receiver's samples, and a replayed solution for each prompt with only failures."""
        batch = TrainingBatch()
        replayed = 0
        for experience in experiences:
            group = experience.group
            batch.samples += own_samples(receiver, group)
            solutions = self._buffer.get(group.problem.skill)
            if group.outcome != "all_fail" or not solutions:
                continue  # an attempt succeeded, or the buffer has no solution of this skill

            prompt_ids, completion_ids = rng.choice(solutions)
            sample = TrainingSample(
                prompt_ids=prompt_ids,
                completion_ids=completion_ids,
                loss="imitation",
                weight=self.imitation_weight,
                reward=1.0,
            )
            batch.samples.append(sample)
            replayed += 1

        # after the loop, so that only solutions of earlier steps are replayed
        for experience in experiences:
            self._remember(experience.group)
        batch.notes["replayed"] = replayed
        return batch

    def _remember(self, group: Group) -> None:
        """Store the solutions of a group for later steps."""
        share_correct = sum(group.rewards) / len(group.rewards)
        if group.problem.skill == NO_SKILL and share_correct > RARE:
            return

        buffer = self._buffer.setdefault(group.problem.skill, deque(maxlen=self.capacity))
        for rollout in group.rollouts:
            if rollout.reward:
                buffer.append((group.prompt_ids, rollout.completion_ids))

    def state(self) -> dict:
        """The replay buffer: skill -> [prompt ids, completion ids] of each solution."""
        return {skill: list(solutions) for skill, solutions in self._buffer.items()}

    def restore(self, state: dict) -> None:
        """Restore the replay buffer from a checkpoint."""
        self._buffer = {
            skill: deque(map(tuple, solutions), self.capacity) for skill, solutions in state.items()
        }
