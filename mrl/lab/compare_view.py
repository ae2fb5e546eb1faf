"""What a comparison says: means over seeds with intervals, sentences, tables, pictures."""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev

from rich.table import Table

from mrl.lab import figures
from mrl.lab.compare import Result

CONTROLS = ("solo", "solo-x2")
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
    return estimate(pairs) if pairs else None


def ranked(results: Sequence[Result], part: str) -> list[str]:
    """The modes, the best first."""
    modes = dict.fromkeys(result.mode for result in results)
    return sorted(modes, key=lambda mode: -fmean(by_seed(results, mode, part).values()))


def sentences(results: Sequence[Result], part: str) -> list[str]:
    """What the data support and what not: each mode against the controls, and neighbors."""
    modes, pairs = ranked(results, part), {}
    against = [(mode, control) for control in CONTROLS if control in modes for mode in modes]
    for one, two in [*against, *pairwise(modes)]:
        if one != two:
            pairs.setdefault(frozenset((one, two)), (one, two))
    gaps = [(*pair, difference(results, *pair, part)) for pair in pairs.values()]
    return [_sentence(one, two, gap) for one, two, gap in gaps if gap]


def _sentence(one: str, two: str, gap: Estimate) -> str:
    if math.isnan(gap.half):
        return f"{one} is {gap.mean:+.1f} points from {two} with 1 seed: no interval."
    if not gap.clear:
        about = f"{gap.seeds} seeds ({gap.mean:+.1f} ± {gap.half:.1f} points)"
        return f"{one} and {two} can't be told apart with {about}."
    word = "beats" if gap.mean > 0 else "is worse than"
    return f"{one} {word} {two} by {abs(gap.mean):.1f} ± {gap.half:.1f} points, {gap.seeds} seeds."


HEAD = (
    "mode", "pass@1", "above solo", "above solo-x2", "pass@k", "rollouts", "updates",
    "bytes a prompt", "seconds",
)  # fmt: skip


def rows(results: Sequence[Result], part: str) -> Iterator[list[str]]:
    """The summary table, the best mode first; cells as in `HEAD`."""
    for mode in ranked(results, part):
        chosen = [result for result in results if result.mode == mode]
        last = max(key[3] for result in chosen for key in result.scores)  # pass@k beside pass@1
        against = [difference(results, mode, c, part) if mode != c else None for c in CONTROLS]
        yield [
            mode,
            str(estimate(list(by_seed(results, mode, part).values()))),
            *(str(gap or "") for gap in against),
            str(estimate([result.overall(part, last) for result in chosen])),
            *(f"{fmean(r.costs[name] for r in chosen):,.0f}" for name in HEAD[5:]),
        ]


def write_tables(results: Sequence[Result], out: Path, command: str) -> None:
    """`table.csv` (every number, long), `curves.csv` (what the picture of learning shows, every
    tenth step and the last) and `table.md` (the summary and what it supports)."""
    long = [("mode", "seed", "part", "policy", "skill", "metric", "value")]
    for result in results:
        costs = {("", "", "", name): value for name, value in result.costs.items()}
        for key, value in (result.scores | costs).items():
            long.append((result.mode, result.seed, *key, f"{value:.2f}"))
    curves = [("mode", "step", "sampled_tokens", "mean", "lowest", "highest")]
    for mode, (tokens, rates) in figures.mode_curves(results).items():
        for step in sorted({*range(10, len(tokens) + 1, 10), len(tokens)}):
            of_step = rates[:, step - 1]  # [seeds]
            ends = (of_step.mean(), of_step.min(), of_step.max())
            curves.append((mode, step, f"{tokens[step - 1]:.0f}", *(f"{x:.4f}" for x in ends)))
    for name, table in (("table.csv", long), ("curves.csv", curves)):
        with (out / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(table)
    lines = [f"Made with `{command}`. Held-out pass@1 in percent, mean over policies and skills;"]
    lines += ["± is a 95 % interval over seeds (Student's t), differences are paired by seed.", ""]
    for part in parts_of(results):
        lines += [f"## {part}", "", f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
        lines += [f"| {' | '.join(row)} |" for row in rows(results, part)]
        lines += ["", *(f"- {sentence}" for sentence in sentences(results, part)), ""]
    (out / "table.md").write_text("\n".join(lines), encoding="utf-8")


def draw_pictures(results: Sequence[Result], folder: Path) -> None:
    """Learning curves and, with `solo` among the modes, the gain over it by skill."""
    part, modes = parts_of(results)[0], {result.mode for result in results}
    figures.draw_learning_curves(results, folder / "learning.png")
    if {"solo"} < modes:
        figures.draw_gains(results, folder / "gains.png", part)


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
