"""How large PRP's ratios are in a blind spot, before any training: writes `ratios.csv`.

    python data/results/controls/ratios.py

For each correct completion that the peer wrote in a blind spot, three numbers are taken: the lowest
ratio of its tokens, the lowest ratio of its chunks, and the ratio of the whole completion. The same
is done for the strong skills, to compare with. The file has the medians, for seeds 71 to 75 and six
steps each.
"""

import csv
import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median

import torch

from mini_mrl import load_team, train_step
from mrl.policy import Policy
from mrl.samples import TrainingSample
from mrl.tiny.pair import BLIND_SPOTS, STRONG_SKILLS

HERE = Path(__file__).resolve().parent
SEEDS, STEPS = range(71, 76), range(1, 7)


def ratios_of(policy: Policy, sample: TrainingSample) -> tuple[float, float, float]:
    """The lowest ratio of a token, the lowest of a chunk, and that of the whole completion."""
    (logprobs,) = policy.logprobs_of([sample.prompt_ids], [sample.completion_ids])
    differences = []
    by_chunk: dict[int, float] = defaultdict(float)
    for own, peer, chunk in zip(logprobs, sample.behavior_logprobs, sample.chunk_of, strict=True):
        differences.append(own - peer)
        by_chunk[chunk] += own - peer
    logs = min(differences), min(by_chunk.values()), fmean(differences)
    token, chunk, whole = map(math.exp, logs)
    return token, chunk, whole


def main() -> None:
    """Sample without learning, and write the medians."""
    torch.set_num_threads(1)
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for seed in SEEDS:
        # a rate that is too small to change a weight in float32
        team = load_team("tiny", mode="prp", seed=seed, learning_rate=1e-20)
        for step in STEPS:
            results = train_step(team, step)
            for policy in team.policies:
                result = results[policy.name]
                skill_of = {tuple(g.prompt_ids): g.problem.skill for g in result.groups}
                for sample in result.batch.samples:
                    if not sample.source or sample.reward == 0:
                        continue
                    skill = skill_of[tuple(sample.prompt_ids)]
                    if skill in STRONG_SKILLS[policy.name]:
                        skill = "strong skills"
                    elif skill not in BLIND_SPOTS[policy.name]:
                        continue
                    found.setdefault((policy.name, skill), []).append(ratios_of(policy, sample))

    with (HERE / "ratios.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("policy", "skill", "completions", "token", "chunk", "whole completion"))
        for (name, skill), ratios in sorted(found.items()):
            medians = [f"{median(numbers):.5f}" for numbers in zip(*ratios, strict=True)]
            rows.writerow((name, skill, len(ratios), *medians))


if __name__ == "__main__":
    main()
