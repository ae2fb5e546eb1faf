"""A run: a team together with its directory, logs and checkpoints.

The loop is in `mini_mrl.py`: it passes `run.team` to each training step, and passes the results of
the step to `run.finish_step`.
"""

import json
import os
import signal
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import torch
import torch.distributed
from safetensors import SafetensorError

from mrl.config import RunConfig
from mrl.errors import PROGRAM, MrlError, RunFailed, place_of
from mrl.models.loading import claim_device
from mrl.models.memory_estimate import peak_memory
from mrl.run.blind_spots import of_first_split
from mrl.run.directory import (
    cut_back,
    finish_checkpoint,
    lock,
    new_directory,
    newest_checkpoint,
    read_evaluations,
    read_metrics,
    read_start,
    read_state,
    restore_optimizers,
    save_policies,
    with_checkpoint_paths,
    write_json,
    write_run_config,
)
from mrl.run.evaluation import (
    Start,
    kl_to_start,
    problems_for_kl,
    sample_start,
    score_entries,
    solve_heldout,
)
from mrl.run.launch import is_worker, join_processes
from mrl.run.load_team import assemble
from mrl.run.metrics import sample_lines, step_metrics, time_metrics
from mrl.run.view import View, drop_closed_terminal
from mrl.samples import Problem
from mrl.settings.read import check
from mrl.team import StepResult
from mrl.verifier.verifier import make_verifier

# exchange.jsonl keeps the records of the first steps, and later those of every 20th step. The
# records of all steps would take gigabytes in a long run with long completions.
FIRST_EXCHANGES, EXCHANGES_EVERY = 5, 20


