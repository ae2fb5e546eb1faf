"""Holes: what a policy could not do at first; in how many runs it learnt that, and when.

A hole is a skill of a policy that starts under 2 %: pass@1 on the first held-out part, mean over
the runs that are compared. It is open in a run where pass@1 there ends at 25 % or more.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from mrl.lab import figures
from mrl.lab.compare import Result, by_mode

STARTS_UNDER = 2  # percent
OPEN_FROM = 25  # percent
WORDS = {"solo": "alone (solo)", "replay": "with a memory (replay)", "sft": "peer, no RL (sft)",
         "sgt": "with a peer (sgt)"}  # fmt: skip
VISITS = 10  # steps that asked for a skill; their mean says when a hole opened


def holes_of(results: Sequence[Result]) -> list[tuple[str, str]]:
    """The holes, as (policy, skill). A policy without updates is frozen and has none."""
    first = results[0]
    learners = {line["policy"] for line in first.lines if line["updates"]}

    holes = []
    for key in first.before:
        part, policy, skill, metric = key
        if part == first.first_part and metric == "pass@1" and skill != "all":
            start = fmean(result.before[key] for result in results)
            if start < STARTS_UNDER and policy in learners:
                holes.append((policy, skill))
    return holes


def end_of(result: Result, hole: tuple[str, str]) -> float:
    """Where a hole ends in a run: pass@1 on the first held-out part, percent."""
    return result.scores[result.first_part, *hole, "pass@1"]


def wilson(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share of which `count` of `total` were seen (Wilson 1927), percent."""
    z = 1.96
    center = (count + z**2 / 2) / (total + z**2)
    half = z / (total + z**2) * math.sqrt(count * (total - count) / total + z**2 / 4)
    return 100 * max(0.0, center - half), 100 * min(1.0, center + half)


def hole_rows(results: Sequence[Result], holes: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """In how many runs of each mode all holes opened, and each; under three runs each one's end."""
    rows = []
    for mode, runs in by_mode(results).items():
        all_open = 0
        for run in runs:
            all_open += all(end_of(run, hole) >= OPEN_FROM for hole in holes)
        row = {"mode": mode, "all open": _count(all_open, len(runs))}

        for hole in holes:
            ends = [end_of(run, hole) for run in runs]
            cell = _count(sum(end >= OPEN_FROM for end in ends), len(runs))
            if len(runs) < 3:
                cell = ", ".join(f"{end:.0f} %" for end in ends)
            row[" ".join(hole)] = cell
        rows.append(row)
    return rows


def _count(count: int, total: int) -> str:
    low, high = wilson(count, total)
    return f"{count} of {total} ({low:.0f} to {high:.0f} %)"


def opening_step(result: Result, hole: tuple[str, str]) -> int | None:
    """The first step at which the skill's solve rate in training had reached `OPEN_FROM` percent.

    The rate is the mean over the last `VISITS` steps that asked for the skill. None: never.
    """
    policy, skill = hole
    steps, rates = figures.series(result.lines, policy, f"skill/{skill}", VISITS)
    for number, (step, rate) in enumerate(zip(steps, rates, strict=True), start=1):
        if number >= VISITS and 100 * rate >= OPEN_FROM:
            return step
    return None


def draw_openings(results: Sequence[Result], holes: Sequence[tuple[str, str]], path: Path) -> None:
    """When each hole opened: a panel a mode, in it a row a hole, in that a dot a seed."""
    modes = by_mode(results)
    last = results[0].lines[-1]["step"]
    never = 1.28 * last  # the middle of the gray area
    height = len(modes) * (0.36 * len(holes) + 0.6) + 0.9
    figure, panels = figures.new_figure(figures.WIDTH, height, rows=len(modes))

    for (mode, runs), axes in zip(modes.items(), panels, strict=True):
        axes.axvspan(1.06 * last, 1.5 * last, color="#ececec")
        axes.grid(axis="y", color="#dddddd")
        for row, hole in enumerate(holes):
            for number, run in enumerate(runs):
                shift = (number + 0.5) / len(runs) - 0.5  # of the seed in its row: -0.5 to 0.5
                step = opening_step(run, hole)
                x, y, fill = step, row + 0.7 * shift, "full"
                if step is None:
                    x, y, fill = never + 0.38 * last * shift, row, "none"
                axes.plot(x, y, "o", color=figures.color_of(mode), fillstyle=fill, markersize=4.5)

        axes.set_title(WORDS.get(mode, mode), loc="left", fontsize=12)
        axes.set_yticks(range(len(holes)), [": ".join(hole) for hole in holes], fontsize=11)
        axes.set_xticks([0, last // 2, last, never], ["0", f"step {last // 2}", last, "never"])
        axes.set(xlim=(0, 1.5 * last), ylim=(len(holes) - 0.5, -0.5))

    rule = f"{OPEN_FROM} % were right, as a mean of {VISITS} steps with it"
    figure.suptitle(f"The step at which each hole opened:\n{rule}.\nA dot is a seed.", fontsize=12)
    figures.save_figure(figure, path)
