"""Count what the placebos imitated: `placebo-counts.csv` and `placebo-operations.csv`.

    python data/results/controls/count_imitated.py RUNS

RUNS is the folder `runs` that `compare` made for the two placebos, with their logs.
"""

import csv
import json
import re
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIRST_OPERATION = re.compile(r"\d+([-+*/])\d+")


def write(name: str, rows: list[tuple]) -> None:
    """Write a CSV file beside this script."""
    with (HERE / name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def main() -> None:
    """Read the logs of all runs in a folder, and write both tables."""
    counts: list[tuple] = [("mode", "seed", "rescuable", "imitated")]
    operations: Counter[tuple] = Counter()  # (mode, skill of the failed prompt, operation)
    for directory in sorted(Path(sys.argv[1]).glob("placebo*-s[0-9]*")):
        if not directory.is_dir():
            continue
        mode, _, seed = directory.name.rpartition("-s")
        totals: Counter[str] = Counter()
        for line in (directory / "metrics.jsonl").read_text("utf-8").splitlines():
            figures = json.loads(line)
            for name in ("rescuable", "imitated"):
                totals[name] += int(figures[f"mode/{name}"])
        counts.append((mode, seed, totals["rescuable"], totals["imitated"]))

        for line in (directory / "samples.jsonl").read_text("utf-8").splitlines():
            rescue = json.loads(line).get("rescue")
            if rescue:
                first = FIRST_OPERATION.search(rescue["source_text"])
                operation = first[1] if first else "none"
                operations[mode, rescue["receiver"], rescue["skill"], operation] += 1

    write("placebo-counts.csv", counts)
    header = ("mode", "policy", "skill", "first operation", "imitated")
    write("placebo-operations.csv", [header, *((*key, n) for key, n in sorted(operations.items()))])


if __name__ == "__main__":
    main()
