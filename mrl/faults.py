"""Faults on demand, for lessons and tests: `--fault liar=0.3`.

The training loop knows nothing of them: a fault replaces one function that the loop is given.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from mrl.alignment import ByteCodec, LossyText
from mrl.errors import MrlError
from mrl.exchange import Record, SuccessRecord, make_records
from mrl.rewards import Verdict
from mrl.samples import Group


def parse_fault(text: str) -> dict[str, float]:
    """`liar=0.3` -> {"liar": 0.3}; MrlError for anything else."""
    name, _, value = text.partition("=")
    try:
        rate = float(value)
    except ValueError:
        rate = -1.0
    if name != "liar" or not 0 <= rate <= 1:
        raise MrlError(f"--fault {text}: known is liar=RATE with a rate from 0 to 1, as liar=0.3.")
    return {name: rate}


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
                    told = isinstance(record, Record)
                    yield replace(record, index=number) if told else record

    return make
