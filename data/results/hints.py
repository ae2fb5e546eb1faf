"""Controls of the mode `hint`: each one changes one thing.

- `Anew`: the same number of second attempts on the same prompts, without a beginning. Is it the
  additional sampling?
- `Elsewhere`: beginnings of a peer's solution to *another* prompt of the step (a placebo).
- `Whole`: the same second attempts, but wherever one is correct, the *peer's* whole text is
  imitated. Is it the policy's own writing, or which prompts are chosen?
- `Members`: nothing is imitated. The second attempts join the policy's own attempts in the group,
  and the advantages are computed over all of them together. The beginning was not sampled by the
  policy, so its tokens stand in the prompt and have no gradient.

    python mini_mrl.py --mode data/results/hints.py:Anew
"""

import random
from dataclasses import dataclass

import torch

from mrl.advantages import group_advantages
from mrl.modes import Beginning, Experience, Received, Receiver, TrainingBatch
from mrl.modes.hint import Hint
from mrl.modes.own import own_samples, samples_with
from mrl.modes.peers import peer_sample
from mrl.records import SuccessRecord
from mrl.samples import SecondAttempt, TrainingSample

Experiences = list[Experience[SuccessRecord]]


@dataclass
class Anew(Hint):
    """`hint` without beginnings: only the additional sampling."""

    name = "hint-anew"

    def beginnings_of(
        self, receiver: Receiver, solution: Received[SuccessRecord], rng: random.Random
    ) -> list[Beginning]:
        """As many second attempts as `hint` makes, each from the prompt alone."""
        return [Beginning([]) for _ in super().beginnings_of(receiver, solution, rng)]


@dataclass
class Elsewhere(Hint):
    """`hint` with beginnings of solutions to other prompts."""

    name = "hint-elsewhere"

    def beginnings(
        self, receiver: Receiver, experiences: Experiences, rng: random.Random
    ) -> list[list[Beginning]]:
        """The beginnings that `hint` names if each prompt has the solutions of all others."""
        exchanged = []
        for experience in experiences:
            others: list[Received[SuccessRecord]] = []
            if experience.usable:  # the same prompts as `hint`
                for other in experiences:
                    others += other.usable if other is not experience else []
            exchanged.append(Experience(experience.group, others))
        return super().beginnings(receiver, exchanged, rng)


@dataclass
class Whole(Hint):
    """`hint` that imitates the peer's whole text wherever a second attempt is correct."""

    name = "hint-whole"

    def training_samples(
        self, receiver: Receiver, experiences: Experiences, rng: random.Random
    ) -> TrainingBatch:
        """The receiver's samples, and the solution whose beginning led to a success."""
        batch = TrainingBatch()
        for experience in experiences:
            batch.samples += own_samples(receiver, experience.group)
            led = {id(each.record) for each in experience.second_attempts if each.reward}
            for solution in experience.usable:
                if id(solution.record) in led:
                    weight = self.imitation_weight
                    imitated = peer_sample(experience.group, solution, "imitation", weight)
                    batch.samples.append(imitated)
        return batch


@dataclass
class Members(Hint):
    """`hint` whose second attempts are members of the group; nothing is imitated."""

    name = "hint-members"

    def training_samples(
        self, receiver: Receiver, experiences: Experiences, rng: random.Random
    ) -> TrainingBatch:
        """First and second attempts of each prompt, with advantages over all of them."""
        batch = TrainingBatch()
        for experience in experiences:
            group, tried = experience.group, experience.second_attempts
            rewards = group.rewards + [attempt.reward for attempt in tried]
            scale_by_std = receiver.objective.scale_by_std
            advantages = group_advantages(torch.tensor([rewards]), scale_by_std)[0].tolist()
            first = len(group.rollouts)
            batch.samples += samples_with(advantages[:first], group)
            for attempt, advantage in zip(tried, advantages[first:], strict=True):
                batch.samples.append(self.member(group.prompt_ids, attempt, advantage))
        return batch

    def member(
        self, prompt_ids: list[int], attempt: SecondAttempt, advantage: float
    ) -> TrainingSample:
        """What the policy sampled after the beginning, as an own sample."""
        return TrainingSample(
            prompt_ids=prompt_ids + attempt.completion_ids[: attempt.given],
            completion_ids=attempt.completion_ids[attempt.given :],
            advantage=advantage,
            behavior_logprobs=attempt.logprobs,
            sampled_version=attempt.version,
            rollout=attempt,
            reward=attempt.reward,
        )
