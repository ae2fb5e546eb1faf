"""Pictures of a run, drawn from its `metrics.jsonl`, and of a comparison of modes.

Policies keep one color and one line style in all of them, modes one color.
"""

import fnmatch
from collections.abc import Iterator, Sequence
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import numpy
from matplotlib.figure import Figure

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
SHARES = {  # label and color, in the order of the stack
    "groups/all_fail": ("all-fail", "#bb5566"),
    "groups/mixed": ("mixed", "#ddaa33"),
    "groups/all_pass": ("all-pass", "#6699cc"),
    "outcome/taught": ("taught", "#009e73"),
    "outcome/rescued": ("rescued (imitated)", "#56b4e9"),
    "outcome/clipped": ("in the clip's flat part", "#e69f00"),
    "outcome/all_fail": ("no advantage: all failed", "#bb5566"),
    "outcome/all_pass": ("no advantage: all passed", "#6699cc"),
    "outcome/not_needed": ("received, not needed", "#dddddd"),
    "outcome/dropped": ("dropped by the mode", "#999999"),
    "outcome/refused": ("refused by alignment", "#555555"),
    "outcome/skipped": ("update not finite", "#000000"),
}
Lines = Sequence[dict[str, Any]]


def pictures_of(lines: Lines) -> Iterator[tuple]:
    """What a run has numbers for: (name, title, function, metrics with labels, y label)."""
    there = dict.fromkeys(key for line in lines for key in line)
    for name, title, draw, pattern, label in PICTURES:
        metrics = {key: _label(key) for key in fnmatch.filter(there, pattern)}
        if any(line.get(key) for line in lines for key in metrics):
            yield name, title, draw, metrics, label


def _label(key: str) -> str:
    parts = key.split("/")
    if parts[0] == "exchange":
        return "bytes of {1} records from {2}".format(*parts)
    return SHARES[key][0] if key in SHARES else parts[-1].replace("_", " ")


def policies_of(lines: Lines) -> list[str]:
    """The policies of a run, in its order."""
    return list(dict.fromkeys(line["policy"] for line in lines))


def series(lines: Lines, policy: str, key: str, window: int = 1) -> tuple[list, list]:
    """Steps and values of one metric, each the mean of the last `window` steps that have it."""
    chosen = [line for line in lines if line["policy"] == policy and key in line]
    values = [line[key] for line in chosen]
    recent = (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    return [line["step"] for line in chosen], [sum(part) / len(part) for part in recent]


def draw_timeline(lines: Lines, path: Path, metrics: dict[str, str], label: str) -> None:
    """Who worked when: the turns of four steps in the middle of a run, end to end."""
    names = policies_of(lines)[::-1]  # the first one on top
    steps = sorted({line["step"] for line in lines})
    figure, (axes,) = new_figure(9, 0.7 * len(names) + 1.3)
    begin = 0.0
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
    axes.set(xlabel=label, ylim=(-0.5, len(names) - 0.1))
    for phase, color in PHASE_COLORS.items():
        axes.plot([], [], color=color, linewidth=6, label=phase)
    axes.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.35), frameon=False)
    save_figure(figure, path)


def draw_shares(lines: Lines, path: Path, metrics: dict[str, str], label: str) -> None:
    """Shares that add up to 1, stacked over steps, a panel a policy; means of `WINDOW` steps."""
    names = policies_of(lines)
    figure, panels = new_figure(4.4 * len(names), 3.6, columns=len(names))
    present = [key for key in SHARES if key in metrics and any(line.get(key) for line in lines)]
    for axes, name in zip(panels, names, strict=True):
        steps, _ = series(lines, name, present[0])
        stacked = [series(lines, name, key, WINDOW)[1] for key in present]
        areas = axes.stackplot(steps, stacked, colors=[SHARES[key][1] for key in present])
        axes.set(title=name, xlabel="step", ylim=(0, 1), xlim=(steps[0], max(steps[-1], 2)))
    panels[0].set_ylabel(f"{label} (mean of {WINDOW} steps)")
    labels = [metrics[key] for key in present]
    figure.legend(areas, labels, ncols=3, loc="outside lower center", frameon=False)
    save_figure(figure, path)


