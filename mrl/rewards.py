r"""Verdicts on completions: math-verify, guarded. The verifier never hangs and never crashes.

The last `\boxed{...}` of a completion is its answer; nothing else counts. Two integers are compared
here, exactly. Everything else goes to math-verify in a child process, because it works on the main
thread only, can spend seconds or gigabytes on a short expression, and must be killable.

Answers are compared as mathematics, never evaluated as code. What cannot be guarded simply:
math-verify compares non-rational numbers by their floating-point value, so expressions that agree
to its precision count as equal.

Run as a program (`python -m mrl.rewards`), this module is that child: JSON lines in and out.
"""

import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from mrl.errors import MrlError

MAX_BOX_CHARS = 2_000  # a longer answer is never sent to the child: no gold answer is as long
MAX_BOXES = 50  # unfinished ones that are looked at, from the end
CACHE_SIZE = 10_000  # (answer, box) pairs whose verdict is remembered
START_LIMIT_S = 60.0  # importing math-verify takes 0.4 s on a quiet machine
FAILED_STARTS = 3  # in a row, then the verifier is broken rather than the completions
OWN_LIMIT_S = 1  # math-verify's own limit on parsing and on comparing; the outer one is above it

_INTEGER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d{1,4000})")  # 1,234 is one number, 12,34 is not


