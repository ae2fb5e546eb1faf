r"""Verdicts on completions: math-verify, guarded. The verifier never hangs and never crashes.

The last `\boxed{...}` of a completion is its answer; nothing else counts. Two integers or two words
are compared exactly, everything else by math-verify: as mathematics, never evaluated as code.

- `1,234` is one integer (a comma before every three digits), `1, 234` and `12,34` are two.
- Two or more bare letters are a word: math-verify would multiply them, so that "on" equals "no".
- Two numbers side by side (`1 2`) are UNPARSED: math-verify would add them.
- Several values (`1,2`, `\{1,2\}`, `\pm 2`) are compared as one set, and tuples in their order: one
  of the values is not enough.
- Not guarded: math-verify takes `50\%` for 0.5 and for 50, the last side of `8=7` for 7, and rounds
  decimals to six places; inside sets, matrices and equations 1e-15 makes no difference to it.
- A verdict near the time limit depends on the machine.

The functions say what is right; `Verifier` and `serve` only keep math-verify within its limits.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from mrl.errors import MrlError
from mrl.samples import Group, Verdict

MAX_BOX_CHARS = 2_000  # a longer box is wrong, unread; no gold answer is as long
MAX_TEXT_CHARS = 100_000  # from the end of a completion: a box further back is not looked for
MEMORY_LIMIT_BYTES = 2 << 30  # the child's address space; it needs about 60 MB
CACHE_SIZE = 4_096  # (answer, box) pairs whose verdict is remembered
TRIES = 2  # one timeout may be the machine's fault, a second one is the answer's: remembered
START_LIMIT_S = 60  # importing math-verify takes 0.4 s on a quiet machine

# \boxed{ opens a box, { and } nest, \{ and \} are text, and so is \\ unless it is a doubled \\boxed
_BRACES = re.compile(r"\\boxed\s*\{|\\[{}]|\\\\(?!boxed)|[{}]")
_INTEGER = re.compile(r"[+-]?(?:[0-9]+|[1-9][0-9]{0,2}(?:(?:,|\{,\}|,\\!|\\,)[0-9]{3})+)")
_WORD = re.compile(r"([A-Za-z]{2,})|\\(?:text|textbf|mathrm)\{([A-Za-z ]+)\}")
# two numbers without a sign between them, unless the second begins a fraction, as in 1 1/2
_SIDE_BY_SIDE = re.compile(r"[0-9](?:\s|~|\$|\\[,;:! ]|\\q?quad)+[0-9]+(?![0-9]*\s*/)")


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
    return None if last is None else _tidy(text[slice(*last)])


def _tidy(text: str) -> str:
    """Without spaces around it and a full stop at its end (math-verify cannot read `42.`)."""
    return text.strip().removesuffix(".").strip()


def _exact(text: str) -> int | str | None:
    r"""The value of a plain integer; a word, bare or in `\text{}`, in small letters; else None."""
    if _INTEGER.fullmatch(text):
        return int(re.sub(r"[^0-9+-]", "", text))
    match = _WORD.fullmatch(text)
    return (match[1] or match[2]).strip().lower() if match else None


def plain_verdict(answer: str, box: str | None, finished: bool) -> Verdict | None:
    """The verdict as far as it needs no math-verify; None where it does."""
    if box is None and not finished:
        return Verdict.TRUNCATED
    if not box:
        return Verdict.UNPARSED
    if max(len(box), len(answer)) > MAX_BOX_CHARS:
        return Verdict.WRONG
    gold, given = _exact(answer), _exact(box)
    if gold is not None and type(gold) is type(given):
        return Verdict.CORRECT if gold == given else Verdict.WRONG
    return Verdict.UNPARSED if _SIDE_BY_SIDE.search(box) else None


def math_verdict(answer: str, box: str) -> Verdict:
    """math-verify's verdict on two LaTeX expressions, the gold one first; it may never come."""
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy.core.random import seed

    seed(0)  # sympy tries random points: the same verdicts in every run
    gold, given = (
        parse(
            f"\\boxed{{{text}}}",
            extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=None,  # the Verifier's limit holds for all of it
        )
        for text in (answer, box)
    )
    if not given:
        return Verdict.UNPARSED
    equal = verify(gold, given, timeout_seconds=None)
    return Verdict.CORRECT if equal and not _differ(gold[0], given[0]) else Verdict.WRONG


def _differ(gold: Any, given: Any) -> bool:
    """Whether two numbers differ that math-verify calls equal, as it does 2^-99 and 2^-98.

    It looks at the absolute difference, so that all small numbers are one. Here: exact numbers are
    equal to 20 digits (rational ones to the last), decimals to one part in a hundred.
    """
    from sympy import Expr, Float, UnevaluatedExpr

    numbers = all(isinstance(side, Expr) and side.is_number for side in (gold, given))
    if not numbers or gold == given or gold.has(UnevaluatedExpr) or given.has(UnevaluatedExpr):
        return False  # an UnevaluatedExpr is a percentage, which math-verify reads in two ways
    gold, given = gold.doit(), given.doit()
    if gold.is_Rational and given.is_Rational:
        return gold != given
    tolerance = 1e-2 if gold.has(Float) or given.has(Float) else 1e-20
    gold, given = gold.evalf(30), given.evalf(30)
    difference, size = abs(gold - given), max(abs(gold), abs(given))
    return bool(difference > tolerance * size + 1e-60)  # 1e-60: an exact zero, evaluated


