r"""Verdicts on completions whose answer is an integer or a word.

The last `\boxed{...}` of a completion is its answer, and nothing else counts. Integers and words
are compared here, exactly:

- `1,234` is one integer, with a comma before every three digits. `1, 234` and `12,34` are two.
- Two or more letters are a word. Several words, separated by spaces, are one phrase. Only single
  letters with spaces between them (`x y`) are a product.

All other answers are mathematical formulas, which verifier/formulas.py compares. The reward follows
from the verdict (mrl/reward.py).
"""

import re

from mrl.reward import Verdict

MAX_BOX_CHARS = 2_000  # longer boxes count as wrong, unparsed: no answer is that long
MAX_TEXT_CHARS = 100_000  # only the end of a completion, up to this length, is searched for a box

_INTEGER = re.compile(r"[+-]?(?:[0-9]+|[1-9][0-9]{0,2}(?:(?:,|\{,\}|,\\!|\\,)[0-9]{3})+)")
WORDS = re.compile(r"(?=.*[A-Za-z]{2})[A-Za-z]+(?: +[A-Za-z]+)*")  # but `x y` is a product
# \boxed{ opens a box, { and } nest, and \{ and \} are text. \\ is also text, except before `boxed`,
# so that a doubled \\boxed{ opens a box.
_BRACES = re.compile(r"\\boxed\s*\{|\\[{}]|\\\\(?!boxed)|[{}]")


def plain_verdict(answer: str, box: str | None, finished: bool = True) -> Verdict | None:
    """The verdict on the last box of a completion; None if it must be compared as a formula.

    box: None if the completion has no box. finished: False if the token limit cut it short.
    """
    if box is None and not finished:
        return Verdict.TRUNCATED
    if not box:
        return Verdict.UNPARSED

    if max(len(box), len(answer)) > MAX_BOX_CHARS:
        return Verdict.WRONG

    right, boxed = _exact(answer), _exact(box)
    if right is not None and type(right) is type(boxed):
        return Verdict.CORRECT if right == boxed else Verdict.WRONG
    return None


def _exact(text: str) -> int | str | None:
    """The value of a plain integer, or words in lower case; None for all other texts."""
    if _INTEGER.fullmatch(text):
        return int(re.sub(r"[^0-9+-]", "", text))
    if WORDS.fullmatch(text):
        return text.lower()
    return None


def last_box(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}`, counting braces; None if there is none.

    If boxes are nested, the inner one counts, so the content never contains a complete box.
    Surrounding spaces and a final period are removed.
    """
    text = text[-MAX_TEXT_CHARS:]
    open_braces: list[int | None] = []  # start of the content for the brace of a box, else None
    last: tuple[int, int] | None = None

    for match in _BRACES.finditer(text):
        brace = match.group()

        if brace.startswith("\\boxed"):
            open_braces.append(match.end())
        elif brace == "{":
            open_braces.append(None)
        elif brace == "}" and open_braces:
            begin = open_braces.pop()
            if begin is not None and (last is None or begin > last[0]):
                last = begin, match.start()

    if last is None:
        return None
    begin, end = last
    return tidy(text[begin:end])


def tidy(text: str) -> str:
    """Remove surrounding spaces and a final period (math-verify cannot read `42.`)."""
    return text.strip().removesuffix(".").strip()
