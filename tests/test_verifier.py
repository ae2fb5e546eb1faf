r"""The verifier: every row of the known traps, hostile completions, a child that is killed.

`\boxed{...}` texts are raw strings; `box` is what stands inside, `completion` the whole text.
"""

import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrl.errors import MrlError
from mrl.reward import Verdict
from mrl.samples import Group, Problem, Rollout
from mrl.verifier.plain import MAX_BOX_CHARS, last_box
from mrl.verifier.verifier import MEMORY_LIMIT_BYTES, BoxVerifier

ROOT = Path(__file__).resolve().parent.parent
CORRECT, WRONG, UNPARSED, TRUNCATED, TIMEOUT = Verdict
RIGHT = (r"\frac{1}{2}", r"\boxed{0.5}")  # for the child: neither an integer nor a word


def patched(code):
    """A verifier's child with `code` run before it serves.

    `real` judges formulas; a `judge` that the code defines takes its place.
    """
    start = """
import sys, time
import mrl.verifier.verifier as r
from mrl.verifier.formulas import judge as real
judge = real
"""
    serve = "\nr._load = lambda *_: (judge, '')\nr.serve(r.Connection(int(sys.argv[1])))"
    return (sys.executable, "-c", start + code + serve)


NO_CHILD = (sys.executable, "-c", "raise SystemExit(1)")
HANGING = patched(  # on the box x, whatever interrupts it
    """
def judge(answer, box):
    while box == "x":
        try:
            time.sleep(60)
        except BaseException:
            pass
    return real(answer, box)"""
)


def child_of(verifier):
    """The number of the process that judges."""
    return verifier._child.pid


