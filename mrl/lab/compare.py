"""`python mini_mrl.py compare`: modes under the same seeds and budget, with intervals.

Every mode and seed is a run of its own, a process of its own, several at a time. What is compared
is paired by seed: two runs of a seed begin with the same weights and the same order of problems.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from mrl.errors import MrlError
from mrl.experiment.run_directory import read_evaluations, read_metrics, read_run_config
from mrl.experiment.settings import mode_class

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


def run_all(plan: Plan, say: Callable[[str], None]) -> list[str]:
    """Make every run that is not there yet; returns a sentence for each that failed.

    Seeds come outermost, so that a comparison that is cut short is balanced. The same call goes on
    where it was stopped: Ctrl-C reaches the runs too, and each saves after its step.
    """
    plan.check()
    runs = [(mode, seed) for seed in plan.seeds for mode in plan.modes]
    missing = [run for run in runs if not is_finished(plan.directory(*run))]
    say(f"{len(runs)} runs, {len(runs) - len(missing)} of them there; {plan.jobs} at a time.")
    started, failures = time.monotonic(), []
    pool = ThreadPoolExecutor(plan.jobs)  # of threads that wait for processes
    try:
        ends = pool.map(lambda run: _run_one(plan, *run), missing)
        for done, ((mode, seed), failure) in enumerate(zip(missing, ends, strict=True), start=1):
            left = (time.monotonic() - started) / done * (len(missing) - done) / 60
            what = f"{mode}, seed {seed}: {failure or 'finished'}"
            say(f"{what}; {done}/{len(missing)}, {left:.0f} min left")
            failures += [what] if failure else []
    finally:
        pool.shutdown(cancel_futures=True)
    return failures


def is_finished(directory: Path) -> bool:
    """Whether a run has scored its held-out problems after training."""
    return "after" in read_evaluations(directory)


def _run_one(plan: Plan, mode: str, seed: int) -> str:
    """Start a run, or go on from its last checkpoint; returns its last words if it failed."""
    directory = plan.directory(mode, seed)
    if any(directory.glob("checkpoints/step-*")):
        arguments = ["resume", str(directory)]
    else:
        shutil.rmtree(directory, ignore_errors=True)  # it was killed before its first checkpoint
        place = ["--set", f"runs={directory.parent}", "--name", directory.name]
        place += ["--placement", "resident"]  # a core for each run, not for each policy
        arguments = ["--mode", mode, "--seed", str(seed), *place, *plan.options]
    done = subprocess.run(
        [*PROGRAM, *arguments, "--plain"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    words = done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
    return words[-1] if done.returncode else ""


@dataclass
class Result:
    """What one run came to. scores: (part, policy, skill or "all", metric) -> percent."""

    mode: str
    seed: int
    scores: dict[tuple[str, str, str, str], float]
    costs: dict[str, float]
    lines: list[dict]

    def overall(self, part: str, metric: str = "pass@1") -> float:
        """Mean over policies and skills."""
        wanted = (part, "all", metric)
        return fmean(v for (p, _, s, m), v in self.scores.items() if (p, s, m) == wanted)


def read_all(plan: Plan) -> list[Result]:
    """The finished runs of a plan."""
    runs = [(plan.directory(mode, seed), mode, seed) for mode in plan.modes for seed in plan.seeds]
    return [read_result(*run) for run in runs if is_finished(run[0])]


def read_result(directory: Path, mode: str, seed: int) -> Result:
    """Scores, costs and metrics of a finished run."""
    scores = {
        (entry["part"], entry["policy"], skill, metric): 100 * value
        for entry in read_evaluations(directory)["after"]
        for skill, values in (("all", entry), *entry["skills"].items())
        for metric, value in values.items()
        if metric.startswith("pass@")
    }
    lines = read_metrics(directory)
    slowest: dict[int, float] = {}  # step -> seconds; its lines are of policies side by side
    for line in lines:
        slowest[line["step"]] = max(slowest.get(line["step"], 0.0), line["time/step_s"])
    received = sum(line["exchange/received_bytes"] for line in lines)
    prompts = read_run_config(directory).prompts_per_step * len(lines)
    costs = {
        "rollouts": sum(line["num_tokens"] / line["completions/mean_length"] for line in lines),
        "sampled tokens": sum(line["num_tokens"] for line in lines),
        "updates": sum(line["updates"] for line in lines),
        "bytes received": received,
        "bytes a prompt": received / prompts,
        "seconds": sum(slowest.values()),
    }
    return Result(mode, seed, scores, costs, lines)
