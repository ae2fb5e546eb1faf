"""Assignment 2: align two tokenizations of one text."""

import random
import time
from itertools import accumulate
from types import ModuleType

import pytest

from mrl.classroom import shown

HIDDEN = ("mrl.alignment", "mrl.lab", "mrl.residual", "mrl.modes")
BY_HAND = (
    ([b"6", b"*7", b"=42"], [b"6", b"*", b"7=", b"42"]),
    ([b"6", b"*", b"7", b"=", b"42"], [b"6*", b"7=4", b"2"]),
    ([b"ab", b"c"], [b"a", b"bc"]),
)
WORDS = [b"was", b" gi", b"ven", b" 12"]
CUT = (  # tokens that hold a part of a character
    ([b"caf", b"\xc3", b"\xa9", b"!"], [b"ca", b"f\xc3\xa9", b"!"]),
    ([b"\xf0\x9f", b"\x98\x80"], [b"\xf0", b"\x9f", b"\x98", b"\x80"]),
)
ALPHABET = "abc 0123456789+=\u00e9\u00df\u4e2d\U0001f600"
FEW, MANY, SLOWER = 250, 64_000, 10  # tokens; times as long for each token
Tokens = list[bytes]


def expected(source: Tokens, receiver: Tokens) -> list[tuple]:
    """The intersection of both sets of boundaries, straight from the definition."""
    sides = (source, receiver)
    ends = [{end: n for n, end in enumerate(accumulate(map(len, side)), 1)} for side in sides]
    chunks, before = [], (0, 0)
    for end in ends[0]:
        if end in ends[1]:
            after = (ends[0][end], ends[1][end])
            chunks.append(((before[0], after[0]), (before[1], after[1])))
            before = after
    return chunks


def cut(text: bytes, rng: random.Random, longest: int = 4) -> Tokens:
    """The bytes in random tokens; characters are cut, too."""
    tokens, start = [], 0
    while start < len(text):
        tokens.append(text[start : start + rng.randint(1, longest)])
        start += len(tokens[-1])
    return tokens


def compare(submission: ModuleType, source: Tokens, receiver: Tokens) -> None:
    """Fail with what is wrong, and what usually leads to it."""
    want = expected(source, receiver)
    got = submission.align(list(source), list(receiver))
    where = f"{source} against {receiver}" if len(source) < 12 else f"{len(source)} tokens"
    assert isinstance(got, list), f"{where}: it returned {type(got).__name__}, expected a list"
    for chunk in got:
        ends = [end for span in chunk for end in span]
        assert len(chunk) == 2 and all(isinstance(span, tuple | list) for span in chunk), (
            f"{where}: a chunk is {shown(chunk)}, expected ((i, j), (k, l))"
        )
        assert all(type(end) is int for end in ends), (
            f"{where}: a chunk is {shown(chunk)}, expected numbers of tokens, as ints"
        )
    got = [tuple(map(tuple, chunk)) for chunk in got]
    assert got == want, f"{where}: expected {shown(want)}, got {shown(got)}" + cause(got, want)


def cause(got: list[tuple], want: list[tuple]) -> str:
    """What usually leads to such a result."""
    if len(got) < len(want) and want[: len(got)] == got:
        return "; the last chunk is missing: the end of the text is a boundary, too"
    if len(got) < len(want):
        return "; some chunks can be cut further: compare where tokens end, not tokens themselves"
    if len(got) > len(want):
        return "; a cut is only allowed where both sides have a token's end at the same byte"
    return "; as many chunks, with other ends: stop is excluded, source stands first"


@pytest.mark.points(2)
def test_by_hand(submission: ModuleType) -> None:
    """three cases by hand"""
    for case in BY_HAND:
        compare(submission, *case)


@pytest.mark.points(1)
def test_equal(submission: ModuleType) -> None:
    """equal tokenizations, and one token against many"""
    whole = [b"".join(WORDS)]
    for case in ((WORDS, WORDS), (WORDS, whole), (whole, WORDS), ([b"a"], [b"a"])):
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
        compare(submission, cut(text, rng), cut(text, rng))


@pytest.mark.points(1)
def test_edges(submission: ModuleType) -> None:
    """empty lists, and texts that differ"""
    compare(submission, [], [])
    cases = ([b"ab"], [b"a", b"c"]), ([b"ab"], [b"a"]), ([], [b"a"]), ([b"a"], [b"ab"])
    for source, receiver in cases:
        try:
            got = submission.align(source, receiver)
            list(got)  # a generator raises when it is read
        except ValueError:
            continue
        except Exception as error:
            got = f"a {type(error).__name__}"
        pytest.fail(
            f"{source} against {receiver} are other bytes: expected a ValueError, got {shown(got)}"
        )


@pytest.mark.points(2)
def test_linear(submission: ModuleType, rng: random.Random) -> None:
    """time: for 250 tokens, four times as many, and so on"""

    def seconds(tokens: int, tries: int) -> float:
        """For one token: the best try."""
        text = rng.randbytes(2 * tokens)
        case, found = (cut(text, rng, 3), cut(text, rng, 3)), []
        for _ in range(tries):
            start = time.perf_counter()
            submission.align(*case)
            found.append(time.perf_counter() - start)
        return min(found) / tokens

    first, tokens = seconds(FEW, 20), FEW
    while tokens < MANY:
        tokens *= 4
        factor = seconds(tokens, 2) / first
        assert factor < SLOWER, (
            f"for {tokens:,} tokens each takes {factor:.0f} times as long as for {FEW:,}; is "
            "something as long as the text built or searched at every token?"
        )
    text = rng.randbytes(MANY)
    compare(submission, cut(text, rng, 3), cut(text, rng, 3))
