import os
import signal
import sys
import threading
import time

import pytest

from mrl.errors import MrlError
from mrl.rewards import MAX_BOX_CHARS, Verdict, Verifier, last_box

CORRECT, WRONG = Verdict.CORRECT, Verdict.WRONG


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"so \boxed{9}", "9"),
        (r"\boxed{42.}", "42"),
        (r"\boxed{42}.", "42"),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{7} \boxed{8", "7"),
        (r"\boxed{7", None),
        (r"\boxed{}", ""),
        ("7", None),
        ("", None),
        (r"boxed{7}", None),
        ("\\boxed{7\\", None),
    ],
)
def test_the_last_complete_box_counting_braces(text, box):
    assert last_box(text) == box


@pytest.mark.parametrize(
    ("answer", "completion", "verdict"),
    [
        ("9", r"47-38: ... \boxed{9}", CORRECT),
        ("9", r"\boxed{8}", WRONG),
        ("42", r"\boxed{42.}", CORRECT),
        ("2", r"\boxed{1} then \boxed{2}", CORRECT),  # the last box alone, not a set of both
        ("1", r"\boxed{1} then \boxed{2}", WRONG),
        ("9", "the numbers 7, 8 and 9", Verdict.UNPARSED),  # no box: any number would count
        ("1000", r"\boxed{1,000}", CORRECT),
        ("1,000", r"\boxed{1000}", CORRECT),
        ("7", r"\boxed{007}", CORRECT),
        ("-7", r"\boxed{-7}", CORRECT),
        ("-7", r"\boxed{7}", WRONG),
        (r"\sqrt{2}", r"\boxed{\sqrt{2}}", CORRECT),  # a gold answer without $ or box
        (r"\frac{1}{2}", r"\boxed{0.5}", CORRECT),
        (r"\frac{1}{2}", r"\boxed{0.51}", WRONG),
        ("1, 2", r"\boxed{1}", WRONG),  # one of several values is not enough
        ("1, 2", r"\boxed{2, 1}", CORRECT),
        ("2^{-99}", r"\boxed{2^{-98}}", WRONG),  # equal in floating point only
        ("1-1/e", r"\boxed{1+1/e}", WRONG),
        ("3x-y+13=0", r"\boxed{3x+4y+14=0}", WRONG),
        ("99999999999999999999", r"\boxed{99999999999999999998}", WRONG),
        ("5", r"\boxed{}", Verdict.UNPARSED),
        ("5", r"\boxed{\frac{}", Verdict.UNPARSED),
    ],
)
def test_verdicts(verifier, answer, completion, verdict):
    assert verifier.verify(answer, completion) is verdict


def test_cut_before_its_answer_is_not_the_same_as_answered_without_a_box(verifier):
    assert verifier.verify("5", r"so \boxed{", finished=False) is Verdict.TRUNCATED
    assert verifier.verify("5", r"so \boxed{", finished=True) is Verdict.UNPARSED
    assert verifier.verify("5", r"\boxed{5} and then", finished=False) is CORRECT


def test_gold_comes_first(verifier):
    # math-verify takes an equation for its right side only if the gold answer is a number
    assert verifier.verify("5", r"\boxed{x=5}") is CORRECT


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [("5", True), (r"\sqrt{2}", True), ("3/4", True), ("1, 2", True), (r"\frac{", False),
     ("", False), ("{", False)],
)  # fmt: skip
def test_an_answer_must_equal_itself(verifier, answer, accepted):
    assert verifier.check_answer(answer) is accepted


@pytest.mark.parametrize(
    "box",
    [
        "10^{10^{10}}",
        "100000000!",
        "2^{10000000000}",
        r"\int_0^\infty e^{-x^{x}} dx",
        r"\frac{" * 300,
        "\x00",
        "\ud800",
        "1" * 5000,
        "9" * 3000 + "^{9}",
        r"\begin{matrix}" + "1 & " * 400,
        "__import__('os').system('echo hacked > /tmp/hacked')",
        r"\text{" + "a" * 1000,
        "((((" * 100,
        "\u202e5",
    ],
)
def test_hostile_answers_are_zero_within_the_limit(box):
    with Verifier(timeout_s=2.0) as verifier:
        verifier.canary()
        start = time.monotonic()
        verdict = verifier.verify("7/2", rf"\boxed{{{box}}}")
        assert verdict in (WRONG, Verdict.UNPARSED, Verdict.TIMEOUT)
        assert time.monotonic() - start < 4
        assert verifier.verify("7/2", r"\boxed{3.5}") is CORRECT  # and it still works


