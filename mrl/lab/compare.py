"""`python mini_mrl.py compare`: modes under the same seeds and budget, with intervals.

Every mode and seed is a run of its own, a process of its own, several at a time. What is compared
is paired by seed: two runs of a seed begin with the same weights and the same order of problems.
"""

import csv
import json
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from statistics import fmean

from mrl.errors import MrlError
from mrl.modes import MODES
from mrl.runtime.judge import check_judge
from mrl.runtime.run_directory import read_evaluations, read_metrics, read_run_config
from mrl.runtime.settings import mode_class

PROGRAM = (sys.executable, str(Path(__file__).resolve().parents[2] / "mini_mrl.py"))


@dataclass
class Plan:
    """What is compared.

    A mode is kept as it was typed, `sgt` or `file.py:Class`; results and directories have its name.
    """

    modes: Sequence[str]
    seeds: Sequence[int]
    out: Path
    jobs: int = 2
    options: Sequence[str] = ()  # of every run, as on the command line
    tuned: dict[str, Sequence[str]] = field(default_factory=dict)  # mode -> options of its runs
    names: dict[str, str] = field(default_factory=dict)  # mode -> its name in this comparison

    def __post_init__(self) -> None:
        self.names = self.names or names_of(self.modes)

    def runs(self) -> list[tuple[str, int, Path]]:
        """Mode, seed and directory. Seeds outermost: what is cut short is balanced."""
        return [
            (mode, seed, self.out / "runs" / f"{self.names[mode]}-s{seed}")
            for seed in self.seeds
            for mode in self.modes
        ]

    def options_of(self, mode: str) -> list[str]:
        """All options of a mode's runs.

        A config file may hold `[settings.NAME]` of several modes of one's own, but a run knows only
        its own mode. So for the others' runs this writes a copy of the file without them.
        """
        options = [*self.options, *self.tuned.get(mode, ())]
        foreign = {mode_class(other).name for other in self.names} - {*MODES, mode_class(mode).name}
        if not foreign or "--config" not in options:
            return options

        number = options.index("--config") + 1
        with suppress(OSError, ValueError, AttributeError):  # the run says what is wrong
            table = tomllib.loads(Path(options[number]).read_text(encoding="utf-8"))
            for name in foreign:
                table.get("settings", {}).pop(name, None)
            copy = self.out / "runs" / f"{self.names[mode]}.config.json"
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(json.dumps(table), encoding="utf-8")
            options[number] = str(copy)
        return options


def seeds_of(text: str) -> list[int]:
    """The seeds that `--seeds` asks for: `5` (the first five), `31-40` or `1,2,31-35`.

    MrlError if it is none of these, or names no seed or one of them twice.
    """
    seeds = []
    for part in text.split(","):
        numbers = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        if not numbers:
            raise MrlError(
                f"--seeds {text}: write how many, like 5, or which, like 31-40 or 1,2,5."
            )
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if part == text and numbers[2] is None:  # a number alone says how many
            first = 1
        seeds += range(first, last + 1)

    if not seeds or len(set(seeds)) < len(seeds):
        raise MrlError(f"--seeds {text}: names {'a seed twice' if seeds else 'no seed'}.")
    return seeds


def names_of(modes: Sequence[str]) -> dict[str, str]:
    """What each mode is called: by its `name`, or by its file where that name is taken."""
    names: dict[str, str] = {}
    for mode in modes:
        name = mode_class(mode).name
        if mode not in MODES and name in (*MODES, *names.values()):
            name = Path(mode.rpartition(":")[0]).name
        if mode in names or name in names.values():
            raise MrlError(f"A mode is named twice in {','.join(modes)}.")
        names[mode] = name
    return names


def run_all(plan: Plan, say: Callable[[str], None]) -> list[str]:
    """Make every run that is not there yet; returns a sentence for each that failed.

    The same call goes on where it was stopped by Ctrl-C or SIGTERM. MrlError if a run is there that
    was made with other options.
    """
    runs = plan.runs()
    options = {mode: plan.options_of(mode) for mode in plan.modes}
    for mode, _, directory in runs:
        if (directory / "config.json").is_file():
            check_judge(read_run_config(directory))
        note = Path(f"{directory}.asked")
        if not (directory.exists() and note.exists()):
            continue
        if note.read_text(encoding="utf-8") != _request(mode, options[mode]):
            raise MrlError(
                f"{directory}: was made with other options, or by another version of a file among "
                "them; give another --out, or delete it."
            )

    missing = [run for run in runs if not is_finished(run[2])]
    say(f"{len(runs)} runs, {len(runs) - len(missing)} of them there; {plan.jobs} at a time.")
    started = time.monotonic()
    failures = []
    processes: set[subprocess.Popen] = set()  # those that run now
    pool = ThreadPoolExecutor(plan.jobs)  # of threads that wait for them
    try:
        ends = pool.map(lambda run: _run_one(*run, options[run[0]], processes), missing)
        for number, ((mode, seed, _), failure) in enumerate(zip(missing, ends, strict=True), 1):
            ended = f"{plan.names[mode]}, seed {seed}: {failure or 'finished'}"
            minutes = (time.monotonic() - started) / number * (len(missing) - number) / 60
            say(f"{ended}; {number}/{len(missing)}, {minutes:.0f} min left")
            if failure:
                failures.append(ended)
    except KeyboardInterrupt:
        say("The runs stop after their steps; the same command goes on with them.")
        pool.shutdown(wait=False, cancel_futures=True)
        _terminate(processes)
        try:
            pool.shutdown()
        except KeyboardInterrupt:
            _terminate(processes)  # a second signal ends a run at once
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return failures