class Verdict(StrEnum):
    """What the verifier says of one completion; only `CORRECT` is rewarded."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"  # ended without a box, or with one that holds nothing readable
    TRUNCATED = "truncated"  # cut by the token limit before a box was complete
    TIMEOUT = "timeout"  # judging took too long or killed the child


def last_box(text: str) -> str | None:
    r"""The content of the last complete `\boxed{...}`, counting braces; None if there is none.

    `\{` and `\}` are text, not braces. A full stop at the end of the content is taken off.
    """
    start = len(text)
    for _ in range(MAX_BOXES):
        start = text.rfind("\\boxed{", 0, start)
        if start < 0:
            return None
        begin = start + len("\\boxed{")
        depth, place = 1, begin
        while place < len(text):
            if text[place] == "\\":
                place += 2
                continue
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[begin:place].strip().removesuffix(".").strip()
            place += 1
            if place - begin > 2 * MAX_BOX_CHARS:
                break  # longer than anything that would be judged
    return None


def _integer(text: str) -> int | None:
    """The value of a plain integer, with a sign or thousands commas; None for anything else."""
    text = text.strip().replace("\\,", "").replace("\\!", "")
    return int(text.replace(",", "")) if _INTEGER.fullmatch(text) else None


class Verifier:
    """Judges completions. Use as a context manager or call `close`; safe from any thread."""

    command = (sys.executable, "-m", "mrl.rewards")

    def __init__(self, timeout_s: float = 2.0, memory_limit_bytes: int = 2 << 30) -> None:
        self.timeout_s = timeout_s
        self.memory_limit_bytes = memory_limit_bytes
        self.verdicts = 0
        self.timeouts = 0
        self.restarts = 0
        self._child: subprocess.Popen | None = None
        self._unread = b""
        self._cache: OrderedDict[tuple[str, str], Verdict] = OrderedDict()
        self._lock = threading.Lock()

    def __enter__(self) -> "Verifier":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def canary(self) -> None:
        """Judge one known right and one known wrong answer; MrlError if either verdict is off."""
        right = self.verify(r"\frac{1}{2}", r"so \boxed{0.5}")
        wrong = self.verify(r"\frac{1}{2}", r"so \boxed{0.6}")
        if (right, wrong) != (Verdict.CORRECT, Verdict.WRONG):
            raise MrlError(
                f"The verifier is broken: it calls 1/2 = 0.5 {right} and 1/2 = 0.6 {wrong}; "
                "install math-verify 0.9 again."
            )

    def check_answer(self, answer: str) -> bool:
        """Whether an answer of a problem file equals itself, so that it can be judged at all."""
        return self.verify(answer, f"\\boxed{{{answer}}}") is Verdict.CORRECT

    def verify(self, answer: str, completion: str, finished: bool = True) -> Verdict:
        """Judge one completion against the problem's answer."""
        with self._lock:
            self.verdicts += 1
            box = last_box(completion)
            if box is None:
                return Verdict.UNPARSED if finished else Verdict.TRUNCATED
            if not box:
                return Verdict.UNPARSED
            gold_integer, box_integer = _integer(answer), _integer(box)
            if gold_integer is not None and box_integer is not None:
                return Verdict.CORRECT if gold_integer == box_integer else Verdict.WRONG
            if len(box) > MAX_BOX_CHARS:
                return Verdict.WRONG
            return self._remembered(answer, box)

    def verify_batch(self, items: Sequence[tuple[str, str, bool]]) -> list[Verdict]:
        """Judge (answer, completion, finished) triples, in their order."""
        return [self.verify(*item) for item in items]

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._kill()

    # -------------------------------------------------------------------------- the child

    def _remembered(self, answer: str, box: str) -> Verdict:
        key = (answer, box)
        if key not in self._cache:
            self._cache[key] = self._ask(answer, box)
            if len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return self._cache[key]

    def _ask(self, answer: str, box: str) -> Verdict:
        if self._child is None or self._child.poll() is not None:
            self._start()
        request = json.dumps({"answer": answer, "box": box}).encode("ascii") + b"\n"
        try:
            self._child.stdin.write(request)
            self._child.stdin.flush()
            reply = self._read_line(self.timeout_s)
        except OSError:
            reply = None
        if reply is None:  # too slow, or dead
            self._kill()
            self.timeouts += 1
            return Verdict.TIMEOUT
        return Verdict(reply)

    def _start(self) -> None:
        """Start a child and wait until it is ready; MrlError after a few failures in a row."""
        for _ in range(FAILED_STARTS):
            self._kill()
            self.restarts += 1
            root = str(Path(__file__).resolve().parent.parent)
            path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
            self._child = subprocess.Popen(
                [*self.command, str(self.memory_limit_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
            )
            if self._read_line(START_LIMIT_S) == "ready":
                return
        self._kill()
        raise MrlError(
            "The verifier's process does not start; try `python -m mrl.rewards` to see why "
            "(is math-verify installed?)."
        )

    def _read_line(self, limit_s: float) -> str | None:
        """One line from the child; None if it does not come in time or the child has ended."""
        deadline = time.monotonic() + limit_s
        handle = self._child.stdout.fileno()
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                return None
            data = os.read(handle, 65536)
            if not data:
                return None
            self._unread += data
        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode("ascii")

    def _kill(self) -> None:
        self._unread = b""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child.stdin.close()
            self._child.stdout.close()
            self._child = None


# ------------------------------------------------------------------------------ inside the child


def _judge(answer: str, box: str) -> Verdict:
    """math-verify's verdict on two LaTeX expressions, the gold one first."""
    from math_verify import LatexExtractionConfig, parse, verify

    def read(text: str) -> list:
        return parse(
            f"\\boxed{{{text}}}",
            extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=OWN_LIMIT_S,
        )

    gold, given = read(answer), read(box)
    if not given:
        return Verdict.UNPARSED
    if not verify(gold, given, timeout_seconds=OWN_LIMIT_S):
        return Verdict.WRONG
    exact = [getattr(side[0], "is_rational", False) is True for side in (gold, given)]
    if all(exact) and gold[0].doit() != given[0].doit():
        return Verdict.WRONG  # equal in floating point only, as 2^-99 and 2^-98 are
    return Verdict.CORRECT


def _serve(memory_limit_bytes: int) -> None:
    """Judge one JSON line after the other until the parent closes the pipe."""
    import logging
    import warnings

    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # whatever a library prints must not look like a verdict
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    _judge("1/2", "0.5")  # imports everything before the first limit starts
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))
    except (ImportError, ValueError, OSError):
        pass  # a platform without address-space limits keeps the time limit
    print("ready", file=replies, flush=True)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            verdict = _judge(request["answer"], request["box"])
        except Exception:  # whatever a wrong parse raises, it is no right answer
            verdict = Verdict.UNPARSED
        print(str(verdict), file=replies, flush=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]) if len(sys.argv) > 1 else 2 << 30)
