"""The learning curves of the assignment `bug`: which letter has which bug, and the plot."""

import csv
import random
from itertools import product
from pathlib import Path

CURVES = Path(__file__).resolve().parents[2] / "data" / "results" / "bug"  # <bug>.csv, healthy.csv
BUGS = (
    "mixed groups", "sign", "learning rate too high", "learning rate too low", "length limit",
    "temperature near 0",
)  # fmt: skip
LETTERS = "ABCDE"
PANELS = {
    "reward": "solve rate",
    "completions/mean_length": "length, tokens",
    "grad_norm": "gradient norm",
}


def drawn(number: int) -> dict[str, str]:
    """Choose a bug at random for each letter.

    number: the seed of this choice, which is `CURVES` in the student's file.
    """
    bugs = random.Random(f"bug {number}").sample(BUGS, len(LETTERS))
    return dict(zip(LETTERS, bugs, strict=True))


def write_curves(number: int, folder: Path) -> Path:
    """Plot the curves of a healthy run and of five runs with a bug; returns the plot's path.

    Students get the plot only: with its numbers, they could find the run in data/results/bug, where
    the names of files reveal the bugs.
    """
    from mrl.run import figures

    rows = []
    for name, run in {"healthy": "healthy", **drawn(number)}.items():
        with (CURVES / f"{run.replace(' ', '-')}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                values = {key: float(value) for key, value in row.items()}
                rows.append(values | {"policy": name})

    figure, panels = figures.new_figure(12, 6, len(PANELS), len(LETTERS))
    for axes, (key, letter) in zip(panels, product(PANELS, LETTERS), strict=True):
        axes.plot(*figures.series(rows, "healthy", key, figures.WINDOW), color="0.6")
        axes.plot(*figures.series(rows, letter, key, figures.WINDOW), color="C0", linestyle="--")
        axes.set(ylim=(0, None), title=f"{letter}: {PANELS[key]}")

    figure.supxlabel(f"step (mean of {figures.WINDOW} steps); gray: healthy run", fontsize=10)
    figures.save_figure(figure, folder / "bug-curves.png")
    return folder / "bug-curves.png"