class Run(AbstractContextManager):
    """A run in progress. Everything is loaded and checked before the first file is written.

    view: shows the progress to the user.
    resumed: the directory of an interrupted run. It continues from its newest checkpoint, or from
    the beginning if it has none.
    """

    def __init__(self, config: RunConfig, view: View, resumed: Path | None = None) -> None:
        check(config)
        self.config = config
        self.view = view
        self.names = [policy.name for policy in config.policies]

        # under placement `parallel` this process has one policy, otherwise all of them
        self.names_here = [join_processes(self.names)] if is_worker() else self.names
        # only one process writes the files
        self.writes_files = not is_worker() or os.environ["LOCAL_RANK"] == "0"

        self.evaluations: dict[str, list[dict]] = {}  # "before" | "after" -> scores
        self.start: dict[str, Start] = {}  # policy -> what it wrote before training
        self.interrupts = 0  # how often Ctrl-C was pressed
        self.stopping = False  # after Ctrl-C: the run ends after this step
        self.scoring = False  # while held-out problems are scored, Ctrl-C ends the run at once

        with ExitStack() as opened:
            opened.push(_disconnect_after_error)
            claim_device(config)
            verifier = make_verifier(config.judge, config.verify_timeout_s, self.view.say)
            opened.enter_context(verifier)
            checkpoint = newest_checkpoint(resumed) if resumed else None
            start = with_checkpoint_paths(config, checkpoint) if checkpoint else config
            self.team = assemble(config, start, self.names_here, verifier)
            self._open_directory(resumed, checkpoint, opened)
            self._opened = opened.pop_all()  # __exit__ closes them

    def _open_directory(
        self, resumed: Path | None, checkpoint: Path | None, opened: ExitStack
    ) -> None:
        """Create the run's directory, or restore it to the state of the checkpoint."""
        state = read_state(checkpoint) if checkpoint else {"step": 0, "logs": {}}
        self.first_step = state["step"] + 1

        # the first process chooses the directory; nothing is written before all agree on it
        proposal = str(resumed or new_directory(self.config))
        proposals = self.team.allocation.gather(dict.fromkeys(self.names_here, proposal))
        self.directory = Path(proposals[self.names[0]])
        self.how_to_resume = f"Continue with: python mini_mrl.py resume {self.directory}"
        self.config = replace(self.config, name=self.directory.name)

        if not resumed:
            self._open_folder({}, opened)  # before there is anything to clean up
        if self.writes_files and not resumed:
            self.directory.mkdir(parents=True)
            write_run_config(self.directory, self.config)

        if self.writes_files:
            self._lock(opened)  # before `_continue_from` cuts the logs back
        if resumed:
            self._open_folder(state, opened)
            self._continue_from(checkpoint, state)

        self.team.allocation.wait_for_all()  # the directory is complete now

    def _lock(self, opened: ExitStack) -> None:
        """Lock the run, so that no other process can write it at the same time."""
        log = opened.enter_context((self.directory / "metrics.jsonl").open("a"))
        try:
            locked = lock(log)
        except OSError as error:
            self.view.say(
                f"{self.directory} cannot be locked ({error.strerror}), so make sure that no other "
                "process writes this run."
            )
            return
        if not locked:
            raise MrlError(
                f"{self.directory}: another process is writing this run. Wait until that process "
                "ends, or stop it."
            )

    def _open_folder(self, state: dict, opened: ExitStack) -> None:
        """Open the files that this run shares with other programs, if it does.

        state: that of the checkpoint; {"step": 0} without one, and {} for a new run.
        """
        folder = self.team.folder
        if folder is None:
            return
        opened.callback(folder.close)
        for name in self.names_here:
            then = state.get("policies", {}).get(name, {}).get("folder", {})
            written = then.get("written", 0) if state else None
            if not folder.open(name, written):
                self.view.say(
                    f"The file of {name} in {folder.directory} has lost records that this run "
                    "had written. The run continues, but its peers miss them."
                )
            if then:
                folder.restore(then["read"])

    def _continue_from(self, checkpoint: Path | None, state: dict) -> None:
        """Restore the checkpoint, so that the run continues as if it had never stopped."""
        if checkpoint:
            restore_optimizers(checkpoint, self.team.policies, state)
            for name, mode in self.team.modes.items():
                mode.restore(state["policies"][name]["mode"])

        self.evaluations = read_evaluations(self.directory)
        self.start = read_start(self.directory)
        if self.writes_files:
            cut_back(self.directory, state)
            self.view.scored(self.evaluations.get("before", []))
            self.view.recall(read_metrics(self.directory))
        self.view.say(f"Continuing after step {state['step']} of {self.config.steps}.")

    def stop(self, number: int, frame: object) -> None:
        """Handle Ctrl-C: end the run after this step, or at once if it is pressed again.

        SIGTERM and SIGHUP stop it as well, but never at once, because a system may send both.
        """
        # counted first of all, because another signal may come while this one is handled
        self.interrupts += number == signal.SIGINT
        again = number == signal.SIGINT and self.interrupts > 1
        if self.stopping and not again:
            return
        self.stopping = True
        drop_closed_terminal()
        if again or self.scoring:
            self.view.say(f"Stopped. {self.how_to_resume}")
            raise KeyboardInterrupt
        self.view.close()  # at once, because a second Ctrl-C would leave the view open
        self.view.say("Stopping after this step; Ctrl-C again stops at once.")

    def __exit__(
        self, error_type: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the verifier's process, unlock the run, and say how to continue a failed run."""
        self._opened.__exit__(error_type, error, trace)
        if isinstance(error, SystemExit):  # `| head -1`, or a mode that calls sys.exit
            error = RunFailed(f"The output was closed, or sys.exit was called ({place_of(error)}).")
        if isinstance(error, OSError | SafetensorError):  # usually the disk is full
            place = place_of(error)
            where = "" if place.startswith(PROGRAM) else f" ({place})"  # in the user's own mode
            error = RunFailed(f"{error}{where}.")
        if isinstance(error, RunFailed):
            raise type(error)(f"{error} {self.how_to_resume}") from error
        if isinstance(error, Exception) and not isinstance(error, MrlError):
            place = place_of(error)
            hint = ""
            if not place.startswith(PROGRAM):  # the user's own mode or judge
                hint = " (If you correct that file, start a new run.)"
            error.add_note(f"It happened in {place}.{hint} {self.how_to_resume}")

    # -------------------------------------------------------------------------- after a step

    def finish_step(self, step: int, results: dict[str, StepResult]) -> bool:
        """Log a step, show it, and save a checkpoint if one is due; True if Ctrl-C ends the run."""
        mine = {}
        for policy in self.team.policies:
            line = {"step": step, "policy": policy.name, "version": policy.version}
            line |= step_metrics(policy, results[policy.name])
            line |= self.team.exchange.take_traffic(policy.name)
            if self.team.folder:  # on the line of the process's first policy, which has read them
                line |= self.team.folder.take_counts()
            line |= time_metrics(self.team.allocation.ledger, policy.name)
            line["memory/peak_bytes"] = peak_memory(self.team.device)

            samples = sample_lines(step, policy, results[policy.name])
            mine[policy.name] = line, samples, self.stopping

        # the lines of all policies, including those of other processes
        gathered = self.team.allocation.gather(mine)
        lines = {name: line for name, (line, _, _) in gathered.items()}  # for metrics.jsonl
        entries = []  # for samples.jsonl
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

        every = self.config.checkpoint_every  # 0 means that only the last step is saved
        is_due = every > 0 and step % every == 0
        if is_due or stopping or step == self.config.steps:
            self._save(step)
        return stopping

    def _log(self, name: str, lines: Iterable[str]) -> None:
        """Append lines to one of the run's logs."""
        if self.writes_files:
            with (self.directory / name).open("a", encoding="utf-8") as log:
                log.writelines(line + "\n" for line in lines)

    def _save(self, step: int) -> None:
        """Write a checkpoint. Each process writes its policies; the first also writes the state."""
        partial = save_policies(self.directory, step, self.team.policies)
        mine = {}
        for policy in self.team.policies:
            memory = self.team.modes[policy.name].state()
            mine[policy.name] = {"version": policy.version, "mode": memory}
            if self.team.folder:
                mine[policy.name]["folder"] = self.team.folder.state(policy.name)

        policies = self.team.allocation.gather(mine)  # now all processes have written their files
        if self.writes_files:
            finish_checkpoint(self.directory, partial, {"step": step, "policies": policies})

    # -------------------------------------------------------------------------- before and after

    def evaluate(self, when: str) -> None:
        """Score the held-out problems and save the result. when: "before" or "after" training."""
        team, samples = self.team, self.config.eval_samples

        def say(what: str, done: int, total: int) -> None:
            if len(self.names_here) < len(self.names):  # other processes score at the same time
                name = self.names_here[0]
                what = f"{name} and its peers{what.removeprefix(name)}"
            self.view.progress(what, done, total)

        about = team.policies, team.heldout, team.verifier, samples, team.seed, team.turn
        self.scoring = True
        mine = solve_heldout(*about, progress=say)
        starts = self._sample_start() if when == "before" else {}
        divergences = self._kl_to_start() if when == "after" else {}
        self.scoring = False

        solved = team.allocation.gather(mine)  # including the policies of other processes
        self.evaluations[when] = score_entries(solved, team.heldout, samples)
        divergences = team.allocation.gather(divergences)
        for entry in of_first_split(self.evaluations[when]):
            if entry["policy"] in divergences:
                entry["kl_to_start"] = divergences[entry["policy"]]

        if when == "before":
            self.start = team.allocation.gather(starts)
            self.view.scored(self.evaluations[when])
            if self.writes_files:  # before the scores: a run that has scores has its start, too
                write_json(self.directory / "start.json", self.start)
        if self.writes_files:
            write_json(self.directory / "evaluation.json", self.evaluations, indent=1)

    def _sample_start(self) -> dict[str, Start]:
        """What each policy of this process writes before training, for `_kl_to_start`."""
        starts = {}
        for policy in self.team.policies:
            with self.team.turn(policy, "evaluate"):
                about = self.config.prompts_per_step, self.team.seed  # as many at once as in a step
                starts[policy.name] = sample_start(policy, self._problems_for_kl, *about)
        return starts

    def _kl_to_start(self) -> dict[str, float]:
        """KL(start || now) of each policy of this process; {} in a run that kept no start."""
        divergences = {}
        for policy in self.team.policies:
            if policy.name in self.start:
                with self.team.turn(policy, "evaluate"):
                    about = self._problems_for_kl, self.start[policy.name]
                    divergences[policy.name] = kl_to_start(policy, *about)
        return divergences

    @property
    def _problems_for_kl(self) -> list[Problem]:
        """Problems of the first held-out file."""
        return problems_for_kl(next(iter(self.team.heldout.values())))


def _disconnect_after_error(_: object, error: BaseException | None, trace: object) -> None:
    """After an error, close the connections, so that the other workers get PeerLost in `gather`.

    Without an error they stay open, because a slower process may still be reading.
    """
    if error and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
