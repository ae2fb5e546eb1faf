"""The verifier, with math-verify in a child process: what hangs or crashes there ends the child."""

import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

from mrl.errors import MrlError
from mrl.rewards import comparable, last_box, math_verdict, plain_verdict, tidy
from mrl.samples import Group, Verdict

MEMORY_LIMIT_BYTES = 2 << 30  # the child's address space; it needs about 60 MB
CACHE_SIZE = 4_096  # (answer, box) pairs whose verdict is remembered
# timeouts from one call of `verify_groups` to the next; after them POWERS are a TIMEOUT at once
BUDGET = 3
POWERS = re.compile(r"[\^!]")  # an expression that takes for ever nearly always has one of these
DATE = re.compile(r"\d+([-/:.])\d+\1\d+")
TRIES = 2  # the first timeout may be the machine's fault; the second one is remembered
START_LIMIT_S = 60  # importing math-verify takes 0.4 s on a quiet machine


class Verifier(AbstractContextManager):
    """Judges completions. Use as a context manager or call `close`.

    math-verify can spend hours or gigabytes on a short expression, so it runs in a child process.
    A completion that takes longer than timeout_s, or kills the child, is a TIMEOUT, and a fresh
    child judges the next one. A completion that runs out of memory is WRONG. MrlError if the child
    does not work.
    """

    command: tuple[str, ...] = (sys.executable, "-m", __name__)  # a file descriptor is added
    reply_type: type[str] = Verdict  # of what the child says

    def __init__(self, timeout_s: float = 2.0) -> None:
        self.timeout_s = timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._timeouts: Counter[tuple[str, str]] = Counter()  # (answer, box): how often
        self._budget: float = math.inf  # of timeouts; no limit before the first `verify_groups`
        self._known: dict[tuple[str, str], Verdict] = {}  # of (answer, box); no timeouts

    def __exit__(self, *_: object) -> None:
        self.close()

    def verify(self, answer: str, completion: str, finished: bool = True) -> Verdict:
        """Judge one completion against the problem's answer; finished: it was not cut short."""
        # what needs no child: a rule on the text, or a verdict that is known
        answer, box = tidy(answer), last_box(completion)
        if box is not None:
            answer, box = comparable(answer, box)
        verdict = plain_verdict(answer, box, finished)
        if verdict is not None:
            return verdict
        if (answer, box) in self._known:
            return self._known[answer, box]

        hurried = self._budget <= 0 and POWERS.search(box)
        if self._timeouts[answer, box] >= TRIES or hurried:
            return Verdict.TIMEOUT

        verdict = self._judge(answer, box)
        if verdict is Verdict.TIMEOUT:
            self._timeouts[answer, box] += 1
            self._budget -= 1
        else:
            if len(self._known) == CACHE_SIZE:
                self._known.clear()
            self._known[answer, box] = verdict
        return verdict

    def verify_groups(self, groups: Sequence[Group]) -> None:
        """Give every rollout its verdict.

        A step's completions may all be `9^{9^{9}}`, and each would cost its own time limit. So
        after `BUDGET` timeouts all others with a power or a factorial are a TIMEOUT at once, up to
        the next call. (Judging peers' records again comes before that, so it is cut short, too.)
        """
        self._budget = BUDGET
        for group in groups:
            answer = group.problem.answer
            for rollout in group.rollouts:
                rollout.verdict = self.verify(answer, rollout.text, rollout.finished)

    def check_answer(self, answer: str) -> bool:
        """Whether an answer of a problem file equals itself, so that it can be judged at all."""
        if DATE.fullmatch(answer.strip()):
            return False  # 2024-05-01 would be read as a difference
        boxed = f"\\boxed{{{answer}}}"
        return last_box(boxed) == tidy(answer) and self.verify(answer, boxed) is Verdict.CORRECT

    def start(self) -> None:
        """Start a child; it replaces the one before."""
        self.close()
        self._pipe, theirs = Pipe()
        with theirs:
            self._child = subprocess.Popen(
                [*self.command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # libraries print
                stderr=subprocess.DEVNULL,
                cwd=Path(__file__).resolve().parents[2],  # `mrl` is found from anywhere
                env={**os.environ, "PYTHONHASHSEED": "0"},  # the same verdicts in every run
                start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
            )

    def start_and_check(self) -> None:
        """Start a child and show it a right and a wrong answer; MrlError if a verdict is off."""
        self.start()
        half = r"\frac{1}{2}"
        right = self._ask(half, "0.5", START_LIMIT_S)
        wrong = self._ask(half, "0.6", START_LIMIT_S)

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
        """Ask for a verdict, with a new child if the last one has ended."""
        if self._child is None or self._child.poll() is not None:
            self.start_and_check()
        return self._ask(answer, box, self.timeout_s)

    def _ask(self, answer: str, box: str, limit_s: float) -> Verdict:
        """Ask the child for a verdict; end the child with a TIMEOUT if none comes in time."""
        verdict = Verdict.TIMEOUT
        try:
            with suppress(OSError, EOFError):  # the child died of it
                self._pipe.send((answer, box, limit_s))
                if self._pipe.poll(limit_s):
                    verdict = self.reply_type(self._pipe.recv())
        finally:  # after Ctrl-C, too: a late verdict must not be taken for the next one
            if verdict is Verdict.TIMEOUT:
                self.close()
        return verdict


def serve(pipe: Connection, judge: Callable[[str, str], str] | None = None) -> None:
    """The child process: judge one pair after the other until the parent closes the pipe."""
    import faulthandler
    import resource

    judge = judge or math_verdict

    with suppress(ValueError, OSError):  # not every platform has this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))

    with suppress(OSError, EOFError):  # the parent is gone
        while True:
            answer, box, limit_s = pipe.recv()
            # after twice the limit this process ends itself, in case the parent is gone
            faulthandler.dump_traceback_later(2 * limit_s, exit=True)
            try:
                verdict = judge(answer, box)
            except Exception:  # an expression that cannot be compared is not equal
                verdict = Verdict.WRONG
            faulthandler.cancel_dump_traceback_later()
            pipe.send(str(verdict))


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
