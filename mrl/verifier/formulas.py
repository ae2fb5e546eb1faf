r"""Compares mathematical formulas: answers that are neither integers nor words.

The library math-verify does the comparison, and never executes text as code. It reads almost every
text as a formula: it multiplies the letters of a word, and drops what it does not understand. So
this file first decides what math-verify may read:

- If math-verify would misread the answer, the verdict is UNPARSED for any box (`is_misread`).
  Examples are a number with a unit, a sentence, a date, and a decimal comma. The verifier refuses
  problem files with such answers: they need your own judge. It also refuses answers that are not
  equal to themselves in another notation (forms.py).
- Formatting is removed from both sides, and a few notations are rewritten as LaTeX (`_rewritten`).
- Introductory words and units are removed from the box only (`_undressed`): `70 shells` counts as
  the answer 70. Words that change the number stay (`5 dozen`).
- A percentage equals the number before its sign, and also that number divided by 100.
- Integers and words are compared exactly (plain.py).
- Two adjacent numbers (`1 2`) are UNPARSED, because math-verify would add them. An integer before a
  fraction (`1 1/2`) is a mixed number, 3/2.
- Trailing dots (`5\ldots`) are ambiguous, so they are UNPARSED. So are a prime (`f'(x)`) and
  brackets around several values (`[5,5]`), unless the answer also has them.
- Several values (`1, 2`, `\{1,2\}`, `\pm 2`) are compared as one set, and tuples in order. A box
  with only one of the values is incorrect. An inequality (`-5 < x < 5`) equals its interval.
- Known limits: math-verify reads `8=7` as 7, ignores the case of letters, and rounds decimals to
  six places. Inside sets, matrices and equations, differences of 1e-15 do not count.

Even a short expression can take math-verify hours or gigabytes. So this file runs only in the
verifier's child process (verifier.py), which has limits. If a comparison takes about as long as the
time limit, its verdict depends on the speed of the machine.
"""

import re
import unicodedata
from decimal import Decimal
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from math_verify.grader import is_relation
from math_verify.parser import NormalizationConfig
from sympy import Expr, FiniteSet, Float, I, Set, Symbol, UnevaluatedExpr, Union
from sympy.core.random import seed

from mrl.reward import Verdict
from mrl.verifier.plain import WORDS, plain_verdict, tidy

_SIDE_BY_SIDE = re.compile(r"(?<![0-9_])[0-9]+[\s$]+[0-9]")  # but \log_2 3 is one number
_DOTS = re.compile(r"\\[lc]?dots|\.\.|\u2026")
_PRIME = re.compile(r"'|\\prime")
_LIST_IN_BRACKETS = re.compile(r"\[[^\[\]]*,[^\[\]]*\]")

# ------------------------------------------------------------------------------ answers

_COMMANDS = re.compile(r"\\(?:begin|end)\{\w+\}|\\[A-Za-z]+")
_MISREAD = re.compile(
    r"""
    \^\s*\{?\s*\\circ | \\degree | [$\u00a3\u00a5\u20ac\u00b0]  # a sign for a unit
    | ^[0-9]+([-/.])[0-9]+(?:\1[0-9]+)+$                # a date or a version: 2024-05-01, 1.2.3
    | :                                                 # a time or a ratio, read as a division
    | (?:^|=)\s*[+-]?[0-9]+,[0-9]                       # a decimal comma: 0,5
    | _\w[A-Z]                                          # a chemical formula: H_2O
    | [0-9]\s*['"]                                      # feet and inches, minutes and seconds
    """,
    re.VERBOSE,
)
_LETTERS = re.compile("[A-Za-z]{2}")  # a word, a unit or a product: math-verify multiplies them


def is_misread(answer: str) -> bool:
    """Whether math-verify would misread an answer. answer: already rewritten (`_rewritten`).

    The verifier also refuses answers that fail its tests with other texts (verifier.py:
    `check_answer`). Here are those that math-verify misreads and that pass these tests.
    """
    if plain_verdict(answer, answer) is not None:  # an integer or a word
        return False
    letters = re.sub(r"_\{\w+\}", "", _COMMANDS.sub("", answer))  # an index may have several
    return bool(_MISREAD.search(answer) or _DOTS.search(answer) or _LETTERS.search(letters))


# ------------------------------------------------------------------------------ notations

