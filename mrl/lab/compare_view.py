"""The results of a comparison as tables and a plot: means with intervals, and blind spots.

Blind spots are determined by a skill's mean score before training, over all compared runs.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from mrl.lab.compare import Result, by_mode
from mrl.run import figures
from mrl.run.blind_spots import BLIND_SPOT, CLOSED, Rates, blind_spots, knows, learners_of
from mrl.run.intervals import Estimate, estimate, wilson

CONTROLS = ("solo", "solo-x2", "replay", "sft")  # tables show how far a mode is above each of them
COSTS = ("rollouts", "updates", "bytes per prompt", "seconds")
WORDS = {"solo": "RL alone (solo)", "replay": "own replay (replay)", "sft": "peer, no RL (sft)",
         "sgt": "peer and RL (sgt)"}  # fmt: skip
ClosingSteps = dict[str, dict[tuple[str, str], list[int | None]]]  # None: never
VISITS = 10  # number of steps, each with prompts of the skill, over which its rate is averaged


def difference(results: Sequence[Result], one: str, two: str, split: str) -> Estimate | None:
    """How many points mode `one` is above mode `two`, paired by seed; None without common seeds."""
    runs = by_mode(results)
    of_two = {run.seed: run.overall(split) for run in runs.get(two, ())}

    # two runs of one seed start from the same policies and see the same problems
    gaps = []
    for run in runs.get(one, ()):
        if run.seed in of_two and one != two:
            gaps.append(run.overall(split) - of_two[run.seed])
    return estimate(gaps) if gaps else None


def rows(results: Sequence[Result], split: str) -> list[dict[str, str]]:
    """One row per mode with its scores, best first, and a last row with scores before training."""
    policies = list(dict.fromkeys(key[1] for key in results[0].scores))
    table, means = [], {}
    for mode, runs in by_mode(results).items():
        whole = estimate([run.overall(split) for run in runs])
        means[mode] = whole.mean
        row = {"mode": mode, "pass@1": str(whole)}
        for control in CONTROLS:
            row[f"above {control}"] = str(difference(results, mode, control, split) or "")

        any_of_k = max(key[3] for key in runs[0].scores)  # the metric pass@k
        row["pass@k"] = str(estimate([run.overall(split, any_of_k) for run in runs]))
        for policy in policies:
            row[policy] = str(
                estimate([run.scores[split, policy, "all", "pass@1"] for run in runs])
            )
        table.append(row)
    table.sort(key=lambda row: -means[row["mode"]])

    # before training, a policy is the same in all modes
    start = dict.fromkeys(table[0], "") | {"mode": "start"}
    for policy in policies:
        key = split, policy, "all", "pass@1"
        start[policy] = f"{fmean(result.before[key] for result in results):.1f}"
    return [*table, start]


def cost_rows(results: Sequence[Result]) -> list[dict[str, str]]:
    """One row per mode with the costs of a run, as means over seeds."""
    table = []
    for mode, runs in by_mode(results).items():
        row = {"mode": mode}
        for cost in COSTS:
            row[cost] = f"{fmean(run.costs[cost] for run in runs):,.0f}"
        table.append(row)
    return table


def blind_spots_of(results: Sequence[Result]) -> list[tuple[str, str]]:
    """The blind spots as (policy, skill), without those of frozen policies."""
    first = results[0]
    before: Rates = {}  # means over all runs
    for key in first.before:
        split, policy, skill, metric = key
        if split == first.first_split and metric == "pass@1" and skill != "all":
            start = fmean(result.before[key] for result in results)
            before.setdefault(policy, {})[skill] = start / 100
    return blind_spots(before, learners_of(first.lines))


def is_closed(result: Result, blind_spot: tuple[str, str]) -> bool:
    """Whether the run closed the given blind spot, which is a (policy, skill) pair."""
    return knows(result.scores[result.first_split, *blind_spot, "pass@1"] / 100)


def blind_spot_rows(
    results: Sequence[Result], blind_spots: Sequence[tuple[str, str]]
) -> list[dict[str, str]]:
    """One row per mode: in how many runs it closed all blind spots, and each single one."""
    rows = []
    for mode, runs in by_mode(results).items():
        all_closed = 0
        for run in runs:
            all_closed += all(is_closed(run, blind_spot) for blind_spot in blind_spots)

        row = {"mode": mode, "all closed": _count(all_closed, len(runs))}

        for blind_spot in blind_spots:
            closed = sum(is_closed(run, blind_spot) for run in runs)
            row[" ".join(blind_spot)] = _count(closed, len(runs))
        rows.append(row)
    return rows


def _count(count: int, total: int) -> str:
    low, high = wilson(count, total)
    return f"{count} of {total} ({100 * low:.0f} to {100 * high:.0f}%)"


def closing_step(result: Result, blind_spot: tuple[str, str]) -> int | None:
    """The first step at which the skill's solve rate in training reached `CLOSED`.

    The rate is the mean over the last `VISITS` steps with prompts of the skill. None if it never
    reached `CLOSED`.
    """
    policy, skill = blind_spot
    steps, rates = figures.series(result.lines, policy, f"skill/{skill}", VISITS)
    for number, (step, rate) in enumerate(zip(steps, rates, strict=True), start=1):
        if number >= VISITS and knows(rate):
            return step
    return None


def headline(results: Sequence[Result]) -> str:
    """The result of a comparison in one sentence."""
    split = results[0].first_split
    scores = {}
    for mode, runs in by_mode(results).items():
        scores[mode] = estimate([run.overall(split) for run in runs])
    best, *others = sorted(scores, key=lambda mode: -scores[mode].mean)
    sentence = f"On {split}, {best} ends with {scores[best].mean:.1f}% of the answers correct"
    other = "solo" if "solo" in others else next(iter(others), "")
    gap = difference(results, best, other, split)
    if gap is None:
        return f"{sentence}."
    if not any(gap.values):
        return f"{sentence}, as many as {other}."
    sentence += f", the highest mean: {gap} points more than {other}"
    if len(gap.values) < 3:
        return f"{sentence} (with so few seeds, this may be luck)."
    if gap.half >= gap.mean:
        return f"{sentence}, which may be luck, because the interval contains 0."
    return f"{sentence} ({len(gap.values)} seeds)."


def summary(results: Sequence[Result], command: str) -> str:
    """The results in Markdown: blind spots, a table of scores per held-out file, and costs."""
    split = results[0].first_split
    lines = [
        f"Written by `{command}`.",
        "Scores are pass@1 on held-out problems in percent, as a mean over policies and skills.",
        "± is a 95% interval over seeds (Student's t). Differences are paired by seed.",
        "With fewer than three seeds, the table shows the value of each seed instead.",
    ]

    blind_spots = blind_spots_of(results)
    if blind_spots:
        lines += ["", "## Blind spots", ""]
        lines += [
            f"A blind spot is a skill whose pass@1 starts under {BLIND_SPOT:.0%} on `{split}`,",
            f"although a peer starts at {CLOSED:.0%} or more.",
            f"It is closed in a run if that pass@1 ends at {CLOSED:.0%} or more. The numbers are",
            "runs, followed by Wilson's 95% interval for the share of such runs.",
        ]
        lines += ["", *_markdown(blind_spot_rows(results, blind_spots))]

    for split in dict.fromkeys(key[0] for key in results[0].scores):
        lines += ["", f"## {split}", "", *_markdown(rows(results, split))]
    lines += ["", "## Costs of a run", "", *_markdown(cost_rows(results)), ""]
    return "\n".join(lines)


def _markdown(table: Sequence[dict[str, str]]) -> list[str]:
    """The lines of a Markdown table, without empty columns."""
    columns = []
    for column in table[0]:
        if any(row[column] for row in table):
            columns.append(column)

    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for row in table:
        lines.append("| " + " | ".join(row[column] for column in columns) + " |")
    return lines


def write_csv(results: Sequence[Result], path: Path) -> None:
    """Write all results as CSV, each with its value before training.

    Scores are in percent, and `kl_to_start` (see `mrl/run/evaluation.py`) is in nats per token.
    For the step at which a blind spot closed, the column `split` is "training".
    """
    blind_spots = blind_spots_of(results)
    table: list[tuple] = [("mode", "seed", "split", "policy", "skill", "metric", "value", "before")]
    for result in results:
        of_run = result.mode, result.seed
        for key, value in result.scores.items():
            table.append((*of_run, *key, f"{value:.2f}", f"{result.before[key]:.2f}"))

        for policy, value in result.kl.items():
            about = result.first_split, policy, "all", "kl_to_start"
            table.append((*of_run, *about, f"{value:.4f}", "0.0000"))

        for cost, value in result.costs.items():
            table.append((*of_run, "", "", "", cost, f"{value:.2f}"))

        for blind_spot in blind_spots:
            step = closing_step(result, blind_spot) or "never"
            table.append((*of_run, "training", *blind_spot, "closed at step", step))

    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(table)


def closing_steps(
    results: Sequence[Result], blind_spots: Sequence[tuple[str, str]]
) -> ClosingSteps:
    """The step at which each run closed each blind spot: mode -> blind spot -> one per run."""
    return {
        mode: {spot: [closing_step(run, spot) for run in runs] for spot in blind_spots}
        for mode, runs in by_mode(results).items()
    }


def draw_closings(modes: ClosingSteps, last: int, path: Path, finding: str = "") -> None:
    """Draw when each blind spot closed: a panel per mode, a row per blind spot, a dot per seed.

    last: the last step of the runs. finding: a sentence to put above the picture.
    """
    blind_spots = list(next(iter(modes.values())))
    never = 1.28 * last  # the middle of the gray area
    height = len(modes) * (0.36 * len(blind_spots) + 0.6) + 0.9
    figure, panels = figures.new_figure(figures.WIDTH, height, rows=len(modes))

    for (mode, closings), axes in zip(modes.items(), panels, strict=True):
        axes.axvspan(1.06 * last, 1.5 * last, color="#ececec")
        axes.grid(axis="y", color="#dddddd")
        for row, blind_spot in enumerate(blind_spots):
            steps = closings[blind_spot]
            for number, step in enumerate(steps):
                # how far a seed's dot lies from the middle of its row, from -0.5 to 0.5
                shift = (number + 0.5) / len(steps) - 0.5
                x, y, fill = step, row + 0.7 * shift, "full"
                if step is None:
                    x, y, fill = never + 0.38 * last * shift, row, "none"
                axes.plot(x, y, "o", color=figures.color_of(mode), fillstyle=fill, markersize=4.5)

        axes.set_title(WORDS.get(mode, mode), loc="left", fontsize=12)
        axes.set_yticks(
            range(len(blind_spots)),
            [": ".join(blind_spot) for blind_spot in blind_spots],
            fontsize=11,
        )
        axes.set_xticks([0, last // 2, last, never], ["0", f"step {last // 2}", last, "never"])
        axes.set(xlim=(0, 1.5 * last), ylim=(len(blind_spots) - 0.5, -0.5))

    rule = f"its solve rate (mean over {VISITS} steps) first reached {CLOSED:.0%}"
    title = f"When each blind spot closed: the step at which\n{rule}.\nOne dot per seed."
    figure.suptitle("\n".join(filter(None, [finding, title])), fontsize=12)
    figures.save_figure(figure, path)
