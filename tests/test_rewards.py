r"""The verifier: every row of the known traps, hostile completions, a child that is killed.

`\boxed{...}` texts are raw strings; a line of a table is answer, completion, verdict.
"""

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mrl.rewards
from mrl.errors import MrlError
from mrl.rewards import MAX_BOX_CHARS, Verifier, last_box
from mrl.samples import Verdict

ROOT = Path(__file__).resolve().parent.parent
NO_CHILD = (sys.executable, "-c", "raise SystemExit(1)")
SLOW_BOX = r"\boxed{10^{10^{10}}}"  # math-verify works on it until its limit

# A child that passes its own test and then hangs on everything, whatever interrupts it.
HANGING = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
import mrl.judge as judging
real = judging.judge
def judge(answer, box, limit_s):
    while box == "x":
        try:
            time.sleep(60)
        except BaseException:
            pass
    return real(answer, box, limit_s)
judging.judge = judge
judging.serve(float(sys.argv[1]), int(sys.argv[2]))
"""


def saying(word):
    """A child that says it is ready and gives every completion the same verdict."""
    code = f"print('ready', flush=True)\nwhile input():\n    print({word!r}, flush=True)"
    return (sys.executable, "-c", code)


def fake(command, timeout_s=2.0):
    verifier = Verifier(timeout_s=timeout_s)
    verifier.command = command
    return verifier


@pytest.fixture(scope="module")
def verifier():
    with Verifier() as verifier:
        yield verifier


@pytest.fixture(scope="module")
def impatient():
    with Verifier(timeout_s=1.0) as verifier:
        yield verifier


# ---------------------------------------------------------------------------------- the box


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("", None),
        ("42", None),
        (r"\boxed", None),
        (r"\boxed{", None),
        (r"\boxed{42", None),
        (r"\boxed42}", None),
        (r"boxed{42}", None),
        (r"\fbox{42}", None),
        (r"\boxed{}", ""),
        (r"\boxed{42}", "42"),
        (r"\boxed {42}", "42"),
        (r"\\boxed{42}", "42"),
        (r"so \boxed{ 42 } it is", "42"),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{1}\boxed{2}", "2"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\boxed{1 \boxed{2}", "2"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed{2^{10}} }", "2^{10}"),
        (r"} \boxed{7}", "7"),
        (r"{ \boxed{7}", "7"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{1\right.}", r"\left\{1\right"),
        (r"\boxed{\}", None),
        (r"\boxed{a\\}", r"a\\"),
        (r"\boxed{42.}", "42"),
        (r"\boxed{42. }", "42"),
        (r"\boxed{4.2}", "4.2"),
        ("\\boxed{4\n2}", "4\n2"),
    ],
)
def test_last_complete_box_is_found_by_counting_braces(text, content):
    assert last_box(text) == content


@given(st.lists(st.sampled_from(["{", "}", "\\", "\\boxed{", "7", "."]), max_size=40).map("".join))
def test_last_box_of_any_text_is_balanced_and_part_of_it(text):
    content = last_box(text)
    if content is not None and not content.endswith("\\"):  # else the box's end is escaped
        assert content in text
        assert last_box(f"\\boxed{{{content}}}") == content.removesuffix(".").strip()


@given(st.text(alphabet=st.characters(exclude_characters="{}\\."), max_size=60))
def test_last_box_returns_what_was_put_in(content):
    assert last_box(f"\\boxed{{x}} {content} \\boxed{{{content}}} {content}") == content.strip()


def test_last_box_of_a_huge_text_is_found_in_bounded_time():
    begin = time.monotonic()
    for text in (
        "\\boxed{" * 1_000_000,
        "{" * 5_000_000,
        "\\boxed   " * 1_000_000,
        "\\" * 5_000_000,
    ):
        assert last_box(text) is None
        assert last_box(text + r"} \boxed{8}") == "8"
    assert last_box(r"\boxed{1}" + " " * 10_000_000) is None  # too far back to be an answer
    assert time.monotonic() - begin < 5


# -------------------------------------------------------------------------------- the traps

CORRECT, WRONG, UNPARSED, TRUNCATED, TIMEOUT = (
    Verdict.CORRECT,
    Verdict.WRONG,
    Verdict.UNPARSED,
    Verdict.TRUNCATED,
    Verdict.TIMEOUT,
)


def test_called_off_the_main_thread_it_gives_the_same_verdicts():
    boxes = [(rf"\frac{{{n}}}{{7}}", rf"\boxed{{{m}/7}}", True) for n in range(6) for m in range(6)]
    expected = [CORRECT if n == m else WRONG for n in range(6) for m in range(6)]
    results = {}
    with Verifier() as verifier:

        def work(name):
            results[name] = verifier.verify_batch(boxes)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert verifier.verdicts == 4 * 36
        assert verifier.restarts == 0
    assert [results[name] for name in range(4)] == [expected] * 4


@pytest.mark.parametrize(
    "box", ["10^{10^{10}}", "100000000!", "2^{10000000000}", r"\int \frac{1}{x^5+x+1} dx"]
)
def test_expression_that_takes_for_ever_is_a_timeout(impatient, box):
    impatient.canary()
    first, begin = impatient._child.pid, time.monotonic()
    assert impatient.verify("7", rf"\boxed{{{box}}}") is TIMEOUT
    assert 1 <= time.monotonic() - begin < 4
    assert impatient.verify("1/2", r"\boxed{0.5}") is CORRECT
    impatient.canary()
    assert impatient._child.pid != first


def test_gold_without_dollars_or_box_is_read(verifier):
    assert verifier.check_answer(r"\sqrt{2}")
    assert verifier.verify(r"\sqrt{2}", r"\boxed{2^{1/2}}") is CORRECT
    assert verifier.verify(r"\sqrt{2}", r"\boxed{\sqrt{3}}") is WRONG


@pytest.mark.parametrize(
    "answer",
    ["", " ", "???", "{", "}", r"\frac{1}{", r"7} \boxed{8", "7}{", r"\boxed{7}", r"\boxed{7",
     "0/0", r"\frac{1}{0}", "9" * (MAX_BOX_CHARS + 1), "\0", "\ud800", "7\\"],
)  # fmt: skip
def test_answer_that_does_not_equal_itself_is_refused(verifier, answer):
    assert not verifier.check_answer(answer)


@pytest.mark.parametrize(
    "answer",
    ["7", "-7", "1,234", "0.5", "1/2", r"\frac{1}{2}", "42.", "yes", r"\text{yes}", "x", "x=7",
     "x^2+1", "1, 2", "(1,2)", "[0,1)", r"\{1,2\}", r"\pm 2", "x>1", r"50\%", "1+i", r"\infty",
     r"\begin{pmatrix}1\\2\end{pmatrix}", "3x-y+13=0", "2^{-99}", "9" * MAX_BOX_CHARS],
)  # fmt: skip
def test_honest_answer_equals_itself(verifier, answer):
    assert verifier.check_answer(answer)


@pytest.mark.parametrize("completion", [r"\boxed{42.}", r"\boxed{42}.", r"\boxed{42 . }"])
def test_full_stop_inside_the_box_is_no_part_of_the_answer(verifier, completion):
    assert verifier.verify("42", completion) is CORRECT
    assert verifier.verify("42.", completion) is CORRECT


def test_full_stop_after_latex_is_no_part_of_the_answer(verifier):
    assert verifier.verify(r"\frac{1}{2}", r"\boxed{\frac{1}{2}.}") is CORRECT


def test_only_the_last_of_two_boxes_counts(verifier):
    assert verifier.verify("1/2", r"\boxed{1/2}, \boxed{1/3}") is WRONG
    assert verifier.verify("1/2", r"\boxed{1/3}, \boxed{1/2}") is CORRECT
    assert verifier.verify("1/2", r"\boxed{1/3} \boxed{1/2} but \boxed{1/4") is CORRECT
    assert verifier.verify(r"\{1,2\}", r"\boxed{1} and \boxed{2}") is WRONG


@pytest.mark.parametrize("text", ["", "42", "The answer is 42.", "$42$", r"\boxed{}", r"\boxed{.}"])
def test_number_outside_a_box_does_not_count(verifier, text):
    assert verifier.verify("42", text) is UNPARSED
    assert verifier.verify("42", text + r" \boxed{4", finished=False) in (UNPARSED, TRUNCATED)


def test_missing_box_is_truncated_if_the_completion_was_cut(verifier):
    assert verifier.verify("42", r"so it is \boxed{4", finished=False) is TRUNCATED
    assert verifier.verify("42", r"so it is \boxed{4", finished=True) is UNPARSED
    assert verifier.verify("42", r"so it is \boxed{42} beca", finished=False) is CORRECT


@pytest.mark.parametrize(
    ("answer", "box", "verdict"),
    [
        ("1, 2", "1, 2", CORRECT),
        ("1, 2", "2, 1", CORRECT),
        ("1, 2", r"\{1, 2\}", CORRECT),
        ("1, 2", r"1 \text{ and } 2", CORRECT),
        ("1, 2", "1", WRONG),
        ("1, 2", "2", WRONG),
        ("1, 2", "1, 2, 3", WRONG),
        ("1, 2", "1, 3", WRONG),
        ("1, 2", "12", WRONG),
        (r"\{1, 2\}", "1", WRONG),
        (r"\{1, 2\}", r"\{2, 1\}", CORRECT),
        (r"1 \text{ or } 2", "2", WRONG),
        (r"x=1 \text{ or } x=2", "x=1", WRONG),
        (r"\pm 2", "2", WRONG),
        (r"\pm 2", "-2, 2", CORRECT),
        ("7", r"\pm 7", WRONG),
        ("7", "7, 8", WRONG),
        ("7", "7 or 8", WRONG),
        ("7", r"\{7, 8\}", WRONG),
        ("(1, 2, 3)", "(1, 2, 3)", CORRECT),
        ("(1, 2, 3)", "(3, 2, 1)", WRONG),
        ("(1, 2, 3)", "3", WRONG),
        ("(1, 2)", "(2, 1)", WRONG),
        ("(1, 2)", "1", WRONG),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}", WRONG),
    ],
)
def test_one_of_several_values_is_not_enough(verifier, answer, box, verdict):
    assert verifier.verify(answer, rf"\boxed{{{box}}}") is verdict


@pytest.mark.parametrize(
    ("answer", "box"),
    [
        ("1-1/e", "1+1/e"),
        ("1-1/e", "1+..."),
        ("1-1/e", r"1+\ldots"),
        ("3x-y+13=0", "3x+4y+14=0"),
        ("2^{-99}", "2^{-98}"),
        (r"\frac{1}{10^{30}}", r"\frac{1}{10^{31}}"),
        ("e^{-99}", "e^{-98}"),
        (r"\sqrt{2} \cdot 10^{-20}", r"\sqrt{3} \cdot 10^{-20}"),
        (r"\sqrt{2}", r"\sqrt{2}+10^{-16}"),
        ("0.0000001", "0.0000002"),
        ("12345678901234567890", "12345678901234567891"),
        ("9" * 400, "9" * 399 + "8"),
    ],
)
def test_known_false_positive_is_not_right(verifier, answer, box):
    assert verifier.check_answer(answer)
    expected = UNPARSED if box.endswith(("...", r"\ldots")) else WRONG
    assert verifier.verify(answer, rf"\boxed{{{box}}}") is expected


@pytest.mark.parametrize(
    ("answer", "box"),
    [
        ("1/3", "0.333333"),
        (r"\frac{1}{3000}", "0.000333"),
        (r"\sqrt{2}", "1.41421356"),
        (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"),
        ("0", r"(\sqrt{2}+1)(\sqrt{2}-1)-1"),
        (r"\frac{1}{2}", r"\int_0^1 x dx"),
        ("2^{-99}", r"\frac{1}{2^{99}}"),
        ("1+i", "i+1"),
        (r"\infty", r"+\infty"),
        ("(x+1)^2", "x^2+2x+1"),
    ],
)
def test_stricter_comparison_keeps_what_is_equal(verifier, answer, box):
    assert verifier.verify(answer, rf"\boxed{{{box}}}") is CORRECT


def test_docstring_is_right_about_what_is_not_guarded(verifier):
    assert verifier.verify("0.5", r"\boxed{50\%}") is CORRECT
    assert verifier.verify("50", r"\boxed{50\%}") is CORRECT
    assert verifier.verify("7", r"\boxed{8=7}") is CORRECT
    assert verifier.verify("0.123456", r"\boxed{0.1234564}") is CORRECT
    assert verifier.verify(r"\{2^{-99}, 1\}", r"\boxed{\{2^{-98}, 1\}}") is CORRECT


def test_answer_of_the_problem_comes_first(verifier):
    assert verifier.verify("x>1", r"\boxed{(1,\infty)}") is CORRECT
    assert verifier.verify(r"(1,\infty)", r"\boxed{x>1}") is WRONG


@pytest.mark.parametrize(
    ("answer", "completion", "finished", "verdict"),
    [
        ("1/2", "", True, UNPARSED),
        ("1/2", "", False, TRUNCATED),
        ("1/2", r"\boxed{1/2", True, UNPARSED),
        ("1/2", r"\boxed{}", True, UNPARSED),
        ("1/2", r"\boxed{\frac{1}{}", True, UNPARSED),
        ("1/2", r"\boxed{\frac{1}{}}", True, UNPARSED),
        ("1/2", r"\boxed{???}", True, UNPARSED),
        ("1/2", r"\boxed{1/3}", True, WRONG),
    ],
)
def test_nothing_to_read_is_not_the_same_as_wrong(verifier, answer, completion, finished, verdict):
    assert verifier.verify(answer, completion, finished) is verdict


# ------------------------------------------------------------- integers and words, in the parent


@pytest.mark.parametrize(
    ("answer", "box", "verdict"),
    [
        ("42", "42", CORRECT),
        ("42", "+42", CORRECT),
        ("42", "-42", WRONG),
        ("42", "042", CORRECT),
        ("0", "-0", CORRECT),
        ("1234", "1,234", CORRECT),
        ("1,234", "1234", CORRECT),
        ("1234567", "1,234,567", CORRECT),
        ("1234", "1{,}234", CORRECT),
        ("1234", r"1,\!234", CORRECT),
        ("1234", r"1\,234", CORRECT),
        ("-1234", "-1,234", CORRECT),
        ("1234", "1,235", WRONG),
        ("yes", "Yes", CORRECT),
        ("yes", r"\text{yes}", CORRECT),
        ("yes", r"\textbf{ Yes }", CORRECT),
        ("eats", "tase", WRONG),
        (r"\text{eats}", "tase", WRONG),
        ("no", "on", WRONG),
    ],
)
def test_integers_and_words_are_compared_without_a_child(answer, box, verdict):
    with fake(NO_CHILD) as childless:
        assert childless.verify(answer, rf"\boxed{{{box}}}") is verdict
        assert (childless.verdicts, childless.asked) == (1, 0)


@pytest.mark.parametrize("box", ["12,34", "1,23", "1, 234", "1234,", "0,123", ",234", "1,2345"])
def test_doubtful_comma_makes_no_integer(verifier, box):
    for answer in ("1234", "123", "12345"):
        assert verifier.verify(answer, rf"\boxed{{{box}}}") is not CORRECT


@pytest.mark.parametrize("box", ["42.0", "84/2", r"\frac{84}{2}", "$42$", "x=42", r"42\text{ cm}"])
def test_integer_in_another_dress_is_judged_by_math_verify(verifier, box):
    assert verifier.verify("42", rf"\boxed{{{box}}}") is CORRECT
    assert verifier.verify("43", rf"\boxed{{{box}}}") is WRONG


def test_thousands_of_digits_are_no_error(verifier):
    digits = "1" + ",000" * 450  # 1,801 characters
    assert verifier.verify(digits, rf"\boxed{{{digits}}}") is CORRECT
    assert verifier.verify("7", rf"\boxed{{{digits + ',000' * 5_000}}}") is WRONG
    assert verifier.verify("7", rf"\boxed{{{'7' * 10_000}}}") is WRONG


def test_box_over_the_size_cap_is_wrong_and_never_sent():
    with fake(NO_CHILD) as childless:
        assert childless.verify("x", rf"\boxed{{{'x+' * MAX_BOX_CHARS}x}}") is WRONG
        assert childless.verify("x+" * MAX_BOX_CHARS, r"\boxed{x}") is WRONG


def test_batch_keeps_its_order(verifier):
    table = [
        (("1/2", r"\boxed{0.5}", True), CORRECT),
        (("7", r"\boxed{8}", True), WRONG),
        (("7", "7", True), UNPARSED),
        (("7", "7", False), TRUNCATED),
        (("1/2", r"\boxed{0.6}", True), WRONG),
        (("7", r"\boxed{7}", True), CORRECT),
    ]
    items, expected = [item for item, _ in table], [verdict for _, verdict in table]
    assert verifier.verify_batch(items) == expected
    assert verifier.verify_batch(items[::-1]) == expected[::-1]
    assert verifier.verify_batch([]) == []


# -------------------------------------------------------------------------------- the cache


def test_repeated_answer_does_not_reach_the_child_again():
    with Verifier() as verifier:
        for _ in range(50):
            assert verifier.verify("1/2", r"\boxed{0.5}") is CORRECT
            assert verifier.verify("1/3", r"\boxed{0.5}") is WRONG
        assert (verifier.verdicts, verifier.asked) == (100, 2)


def test_cache_is_bounded_and_forgets_the_oldest(monkeypatch):
    monkeypatch.setattr(mrl.rewards, "CACHE_SIZE", 3)
    with fake(saying("wrong")) as verifier:
        for number in (1, 2, 3, 1, 4):  # 2 is now the oldest
            verifier.verify("1/7", rf"\boxed{{{number}}}")
        assert (len(verifier._cache), verifier.asked) == (3, 4)
        verifier.verify("1/7", r"\boxed{1}")
        assert verifier.asked == 4
        verifier.verify("1/7", r"\boxed{2}")
        assert verifier.asked == 5


def test_timeout_is_tried_a_second_time_and_then_remembered():
    with fake((sys.executable, "-c", HANGING), timeout_s=0.2) as verifier:
        for _ in range(5):
            assert verifier.verify("7", r"\boxed{x}") is TIMEOUT
        assert (verifier.verdicts, verifier.asked, verifier.timeouts) == (5, 2, 2)


# ------------------------------------------------------------------- a child that hangs or dies


def test_hanging_child_is_killed_at_the_limit():
    with fake((sys.executable, "-c", HANGING), timeout_s=0.3) as verifier:
        verifier.canary()
        begin = time.monotonic()
        assert verifier.verify("7", r"\boxed{x}") is TIMEOUT
        assert 0.3 <= time.monotonic() - begin < 2
        assert verifier.verify("1/2", r"\boxed{0.5}") is CORRECT
        assert (verifier.timeouts, verifier.restarts) == (1, 1)


def test_stopped_child_is_replaced():
    with Verifier(timeout_s=0.5) as verifier:
        verifier.canary()
        os.kill(verifier._child.pid, signal.SIGSTOP)
        assert verifier.verify("1/2", r"\boxed{0.5}") is TIMEOUT
        assert verifier.verify("1/2", r"\boxed{0.5}") is CORRECT


def test_child_killed_while_judging_costs_one_verdict():
    with Verifier(timeout_s=30) as verifier:
        verifier.canary()
        killer = threading.Timer(0.4, os.kill, (verifier._child.pid, signal.SIGKILL))
        killer.start()
        begin = time.monotonic()
        verdicts = verifier.verify_batch(
            [("7", SLOW_BOX, True), ("1/2", r"\boxed{0.5}", True), ("1/2", r"\boxed{0.6}", True)]
        )
        assert time.monotonic() - begin < 10  # the death is noticed, not waited for
        assert verdicts == [TIMEOUT, CORRECT, WRONG]
        assert (verifier.timeouts, verifier.restarts) == (1, 1)


def test_child_killed_while_idle_costs_nothing():
    with Verifier() as verifier:
        verifier.canary()
        os.kill(verifier._child.pid, signal.SIGKILL)
        verifier._child.wait()
        assert verifier.verify("1/2", r"\boxed{0.5}") is CORRECT
        assert (verifier.timeouts, verifier.restarts) == (0, 1)


def test_late_reply_is_not_taken_for_the_next_verdict_after_an_interrupt(monkeypatch):
    with Verifier() as verifier:
        verifier.canary()
        real = mrl.rewards.select.select

        def interrupted(*args):
            monkeypatch.setattr(mrl.rewards.select, "select", real)
            raise KeyboardInterrupt

        monkeypatch.setattr(mrl.rewards.select, "select", interrupted)
        with pytest.raises(KeyboardInterrupt):
            verifier.verify("1/2", r"\boxed{0.6}")
        assert verifier.verify("1/2", r"\boxed{0.5}") is CORRECT


def test_child_is_out_of_reach_of_the_terminals_interrupt():
    with Verifier() as verifier:
        verifier.canary()
        assert os.getsid(verifier._child.pid) != os.getsid(0)


def test_closed_verifier_has_no_child_and_can_be_used_again():
    verifier = Verifier()
    verifier.close()
    assert verifier.verify("1/2", r"\boxed{0.5}") is CORRECT
    child = verifier._child
    verifier.close()
    verifier.close()
    assert child.returncode is not None
    assert verifier.verify("1/2", r"\boxed{0.6}") is WRONG
    verifier.close()


@pytest.mark.skipif(not Path("/proc").exists(), reason="reads the limit from /proc")
def test_child_has_an_address_space_limit():
    with Verifier(memory_limit_bytes=500 << 20) as verifier:
        verifier.canary()
        limits = Path(f"/proc/{verifier._child.pid}/limits").read_text().splitlines()
        (line,) = [line for line in limits if line.startswith("Max address space")]
        assert str(500 << 20) in line


def test_expression_over_the_memory_limit_is_no_right_answer_and_the_next_is_judged():
    with Verifier(memory_limit_bytes=150 << 20) as verifier:
        assert verifier.verify("7", r"\boxed{2^{10000000000}+x}") is not CORRECT
        assert verifier.verify("1/2", r"\boxed{0.5}") is CORRECT


def alone(code, argument="", cwd=None):
    """Start a Python program that can import mrl, and return it."""
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys\nsys.path.append({str(ROOT)!r})\n{code}", argument],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")  # nobody may be there to bury an orphan
    return not (status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] == "Z")


@pytest.mark.parametrize("box", ["0.5", "10^{10^{10}}"])
def test_child_ends_when_its_parent_is_killed(box):
    parent = alone(
        "from mrl.rewards import Verifier\n"
        "verifier = Verifier(timeout_s=0.8)\n"
        "verifier.canary()\n"
        "print(verifier._child.pid, flush=True)\n"
        "verifier.verify('1/3', '\\\\boxed{' + sys.argv[1] + '}'); input()",
        box,
    )
    with parent:
        child = int(parent.stdout.readline())
        time.sleep(0.3)
        assert is_running(child)
        parent.kill()
    deadline = time.monotonic() + 8
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


def test_child_that_nothing_interrupts_ends_itself_without_a_parent():
    child = subprocess.Popen(
        [sys.executable, "-c", HANGING, "0.3", str(2 << 30)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert child.stdout.readline() == b"ready\n"
        child.stdin.write(b'{"answer": "7", "box": "x"}\n')
        child.stdin.flush()
        assert child.wait(timeout=10) != 0
    finally:
        child.kill()
        child.communicate()


def test_what_a_library_prints_is_not_taken_for_a_verdict():
    printing = "lambda *args, **named: print('correct', flush=True) or real(*args, **named)"
    code = HANGING.replace("judging.judge = judge", f"judging.judge = {printing}")
    with fake((sys.executable, "-c", code)) as verifier:
        assert verifier.verify("1/2", r"\boxed{0.6}") is WRONG
        assert verifier.verify("1/2", r"\boxed{0.5}") is CORRECT


# ------------------------------------------------------------------------- a broken verifier


def test_canary_is_quiet_when_all_is_well(verifier):
    verifier.canary()


@pytest.mark.parametrize("word", ["correct", "wrong", "unparsed", "timeout"])
def test_canary_notices_a_verifier_that_says_the_same_of_everything(word):
    with fake(saying(word)) as broken, pytest.raises(MrlError, match="verifier is broken"):
        broken.canary()


def test_canary_is_not_fooled_by_the_cache():
    with Verifier() as verifier:
        verifier.verify(r"\frac{1}{2}", r"\boxed{0.5}")
        verifier.verify(r"\frac{1}{2}", r"\boxed{0.6}")
        verifier.close()
        verifier.command = saying("wrong")
        with pytest.raises(MrlError):
            verifier.canary()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (NO_CHILD, "says nothing"),
        ((sys.executable, "-c", "print('hello', flush=True); input()"), "hello"),
        (("/no/such/program",), "No such file"),
        ((sys.executable, "-I", "-S", "-c", HANGING), "math_verify"),  # without site-packages
    ],
)
def test_child_that_does_not_start_is_an_error_in_one_sentence(command, reason):
    with fake(command) as broken:
        for ask in (broken.canary, lambda: broken.verify("1/2", r"\boxed{0.5}")):
            with pytest.raises(MrlError, match=reason) as error:
                ask()
            assert "math-verify" in str(error.value)
            assert "\n" not in str(error.value)


def test_math_verify_that_fails_on_everything_does_not_start():
    code = HANGING.replace("judging.judge = judge", "judging._read = lambda text, limit_s: []")
    with fake((sys.executable, "-c", code)) as broken, pytest.raises(MrlError, match="own test"):
        broken.canary()


# --------------------------------------------------------------------------- where it runs


def test_import_is_cheap():
    program = alone(
        "import mrl.rewards\nprint([m for m in ('torch', 'sympy', 'math_verify', 'transformers')"
        " if m in sys.modules])"
    )
    assert program.communicate(timeout=60)[0] == "[]\n"


def test_works_in_a_script_from_another_directory_with_misleading_files(tmp_path):
    for name in ("math_verify.py", "json.py", "mrl.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong file')")
    script = tmp_path / "sub" / "script.py"
    script.parent.mkdir()
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from mrl.rewards import Verifier\n"  # no guard for __main__ is needed
        "with Verifier() as verifier:\n    print(verifier.verify('1/2', '\\\\boxed{0.5}'))\n"
    )
    run = [sys.executable, str(script)]
    assert subprocess.run(run, cwd=tmp_path, capture_output=True).stdout == b"correct\n"


# ------------------------------------------------------------------------- hostile completions

HOSTILE_BOXES = {
    "NUL": "7\0",
    "only NUL": "\0" * 1_000,
    "escape sequence": "\x1b[31m7\x1b[0m",
    "bell and backspace": "8\b7\a",
    "newline, as JSON lines hate it": '7\n{"answer": "1", "box": "1"}\n',
    "carriage return": "7\r\n",
    "lone objective": "\ud800",
    "lone surrogates around a number": "\udfff7\udc00",
    "text direction": "\u202e7",
    "full-width digit": "８",
    "replacement characters": "\ufffd" * 100,
    "line separators": "7\u2028\u2029\x85",
    "unbalanced LaTeX": r"\frac{1}{\left(\sqrt{2}",
    "left without right": r"\left(" * 50,
    "backslashes": "\\ " * 500,
    "dollars": "$" * 501,
    "percent": "%",
    "bars": "|" * 100,
    "environment without end": r"\begin{pmatrix}" * 50,
    "endless matrix": r"\begin{pmatrix}" + "1&" * 300 + r"1\end{pmatrix}",
    "endless column": r"\begin{pmatrix}" + r"1\\" * 300 + r"1\end{pmatrix}",
    "Python code": "__import__('os').system('touch /tmp/never')",
    "Python expression": "(lambda: 7)()",
    "print": "print(7)",
    "JSON": '{"verdict": "correct"}',
    "a verdict": "correct",
    "deep fractions": r"\frac{1}{" * 12 + "2" + "}" * 12,
    "deep roots": r"\sqrt{" * 12 + "2" + "}" * 12,
    "deep parentheses": "(" * 8 + "8" + ")" * 8,
    "nested boxes": r"\boxed{" * 30 + "8" + "}" * 30,
    "huge float": "1e400",
    "infinite": r"\infty-\infty",
    "division by nothing": r"\frac{0}{0}",
    "chain": "1=2=3=4=5=6",
    "long sum": "1+" * 200 + "1",
    "not a number": r"\text{NaN}",
    "emoji": "7️⃣🙂",
}


@pytest.mark.parametrize("name", HOSTILE_BOXES)
def test_hostile_box_gets_a_verdict_and_no_reward(verifier, name):
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
    """5,000 texts, nearly all different, 40 of which take math-verify to its limit."""
    pick = random.Random(seed)

    def number():
        return pick.randrange(10**6, 10**8)

    hard = (
        lambda: f"{number()}^{{{number()}^{{{number()}}}}}",  # a tower of powers
        lambda: f"{number()}!",
        lambda: f"{pick.randrange(2, 99)}^{{{number()}00}}+x",
        lambda: rf"\int \frac{{1}}{{x^5+{number()}x+1}} dx",
        lambda: "(" * 60 + str(number()) + ")" * 60,
    )
    easy = (
        lambda: r"\frac{" * pick.randrange(3, 9) + str(number()),  # unbalanced
        lambda: r"\boxed{" * 5 + rf"\frac{{{number()}}}{{7}}" + "}" * 5,
        lambda: f"{number()}\0{number()}",
        lambda: "\ud800" + str(number()),
        lambda: f"__import__('os').system('echo {number()}')",
        lambda: f"def f(x):\n    return {number()}\nprint(f(1))",
        lambda: r"\begin{pmatrix}" + "&".join([str(number())] * 40),
        lambda: r"\begin{pmatrix}" + "&".join([str(number())] * 10) + r"\end{pmatrix}",
        lambda: f"\x1b[2J{number()}",
        lambda: f"{number()}{'0' * 3_000}",
        lambda: rf"\left( {number()} \right]",
        lambda: rf"{number()}=x=y={number()}",
    )
    texts = [rf"\boxed{{{hard[n % len(hard)]()}}}" for n in range(40)]
    texts += [f"{number()} " * pick.choice([10, 100_000]) + r"\boxed{" for _ in range(60)]
    texts += [rf"so \boxed{{{pick.choice(easy)()}}}" for _ in range(4_900)]
    pick.shuffle(texts)
    return texts


def judge_hostile_completions():
    """Runs in a process of its own, so that its greediest child is a verifier's."""
    texts = hostile_completions(seed=1)
    begin = time.monotonic()
    with Verifier(timeout_s=1.0) as verifier:
        verdicts = verifier.verify_batch([(r"\frac{5}{7}", text, True) for text in texts])
        seconds = time.monotonic() - begin
        still_works = verifier.verify("1/2", r"\boxed{0.5}") is CORRECT
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # KiB, or bytes on macOS
    return {
        "verdicts": {verdict.value: verdicts.count(verdict) for verdict in Verdict},
        "seconds": round(seconds),
        "asked": verifier.asked,
        "timeouts": verifier.timeouts,
        "restarts": verifier.restarts,
        "peak MiB": peak >> (20 if sys.platform == "darwin" else 10),
        "still works": still_works,
    }


