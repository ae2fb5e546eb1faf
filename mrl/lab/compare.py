"""`python mini_mrl.py compare`: runs modes on the same seeds and budget, and reads their results.

Each mode and seed is a separate run in a separate process, several at a time. Comparisons are
paired by seed: two runs of one seed start with the same weights and the same order of problems.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from statistics import fmean

import torch

from mrl.errors import MrlError
from mrl.models.memory import GIB, estimate_all, free_memory, needed
from mrl.run.directory import (
    newest_checkpoint,
    read_evaluations,
    read_metrics,
    read_run_config,
)
from mrl.run.problems import load_problems
from mrl.settings.pairs import cores
from mrl.settings.settings import check, mode_class, run_config

AT_ONCE = 4  # largest number of parallel runs, unless the user asks for more
PROCESS_BYTES = 1 * GIB  # memory of a run besides its tensors: Python, torch, transformers
DECIDED = {  # setting that a comparison chooses for each run -> what to do instead
    "mode": "use --modes",
    "seed": "use --seeds",
    "name": "a run is named after its mode and seed",
    "runs": "use --out",
    "placement": "each run is one process",
}
PROGRAM = (sys.executable, str(Path(__file__).resolve().parents[2] / "mini_mrl.py"))


@dataclass
class Plan:
    """The modes, seeds and directory of a comparison.

    modes: name in tables and directories -> the mode as the user typed it.
    options: options of every run; a run ignores the settings of the other modes.
    """

    modes: dict[str, str]
    seeds: Sequence[int]
    out: Path
    options: Sequence[str] = ()
    jobs: int = 2

    def runs(self) -> list[tuple[str, int, Path]]:
        """(name, seed, directory) of every run: first all modes with one seed, then the next."""
        runs = []
        for seed in self.seeds:
            for name in self.modes:
                runs.append((name, seed, self.out / "runs" / f"{name}-s{seed}"))
        return runs


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


def jobs_that_fit(
    plan: Plan, pair: str | None, config: Path | None, settings: Sequence[str] = ()
) -> int:
    """The default number of parallel runs.

    On a CPU it is at most four, limited by the cores and by the free memory. On a GPU it is 1.
    pair, config, settings: as for training.
    """
    if torch.cuda.is_available():
        return 1
    mode = next(iter(plan.modes.values()))
    run = run_config(pair, config, {"mode": mode}, settings, list(plan.modes))
    factor = max(mode_class(mode).rollout_factor for mode in plan.modes.values())
    problems = load_problems(Path(run.train))
    tensors = needed(estimate_all(run, run.policies, problems, "cpu", factor), "resident")
    fit = free_memory("cpu") // (PROCESS_BYTES + tensors)
    return max(1, min(AT_ONCE, cores() // run.threads, fit))


def run_all(plan: Plan, say: Callable[[str], None]) -> list[str]:
    """Carry out every run that is not finished; returns a sentence for each run that failed.

    Ctrl-C in a terminal also reaches the runs, which stop after their current step. A second call
    with the same plan continues them. Raises MrlError if a directory has a run that was made with
    other options.
    """
    runs = plan.runs()
    for name, _, directory in runs:
        if (directory / "config.json").is_file():
            # raises MrlError if the run's problem files or its judge have changed
            check(read_run_config(directory))

        # an existing run must have been made with the same options
        note = Path(f"{directory}.asked")
        was_made = directory.exists() and note.exists()
        if was_made and note.read_text(encoding="utf-8") != _request(plan, name):
            raise MrlError(
                f"{directory} was made with other options, or a file that they name has changed. "
                "Choose another --out, or delete that directory."
            )

    missing = [run for run in runs if not is_finished(run[2])]
    say(f"{len(runs)} runs, {len(runs) - len(missing)} of them complete; {plan.jobs} in parallel.")
    say("Ctrl-C stops them after their current steps; the same command continues them.")

    started = time.monotonic()
    failures = []
    pool = ThreadPoolExecutor(plan.jobs)  # each thread waits for one run
    try:
        ends = pool.map(lambda run: _run_one(plan, *run), missing)
        for number, ((name, seed, _), failure) in enumerate(zip(missing, ends, strict=True), 1):
            ended = f"{name}, seed {seed}: {failure or 'finished'}"
            minutes = (time.monotonic() - started) / number * (len(missing) - number) / 60
            say(f"{ended}; {number}/{len(missing)}, {minutes:.0f} min left")
            if failure:
                failures.append(ended)
    finally:
        pool.shutdown(cancel_futures=True)
    return failures


def _request(plan: Plan, name: str) -> str:
    """Everything that decides a run except its seed: options, and the contents of files."""
    mode = plan.modes[name]
    texts = [mode, *plan.options]

    # the content of a file, because it may change under the same name
    for text in (mode.rpartition(":")[0], *plan.options):
        if isfile(text):
            texts.append(Path(text).read_text(encoding="utf-8"))
    return "\n".join(texts)


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


def _run_one(plan: Plan, name: str, seed: int, directory: Path) -> str:
    """Start a run, or continue it from its last checkpoint; returns its last line if it failed."""
    if newest_checkpoint(directory):
        arguments = ["resume", str(directory)]
    else:
        # leftover files of a run that was killed before its first checkpoint
        shutil.rmtree(directory, ignore_errors=True)
        directory.parent.mkdir(parents=True, exist_ok=True)
        Path(f"{directory}.asked").write_text(_request(plan, name), encoding="utf-8")
        arguments = ["--mode", plan.modes[name], "--seed", str(seed), "--name", directory.name]
        arguments += [*plan.options, "--set", f"runs={directory.parent}"]
        arguments += ["--placement", "resident"]  # one process per run, not per policy
        arguments += ["--compared", ",".join(plan.modes)]

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    ended = subprocess.run([*PROGRAM, *arguments, "--plain"], **pipes)
    lines = ended.stdout.strip().splitlines() or [f"exit code {ended.returncode}"]
    return lines[-1] if ended.returncode else ""


@dataclass
class Result:
    """The results of one run.

    scores (after training), before (before it): (file, policy, skill or "all", metric) -> percent.
    """

    mode: str
    seed: int
    scores: dict[tuple[str, str, str, str], float]
    before: dict[tuple[str, str, str, str], float]
    costs: dict[str, float]
    lines: list[dict]

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
    for name, seed, directory in plan.runs():
        if is_finished(directory):
            results.append(read_result(directory, name, seed))
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
        costs["rollouts"] += completions
        costs["sampled tokens"] += line["num_tokens"]
        costs["updates"] += line["updates"]
        costs["bytes received"] += line["exchange/received_bytes"]

    prompts = read_run_config(directory).prompts_per_step * len(lines)
    costs["bytes per prompt"] = costs["bytes received"] / prompts
    costs["seconds"] = sum(slowest.values())

    evaluations = read_evaluations(directory)
    after, before = _percent(evaluations["after"]), _percent(evaluations["before"])
    return Result(mode, seed, after, before, costs, lines)


def _percent(evaluation: Sequence[dict]) -> dict[tuple[str, str, str, str], float]:
    """Scores of an evaluation in percent, in the form of `Result`."""
    scores = {}
    for entry in evaluation:
        for skill, values in (("all", entry), *entry["skills"].items()):
            for metric, value in values.items():
                if metric.startswith("pass@"):
                    scores[entry["split"], entry["policy"], skill, metric] = 100 * value
    return scores
