"""Align two tokenizations of one text in chunks.

Two tokenizers cut one text differently. At a byte where both have a token boundary, the text before
it is the same for both. So the log-prob of the chunk between two such boundaries is a sum over
whole tokens on both sides. This sum can be compared exactly, while the log-prob of a single token
has no counterpart (arXiv 2605.07244, THL).

    source    "6" "*7" "=42"        chunks   "6" | "*7=42"
    receiver  "6" "*" "7=" "42"     ("*7=" is not a chunk: the source's "=42" goes beyond its end)

Contract of `align(source, receiver)`:
- `source` and `receiver` are lists of bytes, one entry per token. No token is empty.
- It returns a list of chunks ((i, j), (k, l)) of ints. (Lists, a generator or numpy's integers are
  also accepted.) The tokens source[i:j] and receiver[k:l] have the same bytes.
- The chunks are in order, contain every token exactly once, and cannot be cut further.
- Two empty lists give an empty list.
- It raises ValueError if the two sides have different bytes.
- It takes about linear time: twice as many tokens take about twice as long.

Check it with:  python mini_mrl.py assignment check align.py
"""

ASSIGNMENT = "align"

Span = tuple[int, int]


def align(source: list[bytes], receiver: list[bytes]) -> list[tuple[Span, Span]]:
    """Cut two tokenizations of one text at every byte boundary that they share."""
    raise NotImplementedError("your turn")
