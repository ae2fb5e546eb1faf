"""Mode `hint` and second attempts: what is given, what is sampled, and what is imitated."""

import random

import pytest
import torch

from mini_mrl import train_step
from mrl.errors import MrlError
from mrl.exchange import experience_of
from mrl.modes import Beginning, Experience, Received
from mrl.modes.check import check_beginnings
from mrl.modes.hint import Hint, first_tokens
from mrl.modes.own import own_samples
from mrl.reward import Verdict
from mrl.run.metrics import sample_lines, second_metrics, step_metrics
from mrl.samples import SecondAttempt
from mrl.team import StepResult
from tests.end_to_end.small_run import without_time
from tests.fakes import NAMES, ToyReceiver, make_team, one_step, success, weights_of
from tests.sentences import names_it
from tests.test_alignment import CODECS
from tests.test_modes import group

TEXTS = (
    "47-38: 17-8=9, 4-1-3=0. \\boxed{9}",
    "First, 3 figs a day for 14 days: 3*14 = 42. So the answer is \\boxed{42}.",
    "x\n\n  y \u2192 z \u00e9\u00e9 \\boxed{1}",
)


# ------------------------------------------------------------------------------ the beginning


@pytest.mark.parametrize("name", CODECS)
def test_a_beginning_is_the_first_tokens_of_the_whole_solution_and_ends_before_the_box(name):
    receiver = ToyReceiver(CODECS[name], max_new_tokens=400)
    usable = experience_of(receiver, group("x", [0]), [success("x", text) for text in TEXTS]).usable
    for solution in usable:
        lengths = []
        for share in (0.0, 0.1, 0.3, 0.5, 1.0):
            begun = first_tokens(receiver, solution, share)
            lengths.append(len(begun))
            assert begun == solution.token_ids[: len(begun)]
            data = b"".join(receiver.codec.token_bytes(begun))
            whole = solution.record.text.encode()
            assert whole.startswith(data) and b"\\" not in data
            # one more token would hold more than this share, or touch the box
            more = receiver.codec.token_bytes(solution.token_ids[: len(begun) + 1])
            more = b"".join(more)
            assert len(data) <= share * len(whole) or len(begun) == 1
            assert len(more) > share * len(whole) or b"\\" in more
        assert lengths == sorted(lengths) and lengths[0] >= 1
    assert len(usable) >= 1 or "piece" in name


def test_what_is_only_a_box_or_one_token_has_no_beginning(receiver):
    for text in ("\\boxed{1}", "7"):
        (solution,) = experience_of(receiver, group("x", [0]), [success("x", text)]).usable
        assert first_tokens(receiver, solution, 0.5) == []
        assert Hint().beginnings_of(receiver, solution, random.Random(0)) == []


def test_a_prompt_is_tried_again_where_all_attempts_failed_and_a_peer_has_a_solution(receiver):
    groups = [group(name, rewards) for name, rewards in (("x", [0, 0]), ("y", [1, 0]), ("z", [0]))]
    solutions = [success(name, "12345678") for name in "xy"]
    records = [[solutions[0]], [solutions[1]], []]
    experiences = [experience_of(receiver, *pair) for pair in zip(groups, records, strict=True)]
    mode = Hint(attempts=5)
    named = mode.beginnings(receiver, experiences, random.Random(0))
    assert [len(of_prompt) for of_prompt in named] == [5, 0, 0]
    assert all(beginning.record is solutions[0] for beginning in named[0])
    shares = [len(beginning.token_ids) / 8 for beginning in named[0]]
    assert min(shares) >= 1 / 8 and max(shares) <= 0.5 and len(set(shares)) > 1


def test_the_solution_is_drawn_uniformly_among_all_peers_and_one_per_prompt(receiver):
    records = [success("x", text, peer) for text, peer in zip(("1234", "5678"), "bc", strict=True)]
    experience = experience_of(receiver, group("x", [0, 0]), records)
    drawn = []
    for seed in range(600):
        (named,) = Hint().beginnings(receiver, [experience], random.Random(seed))
        (source,) = {beginning.record.source for beginning in named}
        drawn.append(source)
    assert abs(drawn.count("b") - 300) < 75  # 6 sigma


# ------------------------------------------------------------------------------ what is imitated


def attempt(ids, given, verdict, record=None):
    return SecondAttempt(ids, [-1.0] * (len(ids) - given), True, "", verdict, 0, given, record)


