r"""Other ways to write an answer, and answers that are nearly equal.

Before a run begins, the verifier tests whether it understands an answer (verifier.py:
`check_answer`). It judges each text of `rewritings`, which must be correct, and each text of
`near_misses`, which must not. An answer that the verifier misreads fails one of these tests, even
if it is misread in the same way on both sides: a reading that overlooks the base of `101_2` would
also accept `101_3`.

The texts are made here by search and replace, without the code that reads formulas (formulas.py),
so that a mistake in that code is noticed.
"""

import ast
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction

_NUMBER = r"(?<![0-9.])(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_BRACED = r"\{([^{}]*)\}"
_FRACTION = re.compile(rf"\\[dt]?frac\s*{_BRACED}\s*{_BRACED}")
_THOUSANDS = re.compile(r"(?<=[0-9])(?:,|\{,\}|,\\!|\\,)(?=[0-9]{3}(?![0-9]))")
_E_NOTATION = re.compile(rf"({_NUMBER})[eE]([+-]?[0-9]{{1,3}})(?![0-9A-Za-z])")
_LIST = re.compile(r"[(\[{]\s*[0-9,]+\s*(?:\\right\s*)?\\?[)\]}]")  # (1,234): two coordinates

# ------------------------------------------------------------------------------ rewritings


def rewritings(answer: str) -> Iterator[str]:
    """Texts that mean the same as an answer, each in a notation of its own."""
    for rewrite in (_in_latex, _in_plain_signs, _with_thousands, _in_digits, _as_value):
        text = rewrite(answer)
        if text and text != answer:
            yield text


def _in_latex(answer: str) -> str:
    """Every product between a number and a letter has a sign, and operators have spaces."""
    answer = re.sub(r"\s*\*\s*", r" \\cdot ", answer)
    answer = re.sub(r"(?<![\w.,\\^/])([0-9]+)/([0-9]+)(?![0-9.!^/])", r"\\frac{\1}{\2}", answer)
    factor = r"(?=[A-Za-z(]|\\(?:pi|sqrt|sin|cos|tan|ln|log|theta|alpha))(?![eE][+-]?[0-9])"
    answer = re.sub(rf"(?<![\w^.{{]){_NUMBER}{factor}", r"\g<0> \\cdot ", answer)
    return re.sub(r"(?<![eE])\s*([=<>+-])\s*", r" \1 ", answer).strip()


def _in_plain_signs(answer: str) -> str:
    """Without LaTeX: (a)/(b), sqrt(2), pi and infinity, 2*x, and no space that is not needed."""
    answer = re.sub(r"\\left(?![A-Za-z])|\\right(?![A-Za-z])|(?<!\\)\\[,;:!]", "", answer)
    before = None
    while before != answer:  # the inner fractions first
        before = answer
        answer = re.sub(rf"(?<![\\A-Za-z0-9^_])\\sqrt\s*{_BRACED}", r"sqrt(\1)", answer)
        answer = re.sub(rf"(?<![A-Za-z0-9^_]){_FRACTION.pattern}", _quotient, answer)
    for latex, sign in (("pi", "\u03c0"), ("infty", "\u221e"), ("cdot", "*"), ("times", "*")):
        answer = re.sub(rf"\s*\\{latex}(?![A-Za-z])\s*", sign, answer)
    return re.sub(r"(?<!\\)\s*([=<>+*-])\s*", r"\1", answer)


def _quotient(fraction: re.Match) -> str:
    """A fraction of LaTeX in plain signs."""
    if fraction[1].isdecimal() and fraction[2].isdecimal():
        return f"{fraction[1]}/{fraction[2]}"
    return f"(({fraction[1]})/({fraction[2]}))"


def _with_thousands(answer: str) -> str:
    """Long integers with commas, or without them if they have some."""
    if _THOUSANDS.search(answer) and not _LIST.search(answer):
        return _THOUSANDS.sub("", answer)
    return re.sub(
        r"(?<![0-9.,_\\A-Za-z])[1-9][0-9]{3,}(?![0-9,.])", lambda m: f"{int(m[0]):,}", answer
    )


def _in_digits(answer: str) -> str:
    """Without e-notation."""
    return _E_NOTATION.sub(lambda match: f"{Decimal(match[0]):f}", answer)


def _as_value(answer: str) -> str:
    """The value of an answer that consists of digits and signs, perhaps after `x =`; else ""."""
    name, equals, text = answer.rpartition("=")
    text = _THOUSANDS.sub("", text)
    text = re.sub(r"\\left|\\right|\\[,;:! ]", "", text)
    before = None
    while before != text:
        before = text
        text = _FRACTION.sub(r"((\1)/(\2))", text)
    for latex, sign in ((r"\cdot", "*"), (r"\times", "*"), ("^", "**"), ("{", "("), ("}", ")")):
        text = text.replace(latex, sign)
    if not re.fullmatch(r"[-+*/(). 0-9]+", text) or not re.search(r"[0-9]\W*[-+*/]\W*[0-9]", text):
        return ""
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
        is_short = 10**4 % value.denominator == 0 and abs(value) < 10**5
        return f"{name}{equals}{float(value):.9g}" if is_short else f"{name}{equals}{value}"
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return ""  # also for a number of many thousand digits


_OPERATIONS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}


def _value(node: ast.AST) -> Fraction:
    """The exact value of an expression of numbers. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        is_small = max(abs(left.numerator), left.denominator) < 10**9 and abs(right) < 100
        if isinstance(node.op, ast.Pow) and is_small and right.denominator == 1:
            return Fraction(left ** int(right))
        if type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](left, right)
    raise ValueError("not a number")


# ------------------------------------------------------------------------------ near misses


def near_misses(answer: str) -> Iterator[list[str]]:
    r"""Groups of texts that mean something else than an answer.

    A verifier that accepts all texts of a group does not understand the answer. It may accept one
    by coincidence: \binom{5}{3} equals \binom{5}{2}.
    """
    numbers = list(re.finditer(r"[0-9]+", answer))
    for number in (numbers[0], numbers[-1]) if numbers else ():
        place = next((n for n in range(*number.span()) if answer[n] != "0"), number.start())
        yield [_with(answer, place, str((int(answer[place]) + n) % 9 + 1)) for n in (0, 1)]

    if "\\pm" not in answer and re.search("[1-9A-Za-z]", answer):
        sign = re.search(r"(?<![eE^{])[+-]", answer)
        texts = [f"-{answer}"]
        if sign:
            texts.append(_with(answer, sign.start(), "-" if sign[0] == "+" else "+"))
        elif numbers:
            *_, last = re.finditer(_NUMBER, answer)
            texts.append(f"{answer[: last.start()]}-{answer[last.start() :]}")
        if sign or not re.search(r"=\s*0\s*$", answer):
            yield texts

    for pattern, turned in ((_FRACTION, r"\\frac{\2}{\1}"), (r"([0-9]+)/([0-9]+)", r"\2/\1")):
        fraction = re.search(pattern, answer)
        if fraction and fraction[1] != fraction[2]:
            yield [answer[: fraction.start()] + fraction.expand(turned) + answer[fraction.end() :]]


def _with(answer: str, place: int, sign: str) -> str:
    return answer[:place] + sign + answer[place + 1 :]
