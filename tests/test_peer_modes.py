"""The modes that learn from whole peer rollouts: exactly what comes out, case by case.

Toy policies: the receiver `a`, whose log-probs of another's text are set, and peers whose records
are written by hand.
"""

import math
import random
from dataclasses import replace
from statistics import fmean

import pytest
import torch

from mrl.advantages import group_advantages
from mrl.errors import MrlError
from mrl.exchange import experience_of
from mrl.modes.graft import GRAFT
from mrl.modes.hacpo import HACPO, NarrowingBand
from mrl.modes.naive import Naive
from mrl.modes.prp import PRP
from mrl.modes.sgt import SGT
from mrl.modes.solo import Solo
from mrl.objectives import OBJECTIVES
from mrl.records import RolloutRecord
from mrl.reward import Verdict
from mrl.samples import Group, Problem, Rollout
from mrl.settings.read import make_mode
from tests.fakes import SHIPPED, success
from tests.sentences import names_it

RIGHT, WRONG = "\\boxed{1}", "\\boxed{2}"


def group(receiver, name, rewards):
    """Own completions as their tokenizer would write them, so that a copy of them is the same."""
    rollouts = []
    for n, reward in enumerate(rewards):
        text = RIGHT if reward else WRONG
        ids = [*receiver.codec.encode(text), 0]
        logprobs = [-0.1 * (n + 1)] * len(ids)
        verdict = Verdict.CORRECT if reward else Verdict.WRONG
        rollouts.append(Rollout(ids, logprobs, True, text, verdict))
    return Group(Problem(name, f"prompt {name}", "1", "skill"), [5, 6], rollouts)


def record(prompt, reward, text=None, source="b", lengths=None, logprob=-0.5, index=0):
    text = text or (RIGHT if reward else WRONG)
    lengths = lengths or (len(text.encode()),)
    return RolloutRecord(
        prompt_id=prompt, source=source, version=0, index=index, text=text, finished=True,
        token_lengths=tuple(lengths), canonical=True, logprobs=(logprob,) * len(lengths),
        end_logprob=logprob, verdict="correct" if reward else "wrong", reward=float(reward),
    )  # fmt: skip


def peers_of(prompt, rewards, source="b", **options):
    made = [record(prompt, r, source=source, index=i, **options) for i, r in enumerate(rewards)]
    return {prompt: made}


def copies(receiver, groups, source="b"):
    """The records of a peer that is a copy of the receiver."""
    found = {}
    for one in groups:
        for index, rollout in enumerate(one.rollouts):
            token_bytes = receiver.codec.token_bytes(rollout.content_ids)
            copied = RolloutRecord(
                prompt_id=one.problem.id, source=source, version=0, index=index,
                text=rollout.text, finished=True, canonical=True,
                token_lengths=tuple(map(len, token_bytes)), logprobs=tuple(rollout.logprobs[:-1]),
                end_logprob=rollout.logprobs[-1], verdict=str(rollout.verdict),
                reward=rollout.reward,
            )  # fmt: skip
            found.setdefault(one.problem.id, []).append(copied)
    return found


def teach(mode, receiver, groups, peers, seed=0):
    experiences = [experience_of(receiver, g, peers.get(g.problem.id, [])) for g in groups]
    return mode.training_samples(receiver, experiences, random.Random(seed))


def own_and_peers(batch):
    own = [s for s in batch.samples if not s.source]
    return own, [s for s in batch.samples if s.source]


# ------------------------------------------------------------------------------ every mode


