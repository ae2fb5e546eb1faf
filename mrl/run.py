"""One run from its settings to its result: what is loaded, written where, and evaluated when."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch
from safetensors import SafetensorError

from mrl.allocation import PATIENCE, Allocation, pick_device
from mrl.checkpoint import (
    LOGS,
    cut_logs,
    finish_checkpoint,
    newest_checkpoint,
    read_state,
    remove_partial,
    restore_optimizers,
    save_policies,
)
from mrl.config import PAIRS, PolicyConfig, RunConfig, check, config_toml, load_config
from mrl.distributed import Company
from mrl.errors import MrlError
from mrl.evaluate import Evaluation, evaluate_policy
from mrl.exchange import Exchange
from mrl.lab.collapse import CollapseWatch
from mrl.lab.faults import parse_fault
from mrl.lab.tensorboard import scalar_writer
from mrl.loading import can_load
from mrl.memory import choose_placement, estimate, memory_in_use
from mrl.metrics import without_time
from mrl.modes import Mode, make_mode, mode_class
from mrl.policy import Policy
from mrl.records import read_log
from mrl.rewards import Verifier
from mrl.tasks import Problem, load_problems
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
        self.mode: Mode = make_mode(config.mode, config.settings)
        self.mode.peers_are_live = not config.peer_log
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
        self.mode.restore(state["mode"])
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
        with (
            closing(Exchange(logs[2], config.max_staleness)) as exchange,
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
                self.mode,
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
        mine = {policy.name: [policy.version, self.mode.state()] for policy in self.policies}
        saved = self.company.share(f"{step}/saved", mine, dict.fromkeys([*present, *mine]))
        if not self.company.writes or folder is None:
            return
        state = {
            "step": step,
            "versions": {name: version for name, (version, _) in saved.items()},
            "mode": {key: value for _, known in saved.values() for key, value in known.items()},
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


def origin(config: RunConfig) -> dict[str, Any]:
    """What a run's numbers come from beside its checkpoint: settings, lines of TOML; versions."""
    weights = ("path = ", "reference = ")  # those of a resumed run come from its checkpoint
    lines = [line for line in config_toml(config).splitlines() if not line.startswith(weights)]
    versions = {name: version(name) for name in ("torch", "transformers", "tokenizers")}
    return {"settings": lines, "versions": versions}


def changes_since(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Sentences about what is not as it was when a checkpoint was written."""
    said = []
    settings = before.get("settings", now["settings"])
    if changed := [line for line in now["settings"] if line not in settings]:
        said.append(f"config.toml has changed since the checkpoint: {'; '.join(changed)}.")
    for name, new in now["versions"].items():
        old = before.get("versions", {}).get(name, new)
        if old != new:
            said.append(
                f"This run was made with {name} {old}, here is {new}: it goes on, but maybe not "
                "to the same last bit."
            )
    return said


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


def load_heldout(paths: Iterable[str], verifier: Verifier) -> dict[str, list[Problem]]:
    """Held-out parts by name (the file's stem)."""
    return {Path(path).stem: load_problems(Path(path), verifier.check_answer) for path in paths}


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


def choose_pair() -> tuple[str, str]:
    """The pair for somebody who names none, and why: the real one where it can be trained."""
    policies, preset = PAIRS["qwen-smol"]
    force = "; --pair qwen-smol tries all the same, --pair DIR_A,DIR_B takes other models"
    if not torch.cuda.is_available():
        return "tiny", f" (there is no CUDA device{force})"
    missing = [policy.path for policy in policies() if not can_load(policy.path)]
    if missing:
        return "tiny", f" ({missing[0]} is not in the cache and the hub does not answer{force})"
    if not Path(preset["train"]).is_file():
        return "tiny", " (the real pair needs its problems first: python mini_mrl.py data gsm8k)"
    return "qwen-smol", " (--pair tiny takes the embedded pair)"


def unused_name(config: RunConfig) -> str:
    """`<mode>-s<seed>`, with a number behind it if that run exists."""
    stem = f"{mode_class(config.mode).name}-s{config.seed}"
    name, number = stem, 2
    while (Path(config.runs) / name).exists():
        name, number = f"{stem}-{number}", number + 1
    return name


def read_run_config(directory: Path) -> RunConfig:
    """The settings that a run was started with."""
    if not (directory / "config.toml").is_file():
        raise MrlError(f"{directory}: is no run directory (it has no config.toml).")
    settings = load_config(directory / "config.toml")
    if not settings.get("policies"):
        raise MrlError(f"{directory}: is no run directory (its config.toml names no policy).")
    return RunConfig(**settings)


def with_weights_of(config: RunConfig, checkpoint: Path) -> RunConfig:
    """The same run with its policies loaded from a checkpoint; their references stay the first."""
    policies = [
        replace(
            policy,
            path=str(checkpoint / policy.name),
            reference=policy.reference or policy.path,
        )
        for policy in config.policies
    ]
    return replace(config, policies=policies)


def read_evaluations(directory: Path) -> dict[str, list[dict]]:
    """The scores that a run has written so far; {} if there are none or the file is torn."""
    with suppress(OSError, ValueError):
        return json.loads((directory / "evaluation.json").read_text(encoding="utf-8"))
    return {}


def read_metrics(directory: Path) -> list[dict]:
    """All lines of a run's `metrics.jsonl`."""
    return read_json_lines(directory / "metrics.jsonl")


def read_json_lines(path: Path) -> list[dict]:
    """A log's objects; lines that are none (a killed run tears its last) are left out.

    Only the newline byte ends a line: what models write may hold other line breaks.
    """
    found = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        with suppress(ValueError, RecursionError):
            entry = json.loads(line.decode("utf-8"))
            found += [entry] if isinstance(entry, dict) else []
    return found


def learnt_sentence(
    evaluations: dict[str, list[dict]], rescues: Counter[tuple[str, str, str]]
) -> str:
    """What was learnt, for somebody who sees this for the first time.

    The skill that improved most, of any policy, and who rescued that policy how often. Empty if
    the held-out problems were not scored at both ends.
    """
    if not evaluations.get("before") or not evaluations.get("after"):
        return ""
    before = {(s["policy"], s["part"]): s["skills"] for s in evaluations["before"]}
    gains = [
        (scores["pass@1"] - before[s["policy"], s["part"]][skill]["pass@1"], s, skill)
        for s in evaluations["after"]
        for skill, scores in s["skills"].items()
        if s["part"] == evaluations["after"][0]["part"]
    ]
    gained, scores, skill = max(gains, key=lambda entry: entry[0])
    if gained <= 0:
        return "No policy got better at any skill of the held-out problems."
    name = scores["policy"]
    old = before[name, scores["part"]][skill]["pass@1"]
    new = scores["skills"][skill]["pass@1"]
    sentence = f'{name} solved "{skill}" problems {old:.0%} of the time before, {new:.0%} after'
    helpers: Counter[str] = Counter()
    for (receiver, source, _), number in rescues.items():
        if receiver == name:
            helpers[source] += number
    if helpers:
        rescued = " and ".join(f"{number} from {source}" for source, number in helpers.items())
        about = sum(n for (who, _, what), n in rescues.items() if (who, what) == (name, skill))
        sentence += f"; it was rescued {sum(helpers.values())} times ({rescued}), {about} of "
        sentence += f'them on "{skill}"'
    return sentence + "."
