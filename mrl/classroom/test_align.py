"""Assignment 4: align two tokenizations of one text."""

import math
import random
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate, pairwise, product
from timeit import repeat, timeit
from types import ModuleType

import numpy
import pytest

from mrl.classroom import shown

WORDS, WHOLE = [b"was", b" gi", b"ven", b" 12"], [b"was given 12"]
BY_HAND = (
    ([b"6", b"*7", b"=42"], [b"6", b"*", b"7=", b"42"]),
    ([b"6", b"*", b"7", b"=", b"42"], [b"6*", b"7=4", b"2"]),
)
SIMPLE = ((WORDS, WORDS), (WORDS, WHOLE), (WHOLE, WORDS), ([b"a"], [b"a"]), ([], []))
CUT = (  # tokens that contain a part of a character
    ([b"caf", b"\xc3", b"\xa9", b"!"], [b"ca", b"f\xc3\xa9", b"!"]),
    ([b"\xf0\x9f", b"\x98\x80"], [b"\xf0", b"\x9f", b"\x98", b"\x80"]),
    ([b"\xff", b"\xfe"], [b"\xff\xfe"]),  # not UTF-8
)
OTHER = (
    ([b"ab"], [b"ac"]), ([b"ab", b"c"], [b"xb", b"c"]), ([b"ab"], [b"a"]), ([], [b"a"]),
    ([b"a\xff"], [b"a\xfe"]),  # equal if both are decoded with "replace"
)  # fmt: skip
ALPHABET = b"abc 0123456789+="  # 16 characters
# allowed time as a multiple of `expected`: linear code took up to 6x, quadratic over 100x
SLOWER = 60
Tokens = list[bytes]


def expected(source: Tokens, receiver: Tokens) -> list[list[list[int]]]:
    """The chunks between all common boundaries, directly from the definition."""
    sides = (source, receiver)
    ends = [{end: n for n, end in enumerate(accumulate(map(len, side)), 1)} for side in sides]
    cuts = [(0, 0)] + [(ends[0][end], ends[1][end]) for end in ends[0] if end in ends[1]]
    return [[[i, j], [k, n]] for (i, k), (j, n) in pairwise(cuts)]


def cut(text: bytes, tokens: int, rng: random.Random) -> Tokens:
    """Cut the bytes into random tokens, even inside characters."""
    places = sorted(rng.sample(range(1, len(text)), tokens - 1))
    return [text[start:stop] for start, stop in pairwise([0, *places, len(text)])]


def conventions(want: list, source: Tokens) -> list[list]:
    """The correct chunks in other notations, which cost points in the first part only."""
    bytes_before = [0, *accumulate(map(len, source))]
    return [
        [[other, own] for own, other in want],
        # ends that are included, and lengths instead of ends
        [[[i, j - 1], [k, n - 1]] for (i, j), (k, n) in want],
        [[[i, j - i], [k, n - k]] for (i, j), (k, n) in want],
        [own + other for own, other in want],
        [[[bytes_before[place] for place in own]] * 2 for own, _ in want],
        want[:-1],
    ]


def compare(submission: ModuleType, source: Tokens, receiver: Tokens, strict: bool = False) -> None:
    """Fail if the chunks are wrong. strict: accept no other notation."""
    # accept lists for tuples, and numpy's integers
    got = numpy.array(list(submission.align(list(source), list(receiver)))).tolist()

    want = expected(source, receiver)
    assert got == want or (not strict and got in conventions(want, source)), (
        f"{shown(source)} against {shown(receiver)}: expected {shown(want)}, got {shown(got)}; "
        "cut where a token ends at the same byte on both sides, including the end of the text"
    )


def slowness(align: Callable, source: Tokens, receiver: Tokens) -> float:
    """How many times as long as `expected` the submission's `align` takes on this machine."""
    linear = min(repeat(lambda: expected(source, receiver), number=1, repeat=3))
    factor = math.inf
    for _ in range(3):  # if it seems slow, try again: other programs may have delayed it
        seconds = timeit(lambda: align(list(source), list(receiver)), number=1)
        factor = min(factor, seconds / linear)
        if factor < SLOWER:
            break
    return factor


def test_by_hand(submission: ModuleType) -> None:
    """2 points: two cases worked out by hand"""
    for source, receiver in BY_HAND:
        compare(submission, source, receiver, strict=True)


def test_equal(submission: ModuleType) -> None:
    """1 point: equal tokenizations, one token against many, empty lists"""
    for source, receiver in SIMPLE:
        compare(submission, source, receiver)


def test_cut_characters(submission: ModuleType) -> None:
    """2 points: tokens that cut a character (positions are in bytes, not characters)"""
    for source, receiver in CUT:
        compare(submission, source, receiver)


def test_random(submission: ModuleType, rng: random.Random) -> None:
    """2 points: forty random texts"""
    for length in range(1, 41):  # the shortest first, so that failures are readable
        text = bytes(rng.choices(ALPHABET, k=length))
        source, receiver = (cut(text, rng.randint(1, length), rng) for _ in range(2))
        compare(submission, source, receiver)


def test_other_bytes(submission: ModuleType) -> None:
    """1 point: a ValueError for texts that differ"""
    for source, receiver in OTHER:
        with suppress(ValueError):
            got = submission.align(source, receiver)
            got = got if got is None else list(got)  # run a generator, so that it can raise
            pytest.fail(f"{source} against {receiver}: expected a ValueError, got {shown(got)}")


def test_linear(submission: ModuleType, rng: random.Random) -> None:
    """2 points: linear time for 1,000 to 64,000 tokens, aligned with as many or with one token"""
    for tokens, one in product((1000, 4000, 16_000, 32_000, 64_000), (False, True)):
        text = rng.randbytes(20 * tokens).translate(16 * ALPHABET)
        text *= 5 if one else 1  # a chunk so long that copying it would be slow
        case = cut(text, tokens, rng), cut(text, 1 if one else tokens, rng)
        compare(submission, *case)  # fast but wrong does not count

        factor = slowness(submission.align, *case)
        assert factor < SLOWER, (
            f"for {tokens:,} tokens against {len(case[1]):,} it takes {factor:.0f} times as long "
            "as a linear solution; at every token, do you build or search something that is as "
            "long as the text or a chunk?"
        )
