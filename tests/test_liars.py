from types import SimpleNamespace

import pytest

from mrl.records import RewardStats, SuccessRecord
from mrl.reward import Verdict
from mrl.run.liars import lying_records
from mrl.samples import Group, Problem, Rollout
from mrl.team import publish_records


@pytest.fixture
def groups(make_policy):
    codec = make_policy().codec
    made = []
    for number in range(50):
        rollouts = [
            Rollout([*codec.encode(f"\\boxed{{{n}}}"), 0], [-1.0] * 9, True, "", verdict)
            for n, verdict in ((1, Verdict.CORRECT), (2, Verdict.WRONG), (3, Verdict.WRONG))
        ]
        made.append(Group(Problem(f"p{number}", "?", "1"), [5], rollouts))
    return made, codec


def policy(codec, name="a", version=0):
    return SimpleNamespace(name=name, version=version, codec=codec)


def test_a_liar_claims_failed_completions_at_its_rate_and_keeps_its_honest_ones(groups):
    groups, codec = groups
    about = (SuccessRecord, policy(codec), groups, 3)
    made = list(lying_records(0.3, seed=0)(*about))
    assert made[:50] == list(publish_records(*about))
    lies = made[50:]
    assert 15 < len(lies) < 45  # 0.3 of 100 failed completions
    assert all(record.verdict == "correct" and "{1}" not in record.text for record in lies)
    assert {record.index for record in lies} <= {1, 2}
    assert made == list(lying_records(0.3, seed=0)(*about))


def test_records_of_other_types_stay_honest(groups):
    groups, codec = groups
    about = (RewardStats, policy(codec), groups, 1)
    assert list(lying_records(1.0, seed=0)(*about)) == list(publish_records(*about))


def lies_in(groups, rate, seed, name, version, step):
    made, codec = groups
    records = lying_records(rate, seed)(SuccessRecord, policy(codec, name, version), made, step)
    return tuple((record.prompt_id, record.index) for record in records if record.index)


def test_lies_differ_by_seed_source_and_step(groups):
    cases = ((0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2))
    assert len({lies_in(groups, 0.3, seed, name, 0, step) for seed, name, step in cases}) == 4


def test_a_frozen_liar_does_not_tell_the_same_lies_in_each_step(groups):
    """Its version stays; seeded by that, its rate would be that of a single draw."""
    told = [lies_in(groups, 0.3, 0, "a", version=0, step=step) for step in range(1, 41)]
    assert len(set(told)) == 40
    assert 0.27 < sum(map(len, told)) / (40 * 100) < 0.33
