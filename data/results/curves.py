"""Write how training went in the runs of result 9, as `tiny-pair/long-curves.csv`.

    python data/results/curves.py runs/long "sgt, weight 0.01=runs/long-small"

Each argument is the folder of a comparison; a name before it replaces the names of its modes. The
file has a row per run and 40 steps: the percentage of training attempts that are correct, as a mean
over both policies.
"""

import csv
import json
import sys
from pathlib import Path
from statistics import fmean

TABLE = Path(__file__).resolve().parent / "tiny-pair" / "long-curves.csv"
WINDOW = 40  # steps


def solved_by_window(run: Path) -> dict[int, float]:
    """Last step of a window -> the percentage of correct attempts in it."""
    rewards: dict[int, list[float]] = {}
    for line in map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()):
        until = -(-line["step"] // WINDOW) * WINDOW
        rewards.setdefault(until, []).append(line["reward"])
    return {until: 100 * fmean(values) for until, values in rewards.items()}


def main() -> None:
    """Read the logs of all runs, and write the file."""
    rows = []
    for argument in sys.argv[1:]:
        name, _, folder = argument.rpartition("=")
        for run in sorted(Path(folder).glob("runs/*")):
            mode, _, seed = run.name.rpartition("-s")
            for until, solved in solved_by_window(run).items():
                rows.append((name or mode, seed, until, f"{solved:.2f}"))

    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("mode", "seed", "until step", "solved"))
        writer.writerows(rows)


if __name__ == "__main__":
    main()
