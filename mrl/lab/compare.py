"""`python mini_mrl.py compare`: modes under the same seeds and budget, with intervals.

Every mode and seed is a run of its own, a process of its own, several at a time. What is compared
is paired by seed: two runs of a seed begin with the same weights and the same order of problems.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from mrl.errors import MrlError
from mrl.experiment.run_directory import read_evaluations, read_metrics, read_run_config
from mrl.modes import mode_class

PROGRAM = (sys.executable, str(Path(__file__).resolve().parents[2] / "mini_mrl.py"))
QUICK = {"modes": ["solo", "sgt"], "seeds": [1, 2], "steps": 120}


@dataclass
class Plan:
    """What is compared. options: of every run, as on the command line."""

    modes: Sequence[str]
    seeds: Sequence[int]
    out: Path
    jobs: int = 2
    options: Sequence[str] = ()
    program: Sequence[str] = PROGRAM

    def check(self) -> None:
        """MrlError for a plan that cannot work."""
        for mode in self.modes:
            mode_class(mode)
            if list(self.modes).count(mode) > 1:
                raise MrlError(f"Mode {mode} is named twice; every mode is compared once.")
        if not self.seeds or self.jobs < 1:
            raise MrlError("compare needs at least one seed and one job.")

    def directory(self, mode: str, seed: int) -> Path:
        """Where a run goes."""
        return self.out / "runs" / f"{mode_class(mode).name}-s{seed}"


# ------------------------------------------------------------------------------ running


def run_all(plan: Plan, say: Callable[[str], None]) -> list[str]:
    """Make every run that is not there yet; returns a sentence for each that failed.

    Seeds come outermost, so that a comparison that is cut short is balanced. The same call goes on
    where it was stopped.
    """
    plan.check()
    jobs = [(mode, seed) for seed in plan.seeds for mode in plan.modes]
    missing = [job for job in jobs if not is_finished(plan.directory(*job))]
    say(
        f"{len(jobs)} runs, {len(jobs) - len(missing)} of them there already; "
        f"{plan.jobs} at a time."
    )
    children: list[subprocess.Popen] = []
    started, done = time.monotonic(), 0
    failures = []

    def one(job: tuple[str, int]) -> str:
        return _run_one(plan, *job, children)

    with ThreadPoolExecutor(plan.jobs) as pool:
        try:
            for (mode, seed), failure in zip(missing, pool.map(one, missing), strict=True):
                done += 1
                left = (time.monotonic() - started) / done * (len(missing) - done)
                outcome = failure or "finished"
                say(
                    f"{mode}, seed {seed}: {outcome}; {done}/{len(missing)}, "
                    f"{left / 60:.0f} min left"
                )
                if failure:
                    failures.append(f"{mode}, seed {seed}: {failure}")
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in children:
                child.terminate()
            raise
    return failures


def is_finished(directory: Path) -> bool:
    """Whether a run has scored its held-out problems after training."""
    return "after" in read_evaluations(directory)


def _run_one(plan: Plan, mode: str, seed: int, children: list[subprocess.Popen]) -> str:
    """Start a run, or go on with it; returns its last words if it failed."""
    directory = plan.directory(mode, seed)
    directory.parent.mkdir(parents=True, exist_ok=True)
    commands = []
    if directory.exists():
        commands.append(["resume", str(directory), "--plain"])
    fresh = ["--mode", mode, "--seed", str(seed), "--runs", str(directory.parent)]
    commands.append([*fresh, "--name", directory.name, "--plain", *plan.options])
    words = ""
    for number, command in enumerate(commands):
        if number:  # it could not be resumed: begin anew
            shutil.rmtree(directory)
        child = subprocess.Popen(
            [*plan.program, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        children.append(child)
        output, _ = child.communicate()
        children.remove(child)
        if child.returncode == 0:
            return ""
        words = (output.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    return words


# ------------------------------------------------------------------------------ reading


@dataclass
class Result:
    """What one run came to. scores: (part, policy, skill or "all", metric) -> percent."""

    mode: str
    seed: int
    scores: dict[tuple[str, str, str, str], float] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    lines: list[dict] = field(default_factory=list)

    def overall(self, part: str, metric: str = "pass@1") -> float:
        """Mean over policies and skills."""
        return fmean(
            v for (p, _, s, m), v in self.scores.items() if (p, s, m) == (part, "all", metric)
        )


def read_result(directory: Path, mode: str, seed: int) -> Result:
    """Scores, costs and metrics of a finished run."""
    result = Result(mode, seed)
    for scores in read_evaluations(directory)["after"]:
        for skill, values in (("all", scores), *scores["skills"].items()):
            for metric in (key for key in values if key.startswith("pass@")):
                key = (scores["part"], scores["policy"], skill, metric)
                result.scores[key] = 100 * values[metric]
    result.lines = lines = read_metrics(directory)
    prompts = read_run_config(directory).prompts_per_step
    steps = {line["step"] for line in lines}
    slowest = {s: max(ln["time/step_s"] for ln in lines if ln["step"] == s) for s in steps}
    received = sum(line["exchange/received_bytes"] for line in lines)
    result.costs = {
        "rollouts": sum(line["num_tokens"] / line["completions/mean_length"] for line in lines),
        "sampled tokens": sum(line["num_tokens"] for line in lines),
        "updates": sum(line["updates"] for line in lines),
        "bytes received": received,
        "bytes a prompt": received / (prompts * len(lines)),
        "seconds": sum(slowest.values()),
    }
    return result


def read_all(plan: Plan) -> list[Result]:
    """The finished runs of a plan."""
    return [
        read_result(plan.directory(mode, seed), mode, seed)
        for mode in plan.modes
        for seed in plan.seeds
        if is_finished(plan.directory(mode, seed))
    ]


def default_jobs() -> int:
    """As many runs at a time as there are cores; each uses one thread."""
    return os.cpu_count() or 1
