"""What sharing itself costs: seconds spent in exchange, alignment and mode, as a share of a step.

    python tests/bench/bench_sharing.py --modes xgrpo,sgt --steps 60

Trains the tiny pair with each mode and times, within the same steps, what `solo` has not:
publishing (with its round trip through the tokenizer), collecting (with its second verification)
and `training_samples` (which aligns a peer's text). Learning from a peer's text is the mode's point
and counts as learning. The first ten steps warm up and do not count.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import mini_mrl
from mrl.exchange import Exchange
from mrl.modes import MODES
from mrl.records import make_records
from mrl.team import Team

WARM_UP = 10


def timed(function: Callable, into: list[float]) -> Callable:
    """The function; the seconds of each call go into the list."""

    def call(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            into.append(time.perf_counter() - begin)

    return call


def shares_of_steps(mode: str, steps: int) -> dict[str, list[float]]:
    """Part of sharing -> its share of each step, in percent."""
    spent: dict[str, list[float]] = {"publish": [], "collect": [], "mode": []}  # of this step
    shares: dict[str, list[float]] = {part: [] for part in spent}
    whole: list[float] = []
    train_step = timed(mini_mrl.train_step, whole)

    def counted_step(team: Team, step: int) -> Any:
        for seconds in spent.values():
            seconds.clear()
        results = train_step(team, step)
        for part, seconds in spent.items():
            shares[part].append(100 * sum(seconds) / whole[-1])
        return results

    with ExitStack() as patches:
        for owner, name, part in (
            (Exchange, "publish", "publish"),
            (Exchange, "collect", "collect"),
            (MODES[mode], "training_samples", "mode"),
        ):
            counted = timed(getattr(owner, name), spent[part])
            patches.enter_context(patch.object(owner, name, counted))
        made = timed(lambda *about: list(make_records(*about)), spent["publish"])  # it is lazy
        patches.enter_context(patch("mrl.team.make_records", made))
        patches.enter_context(patch.object(mini_mrl, "train_step", counted_step))
        given = ["--mode", mode, "--steps", str(steps), "--seed", "1", "--plain"]
        if mini_mrl.main([*given, "--placement", "resident"]):
            raise SystemExit(f"the run with --mode {mode} failed")
    return {part: percent[WARM_UP:] for part, percent in shares.items()}


def main() -> None:
    """Train, then print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", default="xgrpo,sgt")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    root = Path.cwd()
    rows = []
    for mode in arguments.modes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            shares = shares_of_steps(mode, arguments.steps)
            os.chdir(root)
        sums = [sum(parts) for parts in zip(*shares.values(), strict=True)]
        cells = [f"{median(part):.2f}" for part in shares.values()]
        rows.append(f"| `{mode}` | {' | '.join(cells)} | {median(sums):.2f} | {max(sums):.2f} |")
    print("\nPercent of a step's seconds, median over steps:\n")
    print("| mode | publish | collect | align and decide | together | most in a step |")
    print("|---|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
