"""A team: everything that a step of mutual RL works on.

`train_step` in mini_mrl.py takes a team and nothing else. `load_team` makes one. You can also build
one in Python from your own policies, modes, problems and verifier.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from mrl.alignment import LossyText
from mrl.diagnostics import LearningStats
from mrl.exchange import Exchange, experience_of
from mrl.exchange_folder import Folder
from mrl.modes import Experience, Mode, TrainingBatch
from mrl.modes.check import check_beginnings
from mrl.placement import Allocation
from mrl.policy import Policy
from mrl.records import CompletionRecord, Record, make_records
from mrl.reward import Verdict
from mrl.samples import Group, Problem, TrainingSample, derive_seed

# (type of record, policy, its groups, step) -> the records that the policy publishes about them
RecordsOf = Callable[[type[Record], Policy, Sequence[Group], int], Iterable[Record | LossyText]]


def publish_records(
    record_type: type[Record], policy: Policy, groups: Sequence[Group], step: int
) -> Iterable[Record | LossyText]:
    """The records that an honest policy publishes about its groups."""
    return make_records(record_type, policy.name, policy.version, groups, policy.codec)


class Verifier(Protocol):
    """Judges completions. A completion that it cannot read counts as incorrect.

    A verifier may also have `check_answer(answer)`, which says whether it can judge completions by
    this answer. A problem file is refused if the reply for one of its answers counts as False. If
    the reply has a `reason`, the refusal contains it.
    """

    def verify(self, answer: str, text: str, finished: bool) -> Verdict:
        """The verdict on one completion. finished: False if the token limit cut it short."""
        ...

    def verify_groups(self, groups: Iterable[Group]) -> None:
        """Give every rollout its verdict."""


@dataclass
class StepResult:
    """What one policy did in a step, stage by stage. A frozen policy samples but never learns."""

    groups: list[Group] = field(default_factory=list)  # stages 1 and 2: sampled and verified
    # Stage 4: each group, with the peers' records about its prompt. The receiver's verifier has
    # confirmed each verdict, except for `RewardStats` (no text) and under trust="claim".
    experiences: list[Experience] = field(default_factory=list)
    batch: TrainingBatch = field(default_factory=TrainingBatch)  # stage 5: what the mode decided
    stats: LearningStats = field(default_factory=LearningStats)  # stage 6: what the updates did

    @property
    def reward(self) -> float:
        """The mean reward of the step's completions: the solve rate."""
        rewards = [reward for group in self.groups for reward in group.rewards]
        return sum(rewards) / len(rewards)

    @property
    def imitated(self) -> list[tuple[TrainingSample, CompletionRecord]]:
        """(sample, record) for each peer's solution that the policy imitates."""
        samples = [sample for sample in self.batch.samples if sample.imitates == "imitated"]
        return [(sample, sample.record) for sample in samples if sample.record]

    @property
    def rescues(self) -> list[tuple[Group, CompletionRecord]]:
        """(group, record) for each imitated solution of a prompt at which all attempts failed."""
        failed = {group.problem.id: group for group in self.groups if group.outcome == "all_fail"}
        rescues = []
        for sample, record in self.imitated:
            group = failed.get(record.prompt_id)
            if group and group.prompt_ids == sample.prompt_ids:
                rescues.append((group, record))
        return rescues


