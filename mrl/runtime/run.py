"""Around a step: what a run loads before the first one, writes after each, and scores at the end.

`mini_mrl.py` has the loop; a `Run` is what its `train_step` works with.
"""

import fcntl
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed
from safetensors import SafetensorError

from mrl.allocation import Allocation
from mrl.config import RunConfig
from mrl.errors import MrlError, RunFailed
from mrl.exchange import Exchange
from mrl.records import RECORD_TYPES, Record, RewardStats, make_records
from mrl.runtime.checkpoint import (
    LOGS,
    cut_back,
    finish_checkpoint,
    newest_checkpoint,
    read_state,
    restore_optimizers,
    save_policies,
)
from mrl.runtime.evaluation import evaluate, load_heldout
from mrl.runtime.judge import make_verifier
from mrl.runtime.launch import is_worker, join_processes
from mrl.runtime.loading import load_policies, pick_device
from mrl.runtime.memory import choose_placement, estimate, peak_memory
from mrl.runtime.metrics import StepResult, sample_lines, step_metrics, time_metrics
from mrl.runtime.problems import load_problems, longest_prompt
from mrl.runtime.run_directory import (
    new_directory,
    read_evaluations,
    read_records,
    with_weights_of,
    write_run_config,
)
from mrl.runtime.settings import check, make_mode
from mrl.runtime.view import View
from mrl.samples import Verdict

NOT_FINITE = 5  # steps in a row, then the run stops


