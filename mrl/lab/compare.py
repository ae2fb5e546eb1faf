"""`python mini_mrl.py compare`: runs modes on the same seeds and budget, and reads their results.

Each mode and seed is a separate run in a separate process, several at a time. A comparison writes
the settings of each run into the run's directory, and `resume` then starts or continues the run. So
a comparison that was stopped or killed goes on where each of its runs was.

Comparisons are paired by seed: two runs of one seed start with the same weights and the same order
of problems.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, fields
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from mrl.config import RunConfig
from mrl.errors import MrlError
from mrl.lab.compare_board import Board, Progress
from mrl.run.directory import (
    is_locked,
    read_evaluations,
    read_metrics,
    read_run_config,
    write_run_config,
)
from mrl.settings.pairs import cores
from mrl.settings.read import check, mode_class, run_config

AT_ONCE = 4  # largest number of parallel runs, unless the user asks for more
PROCESS_BYTES = 2**30  # memory of a run besides its tensors: Python, torch, transformers
DECIDED = {  # setting that a comparison chooses for each run -> what to do instead
    "mode": "use --modes",
    "seed": "use --seeds",
    "name": "a run is named after its mode and seed",
    "runs": "use --out",
    "placement": "each run is one process",
}
TAIL = 2**15  # bytes at the end of a log that have its latest steps
PROGRAM = (sys.executable, str(Path(__file__).resolve().parents[2] / "mini_mrl.py"))


class PlannedRun(NamedTuple):
    """One run of a comparison: the name of its mode, its seed and its directory."""

    mode: str
    seed: int
    directory: Path

    def __str__(self) -> str:
        return f"{self.mode}, seed {self.seed}"


@dataclass
class Plan:
    """The modes, seeds and directory of a comparison, and the settings that its runs share.

    modes: name in tables and directories -> the mode as the user typed it.
    pair, file, steps, settings: as for training; a run ignores the settings of the other modes.
    """

    modes: dict[str, str]
    seeds: Sequence[int]
    out: Path
    pair: str | None = "tiny"
    file: Path | None = None
    steps: int | None = None
    settings: Sequence[str] = ()
    jobs: int = 2

    def runs(self) -> list[PlannedRun]:
        """Every run: first all modes with one seed, then the next seed."""
        runs = []
        for seed in self.seeds:
            for name in self.modes:
                runs.append(PlannedRun(name, seed, self.out / "runs" / f"{name}-s{seed}"))
        return runs

    def config_of(self, run: PlannedRun) -> RunConfig:
        """The settings of a run. Raises MrlError for any mistake in them."""
        decided = {
            "mode": self.modes[run.mode],
            "seed": run.seed,
            "name": run.directory.name,
            "runs": str(run.directory.parent),
            "placement": "resident",  # one process per run, not per policy
            "steps": self.steps,
        }
        return run_config(self.pair, self.file, decided, self.settings, list(self.modes))


def seeds_of(text: str) -> list[int]:
    """The seeds that `--seeds` names: `5` means the seeds 1 to 5, and `31-40` is a range.

    Raises MrlError for any other text.
    """
    numbers = re.fullmatch(r"(?:([0-9]{1,9})-)?([0-9]{1,9})", text)
    seeds = range(int(numbers[1] or 1), int(numbers[2]) + 1) if numbers else ()
    if not seeds:
        raise MrlError(
            f"--seeds {text}: write a number of seeds such as 5, or a range such as 31-40."
        )
    return list(seeds)


def name_modes(modes: Sequence[str]) -> dict[str, str]:
    """The modes of a `Plan`. Raises MrlError if two of them have the same name."""
    named: dict[str, str] = {}
    for mode in modes:
        name = mode_class(mode).name
        if name in named:
            raise MrlError(f"Two compared modes are named {name!r}; give each a different `name`.")
        named[name] = mode
    return named


def check_settings(settings: Sequence[str]) -> None:
    """Raise MrlError if --set names a setting that a comparison decides for each run."""
    for text in settings:
        key, _, _ = text.partition("=")
        if key in DECIDED:
            raise MrlError(f"--set {text}: a comparison decides `{key}` itself; {DECIDED[key]}.")


def jobs_that_fit(plan: Plan) -> int:
    """The default number of parallel runs.

    On a CPU it is at most four, limited by the cores and by the free memory. On a GPU it is 1.
    """
    import torch

    from mrl.models.memory_estimate import ROOM, free_memory, needed, size_of

    if torch.cuda.is_available():
        return 1
    config = plan.config_of(plan.runs()[0])
    sizes = [size_of(policy, torch.device("cpu")) for policy in config.policies]
    fit = int(free_memory("cpu") / (PROCESS_BYTES + needed(sizes, "resident") / ROOM))
    return max(1, min(AT_ONCE, cores() // config.threads, fit))


def run_all(plan: Plan, board: Board) -> list[str]:
    """Carry out every run that is not finished; returns a sentence for each run that failed.

    After Ctrl-C, the runs end after their current steps, and KeyboardInterrupt is raised. A second
    call with the same plan continues them. Raises MrlError if a directory has a run that was made
    with other options.
    """
    runs = plan.runs()
    configs = {run: _checked_config(plan, run) for run in runs}
    missing = [run for run in runs if not is_finished(run.directory)]
    board.say(
        f"Runs: {len(runs)}, of which {len(runs) - len(missing)} are complete; "
        f"{plan.jobs} at a time. "
        "Ctrl-C stops them after their current steps; the same command continues them."
    )

    failures = []
    processes = Processes()
    progress = {run: Progress(str(run), configs[run].steps) for run in missing}
    with ThreadPoolExecutor(plan.jobs) as pool, board:  # each thread waits for one run
        of_run: dict[Future[str], PlannedRun] = {}
        for run in missing:
            of_run[pool.submit(_run_one, run, configs[run], processes)] = run
        waiting = set(of_run)
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=1, return_when=FIRST_COMPLETED)
                for future in done:
                    run = of_run[future]
                    progress[run].step = progress[run].steps
                    ended = f"{run}: {future.result() or 'finished'}"
                    board.say(f"{ended}; {len(missing) - len(waiting)}/{len(missing)}")
                    if future.result():
                        failures.append(ended)
                going_on = [of_run[future] for future in waiting if future.running()]
                for run in going_on:
                    _look_at(run.directory, progress[run])
                board.show([progress[run] for run in going_on], list(progress.values()), plan.jobs)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            processes.stop()
            board.close()
            board.say("Stopping after the current steps; the same command continues the runs.")
            raise
    return failures


def _checked_config(plan: Plan, run: PlannedRun) -> RunConfig:
    """The settings of a run. Raises MrlError if its directory has a run with other settings."""
    config = plan.config_of(run)
    if (run.directory / "config.json").is_file():
        then = read_run_config(run.directory)
        check(then)  # raises MrlError if the run's problem files, mode or judge have changed
        if changed := _difference(then, config):
            raise MrlError(
                f"{run.directory} was made with other options: {changed}. Choose another --out, or "
                "delete that directory."
            )
    return config


def _difference(then: Any, now: Any, owner: str = "") -> str:
    """The first setting that differs, with both values; "" if all are equal."""
    for entry in fields(now):
        before, after = getattr(then, entry.name), getattr(now, entry.name)
        if entry.name == "policies" and len(before) == len(after):
            for policy, same in zip(before, after, strict=True):
                if changed := _difference(policy, same, f"{same.name}."):
                    return changed
        elif entry.name != "runs" and before != after:  # the directory may have been moved
            return f"{owner}{entry.name} was {before!r:.80} and is now {after!r:.80}"
    return ""


def _look_at(directory: Path, progress: Progress) -> None:
    """Read the newest step of a run, and the duration of its latest steps, from its log."""
    seconds: dict[int, float] = {}  # step -> seconds of its slowest policy
    for line in read_metrics(directory, last=TAIL):
        seconds[line["step"]] = max(seconds.get(line["step"], 0.0), line["time/step_s"])
    if seconds:
        progress.step, progress.pace = max(seconds), fmean(seconds.values())


def is_finished(directory: Path) -> bool:
    """Whether a run has scored its held-out problems after training.

    Raises MrlError if its scores from before training are lost.
    """
    scored = read_evaluations(directory)
    if "after" in scored and "before" not in scored:
        raise MrlError(
            f"{directory}/evaluation.json has no scores from before training. Delete {directory}; "
            "the same command then repeats the run."
        )
    return "after" in scored


@dataclass
class Processes:
    """The processes of the runs that are going on."""

    running: set[subprocess.Popen] = field(default_factory=set)
    stopped: bool = False

    def run(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run the program to its end; returns its exit code and the last line that it printed."""
        # A file instead of a pipe: if this program is killed, its runs can still print. And UTF-8,
        # whatever the terminal of this program uses.
        environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
        with TemporaryFile() as printed:
            process = subprocess.Popen(
                [*PROGRAM, *arguments], stdout=printed, stderr=printed, env=environment
            )
            self.running.add(process)
            if self.stopped:  # meanwhile
                process.terminate()
            code = process.wait()
            self.running.discard(process)
            if code < 0:
                return code, f"its process was killed ({signal.Signals(-code).name})"
            printed.seek(0)
            lines = printed.read().decode("utf-8", errors="replace").strip().splitlines()
        return code, lines[-1] if lines else f"exit code {code}"

    def stop(self) -> None:
        """Stop every run after its current step. A run that stops already is not hurried."""
        self.stopped = True
        for process in list(self.running):
            process.terminate()


