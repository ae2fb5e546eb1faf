"""Faults on demand, for lessons and tests: `--fault liar=0.3`, `--fault hang=llama-tiny@5`.

The training loop knows nothing of them: a fault replaces one function that the loop is given.
"""

import random
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from mrl.alignment import ByteCodec, LossyText
from mrl.errors import MrlError
from mrl.records import Record, SuccessRecord, make_records
from mrl.rewards import Verdict
from mrl.samples import Group

FORM = re.compile(r"(liar)=([0-9]*\.?[0-9]+)|(crash|hang)=(.+)@([0-9]+)(\+?)")


@dataclass(frozen=True)
class Fault:
    """What is planted. liar: a rate; crash and hang: a policy's rollout turn in one step."""

    kind: str = ""  # liar, crash, hang; empty: none
    rate: float = 0.0
    policy: str = ""
    step: int = 0
    onwards: bool = False  # in every step from there on (`@5+`)
    seed: int = 0

    @property
    def make_records(self) -> Callable[..., Iterable[Record | LossyText]]:
        """How policies make records of their groups: honestly, unless they lie."""
        return lying_records(self.rate, self.seed) if self.kind == "liar" else make_records

    def before_turn(self, policy: str, phase: str, step: int) -> None:
        """Raise or hang in the turn that this fault is about."""
        due = step >= self.step if self.onwards else step == self.step
        if policy != self.policy or phase != "rollout" or not due:
            return
        if self.kind == "crash":
            raise RuntimeError("a crash that --fault planted")
        threading.Event().wait()  # for ever


def parse_fault(text: str, policies: Sequence[str], seed: int = 0) -> Fault:
    """`liar=0.3`, `crash=NAME@STEP` or `hang=NAME@STEP`; MrlError for anything else."""
    if not text:
        return Fault()
    match = FORM.fullmatch(text)
    if match and match[1] and float(match[2]) <= 1:
        return Fault("liar", rate=float(match[2]), seed=seed)
    if match and match[3]:
        if match[4] not in policies:
            raise MrlError(
                f"--fault {text}: there is no policy {match[4]!r}; there are {', '.join(policies)}."
            )
        return Fault(match[3], policy=match[4], step=int(match[5]), onwards=bool(match[6]))
    raise MrlError(
        f"--fault {text}: known are liar=RATE with a rate from 0 to 1, crash=POLICY@STEP and "
        "hang=POLICY@STEP (with a + behind it: from that step on)."
    )


def lying_records(rate: float, seed: int) -> Callable[..., Iterable[Record | LossyText]]:
    """`make_records` of policies that claim each failed completion as a success at `rate`."""

    def make(
        kind: type[Record], source: str, version: int, groups: Sequence[Group], codec: ByteCodec
    ) -> Iterable[Record | LossyText]:
        yield from make_records(kind, source, version, groups, codec)
        if kind is not SuccessRecord:
            return
        rng = random.Random(f"{seed}/liar/{source}/{version}")
        for group in groups:
            for number, rollout in enumerate(group.rollouts):
                if rollout.verdict is Verdict.CORRECT or rng.random() >= rate:
                    continue
                false = replace(rollout, verdict=Verdict.CORRECT)
                lie = Group(group.problem, group.prompt_ids, [false])
                for record in make_records(kind, source, version, [lie], codec):
                    refused = isinstance(record, LossyText)
                    yield record if refused else replace(record, index=number)

    return make
