"""A judge of one's own: `judge(answer, text) -> bool` in the place of integers and math-verify.

A file's runs in the verifier's child, within its limits of time and memory. That guards against
accidents only: the file may read files, write them and use the network, as any program may.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

from mrl.config import RunConfig
from mrl.errors import MrlError
from mrl.runtime.verifier import FORMULAS, Verifier, judged
from mrl.samples import Verdict


def checksum(path: str) -> str:
    """The checksum of a judge's file, 16 digits."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def check_judge(config: RunConfig) -> None:
    """Raise MrlError if a run's judge is not the one that it began with any more."""
    if not config.judge:
        return

    now, began_with = checksum(config.judge), config.judge_checksum
    if began_with not in ("", now):
        raise MrlError(
            f"judge {config.judge}: its checksum is {now}, but the run began with {began_with}, so "
            "the same text could get another reward; put the old file back, or start a new run."
        )


def make_verifier(config: RunConfig, say: Callable[[str], None]) -> Verifier:
    """Make the verifier of a run: its own judge if it names one, else the ordinary one."""
    if config.judge:
        return OwnJudge(config.judge, config.verify_timeout_s, say)
    return Verifier(config.verify_timeout_s)


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

    def verify(self, answer: str, completion: str, finished: bool = True) -> Verdict:
        """Judge one completion; finished: it was not cut short."""
        verdict, mistake = self._ask(answer, completion)
        if mistake and not self._has_said:
            self._has_said = True
            self._say(
                f"{self.name}: {mistake}, with the answer {answer!r} and the text "
                f"{completion[:200]!r}. That counts as {verdict}, here and later."
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