def _run_one(run: PlannedRun, config: RunConfig, processes: Processes) -> str:
    """Start a run, or continue it from its last checkpoint; returns its last line if it failed."""
    try:
        run.directory.mkdir(parents=True, exist_ok=True)
        if not (run.directory / "config.json").is_file():
            write_run_config(run.directory, config)
        return _run_to_its_end(run, processes)
    except (OSError, MrlError) as error:  # for example a full disk
        return str(error)


def _run_to_its_end(run: PlannedRun, processes: Processes) -> str:
    while True:
        # the same comparison may have been started twice; wait for the other one
        while is_locked(run.directory) and not processes.stopped:
            time.sleep(1)
        if processes.stopped:
            return "stopped"
        if is_finished(run.directory):
            return ""
        code, last_line = processes.run(["resume", str(run.directory), "--plain"])
        if code == 0:
            return ""
        if not is_locked(run.directory):
            return last_line


@dataclass
class Result:
    """The results of one run.

    scores (after training), before (before it): (file, policy, skill or "all", metric) -> percent.
    kl: policy -> KL(start || now) in nats per token; {} in a run of an older version.
    """

    mode: str
    seed: int
    scores: dict[tuple[str, str, str, str], float]
    before: dict[tuple[str, str, str, str], float]
    costs: dict[str, float]
    lines: list[dict]
    kl: dict[str, float] = field(default_factory=dict)

    @property
    def first_split(self) -> str:
        """The name of the first held-out file."""
        return next(iter(self.scores))[0]

    def overall(self, split: str, metric: str = "pass@1") -> float:
        """The mean score over policies and skills."""
        of_policies = []
        for (its_split, _, skill, its_metric), score in self.scores.items():
            if (its_split, skill, its_metric) == (split, "all", metric):
                of_policies.append(score)
        return fmean(of_policies)


