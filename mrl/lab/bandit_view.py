"""`python mini_mrl.py bandit`: the exact analysis as a table, sentences and a picture."""

import math
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from mrl.lab import figures
from mrl.lab.bandit import (
    GROUP,
    Context,
    Figures,
    analyse,
    average,
    bandit_modes,
    baseline_bias,
    capabilities,
    complementary,
    peer_alignment,
)

APART = (0.0, 0.5, 1.0)
LABELS = {"prp": (8, 6, "left"), "xgrpo": (-8, -5, "right")}  # where dots lie close
Found = dict[float, dict[str, list[Figures]]]


def analyse_all(group: int = GROUP) -> Found:
    """How far apart -> mode -> its figures in each context: for the table and for the picture."""
    return {
        apart: {
            name: [analyse(mode, [context], group) for context in complementary(apart)]
            for name, mode in bandit_modes(complementary(apart)).items()
        }
        for apart in APART
    }


def bandit_table(found: Found) -> Table:
    """Every mode where the peer knows what the receiver does not."""
    table = Table(title=f"complementary pair, G = {GROUP}, exact")
    columns = ("support", "uphill", "variance", "noise", "angle", "distance", "blind spot")
    for column in ("mode", *columns):
        table.add_column(column, justify="left" if column == "mode" else "right")
    for name, each in found[APART[-1]].items():
        mean = average(each)
        table.add_row(
            name, f"{mean.support:.0%}", f"{mean.uphill:.0%}", f"{mean.variance:.3f}",
            f"{mean.noise:.2f}", f"{mean.angle:.1f}°", f"{mean.distance:.2f}",
            f"{each[1].noise ** 2:.2g}",
        )  # fmt: skip
    return table


def bandit_sentences() -> Iterator[str]:
    """HACPO's two theorems and where they end."""
    other = complementary()
    same = [Context(c.receiver, c.receiver, c.right) for c in other]
    for contexts, what in (
        (same, "HACPO's baseline, the same ratio on every prompt"),
        (other, "The same with a complementary peer, whose ratio differs by prompt"),
    ):
        own, peer = capabilities(contexts)
        biases = (f"{baseline_bias(context, own / peer):+.2f}" for context in contexts)
        yield f"{what}: bias {', '.join(biases)}."
    good, wrong = peers_confidence()
    yield (
        "What a peer's samples add, against the gradient: cosine "
        f"{peer_alignment(good, (0.5, 0.5)):+.2f} if it is surer than the receiver of the answer, "
        f"{peer_alignment(wrong, (0.5, 0.5)):+.2f} if of a mistake."
    )


def peers_confidence() -> tuple[Context, Context]:
    """The peer is a little surer than the receiver of the answer, 0, or of the mistake 2.

    Only that action's ratio, 5 / 6, is within HACPO's band; the others are above 1.
    """
    receiver, good, wrong = (
        tuple(math.log(p) for p in chances)
        for chances in ((0.1, 0.8, 0.1), (0.12, 0.79, 0.09), (0.085, 0.795, 0.12))
    )
    return Context(receiver, good, frozenset({0})), Context(receiver, wrong, frozenset({0}))


def draw_bandit(found: Found, path: Path) -> None:
    """Stability against support: a curve a mode, from a peer that is a copy to the opposite one."""
    figure, (left, right) = figures.new_figure(10, 4.4, columns=2)
    for apart, modes in found.items():
        for name, each in modes.items():
            mean, color, last = average(each), figures.color_of(name), apart == APART[-1]
            for axes, y in ((left, mean.noise), (right, mean.angle)):
                axes.scatter(mean.support, y, color=color, s=90 if last else 14, zorder=3)
                if last:
                    dx, dy, side = LABELS.get(name, (8, -3, "left"))
                    axes.annotate(
                        name, (mean.support, y), xytext=(dx, dy), textcoords="offset points",
                        color=color, fontsize=10, ha=side,
                    )  # fmt: skip
    left.set(ylabel="noise: standard deviation / length of the mean update", yscale="log")
    right.set(ylabel="angle to the true gradient, degrees", ylim=(-3, None))
    for axes in (left, right):
        axes.set(xlabel="support: chance that a group teaches anything", xlim=(0, 1.12))
    figure.suptitle(
        f"exact, G = {GROUP}; small dots: the peer is a copy ... complementary (large dot)",
        fontsize=10,
    )
    figures.save_figure(figure, path)