class Run(AbstractContextManager):
    """Everything that a run needs, loaded and checked before the first file is written.

    resumed: the directory of a stopped run, to go on with from its newest checkpoint, or from its
    beginning if there is none.
    """

    def __init__(self, config: RunConfig, view: View, resumed: Path | None = None) -> None:
        check(config)
        self.view = view
        self.names = [policy.name for policy in config.policies]
        self.local = [join_processes(self.names)] if is_worker() else self.names
        # one process of each machine keeps the files
        self.writes = not is_worker() or os.environ["LOCAL_RANK"] == "0"
        self.evaluations: dict[str, list[dict]] = {}  # "before" | "after" -> scores
        self.not_finite: Counter[str] = Counter()  # steps in a row
        self.stopping = False  # somebody wants the run to end after this step
        self.scoring = False  # held-out problems: nothing is lost if that ends at once
        self.make_records = make_records  # the one place where a lesson can plant a lie
        self.verifier = make_verifier(config, view.say)
        try:
            self._load(config, resumed)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise

    def _load(self, config: RunConfig, resumed: Path | None) -> None:
        self.device = pick_device(config.device)
        self.stored = read_records(Path(config.peer_log)) if config.peer_log else []
        self.modes = {name: make_mode(config.mode, config.settings) for name in self.local}
        self.mode = self.modes[self.local[0]]  # all are of one class
        self._check_peer_log(config.peer_log)
        for mode in self.modes.values():
            mode.peers_are_live = not config.peer_log
        shared = self.mode.consumes if len(self.names) > 1 else None
        if shared and config.record not in ("", shared.kind):
            raise MrlError(
                f"record is {config.record}, but mode {self.mode.name} publishes {shared.kind} "
                "records, and a run logs one type; record with --mode solo."
            )
        self.published = shared or RECORD_TYPES.get(config.record)  # what `make_records` makes

        self.verifier.canary()
        self.problems = load_problems(Path(config.train), self.verifier.check_answer)
        self.answers = {problem.id: problem.answer for problem in self.problems}
        self.heldout = load_heldout(config.heldout, self.verifier)
        if config.prompts_per_step > len(self.problems):
            raise MrlError(
                f"prompts_per_step is {config.prompts_per_step}, but {config.train} holds only "
                f"{len(self.problems)} problems; lower it or give more problems."
            )
        checkpoint = newest_checkpoint(resumed) if resumed else None
        start = with_weights_of(config, checkpoint) if checkpoint else config
        self.policies = load_policies(start.policies, self.device, config.threads, self.local)
        problems = [*self.problems, *(p for part in self.heldout.values() for p in part)]
        factor = self.mode.rollout_factor
        estimates = [
            estimate(p, config, longest_prompt(p, problems), factor) for p in self.policies
        ]
        placement, self.why_placed = choose_placement(estimates, config.placement, self.device)
        self.allocation = Allocation(self.policies, self.names, placement, self.device)
        self._open(config, resumed, checkpoint)

    def _open(self, config: RunConfig, resumed: Path | None, checkpoint: Path | None) -> None:
        """The run's directory and logs, at the state of the checkpoint."""
        state = read_state(checkpoint)
        mine = dict.fromkeys(self.local, (str(resumed or new_directory(config)), state["step"]))
        found = self.allocation.gather(mine)  # and nobody writes before all have looked
        if len({step for _, step in found.values()}) > 1:
            raise MrlError(
                f"{resumed}: two machines' copies of the run have checkpoints of different steps; "
                "delete the newest where it is ahead."
            )
        self.directory = resumed or Path(found[self.names[0]][0])  # the first process decides
        self.config = config = replace(config, name=self.directory.name)
        self.first_step = state["step"] + 1
        if self.writes and not resumed:
            self.directory.mkdir(parents=True)
            write_run_config(self.directory, config)
        logs = [self.directory / name if self.writes else Path(os.devnull) for name in LOGS]
        self.metrics_log, self.samples_log = (p.open("a", encoding="utf-8") for p in logs[:2])
        if self.writes:
            try:  # before anything is cut back; it holds for as long as the log is open
                fcntl.flock(self.metrics_log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sentence = f"{resumed}: another process writes this run; let it end first."
                raise MrlError(sentence) from None
        if resumed:
            self._restore(checkpoint, state)
        self.allocation.gather({})  # nor before the directory is in order
        largest = self.mode.rollout_factor * max(p.group_size for p in config.policies)
        self.exchange = Exchange(logs[2], largest)
        self.exchange.store(self.stored)
        self.exchange.versions = state["versions"]

    def _check_peer_log(self, path: str) -> None:
        kinds = {record.kind for record in self.stored if record.source not in self.names}
        consumed = self.mode.consumes.kind if self.mode.consumes else "no"
        if self.stored and consumed not in kinds:
            raise MrlError(
                f"{path}: holds {' and '.join(sorted(kinds)) or 'no'} records of a peer, but mode "
                f"{self.mode.name} consumes {consumed} records; make it with `--set record=...`."
            )

    def _restore(self, checkpoint: Path | None, state: dict) -> None:
        """Take back what the checkpoint holds: the run goes on as if it had never stopped."""
        if checkpoint:
            restore_optimizers(checkpoint, self.policies, state)
            for name, mode in self.modes.items():
                mode.restore(state["modes"].get(name, {}))
        self.evaluations = read_evaluations(self.directory)
        if self.writes:
            cut_back(self.directory, state)
        for name, old in state["made_with"].items():
            if old != version(name):
                self.view.say(
                    f"This run was made with {name} {old}, here is {version(name)}: it goes on, "
                    "but maybe not to the same last bit."
                )
        self.view.say(f"Going on after step {state['step']} of {self.config.steps}.")

    def stop(self, number: int, frame: object) -> None:
        """Ctrl-C: end after this step, so that no policy is a version behind; twice: at once."""
        if self.stopping or self.scoring:
            go_on = f"python mini_mrl.py resume {self.directory}"
            self.view.say(f"Stopped; what the last checkpoint holds is kept. Go on with: {go_on}")
            raise KeyboardInterrupt
        self.stopping = True
        self.view.say("Stopping after this step; Ctrl-C again stops at once.")

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        """End the verifier's process, close the logs; after an error, let the other workers know.

        Without one the connections stay: a process that is slower may still be reading.
        """
        self.verifier.close()
        for log in ("metrics_log", "samples_log", "exchange"):
            with suppress(AttributeError, OSError):  # not opened yet; the disk is full
                getattr(self, log).close()
        if error and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        if isinstance(error, RunFailed) and hasattr(self, "directory"):
            go_on = f"Go on with: python mini_mrl.py resume {self.directory}"
            raise type(error)(f"{error} {go_on}") from error

    # -------------------------------------------------------------------------- during a step

    def believes(self, record: Record) -> bool:
        """What a receiver does before it learns from a peer's record: judge the text once more."""
        if self.config.trust == "claim" or isinstance(record, RewardStats):
            return True
        answer = self.answers[record.prompt_id]
        verdict = self.verifier.verify(answer, record.text, record.finished)
        return (verdict is Verdict.CORRECT) == (record.verdict == Verdict.CORRECT)

    # -------------------------------------------------------------------------- after a step

    def finish_step(self, step: int, results: dict[str, StepResult]) -> bool:
        """Log a step and show it, save if it is time; returns whether the run ends here."""
        mine = {}
        for policy in self.policies:
            line = {"step": step, "policy": policy.name, "version": policy.version}
            line |= step_metrics(results[policy.name])
            line |= self.exchange.take_traffic(policy.name)
            line |= time_metrics(self.allocation.ledger, policy.name)
            line["memory/peak_bytes"] = peak_memory(self.device)
            samples = sample_lines(step, policy.name, results[policy.name])
            mine[policy.name] = line, samples, self.stopping
        noted = self.allocation.gather(mine)
        lines = {name: line for name, (line, _, _) in noted.items()}
        samples = [entry for _, entries, _ in noted.values() for entry in entries]
        with self.writing():
            for line in lines.values():
                self.metrics_log.write(json.dumps(line) + "\n")
            for entry in samples:
                self.samples_log.write(json.dumps(entry, ensure_ascii=False) + "\n")
        rescues = [entry["rescue"] for entry in samples if "rescue" in entry]
        failures = [entry["failure"] for entry in samples if "failure" in entry]
        self.view.step(step, lines, rescues)
        for text in (*failures, *self._not_finite(lines)):
            self.view.say(text)
        self.exchange.end_step({name: line["version"] for name, line in lines.items()})
        stopping = any(stopping for _, _, stopping in noted.values())
        last, every = step == self.config.steps, self.config.checkpoint_every
        if last or stopping or (every and step % every == 0):
            with self.writing():
                self._save(step)
        return stopping

    def _not_finite(self, lines: dict[str, dict]) -> Iterator[str]:
        """A sentence for an update that was not finite; MrlError after `NOT_FINITE` in a row."""
        for name, line in lines.items():
            self.not_finite[name] = self.not_finite[name] + 1 if line["update_skipped"] else 0
            if line["update_skipped"]:
                yield (
                    f"{name}: the gradient of step {line['step']} was not finite; its update was "
                    "skipped (metrics.jsonl has the step's figures)."
                )
            if self.not_finite[name] == NOT_FINITE:
                raise MrlError(
                    f"{name}: {NOT_FINITE} steps in a row had a gradient that is not finite; lower "
                    "the learning rate and start again, or resume from a checkpoint before."
                )

    def _save(self, step: int) -> None:
        for log in (self.metrics_log, self.samples_log, self.exchange):
            log.flush()
        partial = save_policies(self.directory, step, self.policies)
        mine = {p.name: (p.version, self.modes[p.name].state()) for p in self.policies}
        saved = self.allocation.gather(mine)  # everybody's files are written now
        if not self.writes:
            return
        state = {
            "step": step,
            "versions": {name: count for name, (count, _) in saved.items()},
            "modes": {name: memory for name, (_, memory) in saved.items()},
            "made_with": {name: version(name) for name in ("torch", "transformers", "tokenizers")},
        }
        finish_checkpoint(self.directory, partial, state)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A disk that cannot be written ends the run with a sentence."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise MrlError(
                f"{self.directory}: cannot be written any more ({reason}); make room, then "
                f"`python mini_mrl.py resume {self.directory}` goes on from the last checkpoint."
            ) from error

    # -------------------------------------------------------------------------- before and after

    def evaluate(self, when: str) -> None:
        """Score the held-out problems and keep the result in `evaluation.json`."""
        self.view.say(f"Scoring the held-out problems {when} training.")
        self.scoring, began = True, time.monotonic()
        scored = {}
        for policy in self.policies:
            with self.allocation.turn(policy, "evaluate"):
                samples, seed = self.config.eval_samples, self.config.seed
                scored[policy.name] = evaluate(
                    policy, self.heldout, self.verifier, samples, seed, progress=self.view.progress
                )
        self.scoring, self.view.scoring_s = False, time.monotonic() - began
        rows = zip(*self.allocation.gather(scored).values(), strict=True)  # parts, policies within
        self.evaluations[when] = [score for row in rows for score in row]
        if self.writes:
            with self.writing():
                path = self.directory / "evaluation.json"
                partial = path.with_suffix(".partial")
                partial.write_text(json.dumps(self.evaluations, indent=1), encoding="utf-8")
                partial.replace(path)  # whole or not at all
