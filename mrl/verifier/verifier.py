"""You can skip this file on a first reading: it runs the judge of completions in a child process.

Integers and words are judged here, directly (plain.py). For everything else, the child process
(`python -m mrl.verifier.verifier DESCRIPTOR`) loads a file with a function `judge`: formulas.py, or
the user's own. A judge may take hours or gigabytes, or crash. The child has limits of time and
memory, so such a judge ends only the child, and a new child judges the next completion. A child is
also replaced after a completion that used much time or memory, so that no completion can change the
verdict on the next. All this protects only against accidents: like any program, a judge can read
and write files and use the network.
"""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from mrl.errors import MrlError
from mrl.parsing import control_character, run_file
from mrl.reward import Verdict
from mrl.samples import Group
from mrl.verifier.forms import near_misses, rewritings
from mrl.verifier.plain import last_box, plain_verdict, tidy

MEMORY_LIMIT_BYTES = 2 << 30  # limit of the child's address space; normally it uses about 60 MB
# Importing math-verify takes 0.4 s on an idle machine, but on a busy one it may take minutes. So a
# child that does not start within the first limit is started once more, with the second limit.
START_LIMITS_S = (60, 240)
FORMULAS = str(Path(__file__).with_name("formulas.py"))


@dataclass(frozen=True)
class Refusal:
    """Why an answer cannot be judged. It counts as False.

    reason: empty if the verifier cannot read the answer at all.
    """

    reason: str = ""

    def __bool__(self) -> bool:
        return False


