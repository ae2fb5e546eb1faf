import json
import random
from dataclasses import replace

import pytest

from mrl.config import PolicyConfig
from mrl.exchange import experience_of, receive
from mrl.modes import MODES, Received
from mrl.modes.replay import Replay
from mrl.modes.sft import SFT
from mrl.modes.sgt import SGT
from mrl.modes.solo import Solo
from mrl.modes.xgrpo import XGRPO
from mrl.objectives import OBJECTIVES
from mrl.records import RewardStats, SuccessRecord
from mrl.reward import Verdict
from mrl.samples import Group, Problem, Rollout, TrainingSample
from mrl.settings.read import make_mode
from tests.fakes import SHIPPED, success


def group(name, rewards):
    rollouts = [
        Rollout([10 + n, 0], [-0.5, -0.25 * n], True, f"try {n}",
                Verdict.CORRECT if reward else Verdict.WRONG)
        for n, reward in enumerate(rewards)
    ]  # fmt: skip
    return Group(Problem(name, f"prompt {name}", "1", "skill"), [5, 6], rollouts)


def imitated_texts(receiver, batch):
    texts = []
    for sample in batch.samples:
        if sample.loss == "imitation":
            assert sample.completion_ids[-1] == receiver.eos_id
            texts.append(receiver.codec.decode(sample.completion_ids[:-1]))
    return texts


def teach(mode, receiver, groups, peers, seed=0):
    """peers: records by prompt, or none at all."""
    experiences = [experience_of(receiver, g, peers.get(g.problem.id, [])) for g in groups]
    return mode.training_samples(receiver, experiences, random.Random(seed))


def test_solo_gives_every_own_completion_its_group_advantage(receiver):
    batch = teach(Solo(), receiver, [group("x", [1, 0, 0, 0]), group("y", [0, 0, 0, 0])], {})
    high, low = 0.75 / 0.4330127, -0.25 / 0.4330127
    want = [high, low, low, low, 0.0, 0.0, 0.0, 0.0]
    assert [s.advantage for s in batch.samples] == pytest.approx(want, abs=1e-4)
    second = batch.samples[1]
    assert second.rollout.completion_ids == [11, 0]
    assert second == TrainingSample(
        [5, 6], [11, 0], advantage=second.advantage, behavior_logprobs=[-0.5, -0.25],
        rollout=second.rollout,
    )  # fmt: skip


def test_solo_follows_the_receivers_objective_about_the_std(receiver):
    receiver.objective = OBJECTIVES["dr_grpo"]
    batch = teach(Solo(), receiver, [group("x", [1, 0, 0, 0])], {})
    assert [s.advantage for s in batch.samples] == [0.75, -0.25, -0.25, -0.25]


def test_sgt_imitates_a_peer_exactly_where_all_own_completions_failed(receiver):
    groups = [
        group("all-fail", [0, 0, 0, 0]),
        group("mixed", [1, 0, 0, 0]),
        group("all-pass", [1, 1, 1, 1]),
        group("both-fail", [0, 0, 0, 0]),
    ]
    peers = {name: [success(name)] for name in ("all-fail", "mixed", "all-pass")}
    batch = teach(SGT(), receiver, groups, peers)
    own = teach(Solo(), receiver, groups, {}).samples
    assert batch.samples[:4] + batch.samples[5:] == own  # it stands behind its own group
    assert batch.samples[4] == TrainingSample(
        prompt_ids=[5, 6],
        completion_ids=[*receiver.codec.encode("\\boxed{1}"), receiver.eos_id],
        loss="imitation",
        weight=0.1,
        record=peers["all-fail"][0],
        reward=1.0,
    )
    assert batch.samples[4].source == "b"


def test_sft_imitates_wherever_a_peer_succeeded_and_learns_from_nothing_else(receiver):
    """The same texts as sgt's and more, by the mean NLL alone: no own sample, no weight."""
    groups = [
        group("all-fail", [0, 0, 0, 0]),
        group("mixed", [1, 0, 0, 0]),
        group("all-pass", [1, 1, 1, 1]),
        group("both-fail", [0, 0, 0, 0]),
    ]
    peers = {name: [success(name)] for name in ("all-fail", "mixed", "all-pass")}
    batch = teach(SFT(), receiver, groups, peers)
    assert [sample.record for sample in batch.samples] == [record for (record,) in peers.values()]
    for sample in batch.samples:
        assert sample == TrainingSample(
            prompt_ids=[5, 6],
            completion_ids=[*receiver.codec.encode("\\boxed{1}"), receiver.eos_id],
            loss="imitation",
            record=sample.record,
            reward=1.0,
        )
    assert teach(SFT(), receiver, groups, {}).samples == []


def test_sft_draws_a_text_that_the_receiver_can_write(receiver):
    texts = ["cafe\u0301 \\boxed{1}", "1" * 40, "2 \\boxed{1}"]
    peers = {"x": [success("x", text) for text in texts]}
    for seed in range(20):
        batch = teach(SFT(), receiver, [group("x", [0, 0])], peers, seed)
        assert imitated_texts(receiver, batch) == [texts[2]]
    unusable = {"x": peers["x"][:2]}
    batch = teach(SFT(), receiver, [group("x", [0, 0])], unusable)
    assert batch.samples == []


