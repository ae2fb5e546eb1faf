"""A judge of one's own: a file with `judge(answer, text) -> bool` in the place of math-verify.

It runs in the verifier's child, within its limits of time and memory. That guards against accidents
only: the file may read files, write them and use the network, as any program may.
"""

import faulthandler
import hashlib
import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from mrl.errors import MrlError
from mrl.runtime.verifier import START_LIMIT_S, Verifier, serve
from mrl.samples import Verdict

if TYPE_CHECKING:  # not in the child: with CUDA's libraries torch alone is past its memory limit
    from mrl.config import RunConfig


def checksum(path: str) -> str:
    """The checksum of a judge's file, 16 digits."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def check_judge(config: "RunConfig") -> None:
    """Raise MrlError if a run's judge is not the one that it began with any more."""
    if not config.judge:
        return

    now, began_with = checksum(config.judge), config.judge_checksum
    if began_with not in ("", now):
        raise MrlError(
            f"judge {config.judge}: its checksum is {now}, but the run began with {began_with}, so "
            "the same text could get another reward; put the old file back, or start a new run."
        )


def make_verifier(config: "RunConfig", say: Callable[[str], None]) -> Verifier:
    """Make the verifier of a run: its own judge if it names one, else math-verify."""
    if config.judge:
        return OwnJudge(config, say)
    return Verifier(timeout_s=config.verify_timeout_s)


class OwnJudge(Verifier):
    """Judges whole completions with a person's file.

    A judge that raises, or returns no bool, is refused if that happens with an empty text, before a
    run writes anything. If that happens later, its verdict is WRONG, and each type of mistake is
    shown once.
    """

    reply_type = str  # a verdict, or a text on what the judge did in place of it

    def __init__(self, config: "RunConfig", say: Callable[[str], None]) -> None:
        super().__init__(config.verify_timeout_s)
        self.config = config
        self.path = config.judge
        self.command = (sys.executable, "-m", __name__, str(Path(self.path).absolute()))
        self._say = say
        self._shown: set[str] = set()  # types of mistakes

    def start_and_check(self) -> None:
        """Start a child; MrlError if it cannot load the judge, or if that is another one now."""
        check_judge(self.config)
        self.start()

        reason = f"it takes longer than {START_LIMIT_S} seconds, or ends its process"
        with suppress(EOFError):
            if self._pipe.poll(START_LIMIT_S):
                reason = self._pipe.recv()
        if reason:
            self.close()
            raise MrlError(f"judge {self.path}: cannot be loaded ({reason}).")

    def verify(self, answer: str, completion: str, finished: bool = True) -> Verdict:
        """Judge one completion; finished: it was not cut short."""
        verdict, mistake = self._ask_judge(answer, completion)
        mistake_type = mistake.partition("(")[0]
        if mistake and mistake_type not in self._shown:
            self._shown.add(mistake_type)
            self._say(
                f"judge {self.path}: {mistake}, with the answer {answer!r} and the text "
                f"{completion[:200]!r}. That counts as {verdict}, here and later."
            )

        if verdict is Verdict.WRONG and not finished:
            return Verdict.TRUNCATED
        return verdict

    def check_answer(self, answer: str) -> bool:
        """Whether an empty text is judged wrong; MrlError if the judge does anything else."""
        verdict, mistake = self._ask_judge(answer, "")
        if verdict is Verdict.CORRECT:
            mistake = "calls it right"
        if mistake:
            raise MrlError(
                f"judge {self.path}: {mistake}, with the answer {answer!r} and an empty text; it "
                "must return False for what is not right."
            )
        return True

    def _ask_judge(self, answer: str, text: str) -> tuple[Verdict, str]:
        """The judge's verdict, and a text on what it did in place of returning one."""
        reply = self._judge(answer, text)
        if reply == Verdict.TIMEOUT:
            return Verdict.TIMEOUT, f"takes longer than {self.timeout_s:g} s or ends its process"
        if reply in (Verdict.CORRECT, Verdict.WRONG):
            return Verdict(reply), ""
        return Verdict.WRONG, reply


def _load(path: str) -> tuple[Callable[[str, str], bool] | None, str]:
    """The file's `judge`, and the reason if there is none."""
    spec = importlib.util.spec_from_file_location(f"judge {Path(path).stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        return None, repr(error)

    judge = getattr(module, "judge", None)
    return judge, "" if callable(judge) else "it has no function judge(answer, text)"


def _verdict(judge: Callable[[str, str], bool], answer: str, text: str) -> str:
    """Judge in the child; returns a verdict, or a text on what the judge did in place of it."""
    try:
        right = judge(answer, text)
        if type(right) is bool:
            return Verdict.CORRECT if right else Verdict.WRONG
        return f"returns a {type(right).__name__} and neither True nor False"
    except (Exception, SystemExit) as error:
        return f"raises {error!r:.200}"


if __name__ == "__main__":
    path, descriptor = sys.argv[1:]
    pipe = Connection(int(descriptor))
    # if it is still loading by then it ends itself, because the parent may be gone
    faulthandler.dump_traceback_later(2 * START_LIMIT_S, exit=True)
    judge, problem = _load(path)
    pipe.send(problem)
    serve(pipe, partial(_verdict, judge))
