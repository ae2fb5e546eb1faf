"""What hotter sampling does before any training: are there more successes, and what do they cost?

    python data/results/hotter.py    # writes hotter.csv; three minutes on a quiet core

Both models of the tiny pair try every validation problem of their blind spots and
their strong skills, in two groups of 8, at two temperatures. A row of the file has a policy, a
skill, a temperature, the share of groups with a success, and the share of correct attempts.
"""

import csv
from pathlib import Path
from statistics import fmean

import torch

from mini_mrl import load_team
from mrl.run.problems import load_problems
from mrl.tiny.pair import BLIND_SPOTS, STRONG_SKILLS

HERE = Path(__file__).resolve().parent
PROBLEMS = HERE.parent / "words" / "validation.jsonl"
TEMPERATURES = (1.0, 1.5)
GROUPS, SIZE = 2, 8  # per problem


def main() -> None:
    """Measure, and write hotter.csv."""
    problems = load_problems(PROBLEMS)
    rows = []
    for temperature in TEMPERATURES:
        team = load_team("tiny", mode="solo", seed=0, temperature=temperature)
        for policy in team.policies:
            for skill in (*BLIND_SPOTS[policy.name], *STRONG_SKILLS[policy.name]):
                of_skill = [problem for problem in problems if problem.skill == skill]
                generator = torch.Generator().manual_seed(0)
                groups = policy.rollout(of_skill * GROUPS, generator, SIZE)
                team.verifier.verify_groups(groups)
                successful = fmean(any(group.rewards) for group in groups)
                correct = fmean(fmean(group.rewards) for group in groups)
                rows.append((policy.name, skill, temperature, successful, correct))
                print(*rows[-1])

    with (HERE / "hotter.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("policy", "skill", "temperature", "groups with a success", "correct"))
        writer.writerows(rows)


if __name__ == "__main__":
    main()
