"""The verifier judges completions: integers and words at once, the rest in a child process.

The child (`python -m mrl.verifier.verifier DESCRIPTOR`) loads a file that has a function `judge`:
formulas.py, or a person's own. Either can take hours or gigabytes, or crash. That ends the child
alone, which has limits of time and memory, and a fresh one judges the next completion. A child also
ends after a completion that used much time or memory, so that what one completion does never
changes the verdict on the next. This guards against accidents only: a file may read files, write
them and use the network, as any program may.
"""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from mrl.errors import MrlError
from mrl.parsing import run_file
from mrl.samples import Group, Verdict
from mrl.verifier.rewards import last_box, plain_verdict, tidy

MEMORY_LIMIT_BYTES = 2 << 30  # the child's address space; it needs about 60 MB
START_LIMIT_S = 60  # importing math-verify takes 0.4 s on a quiet machine
FORMULAS = str(Path(__file__).with_name("formulas.py"))


class Verifier(AbstractContextManager):
    """Judges completions. Use it as a context manager, or call `close`.

    The child starts when it is first needed and ends with this process, however that ends. A
    completion that takes longer than timeout_s, or twice kills the child, is a TIMEOUT; one that
    runs out of memory, or cannot be compared, is WRONG. MrlError if the child does not work.

    Nothing is remembered that could change a verdict: one verifier for all policies and one for
    each of them say the same, but for timeouts, which depend on the machine.
    """

    command: tuple[str, ...] = (sys.executable, "-m", __name__)  # a descriptor is added
    name, remedy = "The verifier", "install math-verify 0.9 again"

    def __init__(self, timeout_s: float = 2.0, file: str = FORMULAS) -> None:
        self.timeout_s = timeout_s
        # read once, so that a child that is started later judges by the same text
        self._source = str(Path(file).absolute()), Path(file).read_bytes()
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def verify(self, answer: str, text: str, finished: bool = True) -> Verdict:
        """Judge one completion against the problem's answer; finished: it was not cut short."""
        answer, box = tidy(answer), last_box(text)
        verdict = plain_verdict(answer, box, finished)
        if verdict is None:
            verdict, _ = self._ask(answer, box)
        return verdict

    def verify_groups(self, groups: Iterable[Group]) -> None:
        """Give every rollout its verdict.

        Each costs its own time limit at most, so a step of `9^{9^{9}}` alone takes long, and ends.
        """
        for group in groups:
            answer = group.problem.answer
            for rollout in group.rollouts:
                rollout.verdict = self.verify(answer, rollout.text, rollout.finished)

    def check_answer(self, answer: str) -> bool:
        """Whether an answer of a problem file equals itself, so that it can be judged at all."""
        boxed = f"\\boxed{{{answer}}}"
        return last_box(boxed) == tidy(answer) and self.verify(answer, boxed) is Verdict.CORRECT

    def start_and_check(self) -> None:
        """Start a child, in place of the one before; MrlError if it cannot judge."""
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

        flaw = self._exchange(self._source, START_LIMIT_S)
        if flaw != "":
            self.close()
            flaw = flaw or f"it takes longer than {START_LIMIT_S} seconds, or ends its process"
            raise MrlError(f"{self.name} cannot be loaded: {flaw}; {self.remedy}.")

    def close(self) -> None:
        """End the child. A later verdict would start another one."""
        if self._child is not None:
            self._pipe.close()
            self._child.kill()
            self._child.wait()
            self._child = None

    def _ask(self, answer: str, text: str) -> tuple[Verdict, str]:
        """The child's verdict, and what its judge did instead of giving one."""
        for _ in range(2):  # a child that dies may have done so without any fault of this text
            if self._child is None or self._child.poll() is not None:
                self.start_and_check()
            begin = time.monotonic()
            reply = self._exchange((answer, text, self.timeout_s), self.timeout_s)
            seconds = time.monotonic() - begin

            if reply is not None:
                verdict, mistake, used_much = reply
                if used_much or seconds > self.timeout_s / 2:
                    self.close()
                return verdict, mistake
            if seconds >= self.timeout_s:
                break
        return Verdict.TIMEOUT, f"takes longer than {self.timeout_s:g} s or ends its process"

    def _exchange(self, message: tuple, limit_s: float) -> Any:
        """The child's reply to a message; None, and no child any more, if none comes in time."""
        reply = None
        try:
            with suppress(OSError, EOFError):  # the child died of it
                self._pipe.send(message)
                if self._pipe.poll(limit_s):
                    reply = self._pipe.recv()
        finally:  # after Ctrl-C, too: a late reply must not be taken for the next one
            if reply is None:
                self.close()
        return reply