def test_every_mode_without_peers_is_solo(receiver):
    groups = [group(receiver, "x", [1, 0, 0]), group(receiver, "y", [0, 0, 0])]
    for name in set(SHIPPED) - {"sft"}:  # which learns from peers alone
        objective = {"hacpo": "gspo", "graft": "dapo"}.get(name, "grpo")
        receiver.objective = OBJECTIVES[objective]
        batch = teach(make_mode(name, {}), receiver, groups, {})
        solo = teach(Solo(), receiver, groups, {})
        plain = [replace(s, objective=None) for s in batch.samples]
        for got, want in zip(plain, solo.samples, strict=True):
            assert replace(got, advantage=0) == replace(want, advantage=0), name
            assert got.advantage == pytest.approx(want.advantage, abs=1e-5), name
        assert {s.objective for s in batch.samples} <= {None, OBJECTIVES[objective]}


@pytest.mark.parametrize("name", ["prp", "naive", "hacpo", "graft"])
def test_swapping_the_names_of_two_policies_swaps_their_results(receiver, name):
    groups = [group(receiver, "x", [0, 0]), group(receiver, "y", [1, 0])]
    peers = {**peers_of("x", [1, 0]), **peers_of("y", [0, 0])}
    swapped = {k: [replace(r, source="a") for r in v] for k, v in peers.items()}
    one = teach(make_mode(name, {}), receiver, groups, peers)
    two = teach(make_mode(name, {}), replace(receiver, name="b"), groups, swapped)
    for sample in one.samples:
        if sample.record:
            sample.record = replace(sample.record, source="a")
    assert one.samples == two.samples
    assert any(s.source for s in one.samples)


@pytest.mark.parametrize("name", ["prp", "naive", "hacpo", "graft"])
def test_a_record_that_alignment_refuses_leaves_no_sample(receiver, name):
    odd = "<|end|>" + RIGHT
    peers = {"x": [record("x", 1, odd), record("x", 1, index=1), record("x", 0, index=2),
                   record("x", 0, "1" * 40, index=3)]}  # fmt: skip
    mode = make_mode(name, {"graft": {"balanced": False}})
    batch = teach(mode, receiver, [group(receiver, "x", [0, 0])], peers)
    assert len(own_and_peers(batch)[1]) == 2


# ------------------------------------------------------------------------------ pooling


@pytest.mark.parametrize("level", ["token", "chunk", "sequence"])
def test_prp_with_a_copy_of_the_receiver_has_ratios_of_one_and_the_doubled_group(receiver, level):
    groups = [group(receiver, "x", [1, 0, 0, 0])]
    batch = teach(PRP(ratio_level=level), receiver, groups, copies(receiver, groups))
    own, peers = own_and_peers(batch)
    doubled = group_advantages(torch.tensor([[1.0, 0, 0, 0, 1, 0, 0, 0]]))[0].tolist()
    assert [s.advantage for s in (*own, *peers)] == pytest.approx(doubled)
    for mine, theirs in zip(own, peers, strict=True):
        assert theirs.completion_ids == mine.completion_ids
        assert theirs.behavior_logprobs == pytest.approx(mine.behavior_logprobs)
        assert theirs.chunk_of == list(range(len(mine.completion_ids)))
        assert (theirs.weight, theirs.objective.ratio_level) == (1.0, level)


def test_prp_carries_a_peers_logprobs_over_by_chunks(receiver):
    # the peer wrote two tokens, of 3 and 6 bytes; the receiver cuts where it cuts
    theirs = replace(record("x", 1, lengths=(3, 6)), logprobs=(-1.0, -3.0), end_logprob=-0.25)
    (sample,) = own_and_peers(
        teach(PRP(), receiver, [group(receiver, "x", [0, 0])], {"x": [theirs]})
    )[1]
    assert sum(sample.behavior_logprobs) == pytest.approx(-4.25)
    assert sample.behavior_logprobs[-1] == -0.25  # the end token is a chunk of its own
    assert sample.chunk_of.count(sample.chunk_of[-1]) == 1
    assert sample.completion_ids == [*receiver.codec.encode(RIGHT), 0]


