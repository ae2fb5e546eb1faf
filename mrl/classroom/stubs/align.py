"""Two tokenizers cut one text differently; align their tokens in chunks.

Where both tokenizations have a boundary at the same byte, everything before is the same text for
both, so the log-prob of a chunk between two such boundaries is a sum over whole tokens on either
side: exact, while the log-prob of a single token has no counterpart (arXiv 2605.07244, THL).

    source    "6" "*7" "=42"        chunks   "6" | "*7=42"
    receiver  "6" "*" "7=" "42"     ("*7=" is none: the source's "=42" reaches beyond its end)

Contract of `align(source, receiver)`:
- source, receiver: lists of bytes, one entry a token, none of them empty
- returns a list of chunks ((i, j), (k, l)), ints (lists in place of tuples, a generator or
  numpy's integers will do as well): the tokens source[i:j] and
  receiver[k:l] are the same bytes; chunks stand in order, together they hold every token once, and
  none can be cut further
- two empty lists give an empty list
- raises ValueError if the two are not the same bytes
- about linear in the number of tokens: twice as many take about twice as long

Check it with:  python mini_mrl.py assignment check align.py
"""

ASSIGNMENT = "align"

Span = tuple[int, int]


def align(source: list[bytes], receiver: list[bytes]) -> list[tuple[Span, Span]]:
    """Cut two tokenizations of one text at every byte boundary that they have in common."""
    raise NotImplementedError("your turn")
