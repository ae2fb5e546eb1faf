"""How often second attempts of `hint` and its controls are correct: tiny-pair/second-attempts.csv.

    python data/results/second.py runs/compare runs/other ...

Each argument is the folder of a comparison. The file has a row per run that makes second attempts,
with their number and the number of correct ones, over both policies and all steps.
"""

import csv
import json
import sys
from pathlib import Path

TABLE = Path(__file__).resolve().parent / "tiny-pair" / "second-attempts.csv"


def main() -> None:
    """Add up the logs of all runs of the comparisons, and write the file."""
    rows = []
    for folder in map(Path, sys.argv[1:]):
        for log in sorted(folder.glob("runs/hint*/metrics.jsonl")):
            mode, seed = log.parent.name.rsplit("-s", 1)
            lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
            attempts = sum(line.get("second/attempts", 0) for line in lines)
            correct = sum(line.get("second/successes", 0) for line in lines)
            rows.append((mode, seed, attempts, correct))

    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("mode", "seed", "second attempts", "correct"))
        writer.writerows(sorted(rows))


if __name__ == "__main__":
    main()
