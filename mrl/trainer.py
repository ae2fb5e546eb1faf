"""The loop: sample, verify, publish, collect, let the mode decide, learn."""

import hashlib
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from mrl.alignment import LossyText
from mrl.allocation import Allocation
from mrl.config import RunConfig
from mrl.exchange import Exchange, Record, SuccessRecord, make_records
from mrl.metrics import group_metrics, lesson_metrics
from mrl.modes import Mode, Rescue
from mrl.policy import Policy
from mrl.rewards import Verdict, Verifier
from mrl.samples import Group
from mrl.tasks import Problem


@dataclass
class StepReport:
    """What one step did, for whoever watches: metrics lines, groups and rescues by policy name."""

    step: int
    metrics: dict[str, dict] = field(default_factory=dict)
    groups: dict[str, list[Group]] = field(default_factory=dict)
    rescues: list[Rescue] = field(default_factory=list)


def derive_seed(*parts: object) -> int:
    """A seed that depends on every part. All chance in a run comes from such seeds, made from
    run seed, step and policy; so there is no random state that a checkpoint could lose."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())


def problems_of_step(problems: Sequence[Problem], step: int, count: int, seed: int) -> list:
    """The step's problems: each epoch is a new shuffle, a remainder smaller than `count` is left.

    step counts from 1. Raises ValueError if there are fewer problems than `count`.
    """
    if count > len(problems):
        raise ValueError(f"{count} prompts a step, but only {len(problems)} problems")
    steps_per_epoch = len(problems) // count
    epoch, place = divmod(step - 1, steps_per_epoch)
    order = list(problems)
    random.Random(derive_seed(seed, "epoch", epoch)).shuffle(order)
    return order[place * count : (place + 1) * count]


class Trainer:
    """Policies that train side by side; `train_step` is one row of the picture in README.md."""

    def __init__(
        self,
        config: RunConfig,
        policies: Sequence[Policy],
        problems: Sequence[Problem],
        mode: Mode,
        exchange: Exchange,
        verifier: Verifier,
        allocation: Allocation,
        make_records: Callable[..., Iterable[Record | LossyText]] = make_records,
    ) -> None:
        self.config = config
        self.policies = list(policies)
        self.problems = problems
        self.mode = mode
        self.exchange = exchange
        self.verifier = verifier
        self.allocation = allocation
        self.make_records = make_records  # the one place where a lesson can plant a lie

    def train_step(self, step: int) -> StepReport:
        """One step: every policy samples and publishes, then every policy learns."""
        started = time.perf_counter()
        report = StepReport(step)
        self.allocation.seconds.clear()
        count, seed = self.config.prompts_per_step, self.config.seed
        problems = problems_of_step(self.problems, step, count, seed)

        for policy in self.allocation.order("rollout"):
            generator = torch.Generator().manual_seed(derive_seed(seed, step, policy.index))
            with self.allocation.turn(policy, "rollout"):
                groups = policy.rollout(problems, generator)
            with self.allocation.turn(policy, "verify"):
                verify_groups(self.verifier, groups)
            self._publish(policy, groups)
            report.groups[policy.name] = groups
            report.metrics[policy.name] = {"step": step, "policy": policy.name}

        for policy in self.allocation.order("learn"):
            groups = report.groups[policy.name]
            rng = random.Random(derive_seed(seed, step, policy.index, "mode"))
            with self.allocation.turn(policy, "verify"):
                peers = self._collect(policy, problems)
            lesson = self.mode.training_samples(policy, groups, peers, rng)
            with self.allocation.turn(policy, "learn"):
                learnt = policy.learn(lesson.samples)
            self.exchange.advance(policy.name, policy.version)
            policy.codec.clear_cache()  # the next step has other prompts
            report.rescues += lesson.rescues
            report.metrics[policy.name] |= {
                "version": policy.version,
                **group_metrics(groups),
                **lesson_metrics(lesson, learnt.pop("nll_nats")),
                **learnt,
                **self.exchange.take_traffic(policy.name),
            }

        for policy in self.policies:
            report.metrics[policy.name] |= self.allocation.seconds_of(policy)
            report.metrics[policy.name]["time/step_s"] = time.perf_counter() - started
        return report

    def _publish(self, policy: Policy, groups: list[Group]) -> None:
        """Publish what the mode consumes, if there is anybody who could collect it."""
        if self.mode.consumes is None or len(self.policies) == 1:
            return
        about = (self.mode.consumes, policy.name, policy.version)
        for record in self.make_records(*about, groups, policy.codec):
            self.exchange.publish(record, policy.name)

    def _collect(self, policy: Policy, problems: list[Problem]) -> dict[str, list[Record]]:
        """The peers' records for this receiver by prompt id, successes verified once more."""
        answers = {problem.id: problem.answer for problem in problems}

        def believes(record: Record) -> bool:
            if self.config.trust == "claim" or not isinstance(record, SuccessRecord):
                return True
            verdict = self.verifier.verify(answers[record.prompt_id], record.text, record.finished)
            return verdict is Verdict.CORRECT

        return self.exchange.collect(self.mode.consumes, policy.name, answers, believes)


def verify_groups(verifier: Verifier, groups: Sequence[Group]) -> None:
    """Give every rollout its verdict."""
    rollouts = [(group, rollout) for group in groups for rollout in group.rollouts]
    verdicts = verifier.verify_batch(
        [(group.problem.answer, rollout.text, rollout.finished) for group, rollout in rollouts]
    )
    for (_, rollout), verdict in zip(rollouts, verdicts, strict=True):
        rollout.verdict = verdict
