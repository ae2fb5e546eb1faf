import pytest

from mrl.records import RewardStats, SuccessRecord, make_records
from mrl.runtime.liars import lying_records
from mrl.samples import Group, Problem, Rollout, Verdict


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


def test_a_liar_claims_failed_completions_at_its_rate_and_keeps_its_honest_ones(groups):
    groups, codec = groups
    honest = list(make_records(SuccessRecord, "a", 3, groups, codec))
    made = list(lying_records(0.3, seed=0)(SuccessRecord, "a", 3, groups, codec))
    assert made[:50] == honest
    lies = made[50:]
    assert 15 < len(lies) < 45  # 0.3 of 100 failed completions
    assert all(record.verdict == "correct" and "{1}" not in record.text for record in lies)
    assert {record.index for record in lies} <= {1, 2}
    assert made == list(lying_records(0.3, seed=0)(SuccessRecord, "a", 3, groups, codec))


def test_records_of_other_types_stay_honest(groups):
    groups, codec = groups
    made = list(lying_records(1.0, seed=0)(RewardStats, "a", 0, groups, codec))
    assert made == list(make_records(RewardStats, "a", 0, groups, codec))


def test_lies_differ_by_seed_source_and_version(groups):
    made, codec = groups
    lies = {
        (seed, source, version): tuple(
            (r.prompt_id, r.index)
            for r in lying_records(0.3, seed)(SuccessRecord, source, version, made, codec)
        )
        for seed, source, version in ((0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1))
    }
    assert len(set(lies.values())) == 4
