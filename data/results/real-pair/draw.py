"""Draw the solve rate of two pretrained models while they train: `real-pair/learning.png`.

    python data/results/real-pair/draw.py

Each curve is the mean of three runs; their logs are in the folders beside this script.
"""

from pathlib import Path

from mrl.lab.compare import read_result
from mrl.run.figures import draw_learning_curves

HERE = Path(__file__).resolve().parent
FINDING = "With a peer (sgt), smol improves earlier.\n"


def main() -> None:
    """Read the kept runs beside this script, and draw them."""
    runs = [(mode, seed) for mode in ("solo", "replay", "sgt") for seed in (1, 2, 3)]
    results = [read_result(HERE / f"{mode}-s{seed}", mode, seed) for mode, seed in runs]
    draw_learning_curves(results, HERE / "learning.png", FINDING)


if __name__ == "__main__":
    main()