@pytest.mark.slow
def test_five_thousand_hostile_completions_take_bounded_time_and_memory():
    assert len(hostile_completions(seed=1)) == 5_000
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = pool.submit(judge_hostile_completions).result()
    print(found)
    assert found["still works"]
    assert found["verdicts"]["correct"] == found["verdicts"]["truncated"] == 0
    assert found["verdicts"]["timeout"] <= 60
    assert found["asked"] > 4_000  # the cache has not made it easy
    assert found["seconds"] < 240
    assert found["peak MiB"] < 2 << 10


# ------------------------------------------------------------------------------ honest pairs


def honest_pairs(count, seed):
    """Answers of the kinds that problem sets have, half of them equal to the other side."""
    pick = random.Random(seed)

    def small():
        return pick.randrange(1, 60)

    def fraction():
        n, d, k = small(), pick.randrange(2, 30), pick.randrange(1, 5)
        return rf"\frac{{{n}}}{{{d}}}", [f"{k * n}/{k * d}", rf"\dfrac{{{n}}}{{{d}}}"]

    def decimal():
        n = pick.randrange(1, 10_000)
        return f"{n / 100}", [rf"\frac{{{n}}}{{100}}", f"{n / 100:.3f}"]

    def integer():
        n = pick.randrange(-5_000, 5_000)
        return str(n), [str(n), f"{n:,}", f"{n}.0", rf"\frac{{{2 * n}}}{{2}}", f"x={n}"]

    def surd():
        n, k = pick.choice([2, 3, 5, 6, 7]), pick.randrange(2, 9)
        return rf"{k}\sqrt{{{n}}}", [rf"\sqrt{{{k * k * n}}}", f"{k * n**0.5:.9f}"]

    def power():
        n, k = pick.randrange(2, 6), pick.randrange(2, 9)
        return f"{n}^{{{k}}}", [str(n**k), rf"{n} \cdot {n}^{{{k - 1}}}"]

    def polynomial():
        a, b = small(), small()
        return f"(x+{a})(x+{b})", [f"x^2+{a + b}x+{a * b}", f"(x+{b})(x+{a})"]

    def pair():
        a, b = pick.sample(range(60), 2)
        return f"({a}, {b})", [rf"\left({a}, {b}\right)"]

    kinds = (fraction, decimal, integer, integer, surd, power, polynomial, pair)
    for n in range(count):
        kind = pick.choice(kinds)
        answer, equals = kind()
        yield answer, pick.choice(equals if n % 2 else kind()[1])


