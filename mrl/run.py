"""One run from its settings to its result: what is loaded, written where, and evaluated when."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Protocol, TextIO

import torch
from safetensors import SafetensorError

from mrl.allocation import PATIENCE, Allocation, pick_device
from mrl.checkpoint import (
    LOGS,
    changes_since,
    cut_logs,
    finish_checkpoint,
    newest_checkpoint,
    origin,
    read_state,
    remove_partial,
    restore_optimizers,
    save_policies,
)
from mrl.config import PolicyConfig, RunConfig, check, config_toml
from mrl.distributed import Company
from mrl.errors import MrlError
from mrl.evaluate import evaluate_all, load_heldout
from mrl.exchange import Exchange
from mrl.lab.collapse import CollapseWatch
from mrl.lab.faults import parse_fault
from mrl.lab.tensorboard import scalar_writer
from mrl.memory import choose_placement, estimate, memory_in_use
from mrl.metrics import without_time
from mrl.modes import Mode, make_mode
from mrl.policy import Policy
from mrl.records import read_log
from mrl.rewards import Verifier
from mrl.run_directory import read_evaluations
from mrl.tasks import load_problems
from mrl.trainer import StepReport, Trainer

NOT_FINITE = 5  # steps in a row, then the run stops
EVALUATION_S = 7200.0  # that the other processes may need longer for the held-out problems


class Watcher(Protocol):
    """Who is shown a run while it goes on (dashboard.py has two)."""

    def say(self, text: str) -> None:
        """One line for the person."""

    def step(self, report: StepReport) -> None:
        """A step has ended."""


class Run:
    """Everything that a run needs, loaded and checked before the first file is written."""

    def __init__(
        self,
        config: RunConfig,
        directory: Path,
        watcher: Watcher,
        company: Company | None = None,
    ) -> None:
        check(config)
        self.config = config
        self.directory = directory
        self.watcher = watcher
        self.names = [policy.name for policy in config.policies]
        self.company = company or Company(self.names)
        self.modes: dict[str, Mode] = {  # an instance a policy: one alone could carry groups over
            name: make_mode(config.mode, config.settings) for name in self.company.local
        }
        for mode in self.modes.values():
            mode.peers_are_live = not config.peer_log
        self.mode = next(iter(self.modes.values()))  # for what they have in common
        set_threads(config.threads)
        self.device = pick_device(config.device)
        self.fault = parse_fault(config.fault, self.names, config.seed)
        self.stored, self.left_out = (
            read_log(Path(config.peer_log)) if config.peer_log else ([], {})
        )
        kinds = {record.kind for record in self.stored}
        if self.stored and (self.mode.consumes is None or self.mode.consumes.kind not in kinds):
            wanted = self.mode.consumes.kind if self.mode.consumes else "no"
            raise MrlError(
                f"{config.peer_log}: holds {' and '.join(sorted(kinds))} records, but mode "
                f"{self.mode.name} consumes {wanted} records; record another run with --record."
            )
        self.rescues: Counter[tuple[str, str, str]] = Counter()  # (receiver, source, skill)
        self.evaluations: dict[str, list[dict]] = {}  # "before" | "after" -> scores
        self.not_finite: Counter[str] = Counter()  # steps in a row
        self.collapse = CollapseWatch()
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
            self.memory_before = memory_in_use()
            self.policies = load_policies(config.policies, self.device, self.company.local)
            problems = [*self.train_problems, *(p for part in self.heldout.values() for p in part)]
            self.estimates = [
                estimate(policy, config, policy.check_lengths(problems)) for policy in self.policies
            ]
            self.placement, self.why = config.placement, "as told"
            if self.placement == "auto":
                self.placement, self.why = choose_placement(self.estimates, self.device)
            self.allocation = Allocation(
                self.policies,
                self.placement,
                self.device,
                config.turn_budget_s,
                self.fault.before_turn,
            )
        except BaseException:
            self.verifier.close()
            raise

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.company.close()
        self.verifier.close()

    # -------------------------------------------------------------------------- the whole run

    def start(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Run from the first step. Returns whether it got to the end (False: it was stopped)."""
        if self.company.writes:
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
        self.evaluate("before", self.names)
        return self._train(1, should_stop)

    def resume(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Go on from the newest checkpoint, as if the run had never stopped."""
        checkpoint = newest_checkpoint(self.directory)
        state = read_state(checkpoint)
        restore_optimizers(checkpoint, self.policies, state)
        self.rescues = Counter({tuple(key.split("\t")): n for key, n in state["rescues"].items()})
        self.evaluations = read_evaluations(self.directory)
        self.window = state["window"]
        for name, mode in self.modes.items():
            if name in state["mode"]:
                mode.restore(state["mode"][name])
        here = {name: state["step"] for name in self.company.local}
        steps = self.company.share("resume", here, self.names)
        if len(set(steps.values())) > 1:
            raise MrlError(f"The processes would go on from different steps ({steps}).")
        if self.company.writes:
            remove_partial(self.directory)
            cut_logs(self.directory, state)
        for text in changes_since(state.get("origin", {}), origin(self.config)):
            self.watcher.say(text)
        self.watcher.say(f"Going on after step {state['step']} of {self.config.steps}.")
        return self._train(state["step"] + 1, should_stop)

    def _train(self, first_step: int, should_stop: Callable[[], bool]) -> bool:
        """All steps from there; a disk that cannot be written ends the run with a sentence."""
        try:
            return self._train_steps(first_step, should_stop)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise MrlError(
                f"{self.directory}: cannot be written any more ({reason}); make room, then "
                f"`python mini_mrl.py resume {self.directory}` goes on from the last checkpoint."
            ) from error

    def _train_steps(self, first_step: int, should_stop: Callable[[], bool]) -> bool:
        config, writes = self.config, self.company.writes
        logs = [self.directory / name if writes else Path(os.devnull) for name in LOGS]
        largest_group = self.mode.rollout_factor * max(p.group_size for p in config.policies)
        with (
            closing(Exchange(logs[2], config.max_staleness, largest_group)) as exchange,
            logs[0].open("a", encoding="utf-8") as metrics,
            logs[1].open("a", encoding="utf-8") as samples,
        ):
            exchange.store(self.stored)
            exchange.restore_window(self.window)
            for policy in self.policies:
                exchange.versions[policy.name] = policy.version
            trainer = Trainer(
                config,
                self.train_problems,
                self.modes,
                exchange,
                self.verifier,
                self.allocation,
                self.company,
                self.fault.make_records,
                should_stop,
            )
            scalars = scalar_writer(self.directory) if writes else lambda line: None
            for step in range(first_step, config.steps + 1):
                report = trainer.train_step(step)
                self._log(report, metrics, samples)
                for line in report.metrics.values():
                    scalars(line)
                for trouble in report.troubles:
                    self.watcher.say(trouble)
                if report.metrics:
                    self.watcher.step(report)
                self._check_numbers(report)
                for warning in self.collapse.notice(report):
                    self.watcher.say(warning)
                due = config.checkpoint_every and step % config.checkpoint_every == 0
                if due or report.stop or report.lost or step == config.steps:
                    for log in (metrics, samples, exchange):
                        log.flush()
                    self._save(step, exchange, trainer.present)
                if not trainer.present:
                    raise MrlError(
                        f"Every policy missed {PATIENCE} steps in a row, so the run ends at step "
                        f"{step}; `python mini_mrl.py resume {self.directory}` tries again."
                    )
                if report.stop and step < config.steps:
                    return False
        self.watcher.say("Scoring the held-out problems after training.")
        self.evaluate("after", trainer.present)
        return True

    def _check_numbers(self, report: StepReport) -> None:
        """Say and note an update that was not finite; stop after `NOT_FINITE` in a row."""
        for name, line in report.metrics.items():
            if not line["update_skipped"]:
                self.not_finite[name] = 0
                continue
            self.not_finite[name] += 1
            about = {"seed": self.config.seed, **without_time(line)}
            with (self.directory / "not_finite.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(about) + "\n")
            self.watcher.say(
                f"{name}: the gradient of step {report.step} was not finite; its update was "
                "skipped (not_finite.jsonl has the step's figures and seed)."
            )
            if self.not_finite[name] == NOT_FINITE:
                raise MrlError(
                    f"{name}: {NOT_FINITE} steps in a row had a gradient that is not finite; lower "
                    f"the learning rate and start again, or resume from a checkpoint before."
                )

    def _log(self, report: StepReport, metrics: TextIO, samples: TextIO) -> None:
        for line in report.metrics.values():
            metrics.write(json.dumps(line) + "\n")
        for line in report.samples:
            samples.write(json.dumps(line, ensure_ascii=False) + "\n")
        for trouble in report.troubles:
            samples.write(json.dumps({"step": report.step, "trouble": trouble}) + "\n")
        for rescue in report.rescues:
            self.rescues[rescue.receiver, rescue.source, rescue.skill] += 1
            line = {"step": report.step, "rescue": asdict(rescue)}
            samples.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _save(self, step: int, exchange: Exchange, present: Sequence[str]) -> None:
        folder = save_policies(self.directory, step, self.policies)
        mine = {p.name: [p.version, self.modes[p.name].state()] for p in self.policies}
        saved = self.company.share(f"{step}/saved", mine, dict.fromkeys([*present, *mine]))
        if not self.company.writes or folder is None:
            return
        state = {
            "step": step,
            "versions": {name: version for name, (version, _) in saved.items()},
            "mode": {name: known for name, (_, known) in saved.items()},
            "rescues": {"\t".join(key): number for key, number in self.rescues.items()},
            "window": exchange.window(),
            "origin": origin(self.config),
        }
        finish_checkpoint(self.directory, folder, state)

    def evaluate(self, when: str, names: Sequence[str]) -> None:
        """Score the held-out problems and keep the result in `evaluation.json`."""
        config = self.config

        def score(policy: Policy) -> list[dict]:
            scores = evaluate_all(
                [policy], self.heldout, self.verifier, config.eval_samples, config.seed
            )
            return [score.to_dict() for score in scores]

        scored = self.allocation.run("evaluate", score, names)
        scored = self.company.share(f"evaluation/{when}", scored, names, patience_s=EVALUATION_S)
        rows = zip(*scored.values(), strict=True)  # parts first, policies within
        self.evaluations[when] = [score for row in rows for score in row]
        if self.company.writes:
            path = self.directory / "evaluation.json"
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(self.evaluations, indent=1), encoding="utf-8")
            partial.replace(path)  # whole or not at all


# ------------------------------------------------------------------------------ parts


def set_threads(threads: int) -> None:
    """CPU threads of torch; set explicitly, because the same seed needs the same number."""
    torch.set_num_threads(threads)


def load_policies(
    configs: Iterable[PolicyConfig], device: str, names: Iterable[str] | None = None
) -> list[Policy]:
    """The policies of a run (or those named), on one device; each knows its place in the run."""
    return [
        Policy(config, index, device)
        for index, config in enumerate(configs)
        if names is None or config.name in names
    ]
