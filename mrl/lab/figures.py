"""Pictures of a run, drawn from its `metrics.jsonl`: one function a picture.

Policies keep one color and one line style in all of them; modes keep one color in comparisons.
"""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

WINDOW = 10  # steps that curves and shares are averaged over
POLICY_COLORS = ("#0072b2", "#d55e00", "#cc79a7", "#009e73")  # the color-blind see them, too
POLICY_STYLES = ("-", "--", ":", "-.")
KINDS = {"groups/all_fail": "all-fail", "groups/mixed": "mixed", "groups/all_pass": "all-pass"}
OUTCOMES = {  # in the order of the stack
    "outcome/taught": "taught",
    "outcome/rescued": "rescued (imitated)",
    "outcome/clipped": "in the clip's flat part",
    "outcome/all_fail": "no advantage: all failed",
    "outcome/all_pass": "no advantage: all passed",
    "outcome/not_needed": "received, not needed",
    "outcome/dropped": "dropped by the mode",
    "outcome/refused": "refused by alignment",
    "outcome/skipped": "update not finite",
}
SHARE_COLORS = {
    "all_fail": "#bb5566", "mixed": "#ddaa33", "all_pass": "#6699cc", "taught": "#009e73",
    "rescued": "#56b4e9", "clipped": "#e69f00", "not_needed": "#dddddd", "dropped": "#999999",
    "refused": "#555555", "skipped": "#000000",
}  # fmt: skip
RATIOS = {
    "ratio/max": "largest own ratio",
    "clip_ratio/low_mean": "own tokens clipped below",
    "clip_ratio/high_mean": "own tokens clipped above",
    "peer/ratio/mean": "peers' mean ratio",
    "peer/ratio/max": "peers' largest ratio",
    "peer/clip_ratio/low_mean": "peers' tokens clipped below",
    "peer/weight_mean": "peers' effective weight",
}
PHASE_COLORS = dict(rollout="#0072b2", verify="#cc79a7", collect="#f0e442", learn="#d55e00")
Lines = Sequence[dict[str, Any]]


def pictures_of(lines: Lines) -> list[tuple]:
    """What can be drawn of a run: (name, title, caption, function, metrics with labels, y label).

    Each function is called with (lines, path, metrics, y label).
    """
    there = dict.fromkeys(key for line in lines for key in line)
    skills = {key: key.split("/")[1] for key in there if key.startswith("skill/")}
    traffic = {
        key: "bytes of {1} records from {2}".format(*key.split("/"))
        for key in there
        if key.startswith("exchange/") and key.endswith("/bytes")
    }
    reward = {"reward": "solve rate of the sampled completions"}
    rescues = {"rescue_set": "rescue set", "rescues": "rescues"}
    thl = {"thl/share_one_to_one": "bytes in 1:1 chunks", "thl/length_ratio": "length ratio"}
    kinds = "Groups that all failed, were mixed, all passed: only mixed ones teach on their own."
    outcomes = "What became of every completion, own and received, over steps."
    turns = "A few steps in the middle; a hatched turn moved weights between host and device."
    wanted = [
        ("solve_rate", "Solve rate", "", draw_curves, reward, "share"),
        ("skills", "Solve rate by skill", "", draw_curves, skills, "share"),
        ("kinds", "Kinds of groups", kinds, draw_shares, KINDS, "share of groups"),
        (
            "outcomes",
            "Where did my gradient go?",
            outcomes,
            draw_shares,
            OUTCOMES,
            "share of completions",
        ),
        ("rescues", "The rescue set", "", draw_curves, rescues, "prompts a step"),
        ("traffic", "What crossed", "", draw_curves, traffic, "bytes a step"),
        ("timeline", "Who worked when", turns, draw_timeline, {"time/turns": ""}, "seconds"),
        ("ratios", "Ratios and clipping", "", draw_curves, RATIOS, ""),
        ("alignment", "What alignment cost", "", draw_curves, thl, ""),
    ]
    return [row for row in wanted if any(line.get(key) for line in lines for key in row[4])]


