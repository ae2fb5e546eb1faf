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

CONTROLS = ("solo", "solo-x2")
HEAD = (
    "mode", "pass@1", "above solo", "above solo-x2", "pass@k", "rollouts", "updates",
    "bytes a prompt", "seconds",
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


def by_seed(results: Sequence[Result], mode: str, part: str) -> dict[int, float]:
    """Held-out pass@1 in percent of every seed of a mode."""
    return {r.seed: r.overall(part) for r in results if r.mode == mode}


def difference(results: Sequence[Result], one: str, two: str, part: str) -> Estimate | None:
    """How many points mode `one` is above mode `two`, paired by seed; None without a pair."""
    a, b = (by_seed(results, mode, part) for mode in (one, two))
    pairs = [a[seed] - b[seed] for seed in a if seed in b]
    return estimate(pairs) if pairs and one != two else None


def gains(results: Sequence[Result]) -> dict[str, tuple[float, float]]:
    """Mode -> its gain over solo in the first held-out part: mean, half width (0 with one seed)."""
    part, found = results[0].first_part, {}
    for mode in dict.fromkeys(result.mode for result in results):
        if gap := difference(results, mode, "solo", part):
            found[mode] = gap.mean, 0.0 if math.isnan(gap.half) else gap.half
    return found


def ranked(results: Sequence[Result], part: str) -> list[str]:
    """The modes, the best first."""
    modes = dict.fromkeys(result.mode for result in results)
    return sorted(modes, key=lambda mode: -fmean(by_seed(results, mode, part).values()))


def sentences(results: Sequence[Result], part: str) -> list[str]:
    """What the data support and what not: each mode against the controls, and neighbors."""
    modes, found = ranked(results, part), {}
    against = [(mode, control) for control in CONTROLS for mode in modes]
    for one, two in [*against, *pairwise(modes)]:
        if (gap := difference(results, one, two, part)) and frozenset((one, two)) not in found:
            found[frozenset((one, two))] = _sentence(one, two, gap)
    return list(found.values())


def _sentence(one: str, two: str, gap: Estimate) -> str:
    if math.isnan(gap.half):
        return f"{one} is {gap.mean:+.1f} points from {two} with 1 seed: no interval."
    if not gap.clear:
        about = f"{gap.seeds} seeds ({gap.mean:+.1f} ± {gap.half:.1f} points)"
        return f"{one} and {two}: no clear difference with {about}."
    word = "beats" if gap.mean > 0 else "is worse than"
    return f"{one} {word} {two} by {abs(gap.mean):.1f} ± {gap.half:.1f} points, {gap.seeds} seeds."


def rows(results: Sequence[Result], part: str) -> list[list[str]]:
    """The summary table, the best mode first; cells as in `HEAD`."""
    found = []
    for mode in ranked(results, part):
        chosen = [result for result in results if result.mode == mode]
        last = max(key[3] for result in chosen for key in result.scores)  # pass@k beside pass@1
        found.append([
            mode,
            str(estimate([result.overall(part) for result in chosen])),
            *(str(difference(results, mode, control, part) or "") for control in CONTROLS),
            str(estimate([result.overall(part, last) for result in chosen])),
            *(f"{fmean(r.costs[name] for r in chosen):,.0f}" for name in HEAD[5:]),
        ])  # fmt: skip
    return found


def policy_rows(results: Sequence[Result], part: str) -> list[list[str]]:
    """Each policy under each mode: pass@1 before (mean over seeds) and after (every seed)."""
    found = []
    for policy in dict.fromkeys(key[1] for key in results[0].scores):
        for mode in ranked(results, part):
            chosen = [result for result in results if result.mode == mode]
            key = part, policy, "all", "pass@1"
            after = ", ".join(f"{result.scores[key]:.1f}" for result in chosen)
            found.append([policy, mode, f"{fmean(r.before[key] for r in chosen):.1f}", after])
    return found


def summary(
    results: Sequence[Result], command: str, chosen: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Markdown: for each held-out part the modes side by side, and what that supports."""
    lines = [f"Made with `{command}`. Held-out pass@1 in percent, mean over policies and skills;"]
    lines += ["± is a 95 % interval over seeds (Student's t), differences are paired by seed.", ""]
    if chosen:
        each = (f"{mode} {' '.join(options[1::2])}" for mode, options in chosen.items())
        lines += [f"Settings, chosen for each mode on other seeds: {'; '.join(each)}.", ""]
    for part in dict.fromkeys(key[0] for result in results for key in result.scores):
        lines += [f"## {part}", "", f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
        lines += [f"| {' | '.join(row)} |" for row in rows(results, part)]
        lines += ["", *(f"- {sentence}" for sentence in sentences(results, part)), ""]
        lines += ["| policy | mode | before | after, seed by seed |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in policy_rows(results, part)] + [""]
    return "\n".join(lines)


def write_csv(results: Sequence[Result], out: Path) -> None:
    """`table.csv` (every number, long) and `curves.csv` (what the picture of learning shows, every
    tenth step and the last)."""
    long = [("mode", "seed", "part", "policy", "skill", "metric", "value")]
    for result in results:
        costs = {("", "", "", name): value for name, value in result.costs.items()}
        for key, value in (result.scores | costs).items():
            long.append((result.mode, result.seed, *key, f"{value:.2f}"))
    curves = [("mode", "step", "sampled_tokens", "mean", "lowest", "highest")]
    for mode, (tokens, rates) in figures.mode_curves(results).items():
        for step in sorted({*range(10, len(tokens) + 1, 10), len(tokens)}):
            of_step = rates[:, :, step - 1].mean(1)  # [seeds]
            ends = (of_step.mean(), of_step.min(), of_step.max())
            curves.append((mode, step, f"{tokens[step - 1]:.0f}", *(f"{x:.4f}" for x in ends)))
    for name, table in (("table.csv", long), ("curves.csv", curves)):
        with (out / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(table)
