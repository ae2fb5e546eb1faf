"""The gradient norms of runs, from their logs: writes `norms.csv`.

    python data/results/controls/norms.py NAME=RUNS ...

RUNS is the folder `runs` that `compare` made, and NAME stands in the file for its mode. Each row
has the median and the largest gradient norm of one policy in one run, before clipping.
"""

import csv
import json
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Read the logs of all runs in the given folders, and write the table."""
    with (HERE / "norms.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("mode", "seed", "policy", "median", "largest"))
        for argument in sys.argv[1:]:
            mode, _, folder = argument.partition("=")
            for log in sorted(Path(folder).glob("*/metrics.jsonl")):
                norms: dict[str, list[float]] = {}
                for line in log.read_text(encoding="utf-8").splitlines():
                    figures = json.loads(line)
                    norms.setdefault(figures["policy"], []).append(figures["grad_norm"])
                seed = log.parent.name.rpartition("-s")[2]
                for policy, of_run in norms.items():
                    rows.writerow(
                        (mode, seed, policy, f"{median(of_run):.2f}", f"{max(of_run):.1f}")
                    )


if __name__ == "__main__":
    main()