def test_the_correct_attempt_with_the_shortest_beginning_is_imitated_whole(receiver):
    record = success("x", "12345678")
    failed = group("x", [0, 0])
    tried = [
        attempt([1, 2, 3, 0], 1, Verdict.WRONG, record),
        attempt([1, 2, 3, 4, 0], 3, Verdict.CORRECT, record),
        attempt([1, 2, 5, 6, 0], 2, Verdict.CORRECT, record),
    ]
    experiences = [
        Experience(failed, [Received(record, [1, 2, 3])], tried),
        Experience(group("y", [0, 0]), [], [tried[0]]),
    ]
    batch = Hint(imitation_weight=0.5).training_samples(receiver, experiences, random.Random(0))
    own = [s for one in experiences for s in own_samples(receiver, one.group)]
    (hinted,) = [sample for sample in batch.samples if sample.loss == "imitation"]
    assert [sample for sample in batch.samples if sample is not hinted] == own
    assert hinted.rollout is tried[2] and hinted.record is record
    assert (hinted.prompt_ids, hinted.completion_ids) == (failed.prompt_ids, [1, 2, 5, 6, 0])
    assert (hinted.weight, hinted.reward, hinted.imitates) == (0.5, 1.0, "hinted")


# ------------------------------------------------------------------------------ sampling


def begun(policy, sizes):
    """A prompt with beginnings of several lengths."""
    ids = policy.codec.encode("47-38: 17-8=9, 4-1")
    prompts = [policy.prompt_ids(f"{size}+1?") for size in sizes]
    return prompts, [ids[:size] for size in sizes]


@pytest.mark.parametrize("name", NAMES)
def test_beginning_and_rest_fit_the_limit_and_the_rest_has_the_policys_logprobs(make_policy, name):
    policy = make_policy(name, max_new_tokens=9)
    prompts, beginnings = begun(policy, [0, 1, 3, 5, 8] * 4)
    found = policy.continue_from(prompts, beginnings, torch.Generator().manual_seed(0))
    for prompt, beginning, one in zip(prompts, beginnings, found, strict=True):
        assert one.given == len(beginning)
        assert one.completion_ids[: one.given] == beginning
        rest = one.completion_ids[one.given :]
        assert 1 <= len(rest) <= 9 - one.given
        ended = rest[-1] in policy.eos_ids
        assert one.finished == ended and (ended or len(one.completion_ids) == 9)
        assert not set(rest[:-1]) & set(policy.eos_ids)
        (want,) = policy.logprobs_of([prompt + beginning], [rest])
        assert one.logprobs == pytest.approx(want, abs=2e-5)
        assert one.text == policy.tokenizer.decode(one.content_ids)
    assert any(not one.finished for one in found)


# ------------------------------------------------------------------------------ in a step


def published(record_type, policy, groups, step):
    """The second policy has a solution to each problem; a random-weight policy writes no text."""
    for one in groups if policy.name == NAMES[1] else ():
        yield success(one.problem.id, "123456", policy.name)


class Helped:
    """The first policy fails, the second succeeds, and of second attempts every other one does."""

    def __init__(self):
        self.calls = 0

    def verify(self, answer, text, finished):
        return Verdict.CORRECT

    def verify_groups(self, groups):
        self.calls += 1
        verdicts = {1: [Verdict.WRONG], 2: [Verdict.CORRECT]}.get(
            self.calls, [Verdict.WRONG, Verdict.CORRECT]
        )
        for one in groups:
            for number, rollout in enumerate(one.rollouts):
                rollout.verdict = verdicts[number % len(verdicts)]


@pytest.fixture
def helped(make_policy):
    """A function: a team in mode `hint` whose first policy needs help in its first step."""

    def make(**options):
        settings = {"hint": {"attempts": 6}}
        team = make_team(make_policy, "hint", Helped(), settings, learning_rate=1e-3, **options)
        team.records_of = published
        return team

    return make


def test_second_attempts_are_learned_from_and_are_no_part_of_the_step(helped):
    team, alone = helped(), helped()
    alone.records_of = lambda *_: ()  # then nobody can be helped
    with_help, without = (train_step(each, 1) for each in (team, alone))
    result, peer = with_help[NAMES[0]], with_help[NAMES[1]]
    tried = [one for experience in result.experiences for one in experience.second_attempts]
    assert len(tried) >= 6 and len(tried) % 6 == 0
    # the same completions, rewards and records as without second attempts
    assert result.groups == without[NAMES[0]].groups
    assert all(record.source == NAMES[1] for record in team.exchange.records)
    assert not any(experience.second_attempts for experience in peer.experiences)

    hinted = [sample for sample in result.batch.samples if sample.imitates]
    assert len(hinted) == len(tried) / 6
    assert all(sample.rollout.reward == 1.0 for sample in hinted)
    assert (result.imitated, result.rescues) == ([], [])

    policy = team.policies[0]
    metrics = step_metrics(policy, result)
    assert metrics["reward"] == 0.0
    assert (metrics["hinted"], metrics["imitated"]) == (len(hinted), 0)
    assert (metrics["second/attempts"], metrics["second/successes"]) == (len(tried), len(tried) / 2)
    assert metrics["second/num_tokens"] == sum(len(one.logprobs) for one in tried)
    assert 0 < metrics["second/share_given"] < 1
    assert metrics["outcome/hinted"] > 0 == metrics["outcome/imitated"]
    assert sum(v for k, v in metrics.items() if k.startswith("outcome/")) == pytest.approx(1)
    assert "thl/records" not in metrics or metrics["thl/records"] == 0
    logged = [line["hint"] for line in sample_lines(1, policy, result) if "hint" in line]
    assert [line["text"] for line in logged] == [sample.rollout.text for sample in hinted]
    assert "second/attempts" not in step_metrics(team.policies[1], peer)


