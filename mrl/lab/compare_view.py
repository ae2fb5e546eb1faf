"""What a comparison says: means over seeds with intervals, sentences, tables."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from mrl.lab.compare import Result, by_mode
from mrl.lab.holes import OPEN_FROM, STARTS_UNDER, hole_rows, holes_of, opening_step

CONTROLS = {  # mode -> what a gain above it says
    "solo": "what sharing or a memory gives",
    "solo-x2": "what it gives beyond twice the work",
    "replay": "what a policy owes to its peer, because `replay` imitates its own earlier successes",
    "sft": "what RL adds, because `sft` imitates its peers' successes and does nothing else",
}
COSTS = ("rollouts", "updates", "bytes per prompt", "seconds")
# two-sided 95 % quantiles of Student's t, by degrees of freedom (2 to 30; then the normal's)
T_95 = (
    4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
    2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052,
    2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """Numbers of seeds, their mean and the half width of its 95 % interval.

    Under three seeds `half` is NaN: two numbers that happen to agree are no narrow interval.
    """

    values: Sequence[float]
    mean: float
    half: float

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.half < abs(self.mean)

    def __str__(self) -> str:
        if math.isnan(self.half):
            return ", ".join(f"{value:.1f}" for value in self.values)
        return f"{self.mean:.1f} ± {self.half:.1f}"


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and Student-t interval over seeds."""
    half = math.nan
    if len(values) >= 3:
        quantile = T_95[len(values) - 3] if len(values) - 3 < len(T_95) else 1.96
        half = quantile * stdev(values) / math.sqrt(len(values))
    return Estimate(values, fmean(values), half)


def difference(results: Sequence[Result], one: str, two: str, part: str) -> Estimate | None:
    """How many points mode `one` is above mode `two`, paired by seed; None without a pair."""
    runs = by_mode(results)
    of_two = {run.seed: run.overall(part) for run in runs.get(two, ())}
    gaps = []
    for run in runs.get(one, ()):
        if run.seed in of_two and one != two:
            gaps.append(run.overall(part) - of_two[run.seed])
    return estimate(gaps) if gaps else None


def ranked(results: Sequence[Result], part: str) -> list[str]:
    """The modes, the best first."""
    runs = by_mode(results)
    return sorted(runs, key=lambda mode: -fmean(run.overall(part) for run in runs[mode]))


def sentences(results: Sequence[Result], part: str) -> list[str]:
    """What the data support and what not: each mode against the controls, and neighbors.

    Nothing is said of fewer than three seeds.
    """
    verdicts = []
    modes = ranked(results, part)
    for place, lower in enumerate(modes):
        for higher in modes[:place]:
            of_interest = higher == modes[place - 1] or {higher, lower} & CONTROLS.keys()
            gap = difference(results, higher, lower, part)
            if not of_interest or gap is None or math.isnan(gap.half):
                continue

            doubt = "" if gap.clear else "no clear difference: "
            seeds = f"{len(gap.values)} seeds"
            verdicts.append(f"{doubt}{higher} is {gap} points above {lower}, {seeds}.")
    return verdicts


def rows(results: Sequence[Result], part: str) -> list[dict[str, str]]:
    """Scores of the modes, the best first, and below them those from before training."""
    policies = list(dict.fromkeys(key[1] for key in results[0].scores))
    table = []
    for mode in ranked(results, part):
        runs = by_mode(results)[mode]
        row = {"mode": mode, "pass@1": str(estimate([run.overall(part) for run in runs]))}
        for control in CONTROLS:
            row[f"above {control}"] = str(difference(results, mode, control, part) or "")

        any_of_k = max(key[3] for key in runs[0].scores)  # pass@k, beside pass@1
        row["pass@k"] = str(estimate([run.overall(part, any_of_k) for run in runs]))
        for policy in policies:
            row[policy] = str(estimate([run.scores[part, policy, "all", "pass@1"] for run in runs]))
        table.append(row)

    start = dict.fromkeys(table[0], "") | {"mode": "start"}
    for policy in policies:
        key = part, policy, "all", "pass@1"
        start[policy] = f"{fmean(result.before[key] for result in results):.1f}"
    return [*table, start]


def cost_rows(results: Sequence[Result]) -> list[dict[str, str]]:
    """What a run of each mode cost, mean over seeds."""
    table = []
    for mode, runs in by_mode(results).items():
        row = {"mode": mode}
        for cost in COSTS:
            row[cost] = f"{fmean(run.costs[cost] for run in runs):,.0f}"
        table.append(row)
    return table


def summary(results: Sequence[Result], command: str) -> str:
    """Markdown: the holes, then for each held-out part the modes side by side, then the costs."""
    part = results[0].first_part
    lines = [
        f"Made with `{command}`. Held-out pass@1 in percent, mean over policies and skills;",
        "± is a 95 % interval over seeds (Student's t), differences are paired by seed.",
        "With fewer than three seeds each seed's number stands there, and nothing is concluded.",
        "",
    ]

    modes = by_mode(results)
    for control, meaning in CONTROLS.items():
        if control in modes and len(modes) > 1:
            lines.append(f"- Above `{control}`: {meaning}.")

    holes = holes_of(results)
    if holes:
        lines += ["", "## Holes", ""]
        lines += [
            f"A hole is a skill of a policy that starts under {STARTS_UNDER} % on `{part}`. It is",
            f"open in a run that ends at {OPEN_FROM} % or more there. In brackets: Wilson's 95 %",
            "interval of the share of such runs.",
        ]
        lines += ["", *_markdown(hole_rows(results, holes))]

    for part in dict.fromkeys(key[0] for key in results[0].scores):
        lines += ["", f"## {part}", "", *_markdown(rows(results, part)), ""]
        for sentence in sentences(results, part):
            lines.append(f"- {sentence}")
    lines += ["", "## Costs of a run", "", *_markdown(cost_rows(results)), ""]
    return "\n".join(lines)


def _markdown(table: Sequence[dict[str, str]]) -> list[str]:
    """A table's lines, without the columns that hold nothing."""
    columns = []
    for column in table[0]:
        if any(row[column] for row in table):
            columns.append(column)

    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in table:
        lines.append("| " + " | ".join(row[column] for column in columns) + " |")
    return lines


def write_csv(results: Sequence[Result], path: Path) -> None:
    """Write every number, and what it was before training.

    `part` is "training" for the step at which a hole opened.
    """
    holes = holes_of(results)
    table = [("mode", "seed", "part", "policy", "skill", "metric", "value", "before")]
    for result in results:
        of_run = result.mode, result.seed
        for key, value in result.scores.items():
            table.append((*of_run, *key, f"{value:.2f}", f"{result.before[key]:.2f}"))

        for cost, value in result.costs.items():
            table.append((*of_run, "", "", "", cost, f"{value:.2f}"))

        for hole in holes:
            step = opening_step(result, hole) or "never"
            table.append((*of_run, "training", *hole, "opened at step", step))

    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(table)
