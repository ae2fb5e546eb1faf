"""Files around a team: a run's directory, its logs and checkpoints, and how it is resumed.

`mini_mrl.py` has the loop. It hands `run.team` to each step and the step's results to the run.
"""

import fcntl
import json
import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed
from safetensors import SafetensorError

from mrl.config import RunConfig
from mrl.errors import MrlError, RunFailed
from mrl.models.loading import claim_device
from mrl.models.memory import peak_memory
from mrl.modes.check import PROGRAM, place_of
from mrl.run.directory import (
    cut_back,
    finish_checkpoint,
    new_directory,
    newest_checkpoint,
    read_evaluations,
    read_state,
    restore_optimizers,
    save_policies,
    with_checkpoint_paths,
    write_run_config,
)
from mrl.run.evaluation import count_solved, score_entries
from mrl.run.launch import is_worker, join_processes
from mrl.run.load_team import assemble
from mrl.run.metrics import sample_lines, step_metrics, time_metrics
from mrl.run.view import View
from mrl.settings.settings import check
from mrl.team import StepResult
from mrl.verifier.verifier import make_verifier

# exchange.jsonl keeps the records of the first steps, and then of every so many: all of them would
# be gigabytes in a long run with long completions
FIRST_EXCHANGES, EXCHANGES_EVERY = 5, 20


