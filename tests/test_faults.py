import pytest

from mrl.errors import MrlError
from mrl.lab.faults import Fault, lying_records, parse_fault
from mrl.records import RewardStats, SuccessRecord, make_records
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


def test_other_levels_stay_as_they_are(groups):
    groups, codec = groups
    made = list(lying_records(1.0, seed=0)(RewardStats, "a", 0, groups, codec))
    assert made == list(make_records(RewardStats, "a", 0, groups, codec))


NAMES = ["qwen-tiny", "llama-tiny"]


def test_faults_from_the_command_line():
    assert parse_fault("", NAMES) == Fault()
    assert parse_fault("liar=0.3", NAMES, seed=4) == Fault("liar", rate=0.3, seed=4)
    assert parse_fault("crash=qwen-tiny@5", NAMES) == Fault("crash", policy="qwen-tiny", step=5)
    assert parse_fault("hang=llama-tiny@3+", NAMES).onwards
    for wrong in ("liar", "liar=2", "liar=-1", "liar=x", "lair=0.3", "liar=nan", "crash=qwen-tiny",
                  "hang=qwen-tiny@x", "crash=@1", "crash=qwen-tiny@-1"):  # fmt: skip
        with pytest.raises(MrlError, match="liar=RATE"):
            parse_fault(wrong, NAMES)
    with pytest.raises(MrlError, match="there is no policy 'gpt'"):
        parse_fault("crash=gpt@1", NAMES)


def test_a_crash_comes_in_the_rollout_turn_of_its_policy_and_step_alone():
    fault = parse_fault("crash=qwen-tiny@5", NAMES)
    for about in (
        ("llama-tiny", "rollout", 5),
        ("qwen-tiny", "learn", 5),
        ("qwen-tiny", "rollout", 6),
    ):
        fault.before_turn(*about)
    with pytest.raises(RuntimeError, match="planted"):
        fault.before_turn("qwen-tiny", "rollout", 5)
    with pytest.raises(RuntimeError):
        parse_fault("crash=qwen-tiny@5+", NAMES).before_turn("qwen-tiny", "rollout", 9)
    Fault().before_turn("qwen-tiny", "rollout", 0)
