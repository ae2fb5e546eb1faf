"""A team: all that a step of mutual RL is about, with or without a program around it.

`train_step` of mini_mrl.py takes a team and nothing else. `load_team` makes one; a program that
puts policies, modes, problems and a verifier together makes one, too.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from mrl.alignment import LossyText
from mrl.allocation import Allocation
from mrl.diagnostics import LearningStats
from mrl.exchange import Exchange
from mrl.modes import Mode, TrainingBatch
from mrl.policy import Policy
from mrl.records import Record, RewardStats, make_records
from mrl.samples import Group, Problem, TrainingSample, Verdict

# (type of record, policy, its groups, step) -> what it publishes about them
RecordsOf = Callable[[type[Record], Policy, Sequence[Group], int], Iterable[Record | LossyText]]


def publish_records(
    record_type: type[Record], policy: Policy, groups: Sequence[Group], step: int
) -> Iterable[Record | LossyText]:
    """What a policy that does not lie publishes about its groups."""
    return make_records(record_type, policy.name, policy.version, groups, policy.codec)


class Verifier(Protocol):
    """What judges completions. A text that it cannot read is not correct.

    It may also have `check_answer(answer) -> bool`: whether it can judge an answer of a problem
    file. If it has, a file with any other answer is refused.
    """

    def verify(self, answer: str, text: str, finished: bool) -> Verdict:
        """The verdict on one completion; finished: the token limit did not cut it."""

    def verify_groups(self, groups: Iterable[Group]) -> None:
        """Give every rollout its verdict."""


@dataclass
class StepResult:
    """What one policy did in a step, stage by stage. A frozen one samples, and learns nothing."""

    groups: list[Group] = field(default_factory=list)  # stages 1 and 2: sampled, then judged
    # stage 4: problem id -> the peers' records that the mode is given. Each verdict was confirmed,
    # except in `RewardStats`, which hold no text, and under trust="claim"
    confirmed: dict[str, list[Record]] = field(default_factory=dict)
    batch: TrainingBatch = field(default_factory=TrainingBatch)  # stage 5: what the mode decided
    stats: LearningStats = field(default_factory=LearningStats)  # stage 6: what the updates did

    @property
    def reward(self) -> float:
        """The mean reward of the step's completions: the solve rate."""
        rewards = [reward for group in self.groups for reward in group.rewards]
        return sum(rewards) / len(rewards)

    @property
    def rescues(self) -> list[tuple[Group, TrainingSample]]:
        """(group, sample) for each peer's text that is imitated where all own attempts failed."""
        failed = [group for group in self.groups if group.outcome == "all_fail"]

        rescues = []
        for sample in self.batch.samples:
            if not (sample.source and sample.loss == "imitation" and sample.weight):
                continue
            # two problems may ask the same; then the list itself tells whose prompt the sample has
            asked = [group for group in failed if group.prompt_ids == sample.prompt_ids]
            asked.sort(key=lambda group: group.prompt_ids is not sample.prompt_ids)
            if asked:
                rescues.append((asked[0], sample))
        return rescues


@dataclass
class Team:
    """Who learns, from which problems, and what crosses between the policies.

    Each policy has a mode of its own, because what a mode remembers is its receiver's alone.
    """

    policies: Sequence[Policy]  # of this process; under placement `parallel` that is one
    modes: dict[str, Mode]  # by the policy's name; all of one class
    problems: Sequence[Problem]
    verifier: Verifier
    allocation: Allocation
    seed: int = 0
    prompts_per_step: int = 16
    trust: str = "verify"  # "claim": peers' verdicts are taken as they come
    exchange: Exchange = field(default_factory=Exchange)
    records_of: RecordsOf = publish_records  # or a liar's, for a lesson: run/liars.py

    @property
    def mode(self) -> Mode:
        """One of the modes, for what is the same of all."""
        return self.modes[self.policies[0].name]

    @property
    def record_type(self) -> type[Record] | None:
        """The type of record that crosses; None if nothing does, as in a team of one."""
        return self.mode.consumes if len(self.allocation.names) > 1 else None

    def turn(self, policy: Policy, phase: str) -> AbstractContextManager[None]:
        """A policy's turn on the device (`Allocation.turn`)."""
        return self.allocation.turn(policy, phase)

    def forget_last_step(self) -> None:
        """Drop the records and the times of the last step, also of one that was interrupted."""
        self.exchange.records.clear()  # this step's come from newer weights
        self.allocation.ledger.clear()

    def share(self, step: int, results: dict[str, StepResult]) -> None:
        """Publish every policy's records of the step. Within a step, processes meet only here."""
        made: dict[str, list[Record | LossyText]] = {}
        if self.record_type is not None:
            for policy in self.policies:
                groups = results[policy.name].groups
                made[policy.name] = list(self.records_of(self.record_type, policy, groups, step))

        for source, records in self.allocation.gather(made).items():
            for record in records:
                self.exchange.publish(record, source)

    def confirms(self, record: Record, problem: Problem) -> bool:
        """Whether a text, judged again on this side, is right or not right as its record claims.

        Always true of statistics, which have no text to judge, and under trust="claim".
        """
        if isinstance(record, RewardStats) or self.trust == "claim":
            return True
        verdict = self.verifier.verify(problem.answer, record.text, record.finished)
        return (verdict is Verdict.CORRECT) == (record.verdict == Verdict.CORRECT)
