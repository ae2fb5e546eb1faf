"""Policies that lie on purpose, for lessons and tests: `--set liar=0.3`.

The training step does not know about lies: a team simply gets `lying_records` instead of
`publish_records`.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mrl.alignment import LossyText
from mrl.policy import Policy
from mrl.records import Record, SuccessRecord
from mrl.reward import Verdict
from mrl.samples import Group
from mrl.team import RecordsOf, publish_records


def lying_records(rate: float, seed: int) -> RecordsOf:
    """A `RecordsOf` that claims each failed completion as a success with probability `rate`."""

    def records_of(
        record_type: type[Record], policy: Policy, groups: Sequence[Group], step: int
    ) -> Iterator[Record | LossyText]:
        yield from publish_records(record_type, policy, groups, step)
        if record_type is not SuccessRecord:
            return

        # seeded by step instead of version, because the version of a frozen policy never changes
        rng = random.Random(f"{seed}/liar/{policy.name}/{step}")
        for group in groups:
            claims = []  # only lies are marked correct: real successes are published above
            for rollout in group.rollouts:
                lies = rollout.verdict is not Verdict.CORRECT and rng.random() < rate
                claims.append(replace(rollout, verdict=Verdict.CORRECT if lies else Verdict.WRONG))
            lying_group = replace(group, rollouts=claims)
            yield from publish_records(record_type, policy, [lying_group], step)

    return records_of
