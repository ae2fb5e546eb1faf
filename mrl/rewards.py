r"""Verdicts on completions: math-verify, guarded. The verifier never hangs and never crashes.

The last `\boxed{...}` of a completion is its answer; nothing else counts. Two integers or two
words are compared here, exactly. Everything else goes to math-verify in a child process, because it
works on the main thread only, can spend seconds or gigabytes on a short expression, and must be
killable (judge.py). Answers are compared as mathematics, never evaluated as code.

- `1,234` is one integer (a comma before every three digits), `1, 234` and `12,34` are two.
- Two or more bare letters are a word: math-verify would multiply them, so that "on" equals "no".
- Two numbers side by side (`1 2`) are UNPARSED: math-verify would add them.
- Several values (`1,2`, `\{1,2\}`, `\pm 2`) are compared as one set, and tuples in their order: one
  of the values is not enough.
- A box or an answer of more than MAX_BOX_CHARS characters is WRONG and never sent to the child.

A verdict near the time limit depends on the machine.
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
from contextlib import suppress
from pathlib import Path

from mrl.errors import MrlError
from mrl.samples import Group, Verdict

MAX_BOX_CHARS = 2_000  # no gold answer is as long
MAX_TEXT_CHARS = 100_000  # from the end of a completion: a box further back is not looked for
MEMORY_LIMIT_BYTES = 2 << 30  # the child's address space; it needs about 60 MB
CACHE_SIZE = 4_096  # (answer, box) pairs whose verdict is remembered
TRIES = 2  # one timeout may be the machine's fault, a second one is the answer's: remembered
START_LIMIT_S = 60  # importing math-verify takes 0.4 s on a quiet machine
STARTS = 3  # failed ones in a row, then the verifier is broken rather than the completions

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


def _integer(text: str) -> int | None:
    """The value of a plain integer, with a sign or thousands commas; None for anything else."""
    return int(re.sub(r"[^0-9+-]", "", text)) if _INTEGER.fullmatch(text) else None


def _word(text: str) -> str | None:
    r"""The word that an answer is, bare or in `\text{}`, in small letters; None if it is none."""
    match = _WORD.fullmatch(text)
    return (match[1] or match[2]).strip().lower() if match else None


class Verifier:
    """Judges completions. Use as a context manager or call `close`; safe from any thread.

    timeout_s is the limit for one completion. One that reaches it, or kills the child, is a
    TIMEOUT, and the next meets a fresh child; to run out of memory counts as not equal.
    Counters: `verdicts` given, those `asked` of the child, `timeouts` and `restarts` of the child.
    Raises MrlError if the child cannot be started, rather than giving everything a zero.
    """

    command: tuple[str, ...] = (sys.executable, "-m", "mrl.judge")

    def __init__(
        self, timeout_s: float = 2.0, memory_limit_bytes: int = MEMORY_LIMIT_BYTES
    ) -> None:
        self.timeout_s = timeout_s
        self.memory_limit_bytes = memory_limit_bytes
        self.verdicts = self.asked = self.timeouts = self.restarts = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._cache: OrderedDict[tuple[str, str], tuple[Verdict | None, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __enter__(self) -> "Verifier":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child. A later verdict would start another one."""
        with self._lock:
            self._kill()

    def canary(self) -> None:
        """Judge one known right and one known wrong answer; MrlError if either verdict is off."""
        with self._lock:  # past the cache
            right, wrong = (self._ask(r"\frac{1}{2}", box) for box in ("0.5", "0.6"))
        if (right, wrong) != (Verdict.CORRECT, Verdict.WRONG):
            raise MrlError(
                f"The verifier is broken: it calls 0.5 for 1/2 {right} and 0.6 for 1/2 {wrong}, "
                "not correct and wrong; install math-verify 0.9 again."
            )

    def check_answer(self, answer: str) -> bool:
        """Whether an answer of a problem file equals itself, so that it can be judged at all."""
        boxed = f"\\boxed{{{answer}}}"
        return last_box(boxed) == _tidy(answer) and self.verify(answer, boxed) is Verdict.CORRECT

    def verify(self, answer: str, completion: str, finished: bool = True) -> Verdict:
        """Judge one completion against the problem's answer; finished: it was not cut short."""
        answer, box = _tidy(answer), last_box(completion)
        with self._lock:
            self.verdicts += 1
            if box is None:
                return Verdict.UNPARSED if finished else Verdict.TRUNCATED
            if not box:
                return Verdict.UNPARSED
            if max(len(box), len(answer)) > MAX_BOX_CHARS:
                return Verdict.WRONG
            for exact in (_integer, _word):
                gold, given = exact(answer), exact(box)
                if gold is not None and given is not None:
                    return Verdict.CORRECT if gold == given else Verdict.WRONG
            if _SIDE_BY_SIDE.search(box):
                return Verdict.UNPARSED
            return self._remembered(answer, box)

    def verify_batch(self, items: Sequence[tuple[str, str, bool]]) -> list[Verdict]:
        """Judge (answer, completion, finished) triples, in their order."""
        return [self.verify(*item) for item in items]

    # -------------------------------------------------------------------------- the child

    def _remembered(self, answer: str, box: str) -> Verdict:
        key = (answer, box)
        verdict, tries = self._cache.pop(key, (None, 0))
        if verdict is None or (verdict is Verdict.TIMEOUT and tries < TRIES):
            verdict, tries = self._ask(answer, box), tries + 1
        self._cache[key] = verdict, tries  # now the newest
        if len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)
        return verdict

    def _ask(self, answer: str, box: str) -> Verdict:
        request = json.dumps({"answer": answer, "box": box})  # ASCII, whatever the box holds
        verdict = Verdict.TIMEOUT
        self.asked += 1
        try:
            if self._child is None or self._child.poll() is not None:
                self._start()
            self._child.stdin.write(request.encode("ascii") + b"\n")
            self._child.stdin.flush()
            verdict = Verdict(self._read_line(self.timeout_s) or Verdict.TIMEOUT)
        except (OSError, ValueError):
            pass  # the child died while it was written to, or speaks nonsense
        finally:  # after Ctrl-C, too: a late reply must not be taken for the next one
            if verdict is Verdict.TIMEOUT:
                self._kill()
        self.timeouts += verdict is Verdict.TIMEOUT
        return verdict

    def _start(self) -> None:
        """Start a child that has passed its own test; MrlError if it fails several times."""
        for _ in range(STARTS):
            self.restarts += self.asked > 1
            says = self._spawn()
            if says == "ready":
                return
            self._kill()
        raise MrlError(
            f"The verifier's process does not start ({says}); "
            "check that math-verify 0.9 is installed for this Python."
        )

    def _spawn(self) -> str:
        """Start a child and return its first line, or what went wrong."""
        self._kill()
        try:
            self._child = subprocess.Popen(
                [*self.command, str(self.timeout_s), str(self.memory_limit_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=Path(__file__).resolve().parent.parent,  # `mrl` is found from anywhere
                env={**os.environ, "PYTHONHASHSEED": "0"},  # the same verdicts in every run
                start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
            )
        except OSError as error:
            return str(error)
        return self._read_line(START_LIMIT_S) or "it says nothing"

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
        return line.decode("ascii", errors="replace")

    def _kill(self) -> None:
        self._unread = b""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            child.stdout.close()
            with suppress(OSError):  # half a request may be left in the buffer
                child.stdin.close()


def verify_groups(verifier: Verifier, groups: Sequence[Group]) -> None:
    """Give every rollout its verdict."""
    for group in groups:
        for rollout in group.rollouts:
            rollout.verdict = verifier.verify(group.problem.answer, rollout.text, rollout.finished)
