"""Policies that lie, planted on purpose for lessons and tests: `--set liar=0.3`.

The training loop does not know of them: they replace the one function that makes records.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from mrl.alignment import ByteCodec, LossyText
from mrl.records import Record, SuccessRecord, make_records
from mrl.samples import Group, Verdict


def lying_records(rate: float, seed: int) -> Callable[..., Iterator[Record | LossyText]]:
    """`make_records` of policies that claim each failed completion as a success at `rate`."""

    def make(
        record_type: type[Record],
        source: str,
        version: int,
        groups: Sequence[Group],
        codec: ByteCodec,
    ) -> Iterator[Record | LossyText]:
        yield from make_records(record_type, source, version, groups, codec)
        if record_type is not SuccessRecord:
            return

        rng = random.Random(f"{seed}/liar/{source}/{version}")
        for group in groups:
            claims = []  # its lies as successes, and no honest success a second time
            for rollout in group.rollouts:
                lies = rollout.verdict is not Verdict.CORRECT and rng.random() < rate
                claims.append(replace(rollout, verdict=Verdict.CORRECT if lies else Verdict.WRONG))
            lying_group = replace(group, rollouts=claims)
            yield from make_records(record_type, source, version, [lying_group], codec)

    return make