class Run(AbstractContextManager):
    """A team on its way: it is loaded and checked before the first file is written.

    view: shows what happens.
    resumed: the directory of a stopped run, to go on with from its newest checkpoint, or from its
    beginning if there is none.
    """

    def __init__(self, config: RunConfig, view: View, resumed: Path | None = None) -> None:
        check(config)
        self.config = config
        self.view = view
        self.names = [policy.name for policy in config.policies]

        # under placement `parallel` this process has one policy, else all of them
        self.names_here = [join_processes(self.names)] if is_worker() else self.names
        # one process keeps the files
        self.writes_files = not is_worker() or os.environ["LOCAL_RANK"] == "0"

        self.evaluations: dict[str, list[dict]] = {}  # "before" | "after" -> scores
        self.stopping = False  # Ctrl-C was pressed: the run ends after this step
        self.scoring = False  # held-out problems are being scored: Ctrl-C ends it at once

        with ExitStack() as opened:
            opened.push(_disconnect_after_error)
            claim_device(config)
            verifier = make_verifier(config.judge, config.verify_timeout_s, self.view.say)
            opened.enter_context(verifier)
            checkpoint = newest_checkpoint(resumed) if resumed else None
            start = with_checkpoint_paths(config, checkpoint) if checkpoint else config
            self.team = assemble(config, start, self.names_here, verifier)
            self._open_directory(resumed, checkpoint, opened)
            self._opened = opened.pop_all()  # from here on __exit__ closes them

    def _open_directory(
        self, resumed: Path | None, checkpoint: Path | None, opened: ExitStack
    ) -> None:
        """Make the run's directory, or bring it back to the state of the checkpoint."""
        state = read_state(checkpoint) if checkpoint else {"step": 0, "logs": {}}
        self.first_step = state["step"] + 1

        # the first process decides on the directory; no process writes before all have looked
        proposal = str(resumed or new_directory(self.config))
        proposals = self.team.allocation.gather(dict.fromkeys(self.names_here, proposal))
        self.directory = Path(proposals[self.names[0]])
        self.how_to_resume = f"Go on with: python mini_mrl.py resume {self.directory}"
        self.config = replace(self.config, name=self.directory.name)

        if self.writes_files and not resumed:
            self.directory.mkdir(parents=True)
            write_run_config(self.directory, self.config)

        if self.writes_files:
            self._lock(opened)  # before anything is cut back
        if resumed:
            self._go_on_from(checkpoint, state)  # and cut the logs back to the checkpoint

        self.team.allocation.wait_for_all()  # the directory is in order now

    def _lock(self, opened: ExitStack) -> None:
        """Keep other processes out of the run for as long as this one has it open."""
        log = opened.enter_context((self.directory / "metrics.jsonl").open("a"))
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MrlError(f"{self.directory}: another process writes this run.") from None

    def _go_on_from(self, checkpoint: Path | None, state: dict) -> None:
        """Take back what the checkpoint holds: the run goes on as if it had never stopped."""
        if checkpoint:
            restore_optimizers(checkpoint, self.team.policies, state)
            for name, mode in self.team.modes.items():
                mode.restore(state["policies"][name]["mode"])

        self.evaluations = read_evaluations(self.directory)
        if self.writes_files:
            cut_back(self.directory, state)
            self.view.scored(self.evaluations.get("before", []))
        self.view.now = state["step"]
        self.view.say(f"Going on after step {state['step']} of {self.config.steps}.")

    def stop(self, number: int, frame: object) -> None:
        """Ctrl-C: end after this step, so that no policy is a version behind; twice: at once."""
        if self.stopping or self.scoring:
            self.view.say(f"Stopped. {self.how_to_resume}")
            raise KeyboardInterrupt

        self.stopping = True
        self.view.close()  # now, because a second Ctrl-C ends the process at once
        self.view.say("Stopping after this step; Ctrl-C again stops at once.")

    def __exit__(self, error_type: type | None, error: BaseException | None, trace: object) -> None:
        """End the verifier's process, unlock the run, and say how a failed one goes on."""
        self._opened.__exit__(error_type, error, trace)
        if isinstance(error, SystemExit):  # `| head -1`, or a mode that calls sys.exit
            error = RunFailed(f"The output was closed, or sys.exit called: {place_of(error)}.")
        if isinstance(error, OSError | SafetensorError):  # most often the disk is full
            place = place_of(error)
            where = "" if place.startswith(PROGRAM) else f" ({place})"  # in a mode of one's own
            error = RunFailed(f"{error}{where}.")
        if isinstance(error, RunFailed):
            raise type(error)(f"{error} {self.how_to_resume}") from error
        if isinstance(error, Exception) and not isinstance(error, MrlError):
            error.add_note(f"It happened in {place_of(error)}. {self.how_to_resume}")

    # -------------------------------------------------------------------------- after a step

    def finish_step(self, step: int, results: dict[str, StepResult]) -> bool:
        """Log a step, show it, and save it if it is time; returns True if Ctrl-C ends the run."""
        mine = {}
        for policy in self.team.policies:
            line = {"step": step, "policy": policy.name, "version": policy.version}
            line |= step_metrics(policy, results[policy.name])
            line |= self.team.exchange.take_traffic(policy.name)
            line |= time_metrics(self.team.allocation.ledger, policy.name)
            line["memory/peak_bytes"] = peak_memory(self.team.device)

            samples = sample_lines(step, policy, results[policy.name])
            mine[policy.name] = line, samples, self.stopping

        # from here on the lines of all policies, those of other processes too
        gathered = self.team.allocation.gather(mine)
        lines = {name: line for name, (line, _, _) in gathered.items()}  # of metrics.jsonl
        entries = []  # of samples.jsonl
        for _, samples, _ in gathered.values():
            entries += samples
        stopping = any(process_stops for _, _, process_stops in gathered.values())

        metrics = [json.dumps(line, allow_nan=False) for line in lines.values()]
        completions = [json.dumps(entry, ensure_ascii=False) for entry in entries]
        self._log("metrics.jsonl", metrics)
        self._log("samples.jsonl", completions)
        if step <= FIRST_EXCHANGES or step % EXCHANGES_EVERY == 0:
            records = [record.line.decode() for record in self.team.exchange.records]
            self._log("exchange.jsonl", records)

        rescues = [entry["rescue"] for entry in entries if "rescue" in entry]
        self.view.step(step, lines, rescues)

        for entry in entries:
            if "failure" in entry:
                self.view.say(entry["failure"])

        every = self.config.checkpoint_every  # 0: only at the end
        is_due = every > 0 and step % every == 0
        if is_due or stopping or step == self.config.steps:
            self._save(step)
        return stopping

    def _log(self, name: str, lines: Iterable[str]) -> None:
        """Add lines to one of the run's logs."""
        if self.writes_files:
            with (self.directory / name).open("a", encoding="utf-8") as log:
                log.writelines(line + "\n" for line in lines)

    def _save(self, step: int) -> None:
        """Write a checkpoint: each process its policies, the first the state as well."""
        partial = save_policies(self.directory, step, self.team.policies)
        mine = {}
        for policy in self.team.policies:
            memory = self.team.modes[policy.name].state()
            mine[policy.name] = {"version": policy.version, "mode": memory}

        policies = self.team.allocation.gather(mine)  # the files of all processes are written now
        if self.writes_files:
            finish_checkpoint(self.directory, partial, {"step": step, "policies": policies})

    # -------------------------------------------------------------------------- before and after

    def evaluate(self, when: str) -> None:
        """Score the held-out problems and keep the result in `evaluation.json`."""
        self.scoring = True

        scored = {}
        team, samples = self.team, self.config.eval_samples
        how = {"samples": samples, "seed": team.seed, "progress": self.view.progress}
        for policy in team.policies:
            with team.turn(policy, "evaluate"):
                solved = count_solved(policy, team.heldout, team.verifier, **how)
            scored[policy.name] = score_entries(policy.name, team.heldout, solved, samples)
        self.scoring = False

        self.evaluations[when] = []
        for entries in team.allocation.gather(scored).values():
            self.evaluations[when] += entries
        if when == "before":
            self.view.scored(self.evaluations[when])

        if self.writes_files:
            path = self.directory / "evaluation.json"
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(self.evaluations, indent=1), encoding="utf-8")
            partial.replace(path)  # whole or not at all


def _disconnect_after_error(_: object, error: BaseException | None, trace: object) -> None:
    """Close the connections after an error: the other workers then get PeerLost in `gather`.

    Without an error the connections stay, because a slower process may still be reading.
    """
    if error and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