def test_megabytes_are_judged_at_once(verifier):
    for text in ("\\boxed{" * 200_000, "\\boxed{" + "1" * 3_000_000 + "}", "x" * 3_000_000):
        start = time.monotonic()
        assert verifier.verify("7/2", text) is not CORRECT
        assert time.monotonic() - start < 2


def test_an_answer_longer_than_the_limit_is_never_sent(verifier):
    asked = len(verifier._cache)
    assert verifier.verify("7/2", rf"\boxed{{{'1+' * MAX_BOX_CHARS}1}}") is not CORRECT
    assert len(verifier._cache) == asked


def test_a_killed_child_costs_one_verdict_at_most():
    with Verifier() as verifier:
        verifier.canary()
        killer = threading.Timer(0.3, os.kill, (verifier._child.pid, signal.SIGKILL))
        killer.start()
        verdict = verifier.verify("7/2", r"\boxed{10^{10^{10}}}")  # busy for about a second
        killer.join()
        assert verdict is Verdict.TIMEOUT
        assert (verifier.timeouts, verifier.restarts) == (1, 1)
        assert verifier.verify("7/2", r"\boxed{\frac{14}{4}}") is CORRECT
        assert verifier.restarts == 2


def test_a_child_that_hangs_is_killed_at_the_limit(tmp_path):
    fake = tmp_path / "fake.py"
    fake.write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    with Verifier(timeout_s=0.3) as verifier:
        verifier.command = (sys.executable, str(fake))
        start = time.monotonic()
        assert verifier.verify("1/2", r"\boxed{x}") is Verdict.TIMEOUT
        assert time.monotonic() - start < 3
        assert verifier._child is None


@pytest.mark.parametrize("always", ["correct", "wrong"])
def test_the_canary_notices_a_verifier_that_always_says_the_same(tmp_path, always):
    fake = tmp_path / "fake.py"
    fake.write_text(
        "import sys\nprint('ready', flush=True)\n"
        f"for line in sys.stdin: print('{always}', flush=True)\n"
    )
    with Verifier() as verifier:
        verifier.command = (sys.executable, str(fake))
        with pytest.raises(MrlError, match="verifier is broken"):
            verifier.canary()


def test_a_child_that_cannot_start_is_an_error_not_a_row_of_zeros(tmp_path):
    with Verifier() as verifier:
        verifier.command = (sys.executable, "-c", "raise SystemExit(1)")
        with pytest.raises(MrlError, match="does not start"):
            verifier.verify("1/2", r"\boxed{x}")


def test_verdicts_come_in_order_and_off_the_main_thread_too(verifier):
    items = [("1/2", r"\boxed{0.5}", True), ("1/2", "none", True), ("1/2", r"\boxed{0.4}", True)]
    want = [CORRECT, Verdict.UNPARSED, WRONG]
    got = []
    thread = threading.Thread(target=lambda: got.extend(verifier.verify_batch(items)))
    thread.start()
    thread.join()
    assert got == want == verifier.verify_batch(items)


def test_what_a_library_prints_is_no_verdict():
    """The child's replies go through a pipe of their own: stdout is pointed elsewhere."""
    with Verifier() as verifier:
        assert verifier.verify("1/2", r"\boxed{correct}") is not CORRECT


def test_the_working_directory_does_not_matter(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Verifier() as verifier:
        verifier.canary()


@pytest.mark.slow
def test_the_same_verdict_as_math_verify_called_plainly():
    import random

    from math_verify import LatexExtractionConfig, parse, verify

    rng = random.Random(0)

    def expression(value):
        n, d = value
        forms = [rf"\frac{{{n}}}{{{d}}}", f"{n}/{d}", rf"\frac{{{3 * n}}}{{{3 * d}}}",
                 rf"\sqrt{{{n * n}}}/{d}", rf"{n} \cdot {d}^{{-1}}"]  # fmt: skip
        return rng.choice(forms)

    pairs = []
    for _ in range(1000):
        value = rng.randint(1, 40), rng.randint(2, 40)
        other = value if rng.random() < 0.5 else (rng.randint(1, 40), rng.randint(2, 40))
        pairs.append((expression(value), expression(other)))
    config = {"extraction_config": [LatexExtractionConfig(boxed_match_priority=0)]}
    with Verifier(timeout_s=10) as verifier:
        for gold, given in pairs:
            sides = (parse(rf"\boxed{{{side}}}", **config) for side in (gold, given))
            plain = verify(*sides)
            assert (verifier.verify(gold, rf"\boxed{{{given}}}") is CORRECT) == plain, (gold, given)
