"""Pictures of a run, drawn from its `metrics.jsonl`: one function a picture.

Policies keep one colour and one line style in all of them; modes keep one colour in comparisons.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

POLICY_COLORS = ("#0072b2", "#d55e00", "#cc79a7", "#009e73")  # told apart by the colour-blind, too
POLICY_STYLES = ("-", "--", ":", "-.")
KIND_COLORS = {"all_fail": "#bb5566", "mixed": "#ddaa33", "all_pass": "#6699cc"}
OUTCOMES = {  # in the order of the stack, with what the reader is told
    "taught": ("#009e73", "taught"),
    "rescued": ("#56b4e9", "rescued (imitated)"),
    "clipped": ("#e69f00", "in the clip's flat part"),
    "all_fail": ("#bb5566", "no advantage: all failed"),
    "all_pass": ("#6699cc", "no advantage: all passed"),
    "not_needed": ("#dddddd", "received, not needed"),
    "dropped": ("#999999", "dropped by the mode"),
    "refused": ("#555555", "refused by alignment"),
    "skipped": ("#000000", "update not finite"),
}
PHASE_COLORS = {
    "rollout": "#0072b2",
    "verify": "#cc79a7",
    "collect": "#f0e442",
    "learn": "#d55e00",
}
Lines = Sequence[dict[str, Any]]


def policies_of(lines: Lines) -> list[str]:
    """The policies of a run, in its order."""
    return list(dict.fromkeys(line["policy"] for line in lines))


def series(lines: Lines, policy: str, key: str, window: int = 1) -> tuple[list, list]:
    """Steps and values of one metric, each the mean of the last `window` steps that have it."""
    chosen = [
        (line["step"], line[key]) for line in lines if line["policy"] == policy and key in line
    ]
    steps, values = [step for step, _ in chosen], [value for _, value in chosen]
    means = [
        sum(values[max(0, i + 1 - window) : i + 1]) / len(values[max(0, i + 1 - window) : i + 1])
        for i in range(len(values))
    ]
    return steps, means


def draw_timeline(lines: Lines, path: Path, steps: int = 4) -> None:
    """Who worked when: the ledger of a few steps in the middle of a run, end to end.

    A bar is a turn; a hatched one moved weights or optimizer state between host and device.
    """
    names = policies_of(lines)
    there = sorted({line["step"] for line in lines})
    first = there[len(there) // 2]
    shown = [step for step in there if step >= first][:steps]
    figure, (axes,) = new_figure(9, 0.7 * len(names) + 1.3)
    begin = 0.0
    for step in shown:
        of_step = [line for line in lines if line["step"] == step]
        axes.axvline(begin, color="0.6", linewidth=0.8)
        axes.text(begin, len(names) - 0.45, f" step {step}", fontsize=9, va="bottom")
        for line in of_step:
            row = len(names) - 1 - names.index(line["policy"])
            for phase, start, stop, moved in line["time/turns"]:
                axes.barh(
                    row, stop - start, left=begin + start, height=0.6,
                    color=PHASE_COLORS.get(phase, "0.5"), hatch="///" if moved else None,
                    edgecolor="white", linewidth=0.4,
                )  # fmt: skip
        begin += max(line["time/step_s"] for line in of_step)
    axes.set_yticks(range(len(names)), names[::-1])
    axes.set_ylim(-0.5, len(names) - 0.1)
    axes.set_xlabel("seconds")
    for phase, color in PHASE_COLORS.items():
        axes.plot([], [], color=color, linewidth=6, label=phase)
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.35), frameon=False)
    save_figure(figure, path)


def draw_fates(lines: Lines, path: Path, window: int = 10) -> None:
    """Where did my gradient go: what became of every completion, own and received, over steps."""
    names = policies_of(lines)
    figure, all_axes = new_figure(4.4 * len(names), 3.6, columns=len(names))
    for axes, name in zip(all_axes, names, strict=True):
        steps, _ = series(lines, name, "outcome/taught")
        stacked = [series(lines, name, f"outcome/{outcome}", window)[1] for outcome in OUTCOMES]
        axes.stackplot(steps, stacked, colors=[color for color, _ in OUTCOMES.values()])
        axes.set(title=name, xlabel="step", ylim=(0, 1), xlim=(steps[0], max(steps[-1], 2)))
    all_axes[0].set_ylabel(f"share of completions (mean of {window} steps)")
    present = [f for f in OUTCOMES if any(line.get(f"outcome/{f}") for line in lines)]
    handles = [all_axes[0].fill_between([], [], color=OUTCOMES[outcome][0]) for outcome in present]
    labels = [OUTCOMES[outcome][1] for outcome in present]
    figure.legend(handles, labels, ncols=3, loc="outside lower center", frameon=False)
    save_figure(figure, path)


def draw_curves(
    lines: Lines,
    path: Path,
    keys: dict[str, str],
    label: str,
    window: int = 10,
    from_zero: bool = True,
) -> None:
    """Metrics over steps, a panel a key (`keys`: metric -> panel title), a line a policy."""
    names = policies_of(lines)
    present = [key for key in keys if any(key in line for line in lines)]
    columns = min(3, max(1, len(present)))
    rows = -(-len(present) // columns) or 1
    figure, all_axes = new_figure(3.6 * columns + 0.6, 2.4 * rows + 0.6, rows, columns)
    for axes, key in zip(all_axes, present, strict=False):
        for number, name in enumerate(names):
            axes.plot(
                *series(lines, name, key, window),
                color=POLICY_COLORS[number % 4],
                linestyle=POLICY_STYLES[number % 4],
                label=name,
            )
        axes.set_title(keys[key].replace("$", r"\$"), fontsize=10)  # no mathematics
        if from_zero:
            axes.set_ylim(bottom=0)
    for axes in all_axes[len(present) :]:
        axes.axis("off")
    all_axes[0].set_ylabel(label)
    all_axes[0].legend(frameon=False, fontsize=9)
    figure.supxlabel(f"step (mean of {window} steps)" if window > 1 else "step", fontsize=10)
    save_figure(figure, path)


def draw_kinds(lines: Lines, path: Path, window: int = 10) -> None:
    """Groups that all failed, were mixed, all passed: only mixed ones teach on their own."""
    names = policies_of(lines)
    figure, all_axes = new_figure(4.4 * len(names), 3.0, columns=len(names))
    for axes, name in zip(all_axes, names, strict=True):
        steps, _ = series(lines, name, "groups/mixed")
        stacked = [series(lines, name, f"groups/{kind}", window)[1] for kind in KIND_COLORS]
        labels = [kind.replace("_", "-") for kind in KIND_COLORS]
        axes.stackplot(steps, stacked, colors=KIND_COLORS.values(), labels=labels)
        axes.set(title=name, xlabel="step", ylim=(0, 1), xlim=(steps[0], max(steps[-1], 2)))
    all_axes[0].set_ylabel(f"share of groups (mean of {window} steps)")
    all_axes[-1].legend(loc="upper right", fontsize=9)
    save_figure(figure, path)


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, list]:
    """A figure that can be saved without a display, and its panels in reading order."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for each in panels:
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(labelsize=9)
    return figure, panels


