"""Operation or calculation: what attempts get right after training, as `tiny-pair/operations.csv`.

    python data/results/operations.py "sums and differences=runs/compare" everything=runs/everything

Each argument is a name for the table and the folder of a comparison. An attempt can fail in two
ways: it begins with the wrong operation, or it begins with the right one and calculates wrongly.
The file counts both for each policy and skill, in every 40 steps of the runs with the seeds 81 to
85. A run logs the first of its attempts at each problem. `loses` has two operations, so it is left
out.
"""

import csv
import json
import re
import sys
from collections import Counter
from itertools import product
from pathlib import Path

from mrl.tiny.pair import PAIR

TABLE = Path(__file__).resolve().parent / "tiny-pair" / "operations.csv"
OPERATIONS = {
    "finds": "+", "given": "+", "eats": "-", "sold": "-",
    "bags": "*", "days": "*", "shares": "/", "packs": "/",
}  # fmt: skip
COUNTED = ("attempts", "right operation", "correct")
SEEDS, WINDOW = range(81, 86), 40  # in steps


def begins_right(text: str, skill: str) -> bool:
    """Whether an attempt begins with a number and the operation of the skill."""
    begun = re.match(r"\d+([-+*/])", text)
    return begun is not None and begun[1] == OPERATIONS[skill]


def count(log: Path, counts: Counter[tuple[int, str, str, str]]) -> None:
    """Add the attempts of one run: (last step, policy, skill, what is counted) -> how many."""
    for line in map(json.loads, log.read_text(encoding="utf-8").splitlines()):
        if "text" not in line:  # a rescue or a hint
            continue
        until = -(-line["step"] // WINDOW) * WINDOW
        policy, skill = line["policy"], line["problem"].split("-")[1]  # train-sold-012
        if skill not in OPERATIONS:
            continue
        right = begins_right(line["text"], skill)
        counts[until, policy, skill, "attempts"] += 1
        counts[until, policy, skill, "right operation"] += right
        counts[until, policy, skill, "correct"] += right and line["verdict"] == "correct"


def main() -> None:
    """Count in the logs of all comparisons, and write the file."""
    rows = []
    for pair, folder in (argument.split("=") for argument in sys.argv[1:]):
        logs = sorted(Path(folder).glob("runs/*/samples.jsonl"))
        modes = dict.fromkeys(log.parent.name.rsplit("-s", 1)[0] for log in logs)
        for mode in modes:
            counts: Counter[tuple[int, str, str, str]] = Counter()
            for seed in SEEDS:
                count(Path(folder) / "runs" / f"{mode}-s{seed}" / "samples.jsonl", counts)
            for place in product(sorted({until for until, *_ in counts}), PAIR, OPERATIONS):
                rows.append((pair, mode, *place, *(counts[*place, column] for column in COUNTED)))

    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("pair", "mode", "until step", "policy", "skill", *COUNTED))
        writer.writerows(rows)


if __name__ == "__main__":
    main()
