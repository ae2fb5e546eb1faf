"""The loop: sample, verify, publish, collect, let the mode decide, learn."""

import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch

from mrl.alignment import LossyText
from mrl.allocation import PATIENCE, Allocation
from mrl.config import RunConfig
from mrl.distributed import Company
from mrl.exchange import Exchange
from mrl.learning import Learnt, learn
from mrl.metrics import fate_metrics, group_metrics, learning_metrics, lesson_metrics
from mrl.modes import Lesson, Mode, Rescue
from mrl.policy import Policy
from mrl.records import RECORD_TYPES, Record, RewardStats, make_records, pack, unpack
from mrl.rewards import Verdict, Verifier
from mrl.samples import Group
from mrl.tasks import Problem


@dataclass
class StepReport:
    """What one step did, for whoever watches. A policy that missed the step has no metrics."""

    step: int
    metrics: dict[str, dict] = field(default_factory=dict)  # policy -> its line
    samples: list[dict] = field(default_factory=list)  # a completion of each group, for people
    rescues: list[Rescue] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)  # sentences for the person
    lost: list[str] = field(default_factory=list)  # policies that the run goes on without
    stop: bool = False  # somebody has asked to end after this step


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
        problems: Sequence[Problem],
        modes: Mapping[str, Mode],
        exchange: Exchange,
        verifier: Verifier,
        allocation: Allocation,
        company: Company,
        make_records: Callable[..., Iterable[Record | LossyText]] = make_records,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config = config
        self.problems = problems
        self.modes = modes  # policy -> its own instance; only the policies of this process
        self.exchange = exchange
        self.verifier = verifier
        self.allocation = allocation
        self.company = company
        self.make_records = make_records  # the one place where a lesson can plant a lie
        self.should_stop = should_stop
        self.missed: Counter[str] = Counter(dict.fromkeys(company.names, 0))  # steps in a row

    @property
    def present(self) -> list[str]:
        """The policies that the run still counts on."""
        return [name for name, steps in self.missed.items() if steps < PATIENCE]

    def train_step(self, step: int) -> StepReport:
        """One step: every policy samples and publishes, then every policy learns."""
        self.allocation.begin_step(step)
        config, present = self.config, self.present
        problems = problems_of_step(self.problems, step, config.prompts_per_step, config.seed)

        def sample(policy: Policy) -> list[Group]:
            generator = torch.Generator().manual_seed(derive_seed(config.seed, step, policy.index))
            size = policy.config.group_size * self.modes[policy.name].rollout_factor
            return policy.rollout(problems, generator, size)

        groups = self.allocation.run("rollout", sample, present)

        def verify(policy: Policy) -> None:
            verify_groups(self.verifier, groups[policy.name])

        verified = self.allocation.run("verify", verify, list(groups))
        self._exchange_records(step, {name: groups[name] for name in verified})
        peers = {name: self._collect(name, problems) for name in verified}

        def learn_from(policy: Policy) -> tuple[Lesson, Learnt]:
            rng = random.Random(derive_seed(config.seed, step, policy.index, "mode"))
            name, mode = policy.name, self.modes[policy.name]
            lesson = mode.training_samples(policy, groups[name], peers[name], rng)
            measure = config.gradient_every > 0 and step % config.gradient_every == 0
            learnt = learn(policy, lesson.samples, mode.minibatches, measure)
            policy.codec.clear_cache()  # the next step has other prompts
            return lesson, learnt

        lessons = self.allocation.run("learn", learn_from, list(verified))
        return self._report(step, groups, peers, lessons)

    def _exchange_records(self, step: int, groups: dict[str, list[Group]]) -> None:
        """Publish what the mode consumes, if there is anybody who could collect it."""
        mode = next(iter(self.modes.values()))  # they are all of one class
        shared = mode.consumes if len(self.company.names) > 1 else None
        kind = shared or RECORD_TYPES.get(self.config.record)
        if kind is None:
            return
        told = {
            policy.name: list(
                self.make_records(
                    kind, policy.name, policy.version, groups[policy.name], policy.codec
                )
            )
            for policy in self.allocation.policies
            if policy.name in groups
        }
        told = self.company.share(f"{step}/records", told, self.present, pack, unpack)
        for name, records in told.items():
            for record in records:
                self.exchange.publish(record, name)

    def _collect(self, receiver: str, problems: list[Problem]) -> dict[str, list[Record]]:
        """The peers' records for this receiver by prompt id, successes verified once more."""
        answers = {problem.id: problem.answer for problem in problems}
        start = time.perf_counter()

        def believes(record: Record) -> bool:
            if self.config.trust == "claim" or isinstance(record, RewardStats):
                return True
            verdict = self.verifier.verify(answers[record.prompt_id], record.text, record.finished)
            return (verdict is Verdict.CORRECT) == (record.verdict == Verdict.CORRECT)

        kind = self.modes[receiver].consumes
        collected = self.exchange.collect(kind, receiver, answers, believes)
        self.allocation.note(receiver, "collect", start)
        return collected

    def _report(
        self,
        step: int,
        groups: dict[str, list[Group]],
        peers: dict[str, dict[str, list[Record]]],
        lessons: dict[str, tuple[Lesson, Learnt]],
    ) -> StepReport:
        """Put the step's log lines together, of all processes, and note who missed it."""
        report = StepReport(step, troubles=list(self.allocation.troubles))
        stop, said = self.should_stop(), {}
        for policy in self.allocation.policies:
            if policy.name not in lessons:
                continue
            name, (lesson, learnt) = policy.name, lessons[policy.name]
            report.troubles += learnt.notes
            line = {
                "step": step,
                "policy": name,
                "version": policy.version,
                **group_metrics(groups[name]),
                **lesson_metrics(lesson, learnt.totals["nll_nats"]),
                **learning_metrics(learnt),
                **fate_metrics(groups[name], peers[name], lesson, learnt),
                **self.exchange.take_traffic(name),
                **self.allocation.ledger_of(name),
            }
            rescues = [asdict(rescue) for rescue in lesson.rescues]
            said[name] = {
                "metrics": line,
                "samples": sample_lines(step, name, groups[name]),
                "rescues": rescues,
                "stop": stop,
            }
        report.stop = stop
        said = self.company.share(f"{step}/lines", said, self.present)
        for name in self.present:
            if name not in said:
                self.missed[name] += 1
                report.troubles.append(f"{name} missed step {step}.")
                if self.missed[name] == PATIENCE:
                    report.lost.append(name)
                    report.troubles.append(
                        f"{name} missed {PATIENCE} steps in a row; the run goes on without it."
                    )
                continue
            self.missed[name] = 0
            report.metrics[name] = said[name]["metrics"]
            report.samples += said[name]["samples"]
            report.stop |= said[name]["stop"]
            report.rescues += [Rescue(**rescue) for rescue in said[name]["rescues"]]
            self.exchange.advance(name, report.metrics[name]["version"])
        return report


def sample_lines(step: int, policy: str, groups: Sequence[Group]) -> list[dict]:
    """A line of samples.jsonl for each group: its first completion."""
    return [
        {
            "step": step,
            "policy": policy,
            "problem": group.problem.id,
            "solved": sum(group.rewards),
            "text": group.rollouts[0].text,
            "verdict": str(group.rollouts[0].verdict),
        }
        for group in groups
    ]


def verify_groups(verifier: Verifier, groups: Sequence[Group]) -> None:
    """Give every rollout its verdict."""
    rollouts = [(group, rollout) for group in groups for rollout in group.rollouts]
    verdicts = verifier.verify_batch(
        [(group.problem.answer, rollout.text, rollout.finished) for group, rollout in rollouts]
    )
    for (_, rollout), verdict in zip(rollouts, verdicts, strict=True):
        rollout.verdict = verdict