_LOOKS = (
    "text|textrm|textbf|textit|textsf|texttt|mbox|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|pmb|"
    "underline|fbox"
)
# one of these commands around the whole text
_LOOK = re.compile(rf"\\(?:{_LOOKS}|color\{{\w+\}})\s*\{{(.*)\}}", re.DOTALL)
_MATH = re.compile(r"\$([^$]*)\$|\\\[(.*)\\\]|\\\((.*)\\\)", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|textrm|mbox|mathrm)\s*\{([^{}]*)\}")
# the coordinates (1,234), or an integer with a comma before every three digits
_THOUSANDS = re.compile(
    r"(?:[(\[]|\\\{)[0-9,]+(?:\\right)?(?:[)\]]|\\\})"
    r"|(?<![0-9.,])[1-9][0-9]{0,2}(?:(?:,|\{,\}|,\\!|\\,)[0-9]{3})+(?![0-9]|,[0-9])"
)
_POWER_OF_TEN = re.compile(  # 2.5e-3, 2.5 \cdot 10^{-3}
    r"(?<![A-Za-z0-9.^_/])([0-9]+\.?[0-9]*|\.[0-9]+)"
    r"(?:[eE]([+-]?[0-9]{1,3})(?!\w)"
    r"|\s*(?:\\cdot|\\times|\*)\s*10\s*\^\s*(?:\{([+-]?[0-9]{1,3})\}|([0-9]))(?![0-9^!]))"
)
_FRACTION = re.compile(  # 3/4, but not a part of 1/3/4, of 2^3/4 or of x/3/4
    r"(?<![\w.^/)}!])([0-9]+(?:\.[0-9]+)?)\s*/\s*([0-9]+(?:\.[0-9]+)?)(?![0-9^!]|\.[0-9]|\s*/)"
)
_REPEATING = re.compile(r"([0-9]+)\.([0-9]*)\\overline\s*\{([0-9]+)\}")
_NAMES = re.compile(r"(?<![A-Za-z\\])(pi|sin|cos|tan|ln|log|exp)(?![A-Za-z])")
_NOTATIONS = [  # other notations, and what math-verify reads
    (re.compile(r"(?:~|(?<!\\)\\[,;:! ]|\\q?quad)+"), " "),
    (re.compile(r"(?:\u221a|(?<![A-Za-z\\])sqrt)\s*(?:\(([^()]*)\)|([0-9]+|[A-Za-z](?![A-Za-z])))"),
     r"\\sqrt{\1\2}"),
    (_NAMES, r"\\\1"),
    (re.compile(r"(?i)(?<![A-Za-z\\])infinity(?![A-Za-z])|\u221e"), r"\\infty "),
    (re.compile(r"\\varnothing"), r"\\emptyset"),
    (re.compile("\u00b7"), r"\\cdot "), (re.compile(r"\s(?:and|or)\s+"), ", "),
]  # fmt: skip


def _rewritten(text: str) -> str:
    """Rewrite a text in math-verify's notation, without formatting."""
    text = text.strip().removeprefix("=").strip()
    while inner := _inside(text):
        text = tidy(inner)
    if WORDS.fullmatch(text) and text.lower() not in ("pi", "infinity"):
        return text

    text = _TEXT.sub(lambda match: match[1] if len(match[1]) == 1 else f" {match[1]} ", text)
    text = re.sub("[\u00bc-\u00be\u2150-\u215e]", _vulgar_fraction, text.strip()).strip()
    text = re.sub("[\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u207b]+", _power, text)
    text = _THOUSANDS.sub(_without_commas, text)
    text = _REPEATING.sub(_fraction_of_repeating, text)
    text = _POWER_OF_TEN.sub(_in_digits, text)
    for notation, latex in _NOTATIONS:
        text = notation.sub(latex, text)
    return _FRACTION.sub(r"\\frac{\1}{\2}", text).strip()


def _inside(text: str) -> str | None:
    """The content of a command or of math signs around the whole text; None if it has neither."""
    if match := _MATH.fullmatch(text):
        return next(part for part in match.groups() if part is not None)
    match = _LOOK.fullmatch(text)
    if match is None:
        return None
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", match[1]):
        depth += 1 if brace == "{" else -1
        if depth < 0:  # the first command ends earlier: \text{a} + \text{b}
            return None
    return match[1]


def _vulgar_fraction(match: re.Match) -> str:
    """Write a one-character fraction, such as the sign for a half, in digits."""
    return " " + unicodedata.normalize("NFKC", match[0]).replace("\u2044", "/")


def _power(match: re.Match) -> str:
    """Write raised digits, such as the sign for a square, as a power."""
    return f"^{{{unicodedata.normalize('NFKC', match[0])}}}"


def _without_commas(match: re.Match) -> str:
    """An integer without the commas between its thousands. Coordinates stay as they are."""
    return re.sub("[^0-9]", "", match[0]) if match[0][0].isdecimal() else match[0]


