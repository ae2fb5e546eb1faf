"""Draw what a peer's solutions give and cost, one dot per run: `controls/frozen.png`.

    python data/results/controls/draw.py

Each dot is `qwen-tiny` after one run beside a `llama-tiny` that never learns. To the right: how
well it solves its two blind spots. Upwards: how much it kept of `eats`, which its peer cannot show.
"""

import runpy
from pathlib import Path

from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
STYLES = {  # color-blind safe colors, and a marker of its own for each method
    "solo": ("#555555", "s", "RL alone (solo)"),
    "sft": ("#d55e00", "v", "imitation without RL (sft), four learning rates"),
    "sequence": ("#cc79a7", "D", "imitation first, then RL (sequence), two switches"),
    "sgt": ("#0072b2", "o", "RL and imitation at once (sgt), three weights"),
}


def draw() -> Figure:
    """The picture, from the CSV files beside this script."""
    tables = runpy.run_path(str(HERE.parent / "tables.py"))
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for method, (color, marker, label) in STYLES.items():
        blind: list[float] = []
        eats: list[float] = []
        for _, source, mode in tables["FROZEN_CONTROLS"]:
            if mode.split()[0] == method:
                blind += tables["scores"](source, mode, "qwen-tiny blind", "validation")
                eats += tables["scores"](source, mode, "qwen-tiny eats", "validation")
        axes.scatter(blind, eats, c=color, marker=marker, s=36, alpha=0.8, label=label)
    axes.set_title("No learning rate of imitation alone keeps what the peer lacks", loc="left")
    axes.set_xlabel("the two blind spots of qwen-tiny: pass@1 in percent, validation set")
    axes.set_ylabel("eats, which the frozen peer cannot show: pass@1 in percent")
    axes.set_xlim(-3, 100)
    axes.set_ylim(0, 100)
    axes.legend(loc="lower left", frameon=False)
    axes.grid(alpha=0.25)
    return figure


if __name__ == "__main__":
    draw().savefig(HERE / "frozen.png", dpi=110)
    print(f"Written: {HERE / 'frozen.png'}")