def judged(
    judge: Callable[[str, str], Verdict | bool], answer: str, text: str
) -> tuple[Verdict, str]:
    """A judge's verdict, and what it did instead of giving one, which counts as WRONG."""
    try:
        reply = judge(answer, text)
    except (Exception, SystemExit) as error:
        return Verdict.WRONG, f"raises {error!r:.200}"

    if isinstance(reply, Verdict):
        return reply, ""
    if type(reply).__name__ in ("bool", "bool_"):  # numpy's, too
        return Verdict.CORRECT if reply else Verdict.WRONG, ""
    return Verdict.WRONG, f"returns {type(reply).__name__} and neither True nor False"


# ------------------------------------------------------------------------------ one's own judge


class OwnJudge(Verifier):
    """Judges whole completions with a person's `judge(answer, text)`.

    judge: a file that holds it, or the function itself. A function runs in this process, and
    nothing bounds it: the program waits for as long as it takes, and shares its memory with it.
    say: gets a sentence on the first mistake that the judge makes.

    A judge that raises, or returns no bool, is refused by `check_answer`, before a run writes
    anything. If that happens later, its verdict is WRONG.
    """

    remedy = "mend it, or name another"

    def __init__(
        self,
        judge: str | Callable[[str, str], bool],
        timeout_s: float = 2.0,
        say: Callable[[str], None] = print,
    ) -> None:
        self.function = judge if callable(judge) else None
        super().__init__(timeout_s, FORMULAS if callable(judge) else judge)
        self.name = f"judge {getattr(judge, '__name__', judge)}"
        self._say = say
        self._has_said = False

    def verify(self, answer: str, text: str, finished: bool = True) -> Verdict:
        """Judge one completion; finished: it was not cut short."""
        verdict, mistake = self._ask(answer, text)
        if mistake and not self._has_said:
            self._has_said = True
            self._say(
                f"{self.name}: {mistake}, with the answer {answer!r} and the text "
                f"{text[:200]!r}. That counts as {verdict}, here and later."
            )

        if verdict is Verdict.WRONG and not finished:
            return Verdict.TRUNCATED
        return verdict

    def check_answer(self, answer: str) -> bool:
        """Whether an empty text is judged wrong; MrlError if the judge does anything else."""
        verdict, mistake = self._ask(answer, "")
        if verdict is Verdict.CORRECT:
            mistake = "calls it right"
        if mistake:
            raise MrlError(
                f"{self.name}: {mistake}, with the answer {answer!r} and an empty text; it "
                "must return False for what is not right."
            )
        return True

    def _ask(self, answer: str, text: str) -> tuple[Verdict, str]:
        if self.function:
            return judged(self.function, answer, text)
        return super()._ask(answer, text)


def make_verifier(
    judge: str | Callable[[str, str], bool], timeout_s: float, say: Callable[[str], None]
) -> Verifier:
    """A verifier with a judge of one's own, as `OwnJudge` takes it; if that is empty, without."""
    return OwnJudge(judge, timeout_s, say) if judge else Verifier(timeout_s)


# ------------------------------------------------------------------------------ the child


def serve(pipe: Connection) -> None:
    """Load a judge, then judge one text after the other until the parent closes the pipe."""
    # In case the parent is gone, this signal ends the process after twice its limit. A thread that
    # does so would itself need memory, which a completion may have used up.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with suppress(OSError, EOFError):  # the parent is gone
        path, source = pipe.recv()
        signal.setitimer(signal.ITIMER_REAL, 2 * START_LIMIT_S)
        judge, flaw = _load(path, source)

        # only now: with many cores, importing numpy reserves more than it will ever use
        with suppress(ValueError, OSError):  # not every platform has this limit
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
        most = _peak_bytes() + MEMORY_LIMIT_BYTES // 2
        pipe.send(flaw)
        while True:
            signal.setitimer(signal.ITIMER_REAL, 0)
            answer, text, limit_s = pipe.recv()
            signal.setitimer(signal.ITIMER_REAL, 2 * limit_s)
            verdict, mistake = judged(judge, answer, text)
            used_much = "MemoryError" in mistake or _peak_bytes() > most
            pipe.send((verdict, mistake, used_much))


def _peak_bytes() -> int:
    """The most memory that this process ever held; 0 where the system does not say.

    `getrusage` would count the parent's memory, because a new process begins as its copy.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def _load(path: str, source: bytes) -> tuple[Callable | None, str]:
    """A file's function `judge`, and the reason if there is none.

    A person's file finds what lies next to it: its folder is the working directory, and the last
    place in which Python looks for modules, so that it hides none of the others.
    """
    if path != FORMULAS:
        folder = str(Path(path).parent)
        os.chdir(folder)
        sys.path.append(folder)
    try:
        judge = getattr(run_file(Path(path), source), "judge", None)
    except (Exception, SystemExit) as error:
        return None, repr(error)
    return judge, "" if callable(judge) else "it has no function judge(answer, text)"


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
