"""Pictures of a run, drawn from its `metrics.jsonl`, and of a comparison of modes.

Policies keep one color and one line style in all of them, modes one color.
"""

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
import numpy
from matplotlib.figure import Figure

matplotlib.rcParams["text.parse_math"] = False  # a policy may be called m$x^$

WINDOW = 10  # steps that curves and shares of a run are averaged over
COMPARED_WINDOW = 20  # the same for the curves of a comparison
POLICY_LINES = (("#0072b2", "-"), ("#d55e00", "--"), ("#cc79a7", ":"), ("#009e73", "-."))
# colors that the color-blind see, too
MODE_COLORS = {
    "solo": "#444444", "solo-x2": "#999999", "replay": "#d55e00", "naive": "#bb5566",
    "prp": "#cc79a7", "xgrpo": "#e69f00", "sgt": "#009e73", "hacpo": "#0072b2",
    "graft": "#56b4e9",
}  # fmt: skip
PHASE_COLORS = {"rollout": "#0072b2", "verify": "#cc79a7", "learn": "#d55e00"}
SHARE_COLORS = {  # in the order of the stack
    "groups/all_fail": "#bb5566", "groups/mixed": "#ddaa33", "groups/all_pass": "#6699cc",
    "outcome/taught": "#009e73", "outcome/rescued": "#56b4e9", "outcome/replayed": "#d55e00",
    "outcome/clipped": "#e69f00", "outcome/all_fail": "#bb5566", "outcome/all_pass": "#6699cc",
    "outcome/not_needed": "#dddddd", "outcome/dropped": "#999999", "outcome/refused": "#555555",
    "outcome/skipped": "#000000",
}  # fmt: skip
Lines = Sequence[dict[str, Any]]


# ------------------------------------------------------------------------------ of a run


@dataclass(frozen=True)
class Picture:
    """One picture of a run. pattern: of the metrics that it shows; unit: of its values' axis."""

    name: str
    title: str
    draw: Callable[[Lines, Path, Sequence[str], str], None]
    pattern: str
    unit: str


def pictures_of(lines: Lines) -> Iterator[tuple[Picture, list[str]]]:
    """The pictures that a run has numbers for, each with its metrics."""
    logged = sorted({key for line in lines for key in line})
    for picture in PICTURES:
        keys = fnmatch.filter(logged, picture.pattern)
        if any(line.get(key) for line in lines for key in keys):
            yield picture, keys


def label_of(key: str) -> str:
    """What a metric is called in a picture: its name without the part before the first `/`."""
    first, *rest = key.split("/")
    if first == "exchange":  # exchange/<kind>/<source>/bytes
        return " from ".join(rest[:2])
    return "/".join(rest or [first]).replace("_", " ")


def policies_of(lines: Lines) -> list[str]:
    """The policies of a run, in its order."""
    return list(dict.fromkeys(line["policy"] for line in lines))


def series(lines: Lines, policy: str, key: str, window: int = 1) -> tuple[list, list]:
    """Steps and values of one metric, each the mean of the last `window` steps that have it."""
    steps, values, means = [], [], []
    for line in lines:
        if line["policy"] == policy and key in line:
            steps.append(line["step"])
            values.append(line[key])
            recent = values[-window:]
            means.append(sum(recent) / len(recent))
    return steps, means


def draw_timeline(lines: Lines, path: Path, keys: Sequence[str], unit: str) -> None:
    """Who worked when: the turns of four steps in the middle of a run, end to end."""
    names = policies_of(lines)[::-1]  # the first one on top
    figure, (axes,) = new_figure(9, 0.7 * len(names) + 1.3)

    begin = 0.0
    steps = sorted({line["step"] for line in lines})
    for step in steps[len(steps) // 2 :][:4]:
        of_step = [line for line in lines if line["step"] == step]
        axes.axvline(begin, color="0.6", linewidth=0.8)
        axes.text(begin, len(names) - 0.45, f" step {step}", fontsize=9, va="bottom")
        for line in of_step:
            for phase, start, stop, moved in line["time/turns"]:
                axes.barh(
                    names.index(line["policy"]), stop - start, left=begin + start, height=0.6,
                    color=PHASE_COLORS.get(phase, "0.5"), hatch="///" if moved else None,
                    edgecolor="white", linewidth=0.4,
                )  # fmt: skip
        begin += max(line["time/step_s"] for line in of_step)

    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel=unit, ylim=(-0.5, len(names) - 0.1))
    for phase, color in PHASE_COLORS.items():
        axes.plot([], [], color=color, linewidth=6, label=phase)
    axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.35), frameon=False)
    save_figure(figure, path)


def draw_shares(lines: Lines, path: Path, keys: Sequence[str], unit: str) -> None:
    """Shares that add up to 1, stacked over steps, a panel per policy; means of `WINDOW` steps."""
    names = policies_of(lines)
    figure, panels = new_figure(4.4 * len(names), 3.6, columns=len(names))
    shown = [key for key in SHARE_COLORS if key in keys and any(line.get(key) for line in lines)]
    colors = list(map(SHARE_COLORS.get, shown))

    for axes, name in zip(panels, names, strict=True):
        steps, _ = series(lines, name, shown[0])
        stacked = [series(lines, name, key, WINDOW)[1] for key in shown]
        areas = axes.stackplot(steps, stacked, colors=colors)
        axes.set(title=name, xlabel="step", ylim=(0, 1), xlim=(steps[0], max(steps[-1], 2)))

    panels[0].set_ylabel(f"{unit} (mean of {WINDOW} steps)")
    labels = list(map(label_of, shown))
    figure.legend(areas, labels, ncols=3, loc="outside lower center", frameon=False)
    save_figure(figure, path)