def _in_digits(match: re.Match) -> str:
    """Write a number with a power of ten in digits, because math-verify would round it."""
    exponent = match[2] or match[3] or match[4]
    return f"{Decimal(match[1]).scaleb(int(exponent)):f}"


def _fraction_of_repeating(match: re.Match) -> str:
    r"""Write a repeating decimal as a fraction: 0.1\overline{6} is (16 - 1)/90."""
    whole, once, again = match.groups()
    top = int(whole + once + again) - int(whole + once)
    return rf"\frac{{{top}}}{{{'9' * len(again)}{'0' * len(once)}}}"


# ------------------------------------------------------------------------------ words in the box

_INTRODUCTION = re.compile(r"^(?:the )?(?:final )?answer(?: is|\s*:)\s*:?\s*", re.IGNORECASE)
_DEGREE = r"(?:\u00b0|\^\s*\{?\s*\\circ\s*\}?|\\degree)"
_POWER = r"(?:\s*\^\s*\{?-?[0-9]\}?)?"
_WORD = (
    rf"(?:[A-Za-z\u00b5\u03a9]{{2,}}|[A-Za-z]\.[A-Za-z]|[cdghlmstLNJWVCF])(?![A-Za-z])\.?{_POWER}"
)
_UNIT = re.compile(  # cm^2, km/h, square miles, degrees
    rf"(?:(?<=[0-9)}}])|(?<=\\pi))[\s$]*(?:{_DEGREE}\s*)?"
    rf"((?:{_WORD}(?:(?:\s|/|\\cdot)*{_WORD})*)?)\s*$"
)
_CURRENCY = re.compile(r"\\?\$|[\u00a3\u00a5\u20ac]")
NO_UNITS = {  # words that change the number, so they must stay
    "and", "base", "billion", "bn", "cos", "crore", "cubed", "dozen", "dozens", "eight", "eighty",
    "eleven", "factorial", "fifteen", "fifth", "fifths", "fifty", "five", "forty", "four", "gross",
    "half", "halves", "hundred", "hundreds", "hundredth", "hundredths", "lakh", "ln", "log",
    "million", "minus", "mod", "negative", "nine", "ninety", "of", "one", "or", "over", "pct",
    "percent", "percentage", "pi", "plus", "quarter", "quarters", "score", "seven", "seventy",
    "sin", "six", "sixty", "sqrt", "squared", "tan", "ten", "tens", "tenth", "tenths", "third",
    "thirds", "thirty", "thousand", "thousands", "thousandth", "thousandths", "three", "times",
    "trillion", "twelve", "twenty", "two", "zero",
}  # fmt: skip


def _undressed(box: str, answer: str) -> str:
    """A box without introductory words and, if the answer is a number, without its unit."""
    box = _INTRODUCTION.sub("", box)
    if _has_letters(answer.rpartition("=")[2]) or _PERCENT.fullmatch(answer):
        return box

    box = _CURRENCY.sub("", box).strip()
    unit = _UNIT.search(box)
    words = re.findall("[A-Za-z]+", unit[1]) if unit else []
    # letters that name variables (5xy) are not a unit
    if unit and not any(w.lower() in NO_UNITS or re.fullmatch("[abnxyz]+", w) for w in words):
        box = box[: unit.start()]
    return box


def _has_letters(formula: str) -> bool:
    return re.search("[A-Za-z]", _COMMANDS.sub("", formula)) is not None


# ------------------------------------------------------------------------------ verdicts

_PERCENT = re.compile(r"([^%,]*?)\s*(?:\\?%|percent(?:age)?|pct)")


def judge(answer: str, box: str) -> Verdict:
    """The verdict on a box. Judging may take forever, so the caller must limit the time."""
    answer = _rewritten(answer)
    if is_misread(answer):
        return Verdict.UNPARSED
    box = _rewritten(_undressed(_rewritten(box), answer))

    right, boxed = _PERCENT.fullmatch(answer), _PERCENT.fullmatch(box)
    if right and boxed:
        return _compared(right[1], boxed[1])
    if right:
        pairs = [(right[1], box), (_hundredth(right[1]), box)]
    elif boxed:
        pairs = [(answer, boxed[1]), (answer, _hundredth(boxed[1]))]
    else:
        return _compared(answer, box)
    verdicts = [_compared(*pair) for pair in pairs]
    return Verdict.CORRECT if Verdict.CORRECT in verdicts else verdicts[0]


def _hundredth(number: str) -> str:
    return f"({number.rpartition('=')[2]})/100"


