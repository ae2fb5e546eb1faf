"""Draw the pictures of results 1, 3 and 9 from the files of this folder, for light and dark pages.

python data/results/draw.py
"""

import importlib.util
from pathlib import Path
from statistics import fmean

from matplotlib import rc_context, rcParams
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from mrl.run import figures
from mrl.run.intervals import Estimate

HERE = Path(__file__).resolve().parent
_spec = importlib.util.spec_from_file_location("tables", HERE / "tables.py")
assert _spec and _spec.loader
tables = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tables)

# a marker for each mode, so that no color has to be seen; and where its name stands: points right
# and up from the middle of its runs
STYLES = {
    "solo": ("s", (-26, 10)),
    "replay": ("P", (22, 16)),
    "hint-anew": ("<", (-4, -42)),
    "sft": ("v", (8, -16)),
    "rft": ("^", (22, -4)),
    "sgt": ("o", (16, -6)),
    "hint": ("D", (-10, 18)),
}


PAPER, INK = "#0d1117", "#e6edf3"
DARK = dict.fromkeys(("figure.facecolor", "axes.facecolor"), PAPER)
DARK |= dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
)


def color_of(mode: str) -> tuple[float, ...]:
    """The color of a mode, lighter on a dark page. A mode without a color has that of the text."""
    color = to_rgb(figures.MODE_COLORS.get(mode, rcParams["text.color"]))
    lighter = 0.45 if rcParams["text.color"] == INK else 0.0
    return tuple(part + lighter * (1 - part) for part in color)


def kept_and_learned() -> Figure:
    """Result 1: what each run learned in the blind spots, and what it kept of the strong skills."""
    figure, (axes,) = figures.new_figure(figures.WIDTH, 5.2)
    axes.plot(tables.before("blind"), tables.before("strong"), "x",
              color=rcParams["text.color"], markersize=9)  # fmt: skip
    axes.annotate("before training", (tables.before("blind"), tables.before("strong")),
                  (8, -4), textcoords="offset points", fontsize=11)  # fmt: skip
    for mode, (marker, shift) in STYLES.items():
        learned, kept = (tables.scores("result 1", mode, of) for of in ("blind", "strong"))
        color = color_of(mode)
        axes.scatter(learned, kept, color=color, marker=marker, s=34, alpha=0.75)
        axes.annotate(mode, (fmean(learned), fmean(kept)), shift, color=color,
                      textcoords="offset points", fontsize=12)  # fmt: skip
    axes.set(xlim=(-3, 80), ylim=(40, 100))
    axes.set_xlabel("blind spots: problems solved, in percent")
    axes.set_ylabel("strong skills: problems solved, in percent")
    axes.grid(alpha=0.25)
    figure.suptitle("One mark per run, after training (test set)", fontsize=12)
    return figure


def measured(mode: str) -> dict[int, Estimate]:
    """Where a mode of result 3 ends: number of the column -> estimate, without missing columns."""
    found = {}
    for place, how in enumerate(tables.STRANGENESS):
        try:
            found[place] = tables.by_strangeness(mode, how)
        except tables.NotMeasured:
            continue
    return found


def strangers() -> Figure:
    """Result 3: a line per mode over how differently the peer writes; only what is measured."""
    figure, (axes,) = figures.new_figure(figures.WIDTH, 5)
    box = len(tables.STRANGENESS) - 1  # bare boxes are no further step, so no line leads there
    for mode in tables.LINES:
        look = {"color": color_of(mode), "marker": STYLES[mode][0], "capsize": 3}
        found = measured(mode)
        for places in ([p for p in found if p < box], [p for p in found if p == box]):
            means, halves = [found[p].mean for p in places], [found[p].half for p in places]
            line = "--" if mode == "solo" else "-"
            axes.errorbar(places, means, halves, linestyle=line, **look)
        for place in {max(p for p in found if p < box), max(found)}:
            rise = 6 if (mode, place) == ("hint", box) else -5  # `solo` has the same place there
            axes.annotate(
                mode, (place, found[place].mean), (9, rise), color=look["color"],
                textcoords="offset points",
            )  # fmt: skip
    names = ["nothing", "sums and\ndifferences", "everything", "(only the box\nis shared)"]
    axes.set_xticks(range(len(names)), names)
    axes.set(xlim=(-0.3, len(names) - 0.3), ylim=(0, 100))
    axes.set_xlabel("what the peer writes in its own way")
    axes.set_ylabel("problems solved, in percent")
    axes.grid(alpha=0.25)
    figure.suptitle("The more differently a peer writes,\nthe more its solutions cost", fontsize=12)
    return figure


# where a name stands at the end of its line, in points up, so that no name hides another
NAMES_AT = {"hint": 2, "sgt": -9, "sgt, weight 0.01": -12}


def longer() -> Figure:
    """Result 9: how many training attempts are correct, over 720 steps; a mean over the seeds."""
    figure, (axes,) = figures.new_figure(figures.WIDTH, 4.6)
    solved: dict[str, dict[int, list[float]]] = {}
    for line in tables.kept_rows("tiny-pair/long-curves.csv"):
        windows = solved.setdefault(line["mode"], {})
        windows.setdefault(int(line["until step"]), []).append(float(line["solved"]))
    for name, windows in solved.items():
        mode = name.partition(",")[0]  # "sgt, weight 0.01" has the color of `sgt`
        line = {"solo": "--"}.get(name, "-" if name == mode else ":")
        means = [fmean(of_seeds) for of_seeds in windows.values()]
        axes.plot(list(windows), means, line, color=color_of(mode))
        axes.annotate(
            name, (max(windows), means[-1]), (6, NAMES_AT.get(name, -4)), color=color_of(mode),
            textcoords="offset points", annotation_clip=False,
        )  # fmt: skip
    axes.axvline(240, color=rcParams["text.color"], alpha=0.3)
    axes.set(xlim=(0, 720), ylim=(0, 100))
    axes.set_xlabel("training step")
    axes.set_ylabel("correct training attempts, in percent")
    axes.grid(alpha=0.25)
    figure.suptitle("Three times as many steps", fontsize=12)
    return figure


PICTURES = {"kept-and-learned": kept_and_learned, "strangers": strangers, "longer": longer}


def main(folder: Path = HERE) -> None:
    """Write all pictures, in two forms."""
    for name, draw in PICTURES.items():
        figures.save_figure(draw(), folder / f"{name}.png")
        with rc_context(DARK):
            dark = draw()
            dark.set_facecolor(PAPER)
            figures.save_figure(dark, folder / f"{name}-dark.png")


if __name__ == "__main__":
    main()
