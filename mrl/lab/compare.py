"""`python mini_mrl.py compare`: modes under the same seeds and budget, with intervals.

Every mode and seed is a run of its own, a process of its own, several at a time. What is compared
is paired by seed: two runs of a seed begin with the same weights and the same order of problems.
"""

import csv
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from statistics import fmean

from mrl.errors import MrlError
from mrl.runtime.judge import check_judge
from mrl.runtime.run_directory import read_evaluations, read_metrics, read_run_config
from mrl.runtime.settings import mode_class

PROGRAM = (sys.executable, str(Path(__file__).resolve().parents[2] / "mini_mrl.py"))


@dataclass
class Plan:
    """What is compared. options: of every run, as on the command line; chosen: of a mode's runs."""

    modes: Sequence[str]
    seeds: Sequence[int]
    out: Path
    jobs: int = 2
    options: Sequence[str] = ()
    chosen: dict[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({mode_class(mode).name for mode in self.modes}) < len(self.modes):
            raise MrlError(f"A mode is named twice in {','.join(self.modes)}.")

    def runs(self) -> list[tuple[str, int, Path]]:
        """Mode, seed and directory. Seeds outermost: what is cut short is balanced."""
        return [
            (mode, seed, self.out / "runs" / f"{mode_class(mode).name}-s{seed}")
            for seed in self.seeds
            for mode in self.modes
        ]


def run_all(plan: Plan, say: Callable[[str], None]) -> list[str]:
    """Make every run that is not there yet; returns a sentence for each that failed.

    The same call goes on where it was stopped: Ctrl-C reaches the runs too, and each saves after
    its step. MrlError if a run is there that something else was asked of.
    """
    runs = plan.runs()
    chosen = {mode: [*plan.options, *plan.chosen.get(mode, ())] for mode in plan.modes}
    for mode, _, directory in runs:
        note, asked = Path(f"{directory}.asked"), _asked(mode, chosen[mode])
        if directory.exists() and note.exists() and note.read_text(encoding="utf-8") != asked:
            raise MrlError(
                f"{directory}: was made with other options, or by another version of a file among "
                "them; give another --out, or delete it."
            )
        if (directory / "config.json").is_file():
            check_judge(read_run_config(directory))
    missing = [run for run in runs if not is_finished(run[2])]
    say(f"{len(runs)} runs, {len(runs) - len(missing)} of them there; {plan.jobs} at a time.")
    started, failures = time.monotonic(), []
    pool = ThreadPoolExecutor(plan.jobs)  # of threads that wait for processes
    try:
        ends = pool.map(lambda run: _run_one(*run, chosen[run[0]]), missing)
        for done, ((mode, seed, _), failure) in enumerate(zip(missing, ends, strict=True), 1):
            left = (time.monotonic() - started) / done * (len(missing) - done) / 60
            what = f"{mode}, seed {seed}: {failure or 'finished'}"
            say(f"{what}; {done}/{len(missing)}, {left:.0f} min left")
            failures += [what] if failure else []
    finally:
        pool.shutdown(cancel_futures=True)
    return failures


def _asked(mode: str, options: Sequence[str]) -> str:
    """All that decides what a run is, beside its seed: options, and the files that they name."""
    files = map(Path, (mode.rpartition(":")[0], *options))
    return "\n".join([mode, *options, *(f.read_text("utf-8") for f in files if f.is_file())])


def is_finished(directory: Path) -> bool:
    """Whether a run has scored its held-out problems after training."""
    return "after" in read_evaluations(directory)


def _run_one(mode: str, seed: int, directory: Path, options: Sequence[str]) -> str:
    """Start a run, or go on from its last checkpoint; returns its last line if it failed."""
    if any(directory.glob("checkpoints/step-*")):
        arguments = ["resume", str(directory)]
    else:
        shutil.rmtree(directory, ignore_errors=True)  # it was killed before its first checkpoint
        directory.parent.mkdir(parents=True, exist_ok=True)
        Path(f"{directory}.asked").write_text(_asked(mode, options), encoding="utf-8")
        arguments = ["--mode", mode, "--seed", str(seed), "--name", directory.name, *options]
        arguments += ["--set", f"runs={directory.parent}"]
        arguments += ["--placement", "resident"]  # a core for each run, not for each policy
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    done = subprocess.run([*PROGRAM, *arguments, "--plain"], **pipes)
    lines = done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else ""


@dataclass
class Result:
    """What one run came to. scores, before: (part, policy, skill or "all", metric) -> percent."""

    mode: str
    seed: int
    scores: dict[tuple[str, str, str, str], float]
    before: dict[tuple[str, str, str, str], float]
    costs: dict[str, float]
    lines: list[dict]

    @property
    def first_part(self) -> str:
        """Name of the first held-out part."""
        return next(iter(self.scores))[0]

    def overall(self, part: str, metric: str = "pass@1") -> float:
        """Mean over policies and skills."""
        wanted = (part, "all", metric)
        return fmean(v for (p, _, s, m), v in self.scores.items() if (p, s, m) == wanted)


def read_all(plan: Plan) -> list[Result]:
    """The finished runs of a plan; MrlError if they are not equally long."""
    results = [read_result(d, mode, seed) for mode, seed, d in plan.runs() if is_finished(d)]
    if len(lengths := {result.lines[-1]["step"] for result in results}) > 1:
        raise MrlError(
            f"{plan.out}: its runs have {' and '.join(map(str, sorted(lengths)))} steps, which "
            "can't be compared; give the shorter ones another --out."
        )
    return results


def read_result(directory: Path, mode: str, seed: int) -> Result:
    """Scores, costs and metrics of a finished run."""
    found = read_evaluations(directory)
    after, before = (
        {
            (entry["part"], entry["policy"], skill, metric): 100 * value
            for entry in found[when]
            for skill, values in (("all", entry), *entry["skills"].items())
            for metric, value in values.items()
            if metric.startswith("pass@")
        }
        for when in ("after", "before")
    )
    lines = read_metrics(directory)
    slowest: dict[int, float] = {}  # step -> seconds; its lines are of policies side by side
    for line in lines:
        slowest[line["step"]] = max(slowest.get(line["step"], 0.0), line["time/step_s"])
    received = sum(line["exchange/received_bytes"] for line in lines)
    costs = {
        "rollouts": sum(line["num_tokens"] / line["completions/mean_length"] for line in lines),
        "sampled tokens": sum(line["num_tokens"] for line in lines),
        "updates": sum(line["updates"] for line in lines),
        "bytes received": received,
        "bytes a prompt": received / read_run_config(directory).prompts_per_step / len(lines),
        "seconds": sum(slowest.values()),
    }
    return Result(mode, seed, after, before, costs, lines)


def grid(texts: Sequence[str]) -> list[list[str]]:
    """All combinations of `key=value,value` texts, each as options of a run."""
    axes = []
    for text in texts:
        key, equals, values = text.partition("=")
        if not (key and equals and all(values.split(","))):
            raise MrlError(f"--tune {text}: write it like learning_rate=3e-5,1e-4,3e-4.")
        axes.append([("--set", f"{key}={value}") for value in values.split(",")])
    return [list(chain.from_iterable(choice)) for choice in product(*axes)]


def choose_settings(
    plan: Plan, texts: Sequence[str], seeds: Sequence[int], say: Callable[[str], None]
) -> Plan:
    """The plan with the best combination of settings for each mode, chosen apart.

    Best: the highest mean held-out pass@1 (first part) over `seeds`, which the comparison must not
    use again. After each seed a mode's worse half is given up, so that most of the time goes to
    what may still win (successive halving, arXiv 1502.07943); two stay to the last seed. `MODE` in
    a key is the mode's name. Every score is kept in `tune.csv`.
    """
    settings = grid(texts)
    left = dict.fromkeys(plan.modes, range(len(settings)))  # the best first after each seed
    options = {
        (mode, number): [option.replace("MODE", mode_class(mode).name) for option in setting]
        for mode in plan.modes
        for number, setting in enumerate(settings)
    }
    scores: dict[tuple[str, int], list[float]] = defaultdict(list)
    rows = [("mode", "setting", "seed", "pass@1")]
    for count, seed in enumerate(seeds, start=1):
        for number in range(len(settings)):
            chosen = {mode: options[mode, number] for mode in plan.modes if number in left[mode]}
            out = plan.out / "tune" / str(number)
            trial = replace(plan, modes=list(chosen), seeds=[seed], out=out, chosen=chosen)
            for failure in run_all(trial, say) if chosen else ():
                say(failure)
            for result in read_all(trial):
                score = result.overall(result.first_part)
                scores[result.mode, number].append(score)
                setting = " ".join(options[result.mode, number][1::2])
                rows.append((result.mode, setting, seed, f"{score:.2f}"))
        for mode, numbers in left.items():
            means = {n: fmean(scores[mode, n]) for n in numbers if len(scores[mode, n]) == count}
            if not means:
                raise MrlError(f"{mode}: no setting of --tune finished with seed {seed}.")
            left[mode] = sorted(means, key=means.get, reverse=True)[: max(2, (len(means) + 1) // 2)]
    with (plan.out / "tune.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return replace(plan, chosen={mode: options[mode, best] for mode, (best, *_) in left.items()})