class BoxVerifier(AbstractContextManager):
    """Judges the last box of a completion. Use it as a context manager, or call `close`.

    The child starts when it is first needed, and ends with this process. A completion that takes
    longer than timeout_s, or that kills the child twice, gets the verdict TIMEOUT. A completion on
    which the judge raises an error, for example when memory runs out, gets the verdict WRONG.
    Raises MrlError if the child does not work.

    say: receives a sentence if the child starts slowly.

    A verdict never depends on earlier completions. Timeouts also depend on the machine.
    """

    # the command that starts the child; the file descriptor of the pipe is appended
    command: tuple[str, ...] = (sys.executable, "-m", __name__)
    name, remedy = "The verifier", "reinstall math-verify 0.9"

    def __init__(
        self,
        timeout_s: float = 2.0,
        file: str = FORMULAS,
        say: Callable[[str], None] = print,
    ) -> None:
        self.timeout_s = timeout_s
        self._say = say
        # read once, so that all children run the same code
        self._source = str(Path(file).absolute()), Path(file).read_bytes()
        self._child: _Child | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def verify(self, answer: str, text: str, finished: bool = True) -> Verdict:
        """Judge a completion by the problem's answer. finished: False if the token limit cut it."""
        answer, box = tidy(answer), last_box(text)
        verdict = plain_verdict(answer, box, finished)
        if verdict is None:  # there is a box, and it holds a formula
            verdict, _ = self._ask(answer, box or "")
        return verdict

    def verify_groups(self, groups: Iterable[Group]) -> None:
        """Set the verdict of every rollout.

        The time limit applies to each verdict, so a step with many expensive formulas such as
        `9^{9^{9}}` takes long, but it ends.
        """
        for group in groups:
            answer = group.problem.answer
            for rollout in group.rollouts:
                rollout.verdict = self.verify(answer, rollout.text, rollout.finished)

    def check_answer(self, answer: str) -> bool | Refusal:
        """True if an answer of a problem file can be judged; otherwise why not.

        The answer must equal itself. If it is neither an integer nor a word, it must also equal
        itself in other notations, and no text that is only nearly the same (forms.py).
        """
        if control := control_character(answer.rstrip()):
            return Refusal(f"it contains the control character {control}")

        boxed = f"\\boxed{{{answer}}}"
        if last_box(boxed) != tidy(answer) or not self._accepts(answer, answer):
            return Refusal()
        if plain_verdict(tidy(answer), tidy(answer)) is not None:
            return True

        for text in rewritings(answer):
            # asked twice, because on a busy machine one verdict may be a timeout
            if not any(self._accepts(answer, text) for _ in range(2)):
                return Refusal(f"it would not accept {text!r}, which has the same meaning")
        for texts in near_misses(answer):
            if all(self._accepts(answer, text) for text in texts):
                return Refusal(f"it would also accept {texts[0]!r}")
        return True

    def _accepts(self, answer: str, box: str) -> bool:
        return self.verify(answer, f"\\boxed{{{box}}}") is Verdict.CORRECT

    def start_and_check(self) -> "_Child":
        """Start a new child instead of the current one. Raises MrlError if it cannot judge."""
        soon, late = START_LIMITS_S
        flaw, is_slow = self._start(soon)
        if is_slow:
            self._say(
                f"{self.name} took more than {soon} seconds to start, so it is started once more "
                f"and gets {late} seconds. The machine may be busy."
            )
            flaw, is_slow = self._start(late)

        if is_slow:
            raise MrlError(
                f"{self.name} took more than {soon} seconds to start, and more than {late} seconds "
                "at a second try. Try again when the machine is less busy, or find out what the "
                "start waits for."
            )
        if flaw or self._child is None:
            self.close()
            flaw = flaw or "its process ends during the start"
            raise MrlError(f"{self.name} cannot be loaded: {flaw}; {self.remedy}.")
        return self._child

    def _start(self, limit_s: float) -> tuple[str, bool]:
        """Start a new child. Returns why it cannot judge, or "", and whether it took too long."""
        self.close()
        child = self._child = _Child(self.command)
        began = time.monotonic()
        flaw = self._exchange(child, self._source, limit_s)
        return flaw or "", flaw is None and time.monotonic() - began >= limit_s

    def close(self) -> None:
        """End the child. A later verdict starts a new one."""
        if self._child is not None:
            self._child.pipe.close()
            self._child.kill()
            self._child.wait()
            self._child = None

    def _ask(self, answer: str, text: str) -> tuple[Verdict, str]:
        """The child's verdict, and a description of the judge's mistake, or ""."""
        for _ in range(2):  # twice, because a child may die for a reason other than this completion
            child = self._child
            if child is None or child.poll() is not None:
                child = self.start_and_check()
            begin = time.monotonic()
            reply = self._exchange(child, (answer, text, self.timeout_s), self.timeout_s)
            seconds = time.monotonic() - begin

            if reply is not None:
                verdict, mistake, used_much = reply
                if used_much or seconds > self.timeout_s / 2:
                    self.close()
                return verdict, mistake
            if seconds >= self.timeout_s:
                break
        return Verdict.TIMEOUT, f"took longer than {self.timeout_s:g} s, or ended its process,"

    def _exchange(self, child: "_Child", message: tuple, limit_s: float) -> Any:
        """The child's reply to a message. If none comes in time, end the child and return None."""
        reply = None
        try:
            with suppress(OSError, EOFError):  # the child died
                child.pipe.send(message)
                if child.pipe.poll(limit_s):
                    reply = child.pipe.recv()
        finally:  # even after Ctrl-C, so that a late reply is not mistaken for the next one
            if reply is None:
                self.close()
        return reply


class _Child(subprocess.Popen[bytes]):
    """The process that runs a judge, and the parent's end of the pipe to it.

    command: starts the process; the file descriptor of the child's end of the pipe is appended.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.pipe, theirs = Pipe()
        with theirs:
            super().__init__(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # libraries may print
                stderr=subprocess.DEVNULL,
                cwd=Path(__file__).resolve().parents[2],  # so that the child finds `mrl`
                env={**os.environ, "PYTHONHASHSEED": "0"},  # for equal verdicts in every run
                start_new_session=True,  # so that Ctrl-C reaches only the parent
            )


def judged(
    judge: Callable[[str, str], Verdict | bool], answer: str, text: str
) -> tuple[Verdict, str]:
    """A judge's verdict, and a description of its mistake, or "". A mistake counts as WRONG."""
    try:
        reply = judge(answer, text)
    except (Exception, SystemExit) as error:
        return Verdict.WRONG, f"raised {error!r:.200}"

    if isinstance(reply, Verdict):
        return reply, ""
    if type(reply).__name__ in ("bool", "bool_"):  # including numpy's
        return Verdict.CORRECT if reply else Verdict.WRONG, ""
    return Verdict.WRONG, f"returned {type(reply).__name__} instead of True or False"