def save_figure(figure: Any, path: Path) -> None:
    """Write a PNG, with the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


# ------------------------------------------------------------------------------ comparisons

MODE_COLORS = {
    "solo": "#444444",
    "solo-x2": "#999999",
    "naive": "#bb5566",
    "prp": "#cc79a7",
    "xgrpo": "#e69f00",
    "sgt": "#009e73",
    "hacpo": "#0072b2",
    "graft": "#56b4e9",
}


def color_of(mode: str) -> str:
    """A mode's colour in all figures; modes of one's own share one."""
    return MODE_COLORS.get(mode, "#882255")


def mode_curves(results: Sequence[Any], window: int = 20) -> dict[str, tuple[Any, Any]]:
    """Mode -> (sampled tokens so far [steps], solve rate of all policies [seeds, steps])."""
    import numpy

    found = {}
    for mode in dict.fromkeys(result.mode for result in results):
        rates, tokens = [], []
        for result in (result for result in results if result.mode == mode):
            names = policies_of(result.lines)
            rows = [series(result.lines, name, "reward", window)[1] for name in names]
            sampled = [series(result.lines, name, "num_tokens")[1] for name in names]
            length = min(map(len, rows))
            rates.append(numpy.mean([row[:length] for row in rows], axis=0))
            tokens.append(numpy.cumsum(numpy.sum([s[:length] for s in sampled], axis=0)))
        length = min(map(len, rates))
        cut = numpy.array([row[:length] for row in tokens])
        found[mode] = cut.mean(0), numpy.array([row[:length] for row in rates])
    return found


def draw_learning_curves(results: Sequence[Any], path: Path, window: int = 20) -> None:
    """Solve rate of all policies over steps and over sampled tokens: mean and range over seeds."""
    figure, (left, right) = new_figure(9.5, 4.0, columns=2)
    for mode, (tokens, rates) in mode_curves(results, window).items():
        for axes, x in ((left, range(1, len(tokens) + 1)), (right, tokens / 1e3)):
            axes.fill_between(x, rates.min(0), rates.max(0), color=color_of(mode), alpha=0.15)
            axes.plot(x, rates.mean(0), color=color_of(mode), label=mode)
    seeds = len({result.seed for result in results})
    left.set(xlabel="step", ylabel=f"solve rate (mean of {window} steps)", ylim=(0, 1))
    right.set(xlabel="sampled tokens, thousands", ylim=(0, 1))
    right.legend(frameon=False, fontsize=9, loc="lower right")
    left.set_title(f"all policies, {seeds} seeds, band: range", fontsize=10)
    save_figure(figure, path)


def draw_gains(results: Sequence[Any], path: Path, part: str) -> None:
    """Held-out pass@1 of every skill and policy above solo's, in points: mean over seeds."""
    import numpy

    modes = [m for m in dict.fromkeys(r.mode for r in results) if m != "solo"]
    solo = [r for r in results if r.mode == "solo"]
    keys = [k for k in solo[0].scores if k[0] == part and k[3] == "pass@1" and k[2] != "all"]
    policies = list(dict.fromkeys(key[1] for key in keys))
    figure, panels = new_figure(9.5, 0.8 + 1.9 * len(policies), rows=len(policies))
    for axes, policy in zip(panels, policies, strict=True):
        skills = [key for key in keys if key[1] == policy]
        for number, mode in enumerate(modes):
            gains = [
                numpy.mean([r.scores[key] for r in results if r.mode == mode])
                - numpy.mean([r.scores[key] for r in solo])
                for key in skills
            ]
            places = numpy.arange(len(skills)) + 0.8 * (number / len(modes) - 0.5)
            axes.bar(places, gains, 0.8 / len(modes), color=color_of(mode), label=mode)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(skills)), [key[2] for key in skills])
        axes.set_ylabel(f"{policy}\npoints above solo", fontsize=9)
    panels[0].legend(frameon=False, fontsize=9, ncols=4)
    save_figure(figure, path)


def draw_price(results: Sequence[Any], path: Path, part: str) -> None:
    """What a mode costs in bytes a prompt against its held-out pass@1: a dot a seed."""
    figure, (axes,) = new_figure(6.5, 4.0)
    for mode in dict.fromkeys(result.mode for result in results):
        chosen = [result for result in results if result.mode == mode]
        x = [result.costs["bytes a prompt"] for result in chosen]
        y = [result.overall(part) for result in chosen]
        axes.scatter(x, y, color=color_of(mode), s=30)
        axes.annotate(
            mode, (x[0], sum(y) / len(y)), xytext=(8, 0), textcoords="offset points",
            color=color_of(mode), fontsize=10, va="center",
        )  # fmt: skip
    axes.set_xscale("symlog", linthresh=100)
    axes.set(xlabel="bytes received a prompt (log scale from 100)", ylabel="held-out pass@1, %")
    axes.margins(x=0.15)
    save_figure(figure, path)