@dataclass
class Team:
    """Who learns, from which problems, and what the policies share.

    Each policy has its own mode instance, because what a mode remembers belongs to its receiver.
    """

    policies: Sequence[Policy]  # those held by this process: exactly one under `parallel`
    modes: dict[str, Mode]  # by policy name; all of the same class
    problems: Sequence[Problem]
    verifier: Verifier
    allocation: Allocation
    seed: int = 0
    prompts_per_step: int = 16
    trust: str = "verify"  # "claim": accept the policies' verdicts without judging again
    exchange: Exchange = field(default_factory=Exchange)
    records_of: RecordsOf = publish_records  # a lesson uses `lying_records`: run/liars.py
    folder: Folder | None = None  # what is shared with policies of other programs

    @property
    def mode(self) -> Mode:
        """One of the modes, for attributes that all of them have in common."""
        return self.modes[self.policies[0].name]

    @property
    def record_type(self) -> type[Record] | None:
        """The type of record that is shared; None if nothing is shared, as in a team of one."""
        has_peers = len(self.allocation.names) > 1 or self.folder
        return self.mode.consumes if has_peers else None

    def turn(self, policy: Policy, phase: str) -> AbstractContextManager[None]:
        """Give a policy its turn on the device (see `Allocation.turn`)."""
        return self.allocation.turn(policy, phase)

    def forget_last_step(self) -> None:
        """Drop the records and the turns of the last step, even if that step was interrupted."""
        self.exchange.records.clear()  # they come from older weights
        self.allocation.ledger.clear()

    def share(self, step: int, results: dict[str, StepResult]) -> None:
        """Publish every policy's records of the step, and read those of other programs.

        In a parallel run, this is the only point within a step where processes communicate.
        """
        made: dict[str, list[Record | LossyText]] = {}
        if self.record_type is not None:
            for policy in self.policies:
                groups = results[policy.name].groups
                made[policy.name] = list(self.records_of(self.record_type, policy, groups, step))

        for source, records in self.allocation.gather(made).items():
            for record in records:
                self.exchange.publish(record, source)
        if self.folder:
            groups = results[self.policies[0].name].groups
            self._share_with_folder(self.folder, step, [group.problem for group in groups])

    def _share_with_folder(self, folder: Folder, step: int, problems: Sequence[Problem]) -> None:
        for policy in self.policies:
            own = [record for record in self.exchange.records if record.source == policy.name]
            folder.publish(policy.name, own, step)
        folder.read(step)
        for record in folder.records_about(problems):
            self.exchange.publish(record, record.source)

    def collect(self, policy: Policy, groups: Sequence[Group]) -> list[Experience]:
        """What the policy's mode gets: each group, with the peers' records about its prompt.

        Records whose claim the policy's own verifier does not confirm are left out and counted. The
        text of each other record is encoded once, into the policy's own tokens.
        """
        record_type = self.modes[policy.name].consumes
        problem_ids = [group.problem.id for group in groups]
        received = self.exchange.collect(record_type, policy.name, problem_ids)

        experiences = []
        with self.turn(policy, "judge"):
            for group in groups:
                records = received[group.problem.id]
                confirmed = [record for record in records if self.confirms(record, group.problem)]
                self.exchange.count_not_confirmed(policy.name, len(records) - len(confirmed))
                experiences.append(experience_of(policy, group, confirmed))
        return experiences

    def try_again(self, policy: Policy, step: int, experiences: Sequence[Experience]) -> None:
        """Let the policy continue the beginnings that its mode names. Most modes name none.

        Each second attempt is judged, and added to the experience of its prompt.
        """
        mode = self.modes[policy.name]
        if not mode.tries_again:
            return
        rng = random.Random(derive_seed(self.seed, step, policy.index, "beginnings"))
        seed = derive_seed(self.seed, step, policy.index, "second")
        generator = torch.Generator().manual_seed(seed)

        with self.turn(policy, "try_again"):
            named = mode.beginnings(policy, experiences, rng)
            named = check_beginnings(named, mode, policy, len(experiences))
            pairs = list(zip(experiences, named, strict=True))
            flat = [(one, beginning) for one, of_one in pairs for beginning in of_one]
            # no more rows at once than in the first sampling, so that the memory is known
            rows = max(1, sum(len(one.group.rollouts) for one in experiences))
            for start in range(0, len(flat), rows):
                part = flat[start : start + rows]
                prompts = [one.group.prompt_ids for one, _ in part]
                beginnings = [beginning.token_ids for _, beginning in part]
                attempts = policy.continue_from(prompts, beginnings, generator)
                for (one, beginning), attempt in zip(part, attempts, strict=True):
                    attempt.record = beginning.record
                    one.second_attempts.append(attempt)

        with self.turn(policy, "judge"):
            self.verifier.verify_groups(
                Group(one.group.problem, one.group.prompt_ids, [*one.second_attempts])
                for one in experiences
            )

    def confirms(self, record: Record, problem: Problem) -> bool:
        """Whether the receiver's own verdict agrees with the verdict that the record claims.

        Always true for statistics, which have no text to judge, and under trust="claim", which
        does not cover what other programs wrote into a folder.
        """
        if not isinstance(record, CompletionRecord):
            return True
        if self.trust == "claim" and record.source in self.allocation.names:
            return True
        verdict = self.verifier.verify(problem.answer, record.text, record.finished)
        return (verdict is Verdict.CORRECT) == (record.verdict == Verdict.CORRECT)