def draw_curves(lines: Lines, path: Path, keys: Sequence[str], unit: str) -> None:
    """Metrics over steps, a panel per metric, a line per policy."""
    columns = min(3, len(keys))
    rows = -(-len(keys) // columns)
    figure, panels = new_figure(3 * columns + 0.6, 2.3 * rows + 0.6, rows, columns)

    for axes, key in zip(panels, keys, strict=False):
        for name, (color, style) in zip(policies_of(lines), cycle(POLICY_LINES), strict=False):
            curve = series(lines, name, key, WINDOW)
            axes.plot(*curve, color=color, linestyle=style, label=name)
        axes.set_title(label_of(key), fontsize=12)
        # panels of shares side by side are compared by height
        axes.set_ylim(0, 1 if unit.startswith("share") else None)
    for axes in panels[len(keys) :]:
        axes.axis("off")

    panels[0].set_ylabel(unit)
    panels[0].legend(frameon=False, fontsize=10)
    figure.supxlabel(f"step (mean of {WINDOW} steps)", fontsize=11)
    save_figure(figure, path)


PICTURES = tuple(Picture(*row) for row in (
    ("solve_rate", "Solve rate", draw_curves, "reward", "share of completions"),
    ("skills", "Solve rate by skill", draw_curves, "skill/*", "share"),
    ("kinds", "Kinds of groups: only mixed ones teach", draw_shares, "groups/*", "share of groups"),
    ("outcomes", "Where did my gradient go?", draw_shares, "outcome/*", "share of completions"),
    ("rescues", "The rescue set", draw_curves, "rescue*", "prompts per step"),
    ("traffic", "What crossed", draw_curves, "exchange/*/*/bytes", "bytes per step"),
    ("entropy", "Entropy: 0 for one text again and again", draw_curves, "entropy", "nats"),
    ("lengths", "Length of completions", draw_curves, "completions/mean_length", "tokens"),
    ("timeline", "Who worked when (a hatched turn moved weights between host and device)",
     draw_timeline, "time/*_s", "seconds"),
))  # fmt: skip


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list]:
    """A figure that needs no display (not pyplot's), and its panels in reading order."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=10)
    return figure, panels


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG, with the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


# ------------------------------------------------------------------------------ of a comparison


def color_of(mode: str) -> str:
    """A mode's color in all pictures; modes of one's own have one together."""
    return MODE_COLORS.get(mode, "#882255")


def mode_curves(results: Sequence[Any]) -> dict[str, tuple[Any, Any]]:
    """Mode -> (sampled tokens so far [steps], solve rates [seeds, policies, steps])."""
    curves = {}
    for mode in dict.fromkeys(result.mode for result in results):
        tokens, rates = [], []
        for run in (result.lines for result in results if result.mode == mode):
            policies = policies_of(run)
            tokens.append([series(run, policy, "num_tokens")[1] for policy in policies])
            rates.append([series(run, policy, "reward", COMPARED_WINDOW)[1] for policy in policies])
        # [seeds, policies, steps] -> [steps]
        sampled_so_far = numpy.array(tokens).sum(1).cumsum(1).mean(0)
        curves[mode] = sampled_so_far, numpy.array(rates)
    return curves


def draw_learning_curves(results: Sequence[Any], path: Path) -> None:
    """Solve rate of each policy over steps: mean and range of the seeds."""
    policies = policies_of(results[0].lines)
    figure, panels = new_figure(4.4 * len(policies) + 1, 3.8, columns=len(policies))
    ends = []  # of the last panel's curves
    for mode, (_, rates) in mode_curves(results).items():
        color, steps = color_of(mode), range(1, rates.shape[2] + 1)
        for number, axes in enumerate(panels):
            of_policy = rates[:, number]  # [seeds, steps]
            axes.fill_between(steps, of_policy.min(0), of_policy.max(0), color=color, alpha=0.15)
            axes.plot(steps, of_policy.mean(0), color=color)
        ends.append((of_policy[:, -1].mean(), mode, color))
    name_ends(panels[-1], ends)

    for axes, name in zip(panels, policies, strict=True):
        axes.set(title=name, xlabel="step", ylim=(0, 1))
    panels[0].set_ylabel(f"solve rate (mean of {COMPARED_WINDOW} steps)")
    seeds = len({result.seed for result in results})
    figure.suptitle(f"Attempts at training problems that were right; band: range of {seeds} seeds")
    save_figure(figure, path)


def name_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names (end of the curve, name, color) beside a panel's curves, apart from one another."""
    height = -1.0
    for end, name, color in sorted(ends):
        height = max(end, height + 0.06)  # above the label before
        beside = axes.get_yaxis_transform()
        axes.text(1.02, height, name, color=color, va="center", transform=beside, fontsize=11)


def draw_gains(
    gains: dict[str, tuple[float, float]],
    path: Path,
    title: str = "Right of the line: more than a policy learns alone",
) -> None:
    """Each mode's gain over solo, sorted.

    gains: mode -> mean and half width of its 95 % interval, points of held-out pass@1.
    """
    order = sorted(gains, key=lambda mode: gains[mode][0])
    figure, (axes,) = new_figure(8, 0.4 * len(order) + 1.4)
    for place, mode in enumerate(order):
        mean, half = gains[mode]
        axes.errorbar(mean, place, xerr=half, fmt="o", color=color_of(mode), capsize=3)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(order)), order)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.tick_params(labelsize=12)
    axes.set_xlabel("points of held-out pass@1 above solo, with 95 % intervals", fontsize=12)
    axes.set_title(title, fontsize=13)
    save_figure(figure, path)