def test_sgt_adds_the_end_token_only_if_the_peer_had_finished(receiver):
    batch = teach(SGT(), receiver, [group("x", [0, 0])], {"x": [success("x", finished=False)]})
    assert batch.samples[-1].completion_ids == receiver.codec.encode("\\boxed{1}")


def test_sgt_draws_uniformly_from_the_successes_of_all_peers(receiver):
    peers = {"x": [success("x", f"{n} \\boxed{{1}}", source) for n, source in enumerate("bbcd")]}
    drawn = []
    for seed in range(2000):
        batch = teach(SGT(), receiver, [group("x", [0, 0])], peers, seed)
        drawn += imitated_texts(receiver, batch)
    counts = [drawn.count(record.text) for record in peers["x"]]
    assert all(400 < count < 600 for count in counts)


def test_sgt_draws_on_until_a_success_fits_and_each_that_fits_has_the_same_chance(receiver):
    texts = ["cafe\u0301 \\boxed{1}", "1 \\boxed{1}", "1" * 40, "2 \\boxed{1}"]
    peers, drawn = {"x": [success("x", text) for text in texts]}, []
    for seed in range(2000):
        batch = teach(SGT(), receiver, [group("x", [0, 0])], peers, seed)
        drawn += imitated_texts(receiver, batch)
    assert len(drawn) == 2000  # never lost
    assert all(900 < drawn.count(text) < 1100 for text in (texts[1], texts[3]))


def test_sgts_first_draw_is_that_of_rng_choice(receiver):
    texts = [f"{n} \\boxed{{1}}" for n in range(7)]
    peers = {"x": [success("x", text) for text in texts]}
    for seed in range(50):
        batch = teach(SGT(), receiver, [group("x", [0, 0])], peers, seed)
        assert imitated_texts(receiver, batch) == [random.Random(seed).choice(texts)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("cafe\u0301 \\boxed{1}", "thl/refused/not_round_trippable"),
     ("<|end|>", "thl/refused/special_token"), ("1" * 40, "dropped/too_long")],
)  # fmt: skip
def test_a_success_that_the_receiver_cannot_write_is_refused_with_its_reason(
    receiver, text, reason
):
    groups = [group("x", [0, 0])]
    batch = teach(SGT(), receiver, groups, {"x": [success("x", text)]})
    assert batch.samples == teach(Solo(), receiver, groups, {}).samples
    empty = success("x", "")
    for record, refusal in ((success("x", text), reason),
                            (replace(empty, finished=False), "dropped/empty")):  # fmt: skip
        assert receive(receiver, record) == Received(record, [], refusal)
    assert receive(receiver, empty) == Received(empty, [receiver.eos_id])


def test_the_best_solution_that_fits_is_one_line(receiver):
    texts = ["cafe\u0301", "12 \\boxed{1}", "1" * 40, "1 \\boxed{1}"]
    records = [success("x", text) for text in texts]
    usable = experience_of(receiver, group("x", [0, 0]), records).usable
    shortest = min(usable, key=lambda received: len(received.token_ids))
    assert shortest.record is records[3]


def skilled(name, rewards, skill):
    """A group whose prompt and completions can be told from those of other groups."""
    number = sum(map(ord, name))
    whole = group(name, rewards)
    whole.prompt_ids = [number]
    whole.problem = replace(whole.problem, skill=skill)
    for n, rollout in enumerate(whole.rollouts):
        rollout.completion_ids = [number, n, 0]
    return whole


def imitation_samples(batch):
    return [
        (s.prompt_ids, s.completion_ids, s.weight, s.reward, s.source)
        for s in batch.samples
        if s.loss == "imitation"
    ]


def test_replay_imitates_an_own_success_of_an_earlier_step_on_the_same_skill(receiver):
    mode = Replay()
    first = [
        skilled("a", [0, 1], "sold"),
        skilled("b", [1, 0], "days"),
        skilled("c", [0, 0], "sold"),
    ]
    batch = teach(mode, receiver, first, {})
    own = teach(Solo(), receiver, first, {}).samples
    assert batch.samples == own  # nothing was there to remember: `a` is of the same step as `c`
    assert batch.notes == {"replayed": 0}

    second = [
        skilled("d", [0, 0], "sold"),
        skilled("e", [0, 1], "sold"),
        skilled("f", [0, 0], "eats"),
    ]
    batch = teach(mode, receiver, second, {})
    # behind its own prompt `a`, not behind `d`; not where something succeeded; no skill but "sold"
    assert imitation_samples(batch) == [([97], [97, 1, 0], 0.1, 1.0, "")]
    assert batch.notes == {"replayed": 1}


