"""Assignment 2: align two tokenizations of one text."""

import random
from collections.abc import Callable, Iterator
from itertools import accumulate
from types import ModuleType
from typing import Any

from mrl.classroom import Finding, examine, shown
from mrl.classroom.sandbox import Raised, Session

PRELOAD = ()
BLOCKED = ("mrl.alignment", "mrl.lab.alignment_view", "mrl.residual")
LIMIT_S = 6.0
MEMORY = 1 << 29
STUB = '''"""Two tokenizers cut one text differently; align their tokens in chunks.

Where both tokenizations have a boundary at the same byte, everything before is the same text for
both, so the log-prob of a chunk between two such boundaries is a sum over whole tokens on either
side: exact, while the log-prob of a single token has no counterpart (arXiv 2605.07244, THL).

    source    "6" "*7" "=42"        chunks   "6" | "*7=" ... is no chunk: "=42" reaches beyond
    receiver  "6" "*" "7=" "42"              "6" | "*7=42"

Contract of `align(source, receiver)`:
- source, receiver: lists of bytes, one entry a token, none of them empty
- returns a list of chunks ((i, j), (k, l)): the tokens source[i:j] and receiver[k:l] are the same
  bytes; chunks stand in order, together they hold every token once, and none can be cut further
- two empty lists give an empty list
- raises ValueError if the two are not the same bytes
- about linear in the number of tokens: 50,000 on each side take well under a second

Check it with:  python mini_mrl.py assignment check align.py
"""

ASSIGNMENT = "align"

Span = tuple[int, int]


def align(source: list[bytes], receiver: list[bytes]) -> list[tuple[Span, Span]]:
    """Cut two tokenizations of one text at every byte boundary that they share."""
    raise NotImplementedError("your turn")
'''
Chunks = list[list[list[int]]]
BY_HAND = (
    ([b"6", b"*7", b"=42"], [b"6", b"*", b"7=", b"42"]),
    ([b"6", b"*", b"7", b"=", b"42"], [b"6*", b"7=4", b"2"]),
    ([b"ab", b"c"], [b"a", b"bc"]),
)
ALPHABET = "abc 0123456789+=\u00e9\u00df\u4e2d\U0001f600"
MANY = 50_000


def perform(module: ModuleType, do: str, given: Any, ask: Callable[[Any], Any]) -> Any:
    """Call the submission's `align` once; bytes travel as hexadecimal text."""
    source, receiver = ([bytes.fromhex(piece) for piece in side] for side in given)
    try:
        chunks = module.align(source, receiver)
    except ValueError as error:
        return {"refused": str(error)[:200]}
    return {"chunks": [[[int(end) for end in span] for span in chunk] for chunk in chunks]}


def expected(source: list[bytes], receiver: list[bytes]) -> Chunks:
    """The intersection of both sets of boundaries, straight from the definition."""
    sides = (source, receiver)
    ends = [{end: n for n, end in enumerate(accumulate(map(len, side)), 1)} for side in sides]
    chunks, before = [], [0, 0]
    for end in ends[0]:
        if end in ends[1]:
            after = [ends[0][end], ends[1][end]]
            chunks.append([[before[0], after[0]], [before[1], after[1]]])
            before = after
    return chunks


def cut(text: bytes, rng: random.Random, longest: int = 4) -> list[bytes]:
    """The bytes in random token_bytes; characters are cut, too."""
    token_bytes = []
    while text:
        length = rng.randint(1, longest)
        token_bytes.append(text[:length])
        text = text[length:]
    return token_bytes


def check(session: Session, rng: random.Random, say: Callable[[str], None]) -> Iterator[Finding]:
    """Three cases by hand, equal tokenizations, cut characters, random texts, the edges, time."""

    def align(source: list[bytes], receiver: list[bytes]) -> dict:
        return session.call("call", [[piece.hex() for piece in s] for s in (source, receiver)])

    def compare(source: list[bytes], receiver: list[bytes]) -> str | None:
        said = align(source, receiver)
        want = expected(source, receiver)
        if said.get("chunks") == want:
            return None
        where = f"{source} against {receiver}" if len(source) < 12 else f"{len(source)} tokens"
        if "refused" in said:
            return f"{where}: raised ValueError ({said['refused']}), but the bytes are the same"
        got = said["chunks"]
        words = f"{where}: expected {shown(want)}, got {shown(got)}"
        return words + _cause(got, want, source, receiver)

    def first(cases: list[tuple[list[bytes], list[bytes]]]) -> str | None:
        return next(filter(None, (compare(*case) for case in cases)), None)

    yield examine(3, "three cases by hand", lambda: first(list(BY_HAND)))
    same = [b"was", b" gi", b"ven", b" 12"]
    whole = [b"".join(same)]
    equal = [(same, same), (same, whole), (whole, same), ([b"a"], [b"a"])]
    yield examine(1, "equal tokenizations, and one token against many", lambda: first(equal))
    cafe = [([b"caf", b"\xc3", b"\xa9", b"!"], [b"ca", b"f\xc3\xa9", b"!"])]
    cafe.append(([b"\xf0\x9f", b"\x98\x80"], [b"\xf0", b"\x9f", b"\x98", b"\x80"]))
    yield examine(2, "tokens that cut a character (bytes count, not letters)", lambda: first(cafe))
    drawn = []
    for _ in range(40):
        text = "".join(rng.choice(ALPHABET) for _ in range(rng.randint(3, 40))).encode()
        drawn.append((cut(text, rng), cut(text, rng)))
    yield examine(2, "forty random texts", lambda: first(drawn))

    def edges() -> str | None:
        if trouble := compare([], []):
            return trouble
        for source, receiver in (([b"ab"], [b"a", b"c"]), ([b"ab"], [b"a"]), ([], [b"a"])):
            try:
                said = align(source, receiver)
            except Raised as error:
                return f"{source} against {receiver}: expected a ValueError, got {error}"
            if "refused" not in said:
                return f"{source} against {receiver} are other bytes: expected a ValueError"
        return None

    yield examine(1, "empty lists, and texts that differ", edges)
    text = bytes(rng.randrange(256) for _ in range(MANY * 2))
    long = (cut(text, rng, 3), cut(text, rng, 3))
    yield examine(1, f"about {MANY:,} tokens a side", lambda: compare(*long))


def _cause(got: Chunks, want: Chunks, source: list[bytes], receiver: list[bytes]) -> str:
    """What usually leads to such a result."""
    if len(got) < len(want) and want[: len(got)] == got:
        return "; the last chunk is missing: the end of the text is a boundary, too"
    if len(got) < len(want):
        return "; some chunks can be cut further: compare where tokens end, not tokens themselves"
    if len(got) > len(want):
        return "; a cut is only allowed where both sides have a token's end at the same byte"
    try:
        bytes_of = [(b"".join(source[i:j]), b"".join(receiver[k:n])) for (i, j), (k, n) in got]
    except (ValueError, TypeError):
        return "; a chunk is ((i, j), (k, l)), stop excluded"
    wrong = next((pair for pair in bytes_of if pair[0] != pair[1]), None)
    return f"; one chunk holds {wrong[0]!r} and {wrong[1]!r}, stop is excluded" if wrong else ""
