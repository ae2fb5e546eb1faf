"""Plots of a run, drawn from its `metrics.jsonl`, and of a comparison of modes.

A color has the same meaning in all plots and pages. Blue and orange are the first two policies.
Green is a correct completion and the peer that wrote it, rose is a failure, and purple is replay.
Panels are stacked and the text is large, so that the plots are readable on a phone.
"""

import csv
import fnmatch
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy
from matplotlib.figure import Figure

from mrl.run.directory import read_metrics

matplotlib.rcParams["text.parse_math"] = False  # a policy may be called m$x^$
matplotlib.rcParams["font.size"] = 12

WIDTH = 5  # inches; if the plot is shown 360 pixels wide, 12-point text is 12 pixels high
WINDOW = 10  # number of steps over which the curves of a run are averaged
MOST_PANELS = 60
COMPARED_WINDOW = 20  # number of steps for the curves of a comparison
# all colors are dark enough for text on white
RIGHT, FAILED, REPLAY = "#00805d", "#b04a5c", "#7b4fa6"
POLICY_LINES = (("#0072b2", "-"), ("#c25400", "--"), ("#555555", ":"), ("#86662b", "-."))
MODE_COLORS = {
    "solo": "#444444", "solo-x2": "#767676", "replay": REPLAY, "naive": "#86662b",
    "prp": "#5d4037", "xgrpo": "#7d6e00", "sgt": RIGHT, "hacpo": "#882255", "graft": "#1f7a8c",
    "sft": "#b0457f", "hint": "#9a6700", "rft": "#4a5fc1",
}  # fmt: skip
Lines = Sequence[dict[str, Any]]


# ------------------------------------------------------------------------------ of a run


PICTURES = (  # (name, title, pattern of the metrics, label of their axis)
    ("reward", "How often is a completion correct?", "reward", "share of completions"),
    ("skills", "How often is each skill solved?", "skill/*", "share of completions"),
    ("kinds", "How many groups give a gradient?", "groups/*", "share of groups"),
    ("outcomes", "What became of the completions?", "outcome/*", "share of completions"),
    ("rescues", "How many prompts can a peer rescue?", "rescue*", "prompts per step"),
    ("traffic", "How much was shared?", "exchange/*_bytes", "bytes per step"),
    ("entropy", "How random is each policy?", "entropy", "entropy in nats"),
    ("lengths", "How long are the completions?", "completions/mean_length", "tokens"),
)


def save_curves(directory: Path) -> str:
    """Draw a run's solve rates, and write its metrics as CSV; returns a sentence about both files.

    The CSV has a row per step and policy. A cell is empty if the step has no value of a metric.
    """
    lines = read_metrics(directory)
    keys = keys_of(lines, "skill/*")
    picture, table = directory / "figures" / "skills.png", directory / "metrics.csv"
    draw_curves(lines, picture, ["reward", *keys], "share of completions")

    columns = dict.fromkeys(key for line in lines for key in line)
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(lines)
    return f"Curves of the solve rates: {picture}. All metrics, for a spreadsheet: {table}."


def keys_of(lines: Lines, pattern: str) -> list[str]:
    """The metrics of a run that match a pattern and are not always 0."""
    logged = {key for line in lines for key, value in line.items() if value}
    return sorted(fnmatch.filter(logged, pattern))


def label_of(key: str) -> str:
    """The label of a metric in a plot: its name without the part before the first `/`."""
    return (key.partition("/")[2] or key).replace("_", " ")


def policies_of(lines: Lines) -> list[str]:
    """The names of the policies of a run, in order."""
    return list(dict.fromkeys(line["policy"] for line in lines))


def series(lines: Lines, policy: str, key: str, window: int = 1) -> tuple[list, list]:
    """The steps that have a metric, and its mean over the last `window` of them."""
    steps, values, means = [], [], []
    for line in lines:
        if line["policy"] == policy and key in line:
            steps.append(line["step"])
            values.append(line[key])
            recent = values[-window:]
            means.append(sum(recent) / len(recent))
    return steps, means


def draw_curves(lines: Lines, path: Path, keys: Sequence[str], unit: str) -> None:
    """Draw metrics over steps: a panel per metric, a line per policy, means over `WINDOW` steps.

    Only the first `MOST_PANELS` metrics are drawn, because a larger picture cannot be saved.
    """
    left_out = len(keys) - MOST_PANELS
    keys = keys[:MOST_PANELS]
    columns = min(2, len(keys))
    rows = -(-len(keys) // columns)

    figure, panels = new_figure(WIDTH, 1.9 * rows + 1.2, rows, columns)
    for axes, key in zip(panels, keys, strict=False):
        for name, (color, style) in zip(policies_of(lines), cycle(POLICY_LINES), strict=False):
            curve = series(lines, name, key, WINDOW)
            axes.plot(*curve, color=color, linestyle=style, label=name)

        axes.set_title(label_of(key))
        # all panels of shares use the same scale, so that they can be compared
        axes.set_ylim(0, 1 if unit.startswith("share") else None)
    for axes in panels[len(keys) :]:
        axes.axis("off")

    figure.supylabel(unit)
    figure.supxlabel("step" if left_out <= 0 else f"step ({left_out} more are in metrics.jsonl)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=2, loc="outside upper center", frameon=False)
    save_figure(figure, path)


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list]:
    """A figure and its panels, row by row. It does not use pyplot, so it needs no display."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG file, and create its directory if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


# ------------------------------------------------------------------------------ of a comparison


def color_of(mode: str) -> str:
    """The color of a mode in all plots; black for modes that users wrote."""
    return MODE_COLORS.get(mode, "#000000")


def draw_learning_curves(results: Sequence[Any], path: Path, finding: str = "") -> None:
    """Draw the solve rate of each policy over steps, as mean and range over the seeds.

    finding: a sentence to put above the picture.
    """
    policies = policies_of(results[0].lines)
    figure, panels = new_figure(WIDTH, 2.8 * len(policies) + 0.6, rows=len(policies))
    for axes, policy in zip(panels, policies, strict=True):
        ends = []
        for mode in dict.fromkeys(result.mode for result in results):
            rates = []  # [seeds, steps]
            for result in results:
                if result.mode == mode:
                    rates.append(series(result.lines, policy, "reward", COMPARED_WINDOW)[1])
            of_policy = numpy.array(rates)
            color, steps = color_of(mode), range(1, of_policy.shape[1] + 1)
            axes.fill_between(steps, of_policy.min(0), of_policy.max(0), color=color, alpha=0.15)
            axes.plot(steps, of_policy.mean(0), color=color)
            ends.append((of_policy[:, -1].mean(), mode, color))

        name_ends(axes, ends)
        axes.set(title=policy, xlabel="step", ylim=(0, 1), ylabel="share of correct completions")

    seeds = len({result.seed for result in results})
    title = f"Solve rate in training: {COMPARED_WINDOW}-step mean,\nband: range over {seeds} seeds"
    figure.suptitle("\n".join(filter(None, [finding, title])))
    save_figure(figure, path)


def name_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write the names next to the ends of a panel's curves, without overlap.

    ends: (height of the curve's end, name, color).
    """
    heights = [-1.0]
    for end, *_ in sorted(ends):
        heights.append(max(end, heights[-1] + 0.1))  # at least 0.1 above the previous label
    above = max(0.0, heights[-1] - 1)  # how far the highest label would leave the panel
    for height, (_, name, color) in zip(heights[1:], sorted(ends), strict=True):
        place = {"va": "center", "transform": axes.get_yaxis_transform()}
        axes.text(1.02, height - above, name, color=color, **place)