@pytest.mark.parametrize("placement", ["resident", "swap"])
def test_the_same_seed_gives_the_same_second_attempts_under_swap_too(helped, placement):
    one, other = helped(), helped(placement=placement)
    lines = [{k: without_time(v) for k, v in one_step(t, 1)[0].items()} for t in (one, other)]
    assert lines[0] == lines[1]
    assert lines[0][NAMES[0]]["hinted"] > 0
    for index in (0, 1):
        pairs = zip(weights_of(one, index).values(), weights_of(other, index).values(), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)


def test_a_frozen_policy_never_tries_again(helped):
    team = helped()
    team.policies[0].config.frozen = True
    result = train_step(team, 1)[NAMES[0]]
    assert result.experiences == []
    assert not any(turn.phase == "try_again" and turn.policy == NAMES[0]
                   for turn in team.allocation.ledger)  # fmt: skip


def test_a_false_beginning_costs_attempts_and_teaches_nothing_wrong(make_policy):
    """Believed lies: the peer's claims are not checked, but what is imitated is."""

    class NobodySucceeds(Helped):
        def verify_groups(self, groups):
            self.calls += 1
            for one in groups:
                for rollout in one.rollouts:
                    lie = Verdict.CORRECT if self.calls == 2 else Verdict.WRONG
                    rollout.verdict = lie

    team = make_team(make_policy, "hint", NobodySucceeds(), {}, learning_rate=1e-3)
    team.trust, team.records_of = "claim", published
    result = train_step(team, 1)[NAMES[0]]
    assert sum(len(one.second_attempts) for one in result.experiences) >= 8
    assert not any(sample.imitates for sample in result.batch.samples)
    assert result.stats.updates == 0


def test_no_more_rows_than_in_the_first_sampling_are_sampled_at_once(helped, monkeypatch):
    team, rows = helped(), []
    policy = team.policies[0]
    continue_from = policy.continue_from

    def watched(prompts, *rest):
        rows.append(len(prompts))
        return continue_from(prompts, *rest)

    monkeypatch.setattr(policy, "continue_from", watched)
    train_step(team, 1)
    assert max(rows) <= 3 * 4 and sum(rows) % 6 == 0


class Own(Hint):
    """A mode of one's own."""


@pytest.mark.parametrize(
    ("named", "part"),
    [
        (None, "list"),
        ([[]], "list"),
        ([[Beginning([10**6])], []], "token_ids"),
        ([[Beginning([-1])], []], "token_ids"),
        ([[Beginning([1] * 20)], []], "20"),
    ],
)
def test_a_wrong_beginning_is_one_sentence_with_the_modes_file(receiver, named, part):
    with pytest.raises(MrlError) as caught:
        check_beginnings(named, Own(), receiver, 2)
    assert str(caught.value).startswith(f"{__file__}: beginnings of Own ")
    assert names_it(str(caught.value), part)
    check_beginnings([[Beginning([])], []], Own(), receiver, 2)  # anew: without a beginning


def test_an_attempt_that_the_tokenizer_would_cut_differently_is_counted(make_policy):
    policy = make_policy(max_new_tokens=20)
    ids = policy.codec.encode("12 \\boxed{1}")
    made = [attempt([*ids, policy.eos_id], 1, Verdict.CORRECT)]
    pieces = [token for c in "12 \\boxed{1}" for token in policy.codec.encode(c)]
    made.append(attempt([*pieces, policy.eos_id], 1, Verdict.CORRECT))
    for one in made:
        one.text = "12 \\boxed{1}"
    whole = group("x", [0, 0])
    result = StepResult([whole], [Experience(whole, [], made)])
    assert second_metrics(policy, result)["second/recut"] == 1
