"""Verdicts per second: integers, honest LaTeX, and the same LaTeX by math-verify in this process.

Run as `python tests/bench/bench_rewards.py`. The two ways of judging LaTeX take turns, so that a
busy moment of the machine slows both; every pair is new to both, so that no cache helps.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from math_verify import parse, verify

from mrl.samples import Verdict
from mrl.verifier.verifier import BoxVerifier

ROUNDS, PAIRS = 9, 60  # of LaTeX
INTEGERS = 100_000

Pair = tuple[str, str]


def latex_pairs() -> Iterator[Pair]:
    """Fractions and surds, half of the pairs equal."""
    for n in range(1, 10_000):
        wrong = n % 2
        yield rf"\frac{{{n}}}{{{n + 1}}}", rf"\frac{{{3 * n + wrong}}}{{{3 * n + 3}}}"
        yield rf"{n}\sqrt{{7}}", rf"\sqrt{{{7 * n * n + wrong}}}"


def plainly(answer: str, box: str) -> bool:
    """math-verify as its manual calls it."""
    return verify(parse(f"\\boxed{{{answer}}}"), parse(f"\\boxed{{{box}}}"))


def seconds(judge: Callable[[str, str], object], pairs: list[Pair]) -> float:
    """Time to judge all pairs."""
    begin = time.perf_counter()
    for answer, box in pairs:
        judge(answer, box)
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    pairs = latex_pairs()
    with BoxVerifier() as verifier:
        verifier.start_and_check()
        plainly("1/2", "0.5")

        def guarded(answer: str, box: str) -> bool:
            return verifier.verify(answer, f"\\boxed{{{box}}}") is Verdict.CORRECT

        integers = [(str(n), str(n + n % 2)) for n in range(INTEGERS)]
        print(f"integers              {INTEGERS / seconds(guarded, integers):10.0f} verdicts/s")
        ours, plain = [], []
        for turn in range(ROUNDS):
            batch = [next(pairs) for _ in range(PAIRS)]
            ways = [(ours, guarded), (plain, plainly)]
            for times, judge in ways if turn % 2 else ways[::-1]:
                times.append(seconds(judge, batch))
        print(f"LaTeX, guarded        {PAIRS / statistics.median(ours):10.0f} verdicts/s")
        print(f"LaTeX, math-verify    {PAIRS / statistics.median(plain):10.0f} verdicts/s")
        ratios = sorted(p / o for o, p in zip(ours, plain, strict=True))
        print(
            f"guarded / math-verify {statistics.median(ratios):10.2f} "
            f"(median of {ROUNDS} rounds of {PAIRS}, {ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
