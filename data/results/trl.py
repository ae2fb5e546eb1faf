"""What `qwen-tiny` solves after training by TRL (data/examples/trl_sgt.py), as trl.csv.

    python data/results/trl.py FOLDER

FOLDER has the models that `trl_sgt.py` saved: s1-pair, s1-mixed, s1-alone, s2-pair and so on
(REPRODUCE.md has the commands). A row of the file has a team, a seed, a skill, and pass@1 on the
validation set.
"""

import csv
import sys
from pathlib import Path

from mini_mrl import load_team

HERE = Path(__file__).resolve().parent
TEAMS = ("alone", "pair", "mixed")
SEEDS = (1, 2, 3)


def main() -> None:
    """Score all models, and write trl.csv."""
    folder = Path(sys.argv[1])
    rows = []
    for team in TEAMS:
        for seed in SEEDS:
            model = load_team([folder / f"s{seed}-{team}"], mode="solo")
            (scores,) = model.evaluate(HERE.parent / "words" / "validation.jsonl").values()
            rows += [(team, seed, skill, f"{score:.4f}") for skill, score in scores.items()]
            print(team, seed, scores)

    with (HERE / "trl.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("team", "seed", "skill", "pass@1"))
        writer.writerows(rows)


if __name__ == "__main__":
    main()