class Verifier:
    """Judges completions. Use as a context manager or call `close`.

    math-verify can spend hours or gigabytes on a short expression, so it runs in a child process.
    A completion that takes longer than timeout_s, or kills the child, is a TIMEOUT, and the next
    meets a fresh child; one that runs out of memory is WRONG. MrlError if the child does not work.
    """

    command: tuple[str, ...] = (sys.executable, "-m", "mrl.rewards")  # and a file descriptor

    def __init__(self, timeout_s: float = 2.0) -> None:
        self.timeout_s = timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._timeouts: Counter[tuple[str, str]] = Counter()  # (answer, box): how often
        self._judge = lru_cache(CACHE_SIZE)(self._judge)  # remembers verdicts, not TimeoutErrors

    def __enter__(self) -> "Verifier":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def verify(self, answer: str, completion: str, finished: bool = True) -> Verdict:
        """Judge one completion against the problem's answer; finished: it was not cut short."""
        answer, box = _tidy(answer), last_box(completion)
        verdict = plain_verdict(answer, box, finished)
        if verdict is not None:
            return verdict
        if self._timeouts[answer, box] < TRIES:
            with suppress(TimeoutError):
                return self._judge(answer, box)
            self._timeouts[answer, box] += 1
        return Verdict.TIMEOUT

    def verify_batch(self, items: Sequence[tuple[str, str, bool]]) -> list[Verdict]:
        """Judge (answer, completion, finished) triples, in their order."""
        return [self.verify(*item) for item in items]

    def check_answer(self, answer: str) -> bool:
        """Whether an answer of a problem file equals itself, so that it can be judged at all."""
        boxed = f"\\boxed{{{answer}}}"
        return last_box(boxed) == _tidy(answer) and self.verify(answer, boxed) is Verdict.CORRECT

    def canary(self) -> None:
        """Start a child and show it a right and a wrong answer; MrlError if a verdict is off."""
        self.close()
        self._pipe, theirs = Pipe()
        with theirs:
            self._child = subprocess.Popen(
                [*self.command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # libraries print
                stderr=subprocess.DEVNULL,
                cwd=Path(__file__).resolve().parent.parent,  # `mrl` is found from anywhere
                env={**os.environ, "PYTHONHASHSEED": "0"},  # the same verdicts in every run
                start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
            )
        right, wrong = (self._ask(r"\frac{1}{2}", box, START_LIMIT_S) for box in ("0.5", "0.6"))
        if (right, wrong) != (Verdict.CORRECT, Verdict.WRONG):
            self.close()
            raise MrlError(
                f"The verifier is broken: it calls 0.5 for 1/2 {right} and 0.6 for 1/2 {wrong}; "
                "install math-verify 0.9 again."
            )

    def close(self) -> None:
        """End the child. A later verdict would start another one."""
        if self._child is not None:
            self._pipe.close()
            self._child.kill()
            self._child.wait()
            self._child = None

    def _judge(self, answer: str, box: str) -> Verdict:
        """math-verify's verdict; TimeoutError if it does not come in time."""
        if self._child is None or self._child.poll() is not None:
            self.canary()
        verdict = self._ask(answer, box, self.timeout_s)
        if verdict is Verdict.TIMEOUT:
            raise TimeoutError
        return verdict

    def _ask(self, answer: str, box: str, limit_s: float) -> Verdict:
        """The child's verdict; TIMEOUT, and no child any more, if it does not come in time."""
        verdict = Verdict.TIMEOUT
        try:
            with suppress(OSError, EOFError):  # the child died of it
                self._pipe.send((answer, box, limit_s))
                if self._pipe.poll(limit_s):
                    verdict = Verdict(self._pipe.recv())
        finally:  # after Ctrl-C, too: a late verdict must not be taken for the next one
            if verdict is Verdict.TIMEOUT:
                self.close()
        return verdict


def verify_groups(verifier: Verifier, groups: Sequence[Group]) -> None:
    """Give every rollout its verdict."""
    for group in groups:
        for rollout in group.rollouts:
            rollout.verdict = verifier.verify(group.problem.answer, rollout.text, rollout.finished)


def serve(pipe: Connection) -> None:
    """The child process: judge one pair after the other until the parent closes the pipe."""
    import faulthandler
    import resource

    with suppress(ValueError, OSError):  # not every platform has this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    with suppress(OSError, EOFError):  # the parent is gone
        while True:
            answer, box, limit_s = pipe.recv()
            # ends this process, whatever it is at, should the parent be gone by then
            faulthandler.dump_traceback_later(2 * limit_s, exit=True)
            try:
                verdict = math_verdict(answer, box)
            except Exception:  # what cannot be compared is not equal
                verdict = Verdict.WRONG
            faulthandler.cancel_dump_traceback_later()
            pipe.send(str(verdict))


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
