"""One run from its settings to its result: what is loaded, written where, and evaluated when."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol, TextIO

import torch

from mrl.allocation import Allocation, pick_device
from mrl.checkpoint import (
    cut_logs,
    newest_checkpoint,
    read_state,
    restore_optimizers,
    save_checkpoint,
)
from mrl.config import PolicyConfig, RunConfig, check, config_toml, load_config
from mrl.errors import MrlError
from mrl.evaluate import Evaluation, evaluate_policy
from mrl.exchange import Exchange, make_records, read_log
from mrl.faults import lying_records, parse_fault
from mrl.modes import Mode, make_mode
from mrl.policy import Policy
from mrl.rewards import Verifier
from mrl.tasks import Problem, load_problems
from mrl.trainer import StepReport, Trainer


class Watcher(Protocol):
    """Who is shown a run while it goes on (dashboard.py has two)."""

    def say(self, text: str) -> None:
        """One line for the person."""

    def step(self, report: StepReport) -> None:
        """A step has ended."""


class Run:
    """Everything that a run needs, loaded and checked before the first file is written."""

    def __init__(self, config: RunConfig, directory: Path, watcher: Watcher) -> None:
        check(config)
        self.config = config
        self.directory = directory
        self.watcher = watcher
        self.mode: Mode = make_mode(config.mode, config.settings.get(config.mode, {}))
        set_threads(config.threads)
        self.device = pick_device(config.device)
        self.make_records = make_records
        if config.fault:
            self.make_records = lying_records(parse_fault(config.fault)["liar"], config.seed)
        self.stored, self.left_out = (
            read_log(Path(config.peer_log)) if config.peer_log else ([], {})
        )
        self.rescues: Counter[tuple[str, str, str]] = Counter()  # (receiver, source, skill)
        self.evaluations: dict[str, list[dict]] = {}  # "before" | "after" -> scores
        self.window: list[str] = []  # of the exchange, when a run is resumed
        self.verifier = Verifier(timeout_s=config.verify_timeout_s)
        try:
            self.verifier.canary()
            self.train_problems = load_problems(Path(config.train), self.verifier.check_answer)
            self.heldout = load_heldout(config.heldout, self.verifier)
            if config.prompts_per_step > len(self.train_problems):
                raise MrlError(
                    f"prompts_per_step is {config.prompts_per_step}, but {config.train} holds only "
                    f"{len(self.train_problems)} problems; lower it or give more problems."
                )
            self.policies = load_policies(config.policies, self.device)
            for policy in self.policies:
                policy.check_lengths([*self.train_problems, *_all(self.heldout)])
        except BaseException:
            self.verifier.close()
            raise

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.verifier.close()

    # -------------------------------------------------------------------------- the whole run

    def start(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Run from the first step. Returns whether it got to the end (False: it was stopped)."""
        try:
            self.directory.mkdir(parents=True)
        except FileExistsError:
            raise MrlError(
                f"{self.directory}: exists already; give another --name, or go on with "
                f"`python mini_mrl.py resume {self.directory}`."
            ) from None
        except OSError as error:
            raise MrlError(f"{self.directory}: cannot be made ({error.strerror}).") from None
        (self.directory / "config.toml").write_text(config_toml(self.config), encoding="utf-8")
        self.watcher.say("Scoring the held-out problems before training.")
        self.evaluate("before")
        return self._train(1, should_stop)

    def resume(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Go on from the newest checkpoint, as if the run had never stopped."""
        checkpoint = newest_checkpoint(self.directory)
        state = read_state(checkpoint)
        restore_optimizers(checkpoint, self.policies, state)
        cut_logs(self.directory, state)
        self.rescues = Counter({tuple(key.split("\t")): n for key, n in state["rescues"].items()})
        self.evaluations = read_evaluations(self.directory)
        self.window = state["window"]
        self.watcher.say(f"Going on after step {state['step']} of {self.config.steps}.")
        return self._train(state["step"] + 1, should_stop)

    def _train(self, first_step: int, should_stop: Callable[[], bool]) -> bool:
        config, directory = self.config, self.directory
        exchange = Exchange(directory / "exchange.jsonl", config.max_staleness)
        exchange.store(self.stored)
        exchange.restore_window(self.window)
        for policy in self.policies:
            exchange.versions[policy.name] = policy.version
        trainer = Trainer(
            config,
            self.policies,
            self.train_problems,
            self.mode,
            exchange,
            self.verifier,
            Allocation(self.policies),
            self.make_records,
        )
        step = first_step - 1
        with (
            (directory / "metrics.jsonl").open("a", encoding="utf-8") as metrics,
            (directory / "samples.jsonl").open("a", encoding="utf-8") as samples,
        ):
            for step in range(first_step, config.steps + 1):
                report = trainer.train_step(step)
                self._log(report, metrics, samples)
                self.watcher.step(report)
                due = config.checkpoint_every and step % config.checkpoint_every == 0
                stop = should_stop()
                if due or stop or step == config.steps:
                    for log in (metrics, samples, exchange):
                        log.flush()
                    self._save(step, exchange)
                if stop and step < config.steps:
                    exchange.close()
                    return False
        exchange.close()
        self.watcher.say("Scoring the held-out problems after training.")
        self.evaluate("after")
        return True

    def _log(self, report: StepReport, metrics: TextIO, samples: TextIO) -> None:
        for policy in self.policies:
            metrics.write(json.dumps(report.metrics[policy.name]) + "\n")
            for group in report.groups[policy.name]:
                first = group.rollouts[0]
                line = {
                    "step": report.step,
                    "policy": policy.name,
                    "problem": group.problem.id,
                    "solved": sum(group.rewards),
                    "text": first.text,
                    "verdict": str(first.verdict),
                }
                samples.write(json.dumps(line, ensure_ascii=False) + "\n")
        for rescue in report.rescues:
            self.rescues[rescue.receiver, rescue.source, rescue.skill] += 1
            line = {"step": report.step, "rescue": asdict(rescue)}
            samples.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _save(self, step: int, exchange: Exchange) -> None:
        rescues = {"\t".join(key): number for key, number in self.rescues.items()}
        state = {"rescues": rescues, "window": exchange.window()}
        save_checkpoint(self.directory, step, self.policies, state)

    def evaluate(self, when: str) -> list[Evaluation]:
        """Score the held-out problems and keep the result in `evaluation.json`."""
        scores = evaluate_all(
            self.policies, self.heldout, self.verifier, self.config.eval_samples, self.config.seed
        )
        self.evaluations[when] = [score.to_dict() for score in scores]
        path = self.directory / "evaluation.json"
        path.write_text(json.dumps(self.evaluations, indent=1), encoding="utf-8")
        return scores


# ------------------------------------------------------------------------------ parts


def set_threads(threads: int) -> None:
    """CPU threads of torch; set explicitly, because the same seed needs the same number."""
    torch.set_num_threads(threads)


def load_policies(configs: Iterable[PolicyConfig], device: str) -> list[Policy]:
    """All policies of a run, on one device."""
    return [Policy(config, index, device) for index, config in enumerate(configs)]


def load_heldout(paths: Iterable[str], verifier: Verifier) -> dict[str, list[Problem]]:
    """Held-out parts by name (the file's stem)."""
    return {Path(path).stem: load_problems(Path(path), verifier.check_answer) for path in paths}


def _all(parts: dict[str, list[Problem]]) -> list[Problem]:
    return [problem for problems in parts.values() for problem in problems]


def evaluate_all(
    policies: Sequence[Policy],
    heldout: dict[str, list[Problem]],
    verifier: Verifier,
    samples: int,
    seed: int,
    temperature: float | None = None,
) -> list[Evaluation]:
    """Every policy on every held-out part."""
    return [
        evaluate_policy(policy, problems, verifier, samples, seed, part, temperature)
        for part, problems in heldout.items()
        for policy in policies
    ]


def unused_name(config: RunConfig) -> str:
    """`<mode>-s<seed>`, with a number behind it if that run exists."""
    stem = f"{config.mode}-s{config.seed}"
    name, number = stem, 2
    while (Path(config.runs) / name).exists():
        name, number = f"{stem}-{number}", number + 1
    return name


def read_run_config(directory: Path) -> RunConfig:
    """The settings that a run was started with."""
    if not (directory / "config.toml").is_file():
        raise MrlError(f"{directory}: is no run directory (it has no config.toml).")
    return RunConfig(**load_config(directory / "config.toml"))


def with_weights_of(config: RunConfig, checkpoint: Path) -> RunConfig:
    """The same run with its policies loaded from a checkpoint."""
    policies = [replace(policy, path=str(checkpoint / policy.name)) for policy in config.policies]
    return replace(config, policies=policies)


def read_evaluations(directory: Path) -> dict[str, list[dict]]:
    """The scores that a run has written so far."""
    path = directory / "evaluation.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def read_metrics(directory: Path) -> list[dict]:
    """All lines of a run's `metrics.jsonl`."""
    text = (directory / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def one_sentence(run: Run) -> str:
    """What was learnt, for somebody who sees this for the first time.

    The skill that improved most, of any policy, and who rescued that policy how often.
    """
    before = {(s["policy"], s["part"]): s["skills"] for s in run.evaluations["before"]}
    gains = [
        (scores["pass@1"] - before[s["policy"], s["part"]][skill]["pass@1"], s, skill)
        for s in run.evaluations["after"]
        for skill, scores in s["skills"].items()
        if s["part"] == run.evaluations["after"][0]["part"]
    ]
    _, scores, skill = max(gains, key=lambda entry: entry[0])
    old = before[scores["policy"], scores["part"]][skill]["pass@1"]
    new = scores["skills"][skill]["pass@1"]
    sentence = (
        f'{scores["policy"]} solved "{skill}" problems {old:.0%} of the time before, '
        f"{new:.0%} after"
    )
    helpers: Counter[str] = Counter()
    for (receiver, source, _), number in run.rescues.items():
        if receiver == scores["policy"]:
            helpers[source] += number
    if helpers:
        rescued = " and ".join(f"{number} from {name}" for name, number in helpers.items())
        own_skill = sum(
            number
            for (receiver, _, about), number in run.rescues.items()
            if receiver == scores["policy"] and about == skill
        )
        sentence += f"; it was rescued {sum(helpers.values())} times ({rescued}), {own_skill} of "
        sentence += f'them on "{skill}"'
    elif run.mode.consumes is None:
        sentence += "; nothing was shared in this mode"
    return sentence + "."
