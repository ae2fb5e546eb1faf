"""How likely a peer's solution is for its receiver before any training: `tiny-pair/ratios.csv`.

    python data/results/ratios.py "sums and differences=tiny" \\
        twins=runs/twins/qwen-tiny,runs/twins/llama-tiny

Each argument is a name for the table and a pair. For each solution that a peer wrote in a blind
spot, the ratio of a token is its probability under the receiver, divided by that under the peer.
The file has medians over the solutions of six steps with each of the seeds 81 to 85: the number of
tokens, how many of them have a ratio below 0.01, the lowest ratio, and the ratio of the whole
completion, which is the geometric mean of those of its tokens.
"""

import csv
import math
import sys
from pathlib import Path
from statistics import fmean, median

import torch

from mini_mrl import load_team, train_step
from mrl.policy import Policy
from mrl.samples import TrainingSample
from mrl.tiny.pair import BLIND_SPOTS

TABLE = Path(__file__).resolve().parent / "tiny-pair" / "ratios.csv"
HEADER = (
    "pair", "policy", "skill", "solutions", "tokens", "tokens below 0.01", "lowest token",
    "whole completion",
)  # fmt: skip
SEEDS, STEPS = range(81, 86), range(1, 7)


def numbers_of(policy: Policy, sample: TrainingSample) -> tuple[float, ...]:
    """The four numbers of one solution, in the order of the table's columns."""
    (logprobs,) = policy.logprobs_of([sample.prompt_ids], [sample.completion_ids])
    peers = sample.behavior_logprobs or []
    logs = [own - peer for own, peer in zip(logprobs, peers, strict=True)]
    low = sum(log < math.log(0.01) for log in logs)
    return len(logs), low, math.exp(min(logs)), math.exp(fmean(logs))


def rows_of(name: str, pair: str | list[str]) -> list[tuple]:
    """Sample without learning; one row per blind spot."""
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for seed in SEEDS:
        # `prp` hands over the peer's log-probs; this rate is too small to change a weight
        team = load_team(pair, mode="prp", seed=seed, learning_rate=1e-20)
        for step in STEPS:
            results = train_step(team, step)
            for policy in team.policies:
                result = results[policy.name]
                skill_of = {tuple(g.prompt_ids): g.problem.skill for g in result.groups}
                for sample in result.batch.samples:
                    skill = skill_of[tuple(sample.prompt_ids)]
                    if sample.source and sample.reward and skill in BLIND_SPOTS[policy.name]:
                        numbers = numbers_of(policy, sample)
                        found.setdefault((policy.name, skill), []).append(numbers)
    return [
        (
            name,
            *spot,
            len(all_numbers),
            *(f"{median(of):.5g}" for of in zip(*all_numbers, strict=True)),
        )
        for spot, all_numbers in sorted(found.items())
    ]


def main(arguments: list[str]) -> None:
    """Write the table of all pairs that are named."""
    torch.set_num_threads(1)
    rows = []
    for argument in arguments:
        name, _, pair = argument.partition("=")
        rows += rows_of(name, pair.split(",") if "," in pair else pair)
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])


if __name__ == "__main__":
    main(sys.argv[1:])