# ------------------------------------------------------------------------------ a user's judge


class OwnJudge(BoxVerifier):
    """Judges whole completions with a user's `judge(answer, text)`.

    judge: a file with this function, or the function itself. A function runs in this process,
    without limits of time and memory.
    say: receives a sentence about the first mistake that the judge makes.

    If a judge raises, or does not return a bool, `check_answer` raises MrlError before a run
    writes anything. Later, a completion on which the judge makes such a mistake gets the verdict
    WRONG.
    """

    remedy = "repair it, or use another judge"

    def __init__(
        self,
        judge: str | Callable[[str, str], bool],
        timeout_s: float = 2.0,
        say: Callable[[str], None] = print,
    ) -> None:
        self.function = judge if callable(judge) else None
        super().__init__(timeout_s, FORMULAS if callable(judge) else judge, say)
        self.name = f"judge {getattr(judge, '__name__', judge)}"
        self._has_said = False

    def verify(self, answer: str, text: str, finished: bool = True) -> Verdict:
        """Judge a completion. finished: False if the token limit cut it short."""
        verdict, mistake = self._ask(answer, text)
        if mistake and not self._has_said:
            self._has_said = True
            self._say(
                f"{self.name} {mistake} for the answer {answer!r} and the completion "
                f"{text[:200]!r}. Such completions count as {verdict}."
            )

        if verdict is Verdict.WRONG and not finished:
            return Verdict.TRUNCATED
        return verdict

    def check_answer(self, answer: str) -> bool:
        """Check that the judge returns False for an empty completion; raises MrlError otherwise."""
        verdict, mistake = self._ask(answer, "")
        if verdict is Verdict.CORRECT:
            mistake = "returned True"
        if mistake:
            raise MrlError(
                f"{self.name} {mistake} for an empty completion (answer: {answer!r}). It must "
                "return False for incorrect completions."
            )
        return True

    def _ask(self, answer: str, text: str) -> tuple[Verdict, str]:
        if self.function:
            return judged(self.function, answer, text)
        return super()._ask(answer, text)


def make_verifier(
    judge: str | Callable[[str, str], bool], timeout_s: float, say: Callable[[str], None]
) -> BoxVerifier:
    """Make a verifier: with the user's judge (`OwnJudge`), or the built-in one if `judge` is ""."""
    return OwnJudge(judge, timeout_s, say) if judge else BoxVerifier(timeout_s, say=say)


# ------------------------------------------------------------------------------ the child


def serve(pipe: Connection) -> None:
    """Load a judge, then judge one completion after another until the parent closes the pipe."""
    # If the parent is gone, this signal ends the process after twice the time limit. A thread could
    # fail here, because it would need memory that a completion may have used up.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with suppress(OSError, EOFError):  # the parent is gone
        path, source = pipe.recv()
        signal.setitimer(signal.ITIMER_REAL, 2 * max(START_LIMITS_S))
        judge, flaw = _load(path, source)

        # limited after loading: with many cores, importing numpy reserves more memory than it uses
        with suppress(ValueError, OSError):  # some platforms do not have this limit
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
        most = _peak_bytes() + MEMORY_LIMIT_BYTES // 2
        pipe.send(flaw)
        if judge is None:  # the parent raises an error with the reason
            return
        while True:
            signal.setitimer(signal.ITIMER_REAL, 0)
            answer, text, limit_s = pipe.recv()
            signal.setitimer(signal.ITIMER_REAL, 2 * limit_s)
            verdict, mistake = judged(judge, answer, text)
            used_much = "MemoryError" in mistake or _peak_bytes() > most
            pipe.send((verdict, mistake, used_much))


def _peak_bytes() -> int:
    """The peak memory of this process in bytes, or 0 if the system does not report it.

    `getrusage` would include the parent's memory, because a new process starts as its copy.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def _load(path: str, source: bytes) -> tuple[Callable | None, str]:
    """Load the function `judge` from a file. Returns it, and the reason if loading failed.

    A user's file can open and import files next to it: its folder becomes the working directory,
    and is searched last for imports, so that modules in it do not hide others.
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
