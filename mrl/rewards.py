r"""Verdicts on completions: what is right, and what is not even read.

The last `\boxed{...}` of a completion is its answer; nothing else counts. Two integers or two words
are compared exactly, everything else by math-verify: as mathematics, never evaluated as code.

- `1,234` is one integer (a comma before every three digits), `1, 234` and `12,34` are two.
- Two or more bare letters are a word, and several words with spaces between them are one phrase:
  math-verify would multiply letters, so that "on", "o n" and "no" would all be equal.
- Two numbers side by side (`1 2`) are UNPARSED: math-verify would add them. A whole number before
  a fraction (`1 1/2`) is a mixed number, 3/2.
- One word behind a number is its unit and is left away if the answer is a bare number (`70 shells`
  for 70), but for words that change the number (`5 dozen`).
- Dots that go on (`5\ldots`), a prime (`5'`) and brackets around several values (`[5,5]`) are
  UNPARSED unless the answer has them too: they can be read in more than one way.
- What changes only the look is taken off: a `\text{}`, `\underline{}` or colour around the whole,
  a leading `=`, fullwidth digits, and dashes that stand for a minus sign.
- Several values (`1,2`, `\{1,2\}`, `\pm 2`) are compared as one set, and tuples in their order: one
  of the values is not enough.
- Not guarded: math-verify takes `50\%` for 0.5 and for 50, the last side of `8=7` for 7, and rounds
  decimals to six places; inside sets, matrices and equations 1e-15 makes no difference to it.
- A verdict near the time limit depends on the machine. After three timeouts in one step a power is
  a timeout at once, unless the verifier remembers its verdict (runtime/verifier.py).

math-verify can spend hours or gigabytes on a short expression: runtime/verifier.py runs it in a
process of its own, with limits.
"""

import re
from typing import Any

from mrl.samples import Verdict

MAX_BOX_CHARS = 2_000  # a longer box is wrong, unread; no gold answer is as long
MAX_TEXT_CHARS = 100_000  # from the end of a completion: a box further back is not looked for

# \boxed{ opens a box, { and } nest, \{ and \} are text. \\ is text, too, but not before `boxed`, so
# that a doubled \\boxed{ also opens a box
_BRACES = re.compile(r"\\boxed\s*\{|\\[{}]|\\\\(?!boxed)|[{}]")
_INTEGER = re.compile(r"[+-]?(?:[0-9]+|[1-9][0-9]{0,2}(?:(?:,|\{,\}|,\\!|\\,)[0-9]{3})+)")
_WORDS = re.compile(r"[A-Za-z]{2,}|[A-Za-z]+(?: +[A-Za-z]+)+")
_SPACE = r"(?:\s|~|\$|\\[,;:! ]|\\q?quad)+"
_SIDE_BY_SIDE = re.compile(rf"[0-9]{_SPACE}[0-9]")
_MIXED_NUMBER = re.compile(rf"(?<![0-9.])([0-9]+){_SPACE}([0-9]+)\s*/\s*([0-9]+)")
# dots that go on, a prime, brackets around several values
_DOUBTFUL = re.compile(r"\\[lc]?dots|\.\.|\u2026|'|\\prime|\[[^\[\]]*,[^\[\]]*\]")
_NUMBER_AND_WORD = re.compile(r"([+-]?[0-9][0-9.,]*) +([A-Za-z]{2,})")
_NUMBER = re.compile(r"[+-]?[0-9][0-9.,]*")
NO_UNITS = {  # words that change the number before them
    "and", "base", "billion", "cos", "cubed", "dozen", "dozens", "factorial", "fifth", "fifths",
    "half", "halves", "hundred", "hundreds", "hundredth", "hundredths", "ln", "log", "million",
    "minus", "mod", "negative", "of", "or", "over", "percent", "pi", "plus", "quarter", "quarters",
    "sin", "sqrt", "squared", "tan", "tens", "tenth", "tenths", "third", "thirds", "thousand",
    "thousands", "thousandth", "thousandths", "times", "trillion",
}  # fmt: skip
# around a whole answer these change its look alone
_LOOK = re.compile(
    r"\\(?:text|textbf|textit|mathrm|mathbf|boldsymbol|underline|color\{\w+\})\{([^{}]*)\}"
)
_SIGNS = str.maketrans(
    "\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18\uff19\u2010\u2011\u2012\u2013\u2212",
    "0123456789-----",
) | {ord("\u00b0"): r"^\circ"}


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


