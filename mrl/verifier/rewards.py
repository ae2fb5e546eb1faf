r"""Verdicts on completions: what is right.

The last `\boxed{...}` of a completion is its answer; nothing else counts. Two integers, or two
words, are compared here and exactly:

- `1,234` is one integer (a comma before every three digits), `1, 234` and `12,34` are two.
- Two or more bare letters are a word, and several words with spaces between them are one phrase.

Everything else is a formula, which verifier/formulas.py compares as mathematics.
"""

import re

from mrl.samples import Verdict

MAX_BOX_CHARS = 2_000  # a longer box is wrong, unread; no gold answer is as long
MAX_TEXT_CHARS = 100_000  # from the end of a completion: a box further back is not looked for

_INTEGER = re.compile(r"[+-]?(?:[0-9]+|[1-9][0-9]{0,2}(?:(?:,|\{,\}|,\\!|\\,)[0-9]{3})+)")
WORDS = re.compile(r"[A-Za-z]{2,}|[A-Za-z]+(?: +[A-Za-z]+)+")
# \boxed{ opens a box, { and } nest, \{ and \} are text. \\ is text, too, but not before `boxed`, so
# that a doubled \\boxed{ also opens a box
_BRACES = re.compile(r"\\boxed\s*\{|\\[{}]|\\\\(?!boxed)|[{}]")


def plain_verdict(answer: str, box: str | None, finished: bool = True) -> Verdict | None:
    """The verdict on what a completion has in its last box; None if that takes mathematics.

    finished: the completion was not cut short.
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
    """The value of a plain integer; words in small letters; None for everything else."""
    if _INTEGER.fullmatch(text):
        return int(re.sub(r"[^0-9+-]", "", text))
    if WORDS.fullmatch(text):
        return text.lower()
    return None


def last_box(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}`, counting braces; None if there is none.

    Of nested boxes the inner one is the last, so the content never holds another complete box.
    Spaces around the content and a full stop at its end are taken off.
    """
    text = text[-MAX_TEXT_CHARS:]
    open_braces: list[int | None] = []  # where the content begins if the brace is a box's
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
    """Without spaces around it and a full stop at its end (math-verify cannot read `42.`)."""
    return text.strip().removesuffix(".").strip()
