"""Draw what a peer's solutions give and cost, one dot per run: `controls/frozen.png`.

    python data/results/controls/draw.py

Each dot is `qwen-tiny` after one run beside a `llama-tiny` that never learns. To the right: how
well it solves its two blind spots. Upwards: how much it kept of `eats`, which its peer cannot show.
"""

import runpy
from pathlib import Path

from matplotlib.figure import Figure

from mrl.run import figures

HERE = Path(__file__).resolve().parent
STYLES = {  # a marker for each method, so that no color has to be seen
    "solo": ("s", "RL alone (solo)"),
    "sft": ("v", "imitation without RL (sft), four learning rates"),
    "sft-own": ("^", "sft with its own correct completions, one rate"),
    "sequence": ("D", "imitation first, then RL (sequence), two switches"),
    "sgt": ("o", "RL and imitation at once (sgt), three weights"),
}


def draw() -> Figure:
    """The picture, from the CSV files beside this script."""
    tables = runpy.run_path(str(HERE.parent / "tables.py"))
    figure, (axes,) = figures.new_figure(figures.WIDTH, 5.6)
    for method, (marker, label) in STYLES.items():
        blind: list[float] = []
        eats: list[float] = []
        for _, source, mode in tables["FROZEN_CONTROLS"]:
            if mode.split()[0] == method:
                blind += tables["scores"](source, mode, "qwen-tiny blind", "validation")
                eats += tables["scores"](source, mode, "qwen-tiny eats", "validation")
        color = figures.color_of(method)
        axes.scatter(blind, eats, c=color, marker=marker, s=36, alpha=0.8, label=label)
    figure.suptitle(
        "The frozen peer lacks the skill eats. Much of it is\n"
        "lost only where nothing but this peer is imitated"
    )
    axes.set_xlabel("pass@1 on the two blind spots, in percent")
    axes.set_ylabel("pass@1 on eats, in percent")
    axes.set_xlim(-3, 100)
    axes.set_ylim(0, 100)
    figure.legend(loc="outside lower center", frameon=False, fontsize=11)
    axes.grid(alpha=0.25)
    return figure


if __name__ == "__main__":
    figures.save_figure(draw(), HERE / "frozen.png")
    print(f"Written: {HERE / 'frozen.png'}")