def policies_of(lines: Lines) -> list[str]:
    """The policies of a run, in its order."""
    return list(dict.fromkeys(line["policy"] for line in lines))


def series(lines: Lines, policy: str, key: str, window: int = 1) -> tuple[list, list]:
    """Steps and values of one metric, each the mean of the last `window` steps that have it."""
    chosen = [
        (line["step"], line[key]) for line in lines if line["policy"] == policy and key in line
    ]
    steps, values = [step for step, _ in chosen], [value for _, value in chosen]
    recent = (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    return steps, [sum(part) / len(part) for part in recent]


def draw_timeline(lines: Lines, path: Path, keys: dict[str, str], label: str) -> None:
    """Who worked when: the ledger of four steps in the middle of a run, end to end.

    A bar is a turn; a hatched one moved weights or optimizer state between host and device.
    """
    names = policies_of(lines)
    there = sorted({line["step"] for line in lines})
    figure, (axes,) = new_figure(9, 0.7 * len(names) + 1.3)
    begin = 0.0
    for step in there[len(there) // 2 :][:4]:
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
    axes.set_xlabel(label)
    for phase, color in PHASE_COLORS.items():
        axes.plot([], [], color=color, linewidth=6, label=phase)
    axes.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.35), frameon=False)
    save_figure(figure, path)


def draw_shares(lines: Lines, path: Path, keys: dict[str, str], label: str) -> None:
    """Shares that add up to 1, stacked over steps, a panel a policy; means of `WINDOW` steps."""
    names = policies_of(lines)
    figure, panels = new_figure(4.4 * len(names), 3.6, columns=len(names))
    present = {key: SHARE_COLORS[key.split("/")[1]] for key in keys
               if any(line.get(key) for line in lines)}  # fmt: skip
    for axes, name in zip(panels, names, strict=True):
        steps, _ = series(lines, name, next(iter(present)))
        stacked = [series(lines, name, key, WINDOW)[1] for key in present]
        axes.stackplot(steps, stacked, colors=present.values())
        axes.set(title=name, xlabel="step", ylim=(0, 1), xlim=(steps[0], max(steps[-1], 2)))
    panels[0].set_ylabel(f"{label} (mean of {WINDOW} steps)")
    handles = [panels[0].fill_between([], [], color=color) for color in present.values()]
    labels = [keys[key] for key in present]
    figure.legend(handles, labels, ncols=3, loc="outside lower center", frameon=False)
    save_figure(figure, path)


def draw_curves(lines: Lines, path: Path, keys: dict[str, str], label: str) -> None:
    """Metrics over steps, a panel a key (`keys`: metric -> panel title), a line a policy."""
    present = [key for key in keys if any(key in line for line in lines)]
    columns = min(3, max(1, len(present)))
    rows = -(-len(present) // columns) or 1
    figure, panels = new_figure(3.6 * columns + 0.6, 2.4 * rows + 0.6, rows, columns)
    for axes, key in zip(panels, present, strict=False):
        for name, color, style in zip(
            policies_of(lines), cycle(POLICY_COLORS), cycle(POLICY_STYLES)
        ):
            curve = series(lines, name, key, WINDOW)
            axes.plot(*curve, color=color, linestyle=style, label=name)
        axes.set_title(keys[key].replace("$", r"\$"), fontsize=10)  # no mathematics
        axes.set_ylim(bottom=0)
    for axes in panels[len(present) :]:
        axes.axis("off")
    panels[0].set_ylabel(label)
    panels[0].legend(frameon=False, fontsize=9)
    figure.supxlabel(f"step (mean of {WINDOW} steps)", fontsize=10)
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


MODE_COLORS = {
    "solo": "#444444", "solo-x2": "#999999", "naive": "#bb5566", "prp": "#cc79a7",
    "xgrpo": "#e69f00", "sgt": "#009e73", "hacpo": "#0072b2", "graft": "#56b4e9",
}  # fmt: skip


def color_of(mode: str) -> str:
    """A mode's color in all figures; modes of one's own share one."""
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
