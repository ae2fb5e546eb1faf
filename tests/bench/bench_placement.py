"""What one process per policy is worth: whole runs under `parallel` and `resident`, in pairs.

    python tests/bench/bench_placement.py [--steps 240] [--pairs 3]

Start-up, scoring and saving included. The two runs of a pair follow each other, in turns; printed
are seconds and ratio of every pair, and whether both learnt the same, bit by bit. On idle cores
only: whatever else runs there is measured, too.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.end_to_end.small_run import assert_same_run  # noqa: E402


def run(placement: str, steps: int, out: Path) -> float:
    """Seconds of the default run, from the command to its last line."""
    command = [sys.executable, ROOT / "mini_mrl.py", "--mode", "sgt", "--plain", "--pair", "tiny"]
    command += ["--steps", str(steps), "--placement", placement, "--name", placement]
    began = time.perf_counter()
    subprocess.run([*command, "--set", f"runs={out}"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """All pairs, then the median."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--pairs", type=int, default=3)
    chosen = parser.parse_args()
    ratios = []
    for number in range(chosen.pairs):
        order = ("resident", "parallel") if number % 2 else ("parallel", "resident")
        with tempfile.TemporaryDirectory() as folder:
            seconds = {placement: run(placement, chosen.steps, Path(folder)) for placement in order}
            assert_same_run(Path(folder, "resident"), Path(folder, "parallel"), chosen.steps)
        ratios.append(seconds["parallel"] / seconds["resident"])
        print(", ".join(f"{name} {s:.0f} s" for name, s in sorted(seconds.items())), end="; ")
        print(f"parallel / resident {ratios[-1]:.2f}; metrics and weights are equal", flush=True)
    print(f"median of {chosen.pairs} pairs: {median(ratios):.2f}")


if __name__ == "__main__":
    main()
