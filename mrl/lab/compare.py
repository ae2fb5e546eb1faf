"""`python mini_mrl.py compare`: modes under the same seeds and budget, with intervals.

Every mode and seed is a run of its own, a process of its own, several at a time. What is compared
is paired by seed: two runs of a seed begin with the same weights and the same order of problems.
"""

import csv
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

from rich.table import Table

from mrl.errors import MrlError
from mrl.lab import figures
from mrl.modes import mode_class
from mrl.run import read_evaluations, read_metrics, read_run_config

PROGRAM = (sys.executable, str(Path(__file__).resolve().parents[2] / "mini_mrl.py"))
CONTROLS = ("solo", "solo-x2")
QUICK = {"modes": ["solo", "sgt"], "seeds": [1, 2], "steps": 120}
# two-sided 95 % quantiles of Student's t, by degrees of freedom (1 to 30; then the normal's)
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


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


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and the half width of its 95 % interval (NaN with one seed)."""

    mean: float
    half: float
    seeds: int

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.half < abs(self.mean)

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if math.isnan(self.half) else f"{self.mean:.1f} ± {self.half:.1f}"


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and Student-t interval over seeds."""
    if len(values) < 2:
        return Estimate(values[0], math.nan, 1)
    quantile = T_95[len(values) - 2] if len(values) - 2 < len(T_95) else 1.96
    return Estimate(fmean(values), quantile * stdev(values) / math.sqrt(len(values)), len(values))


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


# ------------------------------------------------------------------------------ comparing


def by_seed(results: Sequence[Result], mode: str, part: str) -> dict[int, float]:
    """Held-out pass@1 in percent of every seed of a mode."""
    return {r.seed: r.overall(part) for r in results if r.mode == mode}


def difference(results: Sequence[Result], one: str, two: str, part: str) -> Estimate | None:
    """How many points mode `one` is above mode `two`, paired by seed; None without a pair."""
    a, b = (by_seed(results, mode, part) for mode in (one, two))
    pairs = [a[seed] - b[seed] for seed in a if seed in b]
    return estimate(pairs) if pairs else None


def sentences(results: Sequence[Result], part: str) -> list[str]:
    """What the data support and what not: each mode against the controls, and neighbours."""
    modes = list(dict.fromkeys(result.mode for result in results))
    ranking = sorted(modes, key=lambda m: -fmean(by_seed(results, m, part).values()))
    pairs = [(m, control) for control in CONTROLS if control in modes for m in ranking]
    pairs += [pair for pair in pairwise(ranking) if pair not in pairs]
    said = []
    for one, two in pairs:
        if one == two or (two, one) in pairs[: pairs.index((one, two))]:
            continue
        found = difference(results, one, two, part)
        if found is None:
            continue
        if math.isnan(found.half):
            said.append(f"{one} is {found.mean:+.1f} points from {two} with 1 seed: no interval.")
        elif found.clear:
            word = "beats" if found.mean > 0 else "is worse than"
            distance = f"{abs(found.mean):.1f} ± {found.half:.1f} points, {found.seeds} seeds"
            said.append(f"{one} {word} {two} by {distance}.")
        else:
            said.append(
                f"{one} and {two} can't be told apart with {found.seeds} seeds "
                f"({found.mean:+.1f} ± {found.half:.1f} points)."
            )
    return said


HEAD = (
    "mode", "pass@1", "above solo", "above solo-x2", "pass@k", "rollouts", "updates",
    "bytes a prompt", "seconds",
)  # fmt: skip


def rows(results: Sequence[Result], part: str) -> Iterator[list[str]]:
    """The summary table, the best mode first; cells as in `HEAD`."""
    modes = list(dict.fromkeys(result.mode for result in results))
    for mode in sorted(modes, key=lambda m: -fmean(by_seed(results, m, part).values())):
        chosen = [result for result in results if result.mode == mode]
        metrics = sorted({key[3] for result in chosen for key in result.scores})
        against = [difference(results, mode, c, part) if mode != c else None for c in CONTROLS]
        cost = {name: fmean(r.costs[name] for r in chosen) for name in chosen[0].costs}
        yield [
            mode,
            str(estimate(list(by_seed(results, mode, part).values()))),
            *("" if found is None else str(found) for found in against),
            str(estimate([result.overall(part, metrics[-1]) for result in chosen])),
            f"{cost['rollouts']:,.0f}",
            f"{cost['updates']:,.0f}",
            f"{cost['bytes a prompt']:,.0f}",
            f"{cost['seconds']:,.0f}",
        ]


def write_tables(results: Sequence[Result], plan: Plan, command: str) -> None:
    """`table.csv` (every number, long), `curves.csv` (what the picture of learning shows, every
    tenth step and the last) and `table.md` (the summary and what it supports)."""
    with (plan.out / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("mode", "seed", "part", "policy", "skill", "metric", "value"))
        for result in results:
            for key, value in result.scores.items():
                writer.writerow((result.mode, result.seed, *key, f"{value:.2f}"))
            for name, value in result.costs.items():
                writer.writerow((result.mode, result.seed, "", "", "", name, f"{value:.2f}"))
    with (plan.out / "curves.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("mode", "step", "sampled_tokens", "mean", "lowest", "highest"))
        for mode, (tokens, rates) in figures.mode_curves(results).items():
            for step in sorted({*range(10, len(tokens) + 1, 10), len(tokens)}):
                of_step = rates[:, step - 1]
                ends = (of_step.mean(), of_step.min(), of_step.max())
                row = (f"{tokens[step - 1]:.0f}", *(f"{rate:.4f}" for rate in ends))
                writer.writerow((mode, step, *row))
    lines = [f"Made with `{command}`. Held-out pass@1 in percent, mean over policies and skills;"]
    lines += ["± is a 95 % interval over seeds (Student's t), differences are paired by seed.", ""]
    for part in parts_of(results):
        lines += [f"## {part}", "", f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
        lines += [f"| {' | '.join(row)} |" for row in rows(results, part)]
        lines += ["", *(f"- {sentence}" for sentence in sentences(results, part)), ""]
    (plan.out / "table.md").write_text("\n".join(lines), encoding="utf-8")


def comparison_table(results: Sequence[Result], part: str) -> Table:
    """Modes side by side on one held-out part, the best first."""
    table = Table(title=f"{part}: pass@1 in percent, mean over policies, skills and seeds")
    for column in HEAD:
        table.add_column(column, justify="left" if column == "mode" else "right")
    for row in rows(results, part):
        table.add_row(*row)
    return table


def parts_of(results: Sequence[Result]) -> list[str]:
    """The held-out parts, in order."""
    return list(dict.fromkeys(key[0] for result in results for key in result.scores))


def default_jobs() -> int:
    """As many runs at a time as there are cores; each uses one thread."""
    return os.cpu_count() or 1
