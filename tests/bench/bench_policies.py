"""What one more policy costs: seconds and received bytes per step, with one to three policies.

    python mini_mrl.py warmstart --third --out runs/three
    python tests/bench/bench_policies.py runs/three

Five teams train side by side, a step of each in turn, so that all of them meet the same noise of
the machine. The result is printed as CSV. `seconds` are the median over steps, as a multiple of
`solo` with one policy. `bytes` are those that one policy received in a step, as a mean.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

import torch

from mini_mrl import load_team, train_step
from mrl.tiny.pair import PAIR, THIRD

TEAMS = (("solo", 1), ("solo", 2), ("sgt", 2), ("solo", 3), ("sgt", 3))


def measure(folder: Path, steps: int) -> Iterator[tuple[str, int, float, float]]:
    """Mode, number of policies, seconds per step, and received bytes per policy and step."""
    torch.set_num_threads(1)
    paths = [str(folder / name) for name in (*PAIR, THIRD)]
    teams = [load_team(paths[:count], mode=mode, seed=0) for mode, count in TEAMS]
    seconds: list[list[float]] = [[] for _ in teams]
    received: list[list[float]] = [[] for _ in teams]

    for step in range(1, steps + 1):
        for index, team in enumerate(teams):
            start = time.perf_counter()
            train_step(team, step)
            seconds[index].append(time.perf_counter() - start)
            for policy in team.policies:
                traffic = team.exchange.take_traffic(policy.name)
                received[index].append(traffic.get("exchange/received_bytes", 0))

    for (mode, count), of_steps, of_policies in zip(TEAMS, seconds, received, strict=True):
        yield mode, count, median(of_steps), mean(of_policies)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What one more policy costs.")
    parser.add_argument("folder", type=Path, help="the folder of the three models")
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()

    found = list(measure(given.folder, given.steps))
    alone = found[0][2]
    print("mode,policies,seconds,bytes")
    for mode, count, seconds, received in found:
        print(f"{mode},{count},{seconds / alone:.2f},{received:.0f}")