def _compared(answer: str, box: str) -> Verdict:
    """The verdict on two texts in LaTeX, neither of which is a percentage."""
    verdict = plain_verdict(answer, box)
    if verdict is not None:
        return verdict
    if WORDS.fullmatch(answer) and re.search("[A-Za-z]{2}", answer):
        return Verdict.WRONG  # a word is not the product of its letters

    in_doubt = _DOTS.search(box) or _SIDE_BY_SIDE.search(box)
    in_doubt = in_doubt or bool(_PRIME.search(box)) != bool(_PRIME.search(answer))
    if _LIST_IN_BRACKETS.search(box) and not _LIST_IN_BRACKETS.search(answer):
        in_doubt = True
    if _has_letters(answer) and re.search(r"[A-Za-z]\s*[0-9]", _COMMANDS.sub(r"\\", box)):
        in_doubt = True  # a code: math-verify would treat A12 and 12A as equal
    return Verdict.UNPARSED if in_doubt else _math_verdict(answer, box)


# units=False, because math-verify's list of units contains the variables ab, c, s and t
_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all"
)
_EXTRACTION = [LatexExtractionConfig(boxed_match_priority=0, normalization_config=_NORMALIZATION)]


def _math_verdict(answer: str, box: str) -> Verdict:
    """math-verify's verdict on two LaTeX expressions."""
    seed(0)  # sympy tries random points, and verdicts must not differ between runs

    parsed = []
    for text in (answer, box):
        expression = parse(
            f"\\boxed{{{text}}}",
            extraction_config=_EXTRACTION,
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            # the verifier limits the time; the library's documentation allows None, but its type
            # hint does not
            parsing_timeout=None,  # pyright: ignore[reportArgumentType]
        )
        parsed.append([_with_one_kind_of_letter(part) for part in expression])

    right, boxed = parsed
    if not boxed:
        return Verdict.UNPARSED
    if right and isinstance(right[0], Set) and not isinstance(right[0], FiniteSet):
        boxed = [_union(boxed[0])]
    # allow_set_relation_comp makes an inequality equal to its interval
    equal = verify(right, boxed, timeout_seconds=None, allow_set_relation_comp=True)
    return Verdict.WRONG if not equal or _differ(right[0], boxed[0]) else Verdict.CORRECT


def _with_one_kind_of_letter(expression: Any) -> Any:
    """An expression whose `i` is the imaginary unit, and whose other letters are all real.

    math-verify decides for each text whether its letters are real, and reads `i` as any letter.
    """
    letters = getattr(expression, "free_symbols", ())
    kinds = {
        letter: I if letter.name == "i" else Symbol(letter.name, real=True)
        for letter in letters
        if letter.name == "i" or not letter.is_real
    }
    return expression.xreplace(kinds) if kinds else expression


def _union(boxed: Any) -> Any:
    """The set of numbers that satisfy inequalities such as `x<1 or x>2`."""
    if isinstance(boxed, FiniteSet) and boxed.args and all(map(is_relation, boxed.args)):
        # sympy's type hints do not know that these arguments are relations
        return Union(
            *(part.as_set() for part in boxed.args)  # pyright: ignore[reportAttributeAccessIssue]
        )
    return boxed


def _differ(right: Any, boxed: Any) -> bool:
    """Whether two numbers differ by more than 1e-5 of their size.

    math-verify compares absolute differences, so it treats all very small numbers as equal, for
    example 2^-99 and 2^-98. A rounded decimal may differ from an exact number by 1%, because
    0.000033 equals 1/30000 for math-verify. For larger numbers, math-verify is stricter.
    """
    for side in (right, boxed):
        if not isinstance(side, Expr) or not side.is_number or side.is_infinite:
            return False
        if side.has(UnevaluatedExpr):  # a percentage, which has two meanings
            return False

    tolerance = 1e-5 if right.has(Float) == boxed.has(Float) else 1e-2
    right, boxed = right.evalf(30), boxed.evalf(30)
    return bool(abs(right - boxed) > tolerance * abs(right) + 1e-60)  # 1e-60 for an exact zero


# If math-verify does not work at all, fail here; otherwise all completions would count as wrong.
_HALF = r"\frac{1}{2}"
_VERDICTS = judge(_HALF, "0.5"), judge(_HALF, "0.6")
if _VERDICTS != (Verdict.CORRECT, Verdict.WRONG):
    raise ImportError(f"math-verify judges 0.5 for 1/2 as {_VERDICTS[0]} and 0.6 as {_VERDICTS[1]}")