def plain_math_verify(answer, box):
    from math_verify import parse, verify

    return verify(parse(f"\\boxed{{{answer}}}"), parse(f"\\boxed{{{box}}}"))


@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=pytest.mark.slow)])
def test_same_verdict_as_math_verify_called_plainly_on_honest_pairs(verifier, count):
    pairs = list(honest_pairs(count, seed=count))
    ours = verifier.verify_batch([(a, rf"so it is \boxed{{{b}}}.", True) for a, b in pairs])
    assert set(ours) == {CORRECT, WRONG}
    differing = [
        (pair, verdict)
        for pair, verdict in zip(pairs, ours, strict=True)
        if plain_math_verify(*pair) != (verdict is CORRECT)
    ]
    assert differing == []
    assert 0.45 < ours.count(CORRECT) / count < 0.6


@pytest.mark.parametrize(
    ("answer", "box"),
    [("3", "1 2"), ("9", "4 $5$"), ("7", r"3 \ 4"), ("8", r"7 \quad 1"), ("3", "1~2")],
)
def test_a_row_of_guesses_is_not_rewarded_for_its_sum(verifier, answer, box):
    assert verifier.verify(answer, rf"\boxed{{{box}}}") is Verdict.UNPARSED


def test_a_mixed_number_is_no_row_of_guesses(verifier):
    assert verifier.verify("3/2", r"\boxed{1 \frac{1}{2}}") is Verdict.CORRECT


def test_exact_numbers_that_differ_in_a_thousandth_are_not_equal(verifier):
    answer, box = "e^{-99}", r"\frac{1001}{1000} e^{-99}"
    assert verifier.verify(answer, rf"\boxed{{{box}}}") is Verdict.WRONG


def test_a_child_that_speaks_nonsense_is_a_timeout_and_breaks_the_canary(tmp_path):
    fake = tmp_path / "fake.py"
    fake.write_text(
        "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print('hm', flush=True)\n"
    )
    with Verifier() as broken:
        broken.command = (sys.executable, str(fake))
        assert broken.verify("1/2", r"\boxed{x^2}") is Verdict.TIMEOUT
        with pytest.raises(MrlError, match="verifier is broken"):
            broken.canary()
