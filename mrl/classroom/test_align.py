"""Assignment 4: align two tokenizations of one text."""

import random
from contextlib import suppress
from functools import partial
from itertools import accumulate, pairwise
from timeit import repeat
from types import ModuleType

import pytest

from mrl.classroom import shown

HIDDEN = ("mrl.alignment", "mrl.lab", "mrl.residual", "mrl.modes")
WORDS, WHOLE = [b"was", b" gi", b"ven", b" 12"], [b"was given 12"]
BY_HAND = (
    ([b"6", b"*7", b"=42"], [b"6", b"*", b"7=", b"42"]),
    ([b"6", b"*", b"7", b"=", b"42"], [b"6*", b"7=4", b"2"]),
    ([b"ab", b"c"], [b"a", b"bc"]),
)
SIMPLE = ((WORDS, WORDS), (WORDS, WHOLE), (WHOLE, WORDS), ([b"a"], [b"a"]), ([], []))
CUT = (  # tokens that hold a part of a character
    ([b"caf", b"\xc3", b"\xa9", b"!"], [b"ca", b"f\xc3\xa9", b"!"]),
    ([b"\xf0\x9f", b"\x98\x80"], [b"\xf0", b"\x9f", b"\x98", b"\x80"]),
)
OTHER = (([b"ab"], [b"a", b"c"]), ([b"ab"], [b"a"]), ([], [b"a"]), ([b"a"], [b"ab"]))
ALPHABET = "abc 0123456789+=\u00e9\u00df\u4e2d\U0001f600"
SLOWER = 5  # times as long for each token of a longer text
Tokens = list[bytes]


def expected(source: Tokens, receiver: Tokens) -> list[tuple]:
    """The intersection of both sets of boundaries, straight from the definition."""
    sides = (source, receiver)
    ends = [{end: n for n, end in enumerate(accumulate(map(len, side)), 1)} for side in sides]
    cuts = [(0, 0)] + [(ends[0][end], ends[1][end]) for end in ends[0] if end in ends[1]]
    return [((i, j), (k, n)) for (i, k), (j, n) in pairwise(cuts)]


def cut(text: bytes, tokens: int, rng: random.Random) -> Tokens:
    """The bytes in random tokens; characters are cut, too."""
    places = sorted(rng.sample(range(1, len(text)), tokens - 1))
    return [text[start:stop] for start, stop in pairwise([0, *places, len(text)])]


def compare(submission: ModuleType, source: Tokens, receiver: Tokens) -> None:
    """Fail with what is wrong, and what usually leads to it."""
    want = expected(source, receiver)
    got = submission.align(list(source), list(receiver))
    sides = f"{shown(source)} against {shown(receiver)}"
    said = f"{sides}: expected {shown(want)}, got {shown(got)}; "
    assert isinstance(got, list), f"{said}that is no list"
    assert got != want[:-1] or got == want, f"{said}the end of the text is a boundary, too"
    assert len(got) >= len(want), f"{said}compare where tokens end, not tokens themselves"
    assert len(got) <= len(want), f"{said}a cut needs a token's end at the same byte on both sides"
    assert got == want, f"{said}chunks are ((i, j), (k, l)), source first, j and l excluded"
    assert all(type(end) is int for chunk in got for span in chunk for end in span), (
        f"{said}expected ints"
    )


@pytest.mark.points(2)
def test_by_hand(submission: ModuleType) -> None:
    """three cases by hand"""
    for case in BY_HAND:
        compare(submission, *case)


@pytest.mark.points(1)
def test_equal(submission: ModuleType) -> None:
    """equal tokenizations, one token against many, empty lists"""
    for case in SIMPLE:
        compare(submission, *case)


@pytest.mark.points(2)
def test_cut_characters(submission: ModuleType) -> None:
    """tokens that cut a character (bytes count, not letters)"""
    for case in CUT:
        compare(submission, *case)


@pytest.mark.points(2)
def test_random(submission: ModuleType, rng: random.Random) -> None:
    """forty random texts"""
    for _ in range(40):
        text = "".join(rng.choice(ALPHABET) for _ in range(rng.randint(3, 40))).encode()
        compare(submission, *(cut(text, rng.randint(1, len(text)), rng) for _ in range(2)))


@pytest.mark.points(1)
def test_other_bytes(submission: ModuleType) -> None:
    """texts that differ"""
    for source, receiver in OTHER:
        with suppress(ValueError):
            got = list(submission.align(source, receiver))  # a generator raises when it is read
            pytest.fail(f"{source} against {receiver}: expected a ValueError, got {shown(got)}")


@pytest.mark.points(2)
def test_linear(submission: ModuleType, rng: random.Random) -> None:
    """time: for 250 tokens, four times as many, and so on"""

    def compared(tokens: int, tries: int) -> float:
        """Its time in terms of what `expected` takes beside it, on the same busy machine."""
        text = rng.randbytes(2 * tokens)
        case = cut(text, tokens, rng), cut(text, tokens, rng)
        fresh = lambda align: align(*map(list, case))  # noqa: E731
        own, other = (
            min(repeat(partial(fresh, align), number=1, repeat=tries))
            for align in (submission.align, expected)
        )
        return own / other

    test_by_hand(submission)  # a wrong answer may be quick
    first = compared(250, 20)
    for tokens in (1000, 4000, 16_000, 64_000):
        factor = compared(tokens, 5) / first
        assert factor < SLOWER, (
            f"for {tokens:,} tokens each takes {factor:.0f} times as long as for 250; is "
            "something as long as the text built or searched at every token?"
        )