def read_all(plan: Plan) -> list[Result]:
    """The results of the finished runs of a plan."""
    results = []
    for run in plan.runs():
        if is_finished(run.directory):
            results.append(read_result(run.directory, run.mode, run.seed))
    return results


def by_mode(results: Sequence[Result]) -> dict[str, list[Result]]:
    """The results grouped by mode, in the order of the comparison."""
    runs: dict[str, list[Result]] = {}
    for result in results:
        runs.setdefault(result.mode, []).append(result)
    return runs


def read_result(directory: Path, mode: str, seed: int) -> Result:
    """Read the scores, costs and metrics of a finished run."""
    lines = read_metrics(directory)
    slowest: dict[int, float] = {}  # step -> seconds of its slowest policy
    costs: dict[str, float] = dict.fromkeys(
        ("rollouts", "sampled tokens", "updates", "bytes received"), 0.0
    )
    for line in lines:
        slowest[line["step"]] = max(slowest.get(line["step"], 0.0), line["time/step_s"])
        completions = line["num_tokens"] / line["completions/mean_length"]
        costs["rollouts"] += completions + line.get("second/attempts", 0)
        costs["sampled tokens"] += line["num_tokens"] + line.get("second/num_tokens", 0)
        costs["updates"] += line["updates"]
        costs["bytes received"] += line["exchange/received_bytes"]

    prompts = read_run_config(directory).prompts_per_step * len(lines)
    costs["bytes per prompt"] = costs["bytes received"] / prompts
    costs["seconds"] = sum(slowest.values())

    evaluations = read_evaluations(directory)
    after, before = _percent(evaluations["after"]), _percent(evaluations["before"])
    kl = {}
    for entry in evaluations["after"]:
        if "kl_to_start" in entry:
            kl[entry["policy"]] = entry["kl_to_start"]
    return Result(mode, seed, after, before, costs, lines, kl)


def _percent(evaluation: Sequence[dict]) -> dict[tuple[str, str, str, str], float]:
    """Scores of an evaluation in percent, in the form of `Result`."""
    scores = {}
    for entry in evaluation:
        mean = {"all": entry}  # stands first, and counts if a skill has the same name
        for skill, values in (mean | entry["skills"] | mean).items():
            for metric, value in values.items():
                if metric.startswith("pass@"):
                    scores[entry["split"], entry["policy"], skill, metric] = 100 * value
    return scores
