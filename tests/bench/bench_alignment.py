"""Speed of byte-exact alignment, beside what one would write first and beside tokenization.

    python tests/bench/bench_alignment.py

One process, one thread, rounds interleaved; the ratios are what counts, not the seconds.
"""

import itertools
import statistics
import time
from collections.abc import Callable

import torch

from mrl.alignment import ByteCodec, align
from mrl.config import DATA
from mrl.models.loading import load_tokenizer
from mrl.tiny.pair import demonstrations

COMPLETIONS, TOKENS, ROUNDS = 10_000, 300, 5
SLOW_SHARE = 100  # the quadratic aligner sees one completion in so many; its time is scaled up


def dynamic_programming(source: list[str], receiver: list[str]) -> int:
    """Edit-distance alignment of decoded tokens: the plain way, quadratic in the tokens."""
    previous = list(range(len(receiver) + 1))
    for i, left in enumerate(source, start=1):
        current = [i]
        for j, right in enumerate(receiver, start=1):
            swap = previous[j - 1] + (left != right)
            current.append(min(swap, previous[j] + 1, current[j - 1] + 1))
        previous = current
    return previous[-1]


def seconds(work: Callable[[], object]) -> float:
    """Process time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    paths = [str(DATA / "tiny" / name) for name in ("qwen-tiny", "llama-tiny")]
    codecs = [ByteCodec(load_tokenizer(path)) for path in paths]
    pairs = demonstrations("qwen-tiny", seed=0)
    texts = []
    while len(texts) < COMPLETIONS:
        parts, length = [], 0
        while length < TOKENS:
            parts.append(next(pairs)[1] + " ")
            length += len(codecs[0].encode(parts[-1]))
        texts.append("".join(parts))
    rows = [[codec.token_bytes(codec.encode(text)) for text in texts] for codec in codecs]
    tokens = sum(len(token_bytes) for side in rows for token_bytes in side)
    few = texts[::SLOW_SHARE]
    decoded = [[[token.decode("utf-8", "replace") for token in row] for row in side[::SLOW_SHARE]]
               for side in rows]  # fmt: skip

    def run_align() -> None:
        for source, receiver in zip(*rows, strict=True):
            align(source, receiver)

    def run_tokenize() -> None:
        for codec in codecs:
            for text in texts:  # many more than are cached: each is encoded
                codec.encode(text)

    def run_slow() -> None:
        for source, receiver in zip(*decoded, strict=True):
            dynamic_programming(source, receiver)

    times: dict[str, list[float]] = {"align": [], "tokenize": [], "slow": []}
    for _ in range(ROUNDS):
        times["align"].append(seconds(run_align))
        times["tokenize"].append(seconds(run_tokenize))
        times["slow"].append(seconds(run_slow) * len(texts) / len(few[0]))
    median = statistics.median(times["align"])
    print(f"{COMPLETIONS} completions, {tokens / 2 / COMPLETIONS:.0f} tokens a side on average")
    print(f"align: {median:.2f} s, {tokens / median:,.0f} tokens/s (both sides counted)")
    for name, label in (("tokenize", "encode both sides"), ("slow", "dynamic programming")):
        ratios = sorted(b / a for a, b in zip(times["align"], times[name], strict=True))
        print(f"{label} / align: {ratios[0]:.2f} / {statistics.median(ratios):.2f} / "
              f"{ratios[-1]:.2f} (min / median / max of {ROUNDS} rounds)")  # fmt: skip
    print(f"dynamic programming ran on every {SLOW_SHARE}th completion; its time is scaled up")
    assert all(b"".join(a) == b"".join(b) for a, b in itertools.islice(zip(*rows, strict=True), 9))


if __name__ == "__main__":
    main()