def normalized(text: str) -> str:
    """An answer without what changes only its look, see the head of this file."""
    text = text.translate(_SIGNS).strip()
    text = text.removeprefix("=").strip()
    if wrapped := _LOOK.fullmatch(text):
        text = tidy(wrapped[1])
    # math-verify reads 9 1/2 as (9+1)/2, but 9 \frac{1}{2} as it is meant
    return _MIXED_NUMBER.sub(r"\1 \\frac{\2}{\3}", text)


def comparable(answer: str, box: str) -> tuple[str, str]:
    """Answer and box as they are compared: normalized, and the box without a unit."""
    if max(len(box), len(answer)) > MAX_BOX_CHARS:
        return answer, box  # wrong, unread
    answer, box = normalized(answer), normalized(box)
    quantity = _NUMBER_AND_WORD.fullmatch(box)
    if quantity and _NUMBER.fullmatch(answer) and quantity[2].lower() not in NO_UNITS:
        box = quantity[1]
    return answer, box


def _exact(text: str) -> int | str | None:
    """The value of a plain integer; words in small letters; None for everything else."""
    if _INTEGER.fullmatch(text):
        return int(re.sub(r"[^0-9+-]", "", text))
    if _WORDS.fullmatch(text):
        return text.lower()
    return None


def plain_verdict(answer: str, box: str | None, finished: bool) -> Verdict | None:
    """The verdict as far as it needs no math-verify; None where it does."""
    if box is None and not finished:
        return Verdict.TRUNCATED
    if not box:
        return Verdict.UNPARSED
    if max(len(box), len(answer)) > MAX_BOX_CHARS:
        return Verdict.WRONG

    gold, boxed = _exact(answer), _exact(box)
    if gold is not None and type(gold) is type(boxed):
        return Verdict.CORRECT if gold == boxed else Verdict.WRONG

    if _SIDE_BY_SIDE.search(box):
        return Verdict.UNPARSED
    if _DOUBTFUL.search(box) and not _DOUBTFUL.search(answer):
        return Verdict.UNPARSED
    return None


def math_verdict(answer: str, box: str) -> Verdict:
    """math-verify's verdict on two LaTeX expressions, the gold one first; it may never come."""
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy.core.random import seed

    seed(0)  # sympy tries random points: the same verdicts in every run

    parsed = []
    for text in (answer, box):
        expression = parse(
            f"\\boxed{{{text}}}",
            extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=None,  # the Verifier's limit holds for all of it
        )
        parsed.append(expression)

    gold, boxed = parsed
    if not boxed:
        return Verdict.UNPARSED
    if not verify(gold, boxed, timeout_seconds=None) or _differ(gold[0], boxed[0]):
        return Verdict.WRONG
    return Verdict.CORRECT


def _differ(gold: Any, boxed: Any) -> bool:
    """Whether two numbers differ that math-verify calls equal, as it does 2^-99 and 2^-98.

    It looks at the absolute difference, so that all small numbers are one. Here: exact numbers are
    equal to 20 digits (rational ones to the last), decimals to one part in a hundred.
    """
    from sympy import Expr, Float, UnevaluatedExpr

    for side in (gold, boxed):
        if not isinstance(side, Expr) or not side.is_number:
            return False
        if side.has(UnevaluatedExpr):  # a percentage, which math-verify reads in two ways
            return False
    if gold == boxed:
        return False

    gold, boxed = gold.doit(), boxed.doit()
    if gold.is_Rational and boxed.is_Rational:
        return gold != boxed

    tolerance = 1e-2 if gold.has(Float) or boxed.has(Float) else 1e-20
    gold, boxed = gold.evalf(30), boxed.evalf(30)
    difference, size = abs(gold - boxed), max(abs(gold), abs(boxed))
    return bool(difference > tolerance * size + 1e-60)  # 1e-60: an exact zero, evaluated
