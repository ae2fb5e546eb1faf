"""How often second attempts of `hint` and its controls are correct: tiny-pair/second-attempts.csv.

    python data/results/second.py runs/compare runs/other ...

Each argument is the folder of a comparison. The file has a row per run that makes second attempts,
over both policies and all steps: the second attempts, the correct ones, those that were imitated in
a blind spot, and how many of these begin with the right operation.
"""

import csv
import json
import sys
from pathlib import Path

from operations import begins_right  # a file of this folder

from mrl.tiny.pair import BLIND_SPOTS

COLUMNS = ("second attempts", "correct", "imitated in blind spots", "right operation")
TABLE = Path(__file__).resolve().parent / "tiny-pair" / "second-attempts.csv"


def lines_of(run: Path, log: str) -> list[dict]:
    """The lines of one of a run's logs."""
    return [json.loads(line) for line in (run / log).read_text(encoding="utf-8").splitlines()]


def counts_of(run: Path) -> list[int]:
    """The four numbers of a run, in the order of the columns."""
    metrics = lines_of(run, "metrics.jsonl")
    imitated = right = 0
    for hint in (line["hint"] for line in lines_of(run, "samples.jsonl") if "hint" in line):
        skill = hint["problem_id"].split("-")[1]  # of an id such as train-sold-012
        if skill in BLIND_SPOTS[hint["receiver"]]:
            imitated += 1
            right += begins_right(hint["text"], skill)
    attempts, correct = (
        sum(line.get(f"second/{what}", 0) for line in metrics) for what in ("attempts", "successes")
    )
    return [attempts, correct, imitated, right]


def main() -> None:
    """Count in the logs of all runs of the comparisons, and write the file."""
    rows = []
    for folder in map(Path, sys.argv[1:]):
        for run in sorted(folder.glob("runs/hint*")):
            mode, seed = run.name.rsplit("-s", 1)
            rows.append((mode, seed, *counts_of(run)))

    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("mode", "seed", *COLUMNS))
        writer.writerows(sorted(rows))


if __name__ == "__main__":
    main()