def _terminate(processes: set[subprocess.Popen]) -> None:
    """SIGTERM to each: a run that a script started in the background ignores SIGINT at first."""
    for process in list(processes):
        process.terminate()


def _request(mode: str, options: Sequence[str]) -> str:
    """All that decides what a run is, beside its seed: options, and texts of config and mode."""
    parts = [mode, *options]
    for name in (mode.rpartition(":")[0], *options):
        if Path(name).is_file():
            parts.append(Path(name).read_text(encoding="utf-8"))
    return "\n".join(parts)


def is_finished(directory: Path) -> bool:
    """Whether a run has scored its held-out problems after training."""
    return "after" in read_evaluations(directory)


def _run_one(
    mode: str, seed: int, directory: Path, options: Sequence[str], processes: set[subprocess.Popen]
) -> str:
    """Start a run, or go on from its last checkpoint; returns its last line if it failed."""
    if any(directory.glob("checkpoints/step-*")):
        arguments = ["resume", str(directory)]
    else:
        shutil.rmtree(directory, ignore_errors=True)  # it was killed before its first checkpoint
        directory.parent.mkdir(parents=True, exist_ok=True)
        Path(f"{directory}.asked").write_text(_request(mode, options), encoding="utf-8")
        arguments = ["--mode", mode, "--seed", str(seed), "--name", directory.name, *options]
        arguments += ["--set", f"runs={directory.parent}"]
        arguments += ["--placement", "resident"]  # a core for each run, not for each policy

    # a process group of its own: Ctrl-C in a terminal comes through `_terminate`, and once
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
    process = subprocess.Popen([*PROGRAM, *arguments, "--plain"], process_group=0, **pipes)
    processes.add(process)
    output, _ = process.communicate()
    processes.discard(process)

    lines = output.strip().splitlines() or [f"exit code {process.returncode}"]
    return lines[-1] if process.returncode else ""


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
    results = []
    for mode, seed, directory in plan.runs():
        if is_finished(directory):
            results.append(read_result(directory, plan.names[mode], seed))

    lengths = {result.lines[-1]["step"] for result in results}
    if len(lengths) > 1:
        raise MrlError(
            f"{plan.out}: its runs have {' and '.join(map(str, sorted(lengths)))} steps, which "
            "can't be compared; give the shorter ones another --out."
        )
    return results


def read_result(directory: Path, mode: str, seed: int) -> Result:
    """Scores, costs and metrics of a finished run."""
    lines = read_metrics(directory)
    slowest: dict[int, float] = {}  # step -> seconds of its slowest line: each policy has one
    costs = dict.fromkeys(("rollouts", "sampled tokens", "updates", "bytes received"), 0.0)
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
    """An evaluation as `Result` keeps it."""
    scores = {}
    for entry in evaluation:
        for skill, values in (("all", entry), *entry["skills"].items()):
            for metric, value in values.items():
                if metric.startswith("pass@"):
                    scores[entry["part"], entry["policy"], skill, metric] = 100 * value
    return scores


def grid(texts: Sequence[str]) -> list[list[str]]:
    """All combinations of `key=value,value` texts, each as options of a run."""
    axes = []
    for text in texts:
        key, equals, values = text.partition("=")
        if not (key and equals and all(values.split(","))):
            raise MrlError(f"--tune {text}: write it like learning_rate=3e-5,1e-4,3e-4.")
        axes.append([("--set", f"{key}={value}") for value in values.split(",")])
    return [list(chain.from_iterable(combination)) for combination in product(*axes)]


def choose_settings(
    plan: Plan, texts: Sequence[str], seeds: Sequence[int], say: Callable[[str], None]
) -> Plan:
    """The plan with the best combination of settings for each mode, chosen apart.

    Best: the highest mean held-out pass@1 (first part) over `seeds`, which the comparison must not
    use again.

    After each seed a mode's worse half is given up, so that most of the time goes to
    what may still win (successive halving, arXiv 1502.07943); two stay to the last seed.

    `MODE` in a key is the mode's name. Every score is kept in `tune.csv`.
    """
    settings = grid(texts)
    options = {}
    for mode, (number, setting) in product(plan.modes, enumerate(settings)):
        own = mode_class(mode).name
        options[mode, number] = [option.replace("MODE", own) for option in setting]

    modes = {name: mode for mode, name in plan.names.items()}
    left = dict.fromkeys(plan.modes, range(len(settings)))  # the best first after each seed
    scores: dict[tuple[str, int], list[float]] = defaultdict(list)
    rows = [("mode", "setting", "seed", "pass@1")]
    for count, seed in enumerate(seeds, start=1):
        for number in range(len(settings)):
            tried = {mode: options[mode, number] for mode in plan.modes if number in left[mode]}
            if not tried:
                continue
            out = plan.out / "tune" / str(number)
            trial = replace(plan, modes=list(tried), seeds=[seed], out=out, tuned=tried)
            for failure in run_all(trial, say):
                say(failure)

            for result in read_all(trial):
                mode, score = modes[result.mode], result.overall(result.first_part)
                scores[mode, number].append(score)
                setting = " ".join(options[mode, number][1::2])
                rows.append((result.mode, setting, seed, f"{score:.2f}"))

        for mode, numbers in left.items():
            means = {n: fmean(scores[mode, n]) for n in numbers if len(scores[mode, n]) == count}
            if not means:
                name = plan.names[mode]
                raise MrlError(f"{name}: no setting of --tune finished with seed {seed}.")
            left[mode] = sorted(means, key=means.get, reverse=True)[: max(2, (len(means) + 1) // 2)]

    with (plan.out / "tune.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return replace(plan, tuned={mode: options[mode, best] for mode, (best, *_) in left.items()})
