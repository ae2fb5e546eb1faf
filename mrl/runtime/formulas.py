r"""Formulas: a box that is neither an integer nor a word, compared with the answer as mathematics.

math-verify compares, and evaluates nothing as code. Before it does:

- What changes only the look is taken off: a `\text{}`, `\underline{}` or colour around the whole,
  and a leading `=`.
- One word behind a number is its unit and is left away if the answer is a bare number (`70 shells`
  for 70), but for words that change the number (`5 dozen`).
- Integers and words are compared exactly (rewards.py): math-verify would multiply letters, so that
  "on", "o n" and "no" would all be equal.
- Two numbers side by side (`1 2`) are UNPARSED: math-verify would add them. A whole number before
  a fraction (`1 1/2`) is a mixed number, 3/2.
- Dots that go on (`5\ldots`), a prime (`5'`) and brackets around several values (`[5,5]`) are
  UNPARSED unless the answer has them too: they can be read in more than one way.
- A date (`2024-05-01`), a time (`12:30`) or a name with a comma (`Smith, John`) as the answer is
  UNPARSED: math-verify would subtract, divide, or multiply letters. Only a judge can compare these.
- Several values (`1,2`, `\{1,2\}`, `\pm 2`) are compared as one set, and tuples in their order: one
  of the values is not enough.
- Not guarded: math-verify takes `50\%` for 0.5 and for 50, the last side of `8=7` for 7, and rounds
  decimals to six places; inside sets, matrices and equations 1e-15 makes no difference to it.

A short expression can cost math-verify hours or gigabytes, so only the verifier's child process
loads this file (verifier.py), and a verdict near the time limit depends on the machine.
"""

import re
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Expr, UnevaluatedExpr
from sympy.core.random import seed

from mrl.rewards import plain_verdict, tidy
from mrl.samples import Verdict

_SPACE = r"(?:\s|~|\$|\\[,;:! ]|\\q?quad)+"
_SIDE_BY_SIDE = re.compile(rf"[0-9]{_SPACE}[0-9]")
_MIXED_NUMBER = re.compile(rf"(?<![0-9.])([0-9]+){_SPACE}([0-9]+)\s*/\s*([0-9]+)")
# dots that go on, a prime, brackets around several values
_DOUBTFUL = re.compile(r"\\[lc]?dots|\.\.|\u2026|'|\\prime|\[[^\[\]]*,[^\[\]]*\]")
_DATE_OR_TIME = re.compile(r"[0-9]+([-/.])[0-9]+\1[0-9]+|.*[0-9]:[0-9].*")
_NAME = re.compile(r"(?=.*[^\W\d_]{2})[\w .'-]+(?:,[\w .'-]+)+")  # a word, commas, no LaTeX
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


def judge(answer: str, box: str) -> Verdict:
    """Compare a box with the problem's answer; the verdict may never come."""
    answer, box = _normalized(answer), _normalized(box)
    quantity = _NUMBER_AND_WORD.fullmatch(box)
    if quantity and _NUMBER.fullmatch(answer) and quantity[2].lower() not in NO_UNITS:
        box = quantity[1]

    verdict = plain_verdict(answer, box)
    if verdict is not None:
        return verdict

    in_doubt = _DOUBTFUL.search(box) and not _DOUBTFUL.search(answer)
    no_formula = _DATE_OR_TIME.fullmatch(answer) or _NAME.fullmatch(answer)
    if in_doubt or _SIDE_BY_SIDE.search(box) or no_formula:
        return Verdict.UNPARSED
    return _math_verdict(answer, box)


def _normalized(text: str) -> str:
    """An answer without what changes only its look, see the head of this file."""
    text = text.strip().removeprefix("=").strip()
    wrapped = _LOOK.fullmatch(text)
    if wrapped:
        text = tidy(wrapped[1])

    # math-verify reads 9 1/2 as (9+1)/2, but 9 \frac{1}{2} as it is meant
    return _MIXED_NUMBER.sub(r"\1 \\frac{\2}{\3}", text)


def _math_verdict(answer: str, box: str) -> Verdict:
    """math-verify's verdict on two LaTeX expressions."""
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

    right, boxed = parsed
    if not boxed:
        return Verdict.UNPARSED
    if not verify(right, boxed, timeout_seconds=None) or _differ(right[0], boxed[0]):
        return Verdict.WRONG
    return Verdict.CORRECT


def _differ(right: Any, boxed: Any) -> bool:
    """Whether two numbers are more than one in a hundred apart.

    math-verify looks at the absolute difference, so that it calls all small numbers equal, as 2^-99
    and 2^-98. Larger ones it compares more closely than this.
    """
    for side in (right, boxed):
        if not isinstance(side, Expr) or not side.is_number or side.is_infinite:
            return False
        if side.has(UnevaluatedExpr):  # a percentage, which math-verify reads in two ways
            return False

    right, boxed = right.evalf(30), boxed.evalf(30)
    return bool(abs(right - boxed) > 1e-2 * abs(right) + 1e-60)  # 1e-60: an exact zero, evaluated


# a math-verify that fails at everything must not be taken for a model that does
_HALF = r"\frac{1}{2}"
_VERDICTS = judge(_HALF, "0.5"), judge(_HALF, "0.6")
if _VERDICTS != (Verdict.CORRECT, Verdict.WRONG):
    raise ImportError(f"math-verify calls 0.5 for 1/2 {_VERDICTS[0]} and 0.6 {_VERDICTS[1]}")