POOL = {  # own rewards, peer's rewards, pooled advantages (own, then peer)
    "all-fail here, mixed there": ([0, 0], [1, 0], [-1 / 3, -1 / 3, 1, -1 / 3]),
    "all-pass": ([1, 1], [1, 1], [0, 0, 0, 0]),
    "both all-fail": ([0, 0], [0, 0], [0, 0, 0, 0]),
    "mixed here": ([1, 0], [0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
}


@pytest.mark.parametrize("case", POOL)
@pytest.mark.parametrize("mode", [PRP(), Naive()])
def test_pooled_advantages_by_hand(receiver, mode, case):
    own, theirs, want = POOL[case]
    scale = math.sqrt(3)  # one success among four has a std of sqrt(3)/4 and a distance of 3/4
    batch = teach(mode, receiver, [group(receiver, "x", own)], peers_of("x", theirs))
    got = [s.advantage for s in batch.samples]
    assert got == pytest.approx([scale * a for a in want], abs=1e-5)
    assert [s.reward for s in batch.samples] == [*own, *theirs]


def test_naive_takes_the_receivers_own_logprobs_where_there_is_something_to_learn(receiver):
    groups = [group(receiver, "x", [0, 0]), group(receiver, "y", [1, 1])]
    peers = {**peers_of("x", [1, 0]), **peers_of("y", [1, 1])}
    _, foreign = own_and_peers(teach(Naive(), receiver, groups, peers))
    assert len(receiver.scored) == 2  # the all-pass pool costs no forward pass
    for sample in foreign[:2]:
        assert sample.behavior_logprobs == [-0.5] * len(sample.completion_ids)
        assert (sample.objective, sample.weight) == (None, 1.0)


def test_more_than_two_policies_pool_all(receiver):
    peers = {"x": peers_of("x", [1, 0])["x"] + peers_of("x", [0, 0], source="c")["x"]}
    for mode in (PRP(), Naive(), HACPO()):
        batch = teach(mode, receiver, [group(receiver, "x", [0, 0])], peers)
        assert [s.source for s in batch.samples] == ["", "", "b", "b", "c", "c"]
        baseline = 0.1 / 6 if mode.name == "hacpo" else 1 / 6  # w(a, b) is 0, kept at 0.1
        want = (1 - baseline) / (math.sqrt(5) / 6)  # one success among six
        assert batch.samples[2].advantage == pytest.approx(want, abs=1e-4)


# ------------------------------------------------------------------------------ HACPO


def test_hacpo_with_equal_capabilities_is_the_plain_mixed_baseline(receiver):
    mode = HACPO(alpha=0.0, delta=1.0)
    batch = teach(mode, receiver, [group(receiver, "x", [1, 0])], peers_of("x", [0, 1]))
    assert [s.advantage for s in batch.samples] == pytest.approx([1, -1, -1, 1], abs=1e-5)
    own, foreign = own_and_peers(batch)
    assert all(s.weight == 1.0 for s in batch.samples)
    assert all(s.objective == OBJECTIVES["gspo"] for s in own)
    assert {s.objective.surrogate for s in foreign} == {NarrowingBand(0.0, 1.0, 0.025)}


def test_hacpo_scales_the_baseline_and_weighs_the_peer_by_capability(receiver):
    # the receiver solves 1 of 4, the peer 2 of 4: P_a = .25, P_b = .5
    groups = [group(receiver, "x", [1, 0]), group(receiver, "y", [0, 0])]
    peers = {**peers_of("x", [1, 0]), **peers_of("y", [1, 0])}
    batch = teach(HACPO(), receiver, groups, peers)
    baseline_x = (1 + 0.5 * 1) / 4  # w(a, b) = .25 / .5 scales the peer's rewards
    sigma_x = 0.5  # of 1, 0, 1, 0, unscaled
    want = [(r - baseline_x) / sigma_x for r in (1, 0, 1, 0)]
    assert [s.advantage for s in batch.samples[:4]] == pytest.approx(want, abs=1e-5)
    assert [s.weight for s in batch.samples[:4]] == [1, 1, 2, 2]  # w(b, a) = .5 / .25
    assert batch.notes == {"capability/a": 0.25, "capability/b": 0.5}


def test_hacpo_averages_capability_over_its_window(receiver):
    mode = HACPO(window=2)
    for own in ([1, 1], [1, 0], [0, 0]):
        batch = teach(mode, receiver, [group(receiver, "x", own)], peers_of("x", [1, 0]))
    assert batch.notes == {"capability/a": 0.25, "capability/b": 0.5}  # means of .5, 0


def test_hacpos_ratio_has_each_side_over_its_own_tokens(receiver):
    theirs = replace(record("x", 1, lengths=(3, 6)), logprobs=(-1.0, -3.0), end_logprob=-0.5)
    batch = teach(HACPO(), receiver, [group(receiver, "x", [0, 0])], {"x": [theirs]})
    (sample,) = own_and_peers(batch)[1]
    # the mean over the source's own three tokens
    assert fmean(sample.behavior_logprobs) == pytest.approx(-1.5)
    assert len(sample.behavior_logprobs) == len(sample.completion_ids)
    assert sample.objective.ratio_level == sample.objective.aggregation == "sequence"
    assert sample.objective.surrogate == NarrowingBand(1.0, 0.2, 0.025)


def test_hacpos_power_and_the_narrowing_of_its_band_can_be_left_out(receiver):
    def peer_objective(**settings):
        groups = [group(receiver, "x", [1, 0])]
        batch = teach(HACPO(**settings), receiver, groups, peers_of("x", [1, 0]))
        return own_and_peers(batch)[1][0].objective

    assert peer_objective(alpha=0).surrogate == NarrowingBand(0.0, 0.2, 0.025)
    assert peer_objective(delta_step=0).surrogate == NarrowingBand(1.0, 0.2, 0.0)


def test_hacpo_gives_no_infinite_weight_to_somebody_who_never_succeeds(receiver):
    batch = teach(HACPO(), receiver, [group(receiver, "x", [0, 0])], peers_of("x", [1, 0]))
    assert [s.weight for s in batch.samples] == [1, 1, 10, 10]
    again = teach(HACPO(), receiver, [group(receiver, "x", [0, 0])], peers_of("x", [0, 0]))
    assert [s.weight for s in again.samples] == [1, 1, 1, 1]
    assert [s.advantage for s in again.samples] == [0, 0, 0, 0]


# ------------------------------------------------------------------------------ GRAFT


def graft_case(receiver, **settings):
    """Prompts x, y, z failed here; b solved 1, 2, 2 of 3 there; only w is for b to gain."""
    groups = [group(receiver, name, [0, 0, 0]) for name in "xyz"]
    groups.append(group(receiver, "w", [1, 0, 0]))
    peers = {
        **peers_of("x", [1, 0, 0]),
        **peers_of("y", [1, 1, 0]),
        **peers_of("z", [1, 1, 0]),
        **peers_of("w", [0, 0, 0]),
    }
    return teach(GRAFT(**settings), receiver, groups, peers)


def grafted(receiver, groups, peers):
    return teach(GRAFT(), receiver, groups, peers).notes["grafted"]


def test_graft_is_balanced_with_ties_included(receiver):
    batch = graft_case(receiver)  # m = 1, but y and z are tied
    own, foreign = own_and_peers(batch)
    assert len(own) == 6  # x and w; y and z are replaced
    assert len(foreign) == 6
    assert batch.notes == {"grafted": 2}
    assert [bool(s.source) for s in batch.samples] == [False] * 6 + [True] * 6  # peers last


def test_graft_takes_every_candidate_when_nothing_has_to_be_balanced(receiver):
    assert graft_case(receiver, balanced=False).notes == {"grafted": 3}
    groups = [group(receiver, "x", [0, 0, 0])]
    assert grafted(receiver, groups, peers_of("x", [1, 0, 0])) == 0


def test_graft_scores_inside_the_sources_group(receiver):
    _, foreign = own_and_peers(graft_case(receiver))
    want = group_advantages(torch.tensor([[1.0, 1, 0]]))[0].tolist()
    assert [s.advantage for s in foreign[:3]] == pytest.approx(want)
    assert all(s.objective == OBJECTIVES["dapo"] for s in foreign)
    assert all(s.behavior_logprobs == [-0.5] * len(s.completion_ids) for s in foreign)


def test_graft_takes_no_group_of_which_a_part_was_refused(receiver):
    """Without its one success, or with a failure less, a group is no group of the source's."""
    groups = [group(receiver, name, [0, 0, 0]) for name in "xyz"]
    peers = {**peers_of("x", [1, 0, 0]), **peers_of("y", [1, 0]), **peers_of("z", [1, 1, 0])}
    batch = teach(GRAFT(balanced=False), receiver, groups, peers)
    _, foreign = own_and_peers(batch)
    assert len(foreign) == 6  # x and z
    groups.append(group(receiver, "w", [1, 0, 0]))
    peers["w"] = peers_of("w", [0, 0])["w"]  # its success was refused: the source did not fail
    assert grafted(receiver, groups, peers) == 0


@pytest.mark.parametrize(
    ("logprob", "weight"), [(-0.5, 1.0), (-0.2, 1.0), (-0.6, math.exp(-0.1)), (-0.8, None)]
)
def test_grafts_weight_is_the_compatibility_cut_at_one(receiver, logprob, weight):
    receiver.logprob = logprob  # the source's own log-prob is -0.5 a token
    batch = graft_case(receiver)
    _, foreign = own_and_peers(batch)
    if weight is None:
        assert (foreign, batch.notes) == ([], {"grafted": 2})
    else:
        assert [s.weight for s in foreign] == pytest.approx([weight] * 6)


@pytest.mark.parametrize(
    ("own", "theirs"), [([0, 0], [1, 1]), ([1, 1], [1, 0]), ([0, 0], [0, 0]), ([1, 0], [0, 1])]
)
def test_graft_has_no_candidate_in(receiver, own, theirs):
    groups, peers = [group(receiver, "x", own)], peers_of("x", theirs)
    receiver.objective = OBJECTIVES["dapo"]
    batch = teach(GRAFT(balanced=False), receiver, groups, peers)
    solo = teach(Solo(), receiver, groups, {})
    assert [replace(s, objective=None) for s in batch.samples] == solo.samples


# ------------------------------------------------------------------------------ from outside

ANY_RECORD = """
from mrl.modes.solo import Solo
from mrl.records import Record

class AnyRecord(Solo):
    name = "any-record"
    consumes = Record
"""


def test_a_mode_that_consumes_any_record_is_refused_at_the_door(tmp_path):
    """It would get nothing, because only records of exactly one type are handed out."""
    path = tmp_path / "mine.py"
    path.write_text(ANY_RECORD)
    with pytest.raises(MrlError) as caught:
        make_mode(f"{path}:AnyRecord", {})
    assert names_it(str(caught.value), "consumes SuccessRecord AnyRecord")


def test_the_clips_of_prp_reach_every_peer_sample(receiver):
    receiver.objective = OBJECTIVES["gspo"]
    batch = teach(
        PRP(clip_low=0.1, clip_high=0.4),
        receiver,
        [group(receiver, "x", [1, 0])],
        peers_of("x", [0, 1]),
    )
    for one in own_and_peers(batch)[1]:
        assert (one.objective.clip_low, one.objective.clip_high) == (0.1, 0.4)


@pytest.mark.parametrize("mode", [PRP(), Naive()])
def test_pooled_advantages_are_scaled_as_the_receivers_objective_says(receiver, mode):
    receiver.objective = OBJECTIVES["dr_grpo"]
    batch = teach(mode, receiver, [group(receiver, "x", [0, 0])], peers_of("x", [1, 0]))
    assert [s.advantage for s in batch.samples] == [-0.25, -0.25, 0.75, -0.25]


def test_graft_balances_with_mixed_groups_alone(receiver):
    groups = [group(receiver, "x", [0, 0, 0]), group(receiver, "w", [1, 1, 1])]
    peers = {**peers_of("x", [1, 0, 0]), **peers_of("w", [0, 0, 0])}
    assert grafted(receiver, groups, peers) == 0


def test_graft_takes_no_more_than_it_has_candidates(receiver):
    groups = [group(receiver, "x", [0, 0, 0]), *(group(receiver, n, [1, 0, 0]) for n in "vw")]
    peers = {**peers_of("x", [1, 0, 0]), **peers_of("v", [0, 0, 0]), **peers_of("w", [0, 0, 0])}
    assert grafted(receiver, groups, peers) == 1


def test_graft_balances_each_pair_by_itself(receiver):
    groups = [group(receiver, "x", [0, 0, 0]), group(receiver, "w", [1, 0, 0])]
    peers = {**peers_of("x", [1, 0, 0]), **peers_of("w", [0, 0, 0], source="c")}
    assert grafted(receiver, groups, peers) == 0


@pytest.mark.parametrize(
    ("own", "want"), [("", [2 / 3, -1 / 3, -1 / 3]), ("dapo", [2**0.5, -(0.5**0.5), -(0.5**0.5)])]
)
def test_grafts_own_objective_decides_scale_and_loss(receiver, own, want):
    receiver.objective = OBJECTIVES["dr_grpo"]
    groups = [group(receiver, "x", [0, 0, 0]), group(receiver, "w", [1, 0, 0])]
    peers = {**peers_of("x", [1, 0, 0]), **peers_of("w", [0, 0, 0])}
    batch = teach(GRAFT(own_objective=own), receiver, groups, peers)
    for side in own_and_peers(batch):
        assert [s.advantage for s in side] == pytest.approx(want, abs=1e-4)
        assert {s.objective for s in side} == {OBJECTIVES.get(own)}


def test_the_window_of_hacpo_is_as_long_after_a_checkpoint(receiver):
    mode, again = HACPO(window=2), HACPO(window=2)
    for own in ([1, 1], [1, 0]):
        teach(mode, receiver, [group(receiver, "x", own)], peers_of("x", [1, 0]))
    again.restore(mode.state())
    for one in (mode, again):
        teach(one, receiver, [group(receiver, "x", [0, 0])], peers_of("x", [1, 0]))
    assert again.state() == mode.state() == {"a": [0.5, 0.0], "b": [0.5, 0.5]}


@pytest.mark.parametrize("best", ["b", "c"])
def test_graft_takes_the_best_source_wherever_it_stands(receiver, best):
    rewards = {"b": [1, 0, 0], "c": [1, 0, 0], best: [1, 1, 0]}
    peers = {
        "x": [r for source, row in rewards.items() for r in peers_of("x", row, source=source)["x"]]
    }
    _, foreign = own_and_peers(
        teach(GRAFT(balanced=False), receiver, [group(receiver, "x", [0, 0, 0])], peers)
    )
    assert {s.source for s in foreign} == {best}


def test_graft_drops_what_is_just_at_the_bound(receiver):
    mode = GRAFT(balanced=False, min_compatibility=1.0)  # what is just as likely does not exceed it
    batch = teach(mode, receiver, [group(receiver, "x", [0, 0])], peers_of("x", [1, 0]))
    assert batch.samples == []
    assert batch.notes == {"grafted": 1}


def test_the_imitation_weight_of_sgt_is_the_one_that_was_set(receiver):
    peers = {"x": [success("x")]}
    batch = teach(SGT(imitation_weight=0.5), receiver, [group(receiver, "x", [0, 0])], peers)
    assert batch.samples[-1].weight == 0.5