def draw_curves(lines: Lines, path: Path, metrics: dict[str, str], label: str) -> None:
    """Metrics over steps, a panel a metric with its label as title, a line a policy."""
    columns = min(3, len(metrics))
    rows = -(-len(metrics) // columns)
    figure, panels = new_figure(3.6 * columns + 0.6, 2.4 * rows + 0.6, rows, columns)
    for axes, (key, title) in zip(panels, metrics.items(), strict=False):
        for name, (color, style) in zip(policies_of(lines), cycle(POLICY_LINES), strict=False):
            curve = series(lines, name, key, WINDOW)
            axes.plot(*curve, color=color, linestyle=style, label=name)
        axes.set_title(title.replace("$", r"\$"), fontsize=10)  # no mathematics
        axes.set_ylim(bottom=0)
    for axes in panels[len(metrics) :]:
        axes.axis("off")
    panels[0].set_ylabel(label)
    panels[0].legend(frameon=False, fontsize=9)
    figure.supxlabel(f"step (mean of {WINDOW} steps)", fontsize=10)
    save_figure(figure, path)


PICTURES = (  # of a run: name, title, function, metrics, y label
    ("solve_rate", "Solve rate", draw_curves, "reward", "share of completions"),
    ("skills", "Solve rate by skill", draw_curves, "skill/*", "share"),
    ("kinds", "Kinds of groups: only mixed ones teach", draw_shares, "groups/*", "share of groups"),
    ("outcomes", "Where did my gradient go?", draw_shares, "outcome/*", "share of completions"),
    ("rescues", "The rescue set", draw_curves, "rescue*", "prompts a step"),
    ("traffic", "What crossed", draw_curves, "exchange/*/*/bytes", "bytes a step"),
    ("entropy", "Entropy: 0 for one text again and again", draw_curves, "entropy", "nats"),
    ("lengths", "Length of completions", draw_curves, "completions/mean_length", "tokens"),
    ("timeline", "Who worked when (a hatched turn moved weights between host and device)",
     draw_timeline, "time/*_s", "seconds"),
)  # fmt: skip


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list]:
    """A figure that needs no display (not pyplot's), and its panels in reading order."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for each in panels:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=9)
    return figure, panels


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG, with the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def color_of(mode: str) -> str:
    """A mode's color in all pictures; modes of one's own have one together."""
    return MODE_COLORS.get(mode, "#882255")


def mode_curves(results: Sequence[Any]) -> dict[str, tuple[Any, Any]]:
    """Mode -> (sampled tokens so far [steps], solve rates [seeds, policies, steps])."""
    found = {}
    for mode in dict.fromkeys(result.mode for result in results):
        runs = [result.lines for result in results if result.mode == mode]
        tokens, rates = (  # [seeds, policies, steps]
            numpy.array([[series(run, p, key, size)[1] for p in policies_of(run)] for run in runs])
            for key, size in (("num_tokens", 1), ("reward", COMPARED_WINDOW))
        )
        found[mode] = tokens.sum(1).cumsum(1).mean(0), rates
    return found


def draw_learning_curves(results: Sequence[Any], path: Path) -> None:
    """Solve rate of each policy over steps, of all over sampled tokens: mean and range of seeds."""
    policies = policies_of(results[0].lines)
    figure, panels = new_figure(3.6 * (len(policies) + 1), 3.8, columns=len(policies) + 1)
    ends = []  # of the last panel's curves
    for mode, (tokens, rates) in mode_curves(results).items():
        ends.append((rates[:, :, -1].mean(), mode))
        steps = range(1, len(tokens) + 1)
        curves = [(steps, rates[:, number]) for number in range(len(policies))]
        curves.append((tokens / 1e3, rates.mean(1)))
        for axes, (x, each) in zip(panels, curves, strict=True):  # each: [seeds, steps]
            axes.fill_between(x, each.min(0), each.max(0), color=color_of(mode), alpha=0.15)
            axes.plot(x, each.mean(0), color=color_of(mode))
    ends.sort()
    heights = list(accumulate((end for end, _ in ends), lambda below, end: max(end, below + 0.05)))
    lower = (heights[-1] - ends[-1][0]) / 2
    for height, (_, mode) in zip(heights, ends, strict=True):  # names beside the curves, apart
        at, beside = (1.02, height - lower), panels[-1].get_yaxis_transform()
        panels[-1].text(*at, mode, color=color_of(mode), va="center", transform=beside)
    seeds = len({result.seed for result in results})
    for axes, name in zip(panels, [*policies, "all"], strict=True):
        axes.set(title=name, xlabel="step", ylim=(0, 1))
    panels[0].set_ylabel(f"solve rate (mean of {COMPARED_WINDOW} steps)")
    panels[-1].set(xlabel="sampled tokens, thousands")
    figure.suptitle(f"seeds: {seeds}; band: their range", fontsize=10)
    save_figure(figure, path)


def draw_gains(results: Sequence[Any], gains: dict[str, tuple[float, float]], path: Path) -> None:
    """Above: each mode's gain over solo, sorted. Below: every skill of every policy, a dot a seed.

    gains: mode -> mean and half width of its 95 % interval, points of held-out pass@1.
    """
    part, policies = results[0].first_part, list(dict.fromkeys(k[1] for k in results[0].scores))
    order = sorted(gains, key=lambda mode: gains[mode][0])
    rows = len(policies) + 1
    figure, panels = new_figure(9.5, 0.6 + 0.32 * len(order) + 2.1 * len(policies), rows=rows)
    panels[0].get_gridspec().set_height_ratios([0.32 * len(order) + 0.4] + [2.1] * len(policies))
    for place, mode in enumerate(order):
        mean, half = gains[mode]
        panels[0].errorbar(mean, place, xerr=half, fmt="o", color=color_of(mode), capsize=3)
    panels[0].axvline(0, color="black", linewidth=0.8)
    panels[0].set_yticks(range(len(order)), order)
    panels[0].set_xlabel("points of pass@1 above solo, all skills of all policies", fontsize=9)
    first = part, policies[0], "pass@1"
    skills = [s for p, who, s, m in results[0].scores if (p, who, m) == first and s != "all"]
    modes = ["solo", *reversed(order)]
    for axes, policy in zip(panels[1:], policies, strict=True):
        for number, mode in enumerate(modes):
            chosen = [result.scores for result in results if result.mode == mode]
            solved = numpy.array(  # [seeds, skills]
                [[scores[part, policy, s, "pass@1"] for s in skills] for scores in chosen]
            )
            x = numpy.arange(len(skills)) + 0.8 * ((number + 0.5) / len(modes) - 0.5)
            axes.plot(x, solved.T, ".", color=color_of(mode), markersize=5)
            axes.hlines(solved.mean(0), x - 0.04, x + 0.04, color="black")
        axes.set_xticks(range(len(skills)), skills)
        axes.set(ylim=(-4, 104))
        axes.set_ylabel(f"{policy}\npass@1", fontsize=9)
    dots = [panels[1].plot([], [], "o", color=color_of(mode))[0] for mode in modes]
    about = {"frameon": False, "fontsize": 9, "ncols": len(modes), "loc": "outside lower center"}
    figure.legend(dots, modes, **about)
    save_figure(figure, path)