def fake(command, timeout_s=2.0):
    verifier = BoxVerifier(timeout_s=timeout_s)
    verifier.command = command
    return verifier


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("", None), ("42", None), (r"\boxed", None), (r"\boxed{", None), (r"\boxed{42", None),
        (r"\boxed42}", None), (r"boxed{42}", None), (r"\fbox{42}", None), (r"\boxed{}", ""),
        (r"\boxed{42}", "42"), (r"\boxed {42}", "42"), (r"\\boxed{42}", "42"),
        (r"so \boxed{ 42 } it is", "42"), (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{1}\boxed{2}", "2"), (r"\boxed{1} and \boxed{2", "1"),
        (r"\boxed{1 \boxed{2}", "2"), (r"\boxed{\boxed{7}}", "7"), (r"} \boxed{7}", "7"),
        (r"\boxed{\frac{1}{2}", None), (r"\boxed{2^{10}} }", "2^{10}"), ("\\boxed{4\n2}", "4\n2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"{ \boxed{7}", "7"), (r"\boxed{\{1,2\}}", r"\{1,2\}"), (r"\boxed{\}", None),
        (r"\boxed{\left\{1\right.}", r"\left\{1\right"), (r"\boxed{a\\}", r"a\\"),
        (r"\boxed{42.}", "42"), (r"\boxed{42. }", "42"), (r"\boxed{4.2}", "4.2"),
    ],
)  # fmt: skip
def test_last_complete_box_is_found_by_counting_braces(text, content):
    assert last_box(text) == content


@given(st.lists(st.sampled_from(["{", "}", "\\", "\\boxed{", "7", "."]), max_size=40).map("".join))
def test_last_box_of_any_text_is_balanced_and_part_of_it(text):
    content = last_box(text)
    if content is not None and not content.endswith("\\"):  # else the box's end is escaped
        assert content in text
        assert last_box(f"\\boxed{{{content}}}") == content.removesuffix(".").strip()


def test_last_box_of_a_huge_text_is_found_in_bounded_time():
    begin = time.monotonic()
    for part in ("\\boxed{", "{", "\\boxed   ", "\\"):
        text = part * (5_000_000 // len(part))
        assert last_box(text) is None
        assert last_box(text + r"} \boxed{8}") == "8"
    assert last_box(r"\boxed{1}" + " " * 10_000_000) is None  # too far back to be an answer
    assert time.monotonic() - begin < 5


VERDICTS = {  # what a group shows, and of which verdict: answer, box
    ("what is equal", CORRECT): [
        (r"\sqrt{2}", "2^{1/2}"), ("1/3", "0.333333"), (r"\frac{1}{3000}", "0.000333"),
        (r"\sqrt{2}", "1.41421356"), (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
        ("0", r"(\sqrt{2}+1)(\sqrt{2}-1)-1"), (r"\frac{1}{2}", r"\int_0^1 x dx"),
        ("2^{-99}", r"\frac{1}{2^{99}}"), ("1+i", "i+1"), (r"\infty", r"+\infty"),
        ("(x+1)^2", "x^2+2x+1"), ("3/2", r"1 \frac{1}{2}"), ("x=7", "x=7"), ("[0,1)", "[0,1)"),
    ],
    ("what is not equal", WRONG): [("1/2", "1/3"), (r"\sqrt{2}", r"\sqrt{3}"), ("7", r"\pm 7")],
    ("a full stop at the end is no part of the answer", CORRECT): [
        ("42", "42."), ("42", "42 . "), ("42.", "42"), (r"\frac{1}{2}", r"\frac{1}{2}."),
    ],
    ("several values are one set", CORRECT): [
        ("1, 2", "1, 2"), ("1, 2", "2, 1"), ("1, 2", r"\{1, 2\}"), (r"\pm 2", "-2, 2"),
        ("1, 2", r"1 \text{ and } 2"), (r"\{1, 2\}", r"\{2, 1\}"), ("(1, 2, 3)", "(1, 2, 3)"),
    ],
    ("one of several values is not enough", WRONG): [
        ("1, 2", "1"), ("1, 2", "2"), ("1, 2", "1, 2, 3"), ("1, 2", "1, 3"), ("1, 2", "12"),
        (r"\{1, 2\}", "1"), (r"1 \text{ or } 2", "2"), (r"x=1 \text{ or } x=2", "x=1"),
        (r"\pm 2", "2"), ("7", "7, 8"), ("7", "7 or 8"), ("7", r"\{7, 8\}"), ("(1, 2, 3)", "3"),
        ("(1, 2, 3)", "(3, 2, 1)"), ("(1, 2)", "(2, 1)"), ("(1, 2)", "1"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
    ],
    ("known false positives of math-verify", WRONG): [
        ("1-1/e", "1+1/e"), ("3x-y+13=0", "3x+4y+14=0"), ("2^{-99}", "2^{-98}"),
        (r"\frac{1}{10^{30}}", r"\frac{1}{10^{31}}"), ("e^{-99}", "e^{-98}"),
        (r"\sqrt{2}", r"\sqrt{2}+10^{-16}"),
        (r"\sqrt{2} \cdot 10^{-20}", r"\sqrt{3} \cdot 10^{-20}"), ("0.0000001", "0.00000011"),
        ("12345678901234567890", "12345678901234567891"), ("9" * 400, "9" * 399 + "8"),
    ],
    ("nothing to read is not the same as wrong", UNPARSED): [
        ("1/2", ""), ("1/2", "."), ("1/2", r"\frac{1}{}"), ("1/2", "???"),
        ("1-1/e", "1+..."), ("1-1/e", r"1+\ldots"), ("42", "??? $42$"), ("7", r"\text{ }"),
    ],
    ("a row of guesses is not rewarded for its sum", UNPARSED): [
        ("3", "1 2"), ("9", "4 $5$"), ("7", r"3 \ 4"), ("8", r"7 \quad 1"), ("3", "1~2"),
    ],
    ("the docstring is right about what is not guarded", CORRECT): [
        ("7", "8=7"), ("0.123456", "0.1234564"), ("2X", "2x"),
    ],
    ("a comma groups thousands in formulas, too", CORRECT): [
        ("1,234", "1234"), ("1,234.5", "1234.5"), ("x = 1,234", "x = 1234"),
        ("x = 1234", "x = 1,234"), ("y = 1,500x + 2,000", "y = 1500x + 2000"),
        ("1,000,000/3", "1000000/3"), ("1,234/5", "246.8"), ("1234/5", "1,234/5"),
        (r"1,234\pi", r"1234\pi"), ("10,000x", "10000x"), ("(1,000, 2,000)", "(1000, 2000)"),
        (r"1{,}234\sqrt{2}", r"1234\sqrt{2}"), ("(100, 250)", "(100,250)"),
    ],
    ("and no comma of thousands separates values", WRONG): [
        ("1,234/5", "1, 46.8"), ("x = 1,234", "x = 1, 234"), ("1, 234", "1,234"),
    ],
    ("a slash divides only by the number after it", CORRECT): [
        ("y = 1/2x + 3", "y = 0.5x + 3"), (r"y = \frac{1}{2}x + 3", "y = 1/2x + 3"),
        ("4/3 pi", r"\frac{4}{3}\pi"), (r"\frac{4}{3}\pi", "4/3 pi"), ("2/3n", r"\frac{2n}{3}"),
    ],
    ("and by nothing else", WRONG): [("y = 1/2x + 3", r"y = \frac{1}{2x} + 3")],
    ("i is the imaginary unit in every notation", CORRECT): [
        *[("3+4i", box) for box in ("3 + 4i", "3+4 i", r"3+4\,i", r"3+4\cdot i", "4i+3")],
        ("2i", "2 i"), ("2i", r"2\cdot i"), ("5+12i", "5 + 12 i"), ("i/2", "0.5i"),
        (r"\frac{1}{2}i", "0.5i"), (r"\frac{3}{5}+\frac{4}{5}i", "0.6+0.8i"),
        (r"\frac{3}{5}-\frac{4}{5}i", r"\frac{3-4i}{5}"), (r"\frac{1}{5}-\frac{2}{5}i", "0.2-0.4i"),
    ],
    ("and no other number", WRONG): [("3+4i", "3-4i"), ("3+4i", "4+3i"), ("2i", "2"), ("2i", "2x")],
    ("single letters with spaces between them are a product", CORRECT): [
        ("x y", "xy"), ("x y", "y x"), ("x y", "yx"), ("x y z", "xyz"), ("3x y", "3yx"),
    ],
    ("a small number is compared by its digits", WRONG): [
        ("1.211e-13", "3.161e-13"), ("4.638e-13", "5.05e-13"), ("1.602e-19", "1.61e-19"),
        ("0.0000123", "0.0000124"), ("0.000123", "0.000124"),
        (r"\frac{1}{30000}", r"\frac{1}{30001}"),
    ],
    ("a power of ten is written in many ways", CORRECT): [
        ("6.02e20", "602000000000000000000"), ("1.23456789e8", "123456789"),
        ("6.022e23", "602200000000000000000000"), ("6.022e23", r"6.022 \cdot 10^{23}"),
        ("1.602e-19", r"1.602 \times 10^{-19}"), (r"\frac{1}{30000}", "0.0000333"),
        (r"2^3 \cdot 10^5", "800000"), (r"1/2 \cdot 10^5", "50000"),
    ],
    ("signs of Unicode, and names in capitals", CORRECT): [
        ("infinity", r"\infty"), ("Infinity", r"\infty"), (r"\infty", "Infinity"),
        (r"\infty", "\u221e"),
        (r"(-\infty, 2]", "(-\u221e, 2]"), (r"\sqrt{2}", "\u221a2"), (r"\sqrt{x+1}", "\u221a(x+1)"),
        (r"2\pi", "2\u03c0"), (r"(0,1) \cup (2,3)", "(0,1) \u222a (2,3)"),
        ("x^{10}", "x\u00b9\u2070"),
        ("6", "2\u00b73"),
    ],
    ("the problem's answer comes first", CORRECT): [("1", "2x+z=1")],
    ("the completion's box comes second", WRONG): [("2x+z=1", "1")],
    ("a percentage is its number, and also that number divided by 100", CORRECT): [
        (r"50\%", r"50\%"), (r"50\%", "50"), (r"50\%", "0.5"), (r"50\%", r"\frac{1}{2}"),
        ("50", r"50\%"), ("0.5", r"50\%"), ("0.5", r"x=50\%"), ("50", "50 percent"), ("50%", "50"),
        (r"12.5\%", "12.5"), ("12.5", r"12.5\%"), ("0.125", r"12.5\%"), (r"12.5\%", "1/8"),
        (r"0.5\%", "0.5"), ("0.005", r"0.5\%"), ("1,250", r"1,250\%"), ("12.5", r"1,250\%"),
    ],
    ("a percentage is nothing else", WRONG): [
        (r"50\%", r"51\%"), (r"50\%", "5000"), (r"50\%", "0.05"), ("50", r"0.5\%"),
        (r"50\%", r"0.5\%"), (r"12.5\%", r"12.6\%"), ("5000", r"50\%"),
    ],
    ("numbers as programs print them", CORRECT): [
        ("1e-05", "0.00001"), ("1e-05", "1e-5"), ("2.5e3", "2500"), ("2500", "2.5e3"),
        ("1E3", r"10^3"), ("1e-7", r"10^{-7}"), ("-1.5e+2", "-150"), ("x=1e3", "x=1000"),
    ],
    ("an e between digits is no factor", WRONG): [
        ("1e-05", "e-5"), ("2.5e3", "7.5e"), ("1e-7", "2e-7"), ("1e3", "3e"), ("1e3", "1e4"),
    ],
    ("mathematics without LaTeX", CORRECT): [
        ("pi", r"\pi"), (r"\pi", "pi"), ("2*pi", r"2\pi"), (r"\pi/2", "pi/2"),
        ("ln(2)", r"\ln 2"), ("sin(x)", r"\sin(x)"), ("log(8)/log(2)", "3"),
        ("x^2", "x\u00b2"), ("sqrt(2)", r"\sqrt{2}"),
        ("infinity", r"\infty"), (r"\infty", "infinity"), ("1/2", "\u00bd"), ("3/2", "1\u00bd"),
        ("1/3", r"0.\overline{3}"), ("1/6", r"0.1\overline{6}"), (r"\emptyset", r"\varnothing"),
    ],
    ("an inequality counts for its interval", CORRECT): [
        ("(-5, 5)", "-5 < x < 5"), (r"(1,\infty)", "x>1"), ("[0,1)", r"0 \le x < 1"),
        (r"(-\infty, 1) \cup (2, \infty)", r"x<1 \text{ or } x>2"),
    ],
    ("and for no other", WRONG): [
        ("(-5, 5)", r"-5 \le x < 5"), (r"(1,\infty)", "x>2"), ("(-5, 5)", "x < 5"),
        (r"(-\infty, 1) \cup (2, \infty)", r"x<1 \text{ or } x>3"),
    ],
    ("a product of letters", CORRECT): [("2x y", "2xy"), ("2 x y", "2yx"), ("x y", r"x \cdot y")],
    ("a word is no product of its letters", WRONG): [
        ("yes", r"y \cdot e \cdot s"), ("Monday", "5"), ("no", "n+o"),
    ],
    ("an integer in another dress", CORRECT): [
        ("42", "42.0"), ("42", "84/2"), ("42", r"\frac{84}{2}"), ("42", "$42$"), ("42", "x=42"),
        ("42", r"42\text{ cm}"),
    ],
    ("a whole number before a fraction is a mixed number", CORRECT): [
        ("3/2", "1 1/2"), ("19/2", "9 1/2"), ("3/2", r"1\, 1/2"), ("3/2", "1~1 / 2"),
        ("37/2", "17 3/2"), ("-3/2", "-1 1/2"), ("1 1/2", "3/2"), ("x=3/2", "x=1 1/2"),
    ],
    ("a mixed number is no sum and no quotient of its parts", WRONG): [
        ("5", "9 1/2"), ("10", "17 3/2"), ("1", "1 1/2"), ("14", "7 7/7"), ("1/2", "1 1/2"),
    ],
    ("letters with spaces between them are a phrase, not a product", WRONG): [
        ("yes", "es y"), ("yes", "s y e"), ("no", "o n"), ("no", "n o"), ("yes", "yes y"),
    ],
    ("a phrase equals itself", CORRECT): [
        ("blue whale", "Blue whale"), ("blue whale", r"\text{blue whale}"),
    ],
    ("what can be read in more than one way is not read", UNPARSED): [
        ("5", "[5,5]"), ("5", "5'"), ("5", r"5\ldots"), ("5", "5..."), ("5", r"5\prime"),
        ("1/3", r"0.333\ldots"), ("5", "5\u2026"), ("5", r"5 \cdots"),
    ],
    ("unless the answer has it, too", CORRECT): [("[5,6]", "[5,6]"), ("f'(x)", "f'(x)")],
    ("brackets that only hold together, or a root's degree, are no list", CORRECT): [
        ("9", "[1+2] \\cdot 3"), ("2", r"\sqrt[3]{8}"),
    ],
    ("one word behind a number is its unit", CORRECT): [
        ("70", "70 shells"), ("70", r"\text{70 shells}"), ("5", "5 dollars"),
        ("5.5", "5.50 dollars"), ("1234", "1,234 books"), ("-3", "-3 degrees"), ("70", "70 kg"),
    ],
    ("a unit of several parts is also taken off the box", CORRECT): [
        ("5", "5 cm^2"), ("5", r"5\text{ cm}^2"), ("5", "5 cm\u00b2"), ("5", "5 km/h"),
        ("5", "5 m"),
        ("5", "5\u00b0C"), ("5", r"5^\circ C"), ("5", "5km"), ("5", "x = 5 cm"), ("5", "5 sq. ft."),
        ("72", r"\$72"), ("72", "$72"), ("72", "\u20ac72"), ("72", "72 dollars per hour"),
        ("3/4", "3/4 cup"), (r"\frac{3}{4}", r"\frac{3}{4} cup"), (r"2\pi", r"2\pi \text{ cm}"),
        (r"\sqrt{2}", r"\sqrt{2} \text{ m}"), ("5", "5 p.m."), ("5", "5 square meters"),
    ],
    ("a word that changes the number is none", WRONG): [
        ("5", "5 dozen"), ("5", "5 tenths"), ("5", "5 hundred"), ("7", "7 of 10"), ("5", "5 and 6"),
        ("5", "5 or 6"), ("11", "5 and 6"), ("70", "70 shells and 5"), ("2", "2 shells 2"),
        ("60", "70 shells"), ("70", "about 70"), ("5", "5 feet six inches"), ("5", "5 and six"),
        ("10", r"10 \text{ dozen}"), ("5", "5 thousand dollars"), ("5", "5xy"), ("5", "5 x"),
        ("5", "5 ab"), ("5", "5i"), ("5", "5k"), ("3x", "3x cm"),
    ],
    ("what changes only the look counts for nothing", CORRECT): [
        ("70", "= 70"), ("90", r"90^\circ"), ("2", r"\boldsymbol{2}"), ("2", r"\underline{2}"),
        ("70", r"\color{red}{70}"), ("-5", "\u22125"),
        ("yes", r"\text{Yes.}"), ("yes", r"\textbf{ Yes }"), ("yes", r"\text{yes}"),
        ("2", r"\mathbf{2}"), ("1/2", r"= \text{1/2}"), ("42", r"\bm{42}"), ("42", r"\[42\]"),
        ("42", r"\(42\)"), ("42", r"\text{The answer is } 42"),
        ("yes", r"\text{The answer is yes.}"),
        ("42", r"\text{\textbf{42}}"), ("5", r"\mathbf{\frac{10}{2}}"), ("$42$", "42"),
    ],
    ("nor does it make a wrong answer right", WRONG): [
        (r"\text{eats}", "tase"),
        ("70", "= 71"), ("25", r"5^\circ"),
    ],
    ("another integer in another dress", WRONG): [("43", r"\frac{84}{2}"), ("43", "x=42")],
}  # fmt: skip


@pytest.fixture(scope="module")
def patient():
    with BoxVerifier(timeout_s=20) as verifier:  # also on a busy machine, a verdict is no timeout
        yield verifier


@pytest.mark.parametrize(("shows", "verdict"), VERDICTS)
def test_verdicts(patient, shows, verdict):
    for answer, box in VERDICTS[shows, verdict]:
        assert patient.verify(answer, rf"\boxed{{{box}}}") is verdict, (answer, box)
        assert patient.check_answer(answer)


def test_small_numbers_in_a_set_are_not_told_apart_so_such_an_answer_is_refused(verifier):
    assert verifier.verify(r"\{2^{-99}, 1\}", r"\boxed{\{2^{-98}, 1\}}") is CORRECT
    assert not verifier.check_answer(r"\{2^{-99}, 1\}")


COMPLETIONS = [  # answer, completion, its verdict, and the verdict if it was cut short
    ("42", "", UNPARSED, TRUNCATED), ("42", "The answer is $42$.", UNPARSED, TRUNCATED),
    ("42", r"so it is \boxed{4", UNPARSED, TRUNCATED), ("42", r"42 \boxed{}", UNPARSED, UNPARSED),
    ("42", r"so it is \boxed{42} beca", CORRECT, CORRECT), ("42", r"\boxed{42}.", CORRECT, CORRECT),
    ("1/2", r"\boxed{\frac{1}{}", UNPARSED, TRUNCATED),
    ("1/2", r"\boxed{1/2}, \boxed{1/3}", WRONG, WRONG),
    ("1/2", r"\boxed{1/3}, \boxed{1/2}", CORRECT, CORRECT),
    ("1/2", r"\boxed{1/3} \boxed{1/2} but \boxed{1/4", CORRECT, CORRECT),
    (r"\{1,2\}", r"\boxed{1} and \boxed{2}", WRONG, WRONG),
]  # fmt: skip


def test_only_the_last_complete_box_counts_and_a_batch_keeps_its_order(verifier):
    whole = [(answer, text, True) for answer, text, _, _ in COMPLETIONS]
    cut = [(answer, text, False) for answer, text, _, _ in COMPLETIONS]
    assert [verifier.verify(*item) for item in whole] == [row[2] for row in COMPLETIONS]
    assert [verifier.verify(*item) for item in cut] == [row[3] for row in COMPLETIONS]


@pytest.mark.parametrize(
    "answer",
    ["2024-05-01", "5/1/2024", "01.05.2024", "12:30", "9:05 am", "12:30:00",
     "Smith, John", "O'Neil, Se\u00e1n", "May 5, 2024", "Rome, Oslo, Bern", "3:4", "1.2.3",
     "978-3-16-148410-0",
     "12 eggs", "20 dollars", "30 minutes", "5 km", "5km", r"2 \text{ thousand}", "10 dozen",
     r"\$20", "20 \u20ac", r"45^\circ", "45\u00b0", "50 percent", "5\"", "5'10", "5th",
     "0,5", "-0,5", "x=0,5", "1,2", "12,34", "1,234,5",
     "CO2", "C6H12O6", "H_2O", "A12", "A 12", "e4", "0x1F", "101_2", "101_{2}", r"\text{101}_2",
     "The answer is 72", "about 5", "5 to 6", "5 x 3", "x-axis", "2ab", r"\angle ABC",
     r"1+2+\ldots+9", r"\{x: x > 0\}",
     "", " ", "???", "{", "}", r"\frac{1}{", r"7} \boxed{8", "7}{", r"\boxed{7}", r"\boxed{7",
     "0/0", r"\frac{1}{0}", "9" * (MAX_BOX_CHARS + 1), "\0", "\ud800", "7\\"],
)  # fmt: skip
def test_answer_that_does_not_equal_itself_or_is_no_formula_is_refused(verifier, answer):
    assert not verifier.check_answer(answer)


def test_a_date_is_not_judged_as_a_difference(verifier):
    assert verifier.verify("2024-05-01", r"\boxed{2018}") is UNPARSED
    assert verifier.check_answer("5-1")
    assert verifier.check_answer("5/1")


def test_a_time_is_not_judged_as_a_quotient_nor_a_name_as_letters(verifier):
    assert verifier.verify("12:30", r"\boxed{\frac{2}{5}}") is UNPARSED
    assert verifier.verify("Smith, John", r"\boxed{John, Smith}") is UNPARSED
    for answer in ("Smith John", "x, y", "1, 2", r"\sqrt{2}, \pi", "12.30"):
        assert verifier.check_answer(answer), answer


@pytest.mark.parametrize(
    "answer",
    [".5", r"20\%", "NaCl", "XIV", "A", "(A)", "12A", "x", "2 x + 3", "a_{ij}", "x+1-2-3",
     r"\frac{b h}{2}", r"e^{i\pi}", r"\log_{10} x", "x=1 or x=2", "y=2x+1", "(1,2)", r"\mathbb{R}",
     "10!", r"\binom{5}{2}", r"\begin{pmatrix} 1 & 2 \\ -3 & 4 \end{pmatrix}", "x_{1} + x_{2}",
     "2^10", r"\text{yes}", r"\frac{\sqrt{2}+\sqrt{6}}{4}",
     r"\left(\frac{1}{2}, -\frac{3}{4}\right)", r"\log_2 3", "x = 0", r"\frac{n!}{k!(n-k)!}",
     r"-1 + i\sqrt{3}", r"0 \le x \le 1", r"\frac{x^3}{3} + C", r"x^{\frac{2}{3}}",
     r"(x-3)^2 + (y+2)^2 = 16", r"\sqrt[3]{4}", r"\frac{ 1 }{ 1000 }"],
)  # fmt: skip
def test_answer_that_is_read_in_one_way_is_accepted(verifier, monkeypatch, answer):
    monkeypatch.setattr(verifier, "timeout_s", 20)
    taken = verifier.check_answer(answer)
    assert taken, taken.reason


# fmt: off
MISREADINGS = {  # a judge that misreads -> an answer, and a part of the sentence that refuses it
    "no notation but the answer's": ("answer == box", r"\frac{3}{4}", "3/4"),
    "no thousands": ("answer == box.replace(' ', '')", "1234/x", "1,234/x"),
    "no value": ("box.replace(' ', '') == answer or box == r'\\frac{6}{4}'", "6/4", "1.5"),
    "no digit": ("answer.isascii()", "1.5", "2.5"),
    "no last digit": ("answer[:-1] == box[:-1]", "1.5", "1.6"),
    "no sign": ("answer.strip('+-') == box.strip('+- ')", "0.5", "-0.5"),
    "no order": (
        r"sorted(answer) == sorted(box.replace('}{', '/').strip('\\frac{}'))", "3/7", "7/3"
    ),
}
# fmt: on


@pytest.mark.parametrize("case", MISREADINGS)
def test_answer_that_is_misread_on_both_sides_is_refused_with_the_form_that_fails(tmp_path, case):
    code, answer, form = MISREADINGS[case]
    file = tmp_path / "misreads.py"
    file.write_text(f"def judge(answer, box):\n    return {code}\n")
    with BoxVerifier(timeout_s=20, file=str(file)) as misreads:
        assert misreads.verify(answer, f"\\boxed{{{answer}}}") is CORRECT
        refusal = misreads.check_answer(answer)
    assert not refusal
    assert repr(form) in refusal.reason


@pytest.mark.parametrize("answer", ["101_2", "x/2y"])
def test_answer_that_math_verify_misreads_is_refused_with_the_form_that_fails(verifier, answer):
    assert verifier.check_answer(answer).reason


@pytest.mark.parametrize(
    ("answer", "name"),
    [("\theta", "TAB"), ("\nu", "line break"), ("\rho", "carriage return"),
     ("\frac{1}{2}", "form feed"),
     ("\beta", "backspace"), ("1\0", "x00"), ("yes\x7f", "x7f")],
)  # fmt: skip
def test_control_character_in_an_answer_is_refused_by_name(answer, name):
    with fake(NO_CHILD) as childless:
        refusal = childless.check_answer(answer)
        assert not refusal
        assert name in refusal.reason
        assert childless.check_answer("42\n")


@pytest.mark.parametrize("answer", ["42", "-1,234", "yes", "blue whale"])
def test_integer_or_word_is_accepted_without_a_child(answer):
    with fake(NO_CHILD) as childless:
        assert childless.check_answer(answer)


def in_another_order(answer):
    """The answer with the letters and digits of each run in other orders; commands stay."""
    for run in re.finditer(r"\\[A-Za-z]+|[A-Za-z0-9]+", answer):
        letters = run.group()
        if not letters.startswith("\\"):
            for order in {letters[::-1], letters[1:] + letters[:1], letters[-1] + letters[:-1]}:
                if order.lower() != letters.lower():
                    yield answer[: run.start()] + order + answer[run.end() :]


ANSWERS = st.builds(
    str.format,
    st.sampled_from(
        ["{}", "{} {}", "{}.{}", "{},{}", "{}/{}", "{}_{}", r"{}\%", r"\frac{{{}}}{{7}}", "x+{}",
         r"\text{{{}}}", r"{} \text{{ {}}}", r"\sqrt{{{}}}", "({}, {})", "{}:{}", "-{}"]
    ),
    st.text("12357abekmxCOF", min_size=1, max_size=5),
    st.text("12357abekmxCOF", min_size=1, max_size=3),
)  # fmt: skip


@given(ANSWERS)
@settings(max_examples=60, deadline=None)
def test_an_accepted_answer_equals_itself_and_no_other_order_of_its_letters_or_digits(
    verifier, answer
):
    if verifier.check_answer(answer):
        assert verifier.verify(answer, rf"\boxed{{{answer}}}") is CORRECT
        for other in in_another_order(answer):
            assert verifier.verify(answer, rf"\boxed{{{other}}}") is not CORRECT, other


@pytest.mark.parametrize(
    ("answer", "box", "verdict"),
    [
        ("42", "42", CORRECT), ("42", "+42", CORRECT), ("42", "-42", WRONG), ("42", "042", CORRECT),
        ("0", "-0", CORRECT), ("1234", "1,234", CORRECT), ("1,234", "1234", CORRECT),
        ("1234567", "1,234,567", CORRECT), ("1234", "1{,}234", CORRECT), ("1234", "1,235", WRONG),
        ("1234", r"1,\!234", CORRECT), ("1234", r"1\,234", CORRECT), ("-1234", "-1,234", CORRECT),
        ("yes", "Yes", CORRECT), ("eats", "tase", WRONG), ("no", "on", WRONG),
        ("1" + ",000" * 450, "1" + "000" * 450, CORRECT), ("7", "7" * 10_000, WRONG),
        ("x", "x+" * MAX_BOX_CHARS + "x", WRONG), ("x+" * MAX_BOX_CHARS, "x", WRONG),
    ],
)  # fmt: skip
def test_integers_words_and_huge_boxes_are_judged_without_a_child(answer, box, verdict):
    with fake(NO_CHILD) as childless:
        assert childless.verify(answer, rf"\boxed{{{box}}}") is verdict


@pytest.mark.parametrize("box", ["12,34", "1,23", "1, 234", "1234,", "0,123", ",234", "1,2345"])
def test_doubtful_comma_makes_no_integer(verifier, box):
    for answer in ("1234", "123", "12345"):
        assert verifier.verify(answer, rf"\boxed{{{box}}}") is not CORRECT


@pytest.mark.parametrize(
    "box",
    [
        "10^{10^{10}}",
        pytest.param(r"\int \frac{1}{x^5+x+1} dx", marks=pytest.mark.slow),
        pytest.param("100000000!", marks=pytest.mark.slow),
        pytest.param("2^{10000000000}", marks=pytest.mark.slow),
    ],
)
def test_expression_that_takes_for_ever_is_a_timeout_and_its_child_is_killed(box):
    with BoxVerifier(timeout_s=1.0) as impatient:
        impatient.start_and_check()
        child, begin = child_of(impatient), time.monotonic()
        assert impatient.verify("7", rf"\boxed{{{box}}}") is TIMEOUT
        assert 1 <= time.monotonic() - begin < 4
        assert not is_running(child)
        assert impatient.verify(*RIGHT) is CORRECT


def group_of(answer, *texts):
    rollouts = [Rollout([1], [-0.5], True, text) for text in texts]
    return Group(Problem("p", "", answer), [1], rollouts)


def test_nothing_is_remembered_so_each_text_is_judged_when_it_comes():
    with BoxVerifier() as verifier:
        assert verifier.verify(*RIGHT) is CORRECT
        verifier.close()
        verifier.command = NO_CHILD
        with pytest.raises(MrlError):
            verifier.verify(*RIGHT)


def test_groups_get_a_verdict_for_each_rollout_by_their_own_answer(verifier):
    seven = group_of("7", r"\boxed{7}", r"\boxed{\frac{14}{2}}", r"\boxed{8}", "")
    eight = group_of("8", r"\boxed{7}", r"\boxed{8}", "and so")
    eight.rollouts[-1].finished = False
    verifier.verify_groups([seven, eight])
    assert [r.verdict for r in seven.rollouts] == [CORRECT, CORRECT, WRONG, UNPARSED]
    assert [r.verdict for r in eight.rollouts] == [WRONG, CORRECT, TRUNCATED]


@pytest.mark.slow
def test_child_that_is_stopped_or_killed_costs_one_verdict_at_most():
    with fake(HANGING, timeout_s=1.0) as verifier:
        verifier.start_and_check()
        os.kill(child_of(verifier), signal.SIGKILL)  # while idle
        os.waitid(os.P_PID, child_of(verifier), os.WEXITED | os.WNOWAIT)
        assert verifier.verify(*RIGHT) is CORRECT
        os.kill(child_of(verifier), signal.SIGSTOP)
        assert verifier.verify("1/3", r"\boxed{0.5}") is TIMEOUT
        assert verifier.verify("1/3", r"\boxed{0.5}") is WRONG


SLOW = """
def judge(answer, box):
    time.sleep({})
    return real(answer, box)"""


def test_child_that_is_killed_while_it_judges_is_noticed_and_asked_once_more():
    with fake(patched(SLOW.format(1.5)), timeout_s=60) as verifier:
        verifier.start_and_check()
        killed = child_of(verifier)
        threading.Timer(0.4, os.kill, (killed, signal.SIGKILL)).start()
        begin = time.monotonic()
        assert verifier.verify(*RIGHT) is CORRECT
        assert time.monotonic() - begin < 20  # the death is noticed, not waited for
        assert child_of(verifier) != killed


def test_completion_that_kills_two_children_is_a_timeout_and_the_next_is_judged():
    deadly = """
import os
def judge(answer, box):
    return os._exit(1) if box == "x" else real(answer, box)"""
    with fake(patched(deadly), timeout_s=60) as verifier:
        assert verifier.verify("7", r"\boxed{x}") is TIMEOUT
        assert verifier.verify(*RIGHT) is CORRECT


EXHAUSTING = {  # what the first completion does to its child
    "takes more than half the time": "time.sleep(1.3)",
    "runs out of memory": "raise MemoryError",
    "took more than half the memory": "b'x' * (40 << 20)",
}


@pytest.mark.parametrize(
    "way",
    [
        "runs out of memory",
        pytest.param("takes more than half the time", marks=pytest.mark.slow),
        pytest.param("took more than half the memory", marks=pytest.mark.slow),
    ],
)
def test_child_that_was_nearly_exhausted_judges_no_other_completion(way):
    code = f"""
r.MEMORY_LIMIT_BYTES = 32 << 20
r.resource.setrlimit = lambda *_: None
def judge(answer, box):
    if box == "x":
        {EXHAUSTING[way]}
    return real(answer, box)"""
    with fake(patched(code)) as verifier:
        assert verifier.verify(*RIGHT) is CORRECT
        child = child_of(verifier)
        assert verifier.verify(*RIGHT) is CORRECT
        assert child_of(verifier) == child
        assert verifier.verify("7", r"\boxed{x}") is WRONG
        assert verifier.verify(*RIGHT) is CORRECT
        assert child_of(verifier) != child


def test_verdict_does_not_hang_on_what_sympy_draws():
    dice = """
from sympy.core.cache import clear_cache
from sympy.core.random import seed
from mrl.verifier.formulas import _math_verdict as compare
def judge(answer, box):
    compare(answer, box)  # first, as sympy is lazy
    clear_cache()
    seed(6)  # math-verify alone calls the pair below equal in three of seventy such states
    return compare(answer, box)"""
    with fake(patched(dice), timeout_s=10) as verifier:
        answer, box = r"\frac{3}{4}-e1,234", r"no=\infty^1 1/2"
        assert verifier.verify(answer, rf"\boxed{{{box}}}") is WRONG


def test_late_reply_is_not_taken_for_the_next_verdict_after_an_interrupt(monkeypatch):
    def interrupted(*args):
        monkeypatch.undo()
        raise KeyboardInterrupt

    with BoxVerifier() as verifier:
        verifier.start_and_check()
        monkeypatch.setattr(Connection, "poll", interrupted)
        with pytest.raises(KeyboardInterrupt):
            verifier.verify("1/2", r"\boxed{0.6}")
        assert verifier.verify(*RIGHT) is CORRECT


def test_closed_verifier_has_no_child_and_can_be_used_again():
    with BoxVerifier() as verifier:
        verifier.close()
        assert verifier.verify(*RIGHT) is CORRECT
        child = child_of(verifier)
        verifier.close()
        verifier.close()
        assert not is_running(child)
        assert verifier.verify(r"\frac{1}{2}", r"\boxed{0.6}") is WRONG


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads from /proc")
def test_child_has_its_limits_and_is_out_of_reach_of_the_terminal():
    with BoxVerifier() as verifier:
        verifier.start_and_check()
        process = Path(f"/proc/{child_of(verifier)}")
        lines = (process / "limits").read_text().splitlines()
        assert [str(MEMORY_LIMIT_BYTES) in line for line in lines if "address space" in line] == [1]
        assert "libtorch" not in (process / "maps").read_text()  # it starts at once
        assert b"PYTHONHASHSEED=0" in (process / "environ").read_bytes().split(b"\0")
        assert os.getsid(child_of(verifier)) != os.getsid(0)  # Ctrl-C goes to a session


def test_expression_over_the_memory_limit_is_no_right_answer_and_the_next_is_judged():
    with fake(patched("r.MEMORY_LIMIT_BYTES = 110 << 20"), timeout_s=60) as verifier:
        assert verifier.verify("7", r"\boxed{2^{10000000000}+x}") is not CORRECT
        assert verifier.verify(*RIGHT) is CORRECT


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")  # nobody may be there to bury an orphan
    return not (status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z")


@pytest.mark.parametrize("box", ["0.5", "x"])  # idle, and busy with what nothing interrupts
def test_child_ends_when_its_parent_is_killed(box):
    code = (
        "from tests.test_verifier import HANGING, child_of, fake\nverifier = fake(HANGING, 0.8)\n"
        "verifier.start_and_check()\nprint(child_of(verifier), flush=True)\n"
        f"verifier.verify('1/3', r'\\boxed{{{box}}}')\ninput()"
    )
    pipe = subprocess.PIPE
    run = [sys.executable, "-c", code]
    with subprocess.Popen(run, cwd=ROOT, stdin=pipe, stdout=pipe) as parent:
        child = int(parent.stdout.readline())
        time.sleep(0.3)
        assert is_running(child)
        parent.kill()
    deadline = time.monotonic() + 8
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


@pytest.mark.parametrize(
    "command",
    [
        NO_CHILD,
        (sys.executable, "-S", "-m", "mrl.verifier.verifier"),  # without math-verify
    ],
    ids=["dies", "no math-verify"],
)
def test_a_child_that_does_not_work_is_one_sentence_and_no_zero(command, monkeypatch, verifier):
    verifier.close()
    monkeypatch.setattr(verifier, "command", command)
    for ask in (verifier.start_and_check, lambda: verifier.verify("1/3", r"\boxed{x^7}")):
        with pytest.raises(MrlError, match=r"verifier cannot be loaded.*install math-verify"):
            ask()


def test_works_in_a_script_from_another_directory_with_misleading_files(tmp_path):
    for name in ("math_verify.py", "multiprocessing.py", "mrl.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong file')")
    script = tmp_path / "sub" / "script.py"
    script.parent.mkdir()
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from mrl.verifier.verifier import BoxVerifier\n"  # no guard for __main__ is needed
        "with BoxVerifier() as verifier:\n    print(verifier.verify('1/2', r'\\boxed{0.5}'))\n"
        "print([m for m in ('torch', 'sympy', 'math_verify') if m in sys.modules])\n"
    )
    run = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True)
    assert run.stdout == b"correct\n[]\n"


HOSTILE_BOXES = {  # next to what `hostile_completions` makes
    "only NUL": "\0" * 1_000, "bell and backspace": "8\b7\a", "newlines": "7\n1\n",
    "carriage return": "7\r\n", "text direction": "\u202e7", "full-width digit": "８",
    "replacement characters": "\ufffd" * 100, "line separators": "7\u2028\u2029\x85",
    "backslashes": "\\ " * 500, "dollars": "$" * 501, "percent": "%", "bars": "|" * 100,
    "endless column": r"\begin{pmatrix}" + r"1\\" * 300 + r"1\end{pmatrix}",
    "Python code": "__import__('os').system('touch /tmp/never')",
    "Python expression": "(lambda: 7)()", "JSON": '{"verdict": "correct"}',
    "a verdict": "correct", "deep fractions": r"\frac{1}{" * 12 + "2" + "}" * 12,
    "deep roots": r"\sqrt{" * 12 + "2" + "}" * 12, "huge float": "1e400",
    "infinite": r"\infty-\infty", "division by nothing": r"\frac{0}{0}",
    "long sum": "1+" * 200 + "1", "not a number": r"\text{NaN}", "emoji": "7️⃣🙂",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_BOXES)
def test_hostile_box_gets_a_verdict_and_no_reward(verifier, name, monkeypatch):
    monkeypatch.setattr(verifier, "timeout_s", 20)  # the deep ones are slow, not endless
    completion = f"\\boxed{{{HOSTILE_BOXES[name]}}}"
    for answer in ("49", r"\frac{5}{7}", "x^2+y"):
        assert verifier.verify(answer, completion) in (WRONG, UNPARSED)
    assert verifier.verify("1/2", r"\boxed{0.5}") is CORRECT
    assert not Path("/tmp/never").exists()


def test_megabytes_are_judged_at_once(verifier):
    begin = time.monotonic()
    for filler in ("a", "\0", "{", "}", "\\", "\ud800", r"\boxed{", r"\boxed{1}", "$", "1+"):
        text = filler * (5_000_000 // len(filler))
        assert verifier.verify("7", text) in (WRONG, UNPARSED)
        assert verifier.verify("7", rf"\boxed{{{text}}}") in (WRONG, UNPARSED)
        assert verifier.verify("7", text, finished=False) in (WRONG, TRUNCATED)
    assert time.monotonic() - begin < 10


@given(st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_text_gets_a_verdict(verifier, text):
    assert verifier.verify("x^2+y", f"\\boxed{{{text}}}") in (WRONG, UNPARSED, TIMEOUT)


def hostile_completions(seed):
    """5,000 texts, nearly all different, 40 of which math-verify never ends, 8 slow ones."""
    pick = random.Random(seed)

    def number():
        return pick.randrange(10**6, 10**8)

    hard = (
        lambda: f"{number()}^{{{number()}^{{{number()}}}}}",  # a tower of powers
        lambda: f"{number()}!",
        lambda: f"{pick.randrange(2, 99)}^{{{number()}00}}+x",
        lambda: rf"\int \frac{{1}}{{x^5+{number()}x+1}} dx",
        lambda: "(" * 60 + str(number()) + ")" * 60,
        lambda: f"def f(x):\n    return {number()}\nprint(f(1))",
    )
    easy = (
        lambda: r"\frac{" * pick.randrange(3, 9) + str(number()),  # unbalanced
        lambda: r"\boxed{" * 5 + rf"\frac{{{number()}}}{{7}}" + "}" * 5,
        lambda: f"{number()}\0{number()}",
        lambda: "\ud800" + str(number()),
        lambda: f"__import__('os').system('echo {number()}')",
        lambda: r"\begin{pmatrix}" + "&".join([str(number())] * 40),
        lambda: r"\begin{pmatrix}" + "&".join([str(number())] * 10) + r"\end{pmatrix}",
        lambda: f"\x1b[2J{number()}",
        lambda: f"{number()}{'0' * 3_000}",
        lambda: rf"\left( {number()} \right]",
        lambda: rf"{number()}=x=y={number()}",
    )
    texts = [rf"\boxed{{{hard[n % len(hard)]()}}}" for n in range(48)]
    texts += [f"{number()} " * pick.choice([10, 100_000]) + r"\boxed{" for _ in range(60)]
    texts += [rf"so \boxed{{{pick.choice(easy)()}}}" for _ in range(4_892)]
    pick.shuffle(texts)
    return texts


def judge_hostile_completions(texts):
    """Runs in a process of its own, so that its greediest child is a verifier's."""
    with BoxVerifier(timeout_s=1.0) as verifier:
        verdicts = [verifier.verify(r"\frac{5}{7}", text) for text in texts]
        still_works = verifier.verify(*RIGHT) is CORRECT
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # KiB, or bytes on macOS
    return verdicts, peak >> (20 if sys.platform == "darwin" else 10), still_works


@pytest.mark.slow
def test_five_thousand_hostile_completions_take_bounded_time_and_memory():
    texts = hostile_completions(seed=1)
    assert len(texts) == 5_000
    begin = time.monotonic()
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:  # side by side
        found = list(pool.map(judge_hostile_completions, (texts[::2], texts[1::2])))
    seconds = time.monotonic() - begin
    verdicts = found[0][0] + found[1][0]
    peak = max(half[1] for half in found)
    counts = {verdict.value: verdicts.count(verdict) for verdict in Verdict}
    print(f"{counts}, {seconds:.0f} s, peak {peak} MiB")
    assert all(half[2] for half in found)
    assert counts["correct"] == counts["truncated"] == 0
    assert 20 <= counts["timeout"] <= 60
    assert seconds < 900  # about 50 on two quiet cores; 2,500 if each ran into its limit
    assert peak < 2 << 10


def honest_pairs(count, seed):
    """Answers of the kinds that problem sets have, half of them equal to the other side."""
    pick = random.Random(seed)

    def draw(kind):
        a, b, k = pick.randrange(1, 60), pick.randrange(2, 60), pick.randrange(2, 9)
        n, cents, root = (pick.randrange(low, 9_000) for low in (-5_000, 1, 2))
        root = root % 6 + 2
        return [  # an answer, ways to write the same
            (rf"\frac{{{a}}}{{{b}}}", [f"{k * a}/{k * b}", rf"\dfrac{{{a}}}{{{b}}}"]),
            (f"{cents / 100}", [rf"\frac{{{cents}}}{{100}}", f"{cents / 100:.3f}"]),
            (str(n), [str(n), f"{n:,}", f"{n}.0", rf"\frac{{{2 * n}}}{{2}}", f"x={n}"]),
            (rf"{k}\sqrt{{{root}}}", [rf"\sqrt{{{k * k * root}}}", f"{k * root**0.5:.9f}"]),
            (f"{root}^{{{k}}}", [str(root**k), rf"{root} \cdot {root}^{{{k - 1}}}"]),
            (f"(x+{a})(x+{b})", [f"x^2+{a + b}x+{a * b}", f"(x+{b})(x+{a})"]),
            (f"({a}, {b})", [rf"\left({a}, {b}\right)"]),
        ][kind]

    for n in range(count):
        kind = pick.randrange(7)
        answer, equals = draw(kind)
        yield answer, pick.choice(equals if n % 2 else draw(kind)[1])


def plain_math_verify(answer, box):
    from math_verify import parse, verify

    return verify(parse(f"\\boxed{{{answer}}}"), parse(f"\\boxed{{{box}}}"))


@pytest.mark.parametrize("count", [12, pytest.param(1_000, marks=pytest.mark.slow)])
def test_same_verdict_as_math_verify_called_plainly_on_honest_pairs(verifier, count):
    pairs = list(honest_pairs(count, seed=count))
    items = [(a, rf"so it is \boxed{{{b}}}.", True) for a, b in pairs]
    with ThreadPoolExecutor(1) as pool:  # beside math-verify, which wants the main thread
        ours = pool.submit(lambda: [verifier.verify(*item) for item in items])
        plain = [plain_math_verify(*pair) for pair in pairs]
    assert set(ours.result()) == {CORRECT, WRONG}
    assert [verdict is CORRECT for verdict in ours.result()] == plain
    assert 0.4 < sum(plain) / count < 0.7
