"""What the tiny pair learns with and without sharing, over several seeds: README.md's table.

    python tests/bench/bench_learning.py --modes solo,sgt --seeds 1,2,3

Runs `python mini_mrl.py --mode M --seed S` for each, as many side by side as `--jobs` says (runs
that are there already are not repeated), and prints a Markdown table from their `evaluation.json`.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def train(mode: str, seed: int, extra: list[str]) -> Path:
    """Run one mode and seed unless its result is there."""
    directory = Path("runs") / f"bench-{mode}-{seed}"
    if not (directory / "evaluation.json").exists():
        command = [sys.executable, str(ROOT / "mini_mrl.py"), "--mode", mode, "--seed", str(seed)]
        subprocess.run([*command, "--name", directory.name, "--plain", *extra], check=True)
    return directory


def mean_score(directory: Path, when: str, part: str = "heldout") -> float:
    """Held-out pass@1 in percent, averaged over policies and skills."""
    scores = json.loads((directory / "evaluation.json").read_text())[when]
    chosen = [entry["pass@1"] for entry in scores if entry["part"] == part]
    return 100 * sum(chosen) / len(chosen)


def main() -> None:
    """Train, then print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--modes", default="solo,sgt")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--jobs", type=int, default=2)
    arguments, extra = parser.parse_known_args()
    modes = arguments.modes.split(",")
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = {
            (mode, seed): pool.submit(train, mode, seed, extra) for seed in seeds for mode in modes
        }
        runs = {key: job.result() for key, job in jobs.items()}
    print("| mode | part | start |", *(f"seed {seed} |" for seed in seeds), "mean |")
    print("|---|---|---|" + "---|" * (len(seeds) + 1))
    for part in ("heldout", "newtemplates"):
        for mode in modes:
            scores = [mean_score(runs[mode, seed], "after", part) for seed in seeds]
            starts = [mean_score(runs[mode, seed], "before", part) for seed in seeds]
            cells = [f"{score:.1f}" for score in scores]
            mean = sum(scores) / len(scores)
            start = sum(starts) / len(starts)
            print(
                f"| `{mode}` | {part} | {start:.1f} |", *(f"{c} |" for c in cells), f"{mean:.1f} |"
            )


if __name__ == "__main__":
    main()