def test_replay_draws_uniformly_from_all_that_it_remembers(receiver):
    drawn = []
    for seed in range(2000):
        mode = Replay()
        teach(mode, receiver, [skilled("a", [1, 1, 0, 1], "sold")], {})
        batch = teach(mode, receiver, [skilled("d", [0, 0], "sold")], {}, seed)
        ((_, completion_ids, *_),) = imitation_samples(batch)
        drawn.append(completion_ids[1])
    assert sorted(set(drawn)) == [0, 1, 3]
    assert all(570 < drawn.count(number) < 765 for number in (0, 1, 3))


def test_replay_without_skills_remembers_rare_successes_of_any_problem(receiver):
    mode = Replay()
    rare, common = skilled("a", [0, 0, 0, 1], "all"), skilled("b", [0, 0, 1, 1], "all")
    teach(mode, receiver, [common], {})
    assert mode.state() == {}
    teach(mode, receiver, [rare], {})
    batch = teach(mode, receiver, [skilled("d", [0, 0], "all")], {})
    assert imitation_samples(batch) == [([97], [97, 3, 0], 0.1, 1.0, "")]


def test_replay_keeps_the_newest_successes_and_its_state_survives_a_checkpoint(receiver):
    mode = Replay(capacity=2)
    teach(mode, receiver, [skilled("a", [1, 1, 1], "sold")], {})
    teach(mode, receiver, [skilled("b", [1, 0, 0], "sold")], {})
    assert mode.state() == {"sold": [([97], [97, 2, 0]), ([98], [98, 0, 0])]}

    resumed = Replay(capacity=2)
    resumed.restore(json.loads(json.dumps(mode.state())))
    failed = [skilled("d", [0, 0], "sold")]
    for seed in range(20):
        again = [teach(one, receiver, failed, {}, seed) for one in (mode, resumed)]
        assert imitation_samples(again[0]) == imitation_samples(again[1])


def stats(prompt_id, rewards, source="b"):
    mean = sum(rewards) / len(rewards)
    std = (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5
    return RewardStats(
        prompt_id=prompt_id, source=source, version=0, count=len(rewards), mean=mean, std=std
    )


def test_xgrpo_scores_own_samples_against_everybodys_rewards(receiver):
    groups = [
        group("all-fail", [0, 0]),
        group("all-pass", [1, 1]),
        group("both-fail", [0, 0]),
        group("mixed", [1, 0]),
        group("alone", [1, 0]),
    ]
    peers = {
        "all-fail": [stats("all-fail", [1, 1])],  # union 0 0 1 1
        "all-pass": [stats("all-pass", [0, 0, 0, 0], "b"), stats("all-pass", [1, 1], "c")],
        "both-fail": [stats("both-fail", [0, 0])],
        "mixed": [stats("mixed", [1, 0])],
    }
    batch = teach(XGRPO(), receiver, groups, peers)
    want = [
        -1.0,
        -1.0,
        1.0,
        1.0,
        0.0,
        0.0,
        1.0,
        -1.0,
        1.0,
        -1.0,
    ]  # union of the second: 4 x 0, 4 x 1
    assert [s.advantage for s in batch.samples] == pytest.approx(want, abs=1e-4)
    own = teach(Solo(), receiver, groups, {}).samples
    for sample, plain in zip(batch.samples, own, strict=True):
        assert replace(sample, advantage=0.0) == replace(plain, advantage=0.0)


def test_xgrpo_with_peer_share_zero_has_solos_baseline(receiver):
    groups = [group("x", [1, 0, 0, 0])]
    receiver.objective = OBJECTIVES["dr_grpo"]  # no division, so that the baseline is seen bare
    peers = {"x": [stats("x", [1, 1, 1, 1])]}
    mixed = teach(XGRPO(peer_share=0.0), receiver, groups, peers).samples
    assert [s.advantage for s in mixed] == [0.75, -0.25, -0.25, -0.25]


def test_a_mode_sees_no_more_than_the_record_type_that_it_declares():
    assert Solo.consumes is None
    assert XGRPO.consumes is RewardStats
    assert "text" not in RewardStats.__dataclass_fields__
    assert SGT.consumes is SuccessRecord
    assert "logprobs" not in SuccessRecord.__dataclass_fields__


def test_modes_are_made_by_name_with_checked_settings():
    assert isinstance(make_mode("solo", {}), Solo)
    assert make_mode("sgt", {"sgt": {"imitation_weight": 1}}).imitation_weight == 1.0
    assert all(make_mode(name, {}).name == name for name in MODES)


def test_rollouts_and_updates_of_each_mode():
    """The number of the papers, and that of a policy; solo-x2 has twice the samples and updates."""
    expected = dict.fromkeys(SHIPPED, (1, 1, 3)) | {
        "solo-x2": (2, 1, 6),
        "hacpo": (1, 4, 3),
        "graft": (1, 4, 3),
    }
    for name, numbers in expected.items():
        kind = MODES[name]
        of_three = kind().updates_per_step(PolicyConfig("a", "a", updates_per_step=3))
        assert (kind.rollout_factor, kind.published_updates, of_three) == numbers, name
