"""What a comparison says: means over seeds with intervals, sentences, tables, pictures."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

from mrl.lab import figures
from mrl.lab.compare import Result

CONTROLS = ("solo", "solo-x2", "replay")
HEAD = (
    "mode", "pass@1", "above solo", "above solo-x2", "above replay", "pass@k", "rollouts",
    "updates", "bytes per prompt", "seconds",
)  # fmt: skip
# two-sided 95 % quantiles of Student's t, by degrees of freedom (1 to 30; then the normal's)
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


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


def scores_by_seed(results: Sequence[Result], mode: str, part: str) -> dict[int, float]:
    """Held-out pass@1 in percent of every seed of a mode."""
    return {r.seed: r.overall(part) for r in results if r.mode == mode}


def difference(results: Sequence[Result], one: str, two: str, part: str) -> Estimate | None:
    """How many points mode `one` is above mode `two`, paired by seed; None without a pair."""
    a, b = scores_by_seed(results, one, part), scores_by_seed(results, two, part)
    pairs = [a[seed] - b[seed] for seed in a if seed in b]
    return estimate(pairs) if pairs and one != two else None


def gains(results: Sequence[Result]) -> dict[str, tuple[float, float]]:
    """Mode -> its gain over solo in the first held-out part: mean, half width (0 with one seed)."""
    part = results[0].first_part
    above_solo = {}
    for mode in dict.fromkeys(result.mode for result in results):
        gap = difference(results, mode, "solo", part)
        if gap:
            above_solo[mode] = gap.mean, 0.0 if math.isnan(gap.half) else gap.half
    return above_solo


def ranked(results: Sequence[Result], part: str) -> list[str]:
    """The modes, the best first."""
    modes = dict.fromkeys(result.mode for result in results)
    return sorted(modes, key=lambda mode: -fmean(scores_by_seed(results, mode, part).values()))


def sentences(results: Sequence[Result], part: str) -> list[str]:
    """What the data support and what not: each mode against the controls, and neighbors."""
    modes = ranked(results, part)
    compared = [(mode, control) for control in CONTROLS for mode in modes]
    compared += pairwise(modes)

    by_pair: dict[frozenset[str], str] = {}  # each two modes once, whichever is named first
    for one, two in compared:
        gap = difference(results, one, two, part)
        if gap:
            by_pair.setdefault(frozenset((one, two)), _sentence(one, two, gap))
    return list(by_pair.values())


def _sentence(one: str, two: str, gap: Estimate) -> str:
    if math.isnan(gap.half):
        return f"{one} is {gap.mean:+.1f} points from {two} with 1 seed: no interval."
    if not gap.clear:
        interval = f"{gap.mean:+.1f} ± {gap.half:.1f} points"
        return f"{one} and {two}: no clear difference with {gap.seeds} seeds ({interval})."
    word = "beats" if gap.mean > 0 else "is worse than"
    return f"{one} {word} {two} by {abs(gap.mean):.1f} ± {gap.half:.1f} points, {gap.seeds} seeds."


def rows(results: Sequence[Result], part: str) -> list[list[str]]:
    """The summary table, the best mode first; cells as in `HEAD`."""
    table = []
    for mode in ranked(results, part):
        runs = [result for result in results if result.mode == mode]
        any_of_k = max(key[3] for run in runs for key in run.scores)  # pass@k, beside pass@1

        row = [mode, str(estimate([run.overall(part) for run in runs]))]
        for control in CONTROLS:
            row.append(str(difference(results, mode, control, part) or ""))
        row.append(str(estimate([run.overall(part, any_of_k) for run in runs])))
        for cost in HEAD[-4:]:
            row.append(f"{fmean(run.costs[cost] for run in runs):,.0f}")
        table.append(row)
    return table


def policy_rows(results: Sequence[Result], part: str) -> list[list[str]]:
    """Each policy under each mode: pass@1 before (mean over seeds) and after (every seed)."""
    table = []
    for policy in dict.fromkeys(key[1] for key in results[0].scores):
        for mode in ranked(results, part):
            runs = [result for result in results if result.mode == mode]
            key = part, policy, "all", "pass@1"
            before = fmean(run.before[key] for run in runs)
            after = ", ".join(f"{run.scores[key]:.1f}" for run in runs)
            table.append([policy, mode, f"{before:.1f}", after])
    return table


def summary(
    results: Sequence[Result], command: str, tuned: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Markdown: for each held-out part the modes side by side, and what that supports.

    tuned: mode -> the options that were chosen for it.
    """
    lines = [
        f"Made with `{command}`. Held-out pass@1 in percent, mean over policies and skills;",
        "± is a 95 % interval over seeds (Student's t), differences are paired by seed.",
        "",
    ]
    if any(result.mode == "replay" for result in results):
        lines += [
            "`replay` imitates a policy's own earlier successes. So what a policy owes to its peer",
            "is the difference above `replay`, not above `solo`.",
            "",
        ]
    if tuned:
        settings = "; ".join(f"{mode} {' '.join(words[1::2])}" for mode, words in tuned.items())
        lines += [f"Settings, chosen for each mode on other seeds: {settings}.", ""]

    for part in dict.fromkeys(key[0] for result in results for key in result.scores):
        lines += [f"## {part}", "", *_markdown(HEAD, rows(results, part)), ""]
        lines += [f"- {sentence}" for sentence in sentences(results, part)]
        head = ("policy", "mode", "before", "after, seed by seed")
        lines += ["", *_markdown(head, policy_rows(results, part)), ""]
    return "\n".join(lines)


def _markdown(head: Sequence[str], table: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *table)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def write_csv(results: Sequence[Result], out: Path) -> None:
    """Write `table.csv` (every number, long) and `curves.csv`.

    The latter has what the picture of learning shows, every tenth step and the last.
    """
    numbers = [("mode", "seed", "part", "policy", "skill", "metric", "value")]
    for result in results:
        for key, value in result.scores.items():
            numbers.append((result.mode, result.seed, *key, f"{value:.2f}"))
        for cost, value in result.costs.items():
            numbers.append((result.mode, result.seed, "", "", "", cost, f"{value:.2f}"))

    curves = [("mode", "step", "sampled_tokens", "mean", "lowest", "highest")]
    for mode, (tokens, rates) in figures.mode_curves(results).items():
        for step in sorted({*range(10, len(tokens) + 1, 10), len(tokens)}):
            by_seed = rates[:, :, step - 1].mean(1)
            row = [mode, step, f"{tokens[step - 1]:.0f}", f"{by_seed.mean():.4f}"]
            curves.append((*row, f"{by_seed.min():.4f}", f"{by_seed.max():.4f}"))

    for name, table in (("table.csv", numbers), ("curves.csv", curves)):
        with (out / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(table)
