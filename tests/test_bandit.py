import math
import random

import pytest
import torch

from mrl.lab.bandit import (
    PUBLISHED,
    Context,
    KnownCapability,
    analyze,
    bandit_modes,
    bandit_table,
    capabilities,
    complementary,
    crossings,
    moments,
    outcomes,
    records_of,
    replay_sentence,
    states,
    update_of,
    updates,
)
from mrl.modes.hacpo import HACPO
from mrl.modes.mode import Mode, TrainingBatch
from mrl.modes.prp import PRP
from mrl.modes.replay import Replay
from mrl.modes.sgt import SGT
from mrl.modes.solo import Solo
from mrl.modes.xgrpo import XGRPO
from mrl.samples import TrainingSample

CONTEXTS = complementary()


def test_outcomes_are_all_multisets_and_their_chances_add_up():
    found = outcomes([0.5, 0.3, 0.2], 2)
    assert found[0, 1] == pytest.approx(2 * 0.5 * 0.3)
    assert found[2, 2] == pytest.approx(0.04)
    assert sum(found.values()) == pytest.approx(1.0)
    assert len(outcomes([0.25] * 4, 3)) == 20
    ordered = outcomes([0.5, 0.3, 0.2], 2, in_order=True)
    assert ordered[0, 1] == ordered[1, 0] == pytest.approx(0.15)
    assert len(ordered) == 9


def test_the_gradient_of_the_expected_reward_against_autograd():
    context = CONTEXTS[1]
    logits = torch.tensor(context.receiver, dtype=torch.float64, requires_grad=True)
    torch.softmax(logits, 0)[sorted(context.right)].sum().backward()
    torch.testing.assert_close(context.gradient(), logits.grad)


def test_solos_support_is_that_of_the_formula_and_its_update_is_unbiased_in_direction():
    for context in CONTEXTS:
        p = context.reward("receiver")
        figures = analyze(Solo(), context, 3)
        assert figures.support == pytest.approx(1 - (1 - p) ** 3 - p**3)
        assert figures.angle == pytest.approx(0.0, abs=0.01)


def test_a_peer_that_is_a_copy_doubles_the_group():
    for context in complementary(apart=0.0):
        mean, square, support = moments(PRP(), context, 2)
        want_mean, want_square, want_support = moments(Solo(), context, 4)
        torch.testing.assert_close(mean, want_mean, rtol=1e-3, atol=1e-6)
        assert (square, support) == pytest.approx((want_square, want_support), rel=1e-3)


def test_sgts_support_is_solos_and_the_rescue_set():
    context = CONTEXTS[1]
    p, q = context.reward("receiver"), context.reward("peer")
    support = moments(SGT(), context, 3)[2]
    assert support == pytest.approx(1 - (1 - p) ** 3 - p**3 + (1 - p) ** 3 * (1 - (1 - q) ** 3))


def test_xgrpo_teaches_unless_all_rewards_agree():
    context = CONTEXTS[0]
    p, q = context.reward("receiver"), context.reward("peer")
    want = 1 - (p * q) ** 3 - ((1 - p) * (1 - q)) ** 3
    assert moments(XGRPO(), context, 3)[2] == pytest.approx(want)


def test_the_groups_needed_are_the_spread_around_the_mean_update():
    made = list(updates(SGT(), CONTEXTS[1], 3))
    mean = sum(chance * update for update, chance in made)
    spread = sum(chance * float(((update - mean) ** 2).sum()) for update, chance in made)
    assert analyze(SGT(), CONTEXTS[1], 3).groups == pytest.approx(spread / float(mean @ mean))


@pytest.mark.slow
@pytest.mark.parametrize("name", bandit_modes(CONTEXTS))
def test_the_exact_figures_against_monte_carlo_through_the_same_mode(name):
    mode, context = bandit_modes(CONTEXTS)[name], CONTEXTS[1]
    mean, square, support = moments(mode, context, 3)
    buffers, chances = zip(*states(mode, context), strict=True)
    rng, rows = random.Random(5), []
    own_p, peer_p = context.probabilities("receiver"), context.probabilities("peer")
    for _ in range(300):
        own = rng.choices(range(4), own_p, k=3)
        theirs = rng.choices(range(4), peer_p, k=3) if mode.consumes else ()
        mode.restore(rng.choices(buffers, chances)[0])
        rows.append(update_of(mode, context, own, records_of(mode, context, theirs)))
    sampled = torch.stack(rows)
    # an outcome with a chance below 1 in 1,000 may never be drawn
    error = 4 * sampled.std(0) / math.sqrt(len(rows)) + 0.005
    assert ((sampled.mean(0) - mean).abs() <= error).all()
    squares = (sampled**2).sum(1)
    assert abs(float(squares.mean()) - square) <= 4 * float(squares.std()) / 300**0.5 + 0.005
    taught = float((sampled.abs().max(1).values > 1e-12).double().mean())
    assert taught == pytest.approx(support, abs=4 * math.sqrt(0.25 / 300))


def baseline_biases(contexts):
    """E[mu_k] - P_k(x) of HACPO's mixed baseline on each context, exact.

    The paper's theorem: no bias if w is the true ratio. It is a ratio of means over prompts, so on
    one prompt it is the true one only if the ratio is the same on every prompt.
    """
    known = capabilities(contexts)
    ratio = known["receiver"] / known["peer"]
    rewards = [(context.reward("receiver"), context.reward("peer")) for context in contexts]
    return [(own + ratio * peer) / 2 - own for own, peer in rewards]


def test_hacpos_baseline_is_unbiased_only_if_the_ratio_is_the_same_everywhere():
    same = [Context((1.0, 0.0), (2.0, 0.0), frozenset({0}))] * 2
    assert baseline_biases(same) == pytest.approx([0, 0])
    biases = baseline_biases(CONTEXTS)
    assert biases[0] < -0.3
    assert sum(biases) == pytest.approx(0.0)  # over prompts it is


def peer_alignment(context, group):
    """Cosine between the gradient of the expected reward and what the peer's samples add, expected.

    The paper's theorem: positive, if the peer's confidence goes with its quality. 0 if all of them
    fall outside the band.
    """
    # with a band of width 0 no peer's sample teaches (unless s is exactly 1), but all stay in mu
    equal = {"own_objective": "grpo", "known": {"receiver": 1, "peer": 1}}
    with_peer, without = (
        moments(KnownCapability(**equal, delta=delta), context, group)[0]
        for delta in (HACPO.delta, 0.0)
    )
    return float(torch.cosine_similarity(with_peer - without, context.gradient(), 0))


def peers_confidence():
    """The peer is a little surer than the receiver of the answer, 0, or of the mistake 2.

    Only that action's ratio, 5 / 6, is within HACPO's band; the others are above 1.
    """
    receiver, good, wrong = (
        tuple(map(math.log, chances))
        for chances in ((0.1, 0.8, 0.1), (0.12, 0.79, 0.09), (0.085, 0.795, 0.12))
    )
    return Context(receiver, good, frozenset({0})), Context(receiver, wrong, frozenset({0}))


def test_hacpos_peer_gradient_helps_with_a_right_peer_and_harms_with_a_wrong_one():
    good, wrong = peers_confidence()
    assert peer_alignment(good, 2) > 0.5
    assert peer_alignment(wrong, 2) < -0.1


def test_a_complementary_peer_is_outside_hacpos_band_and_leaves_xgrpos_direction():
    assert all(peer_alignment(context, 2) == 0 for context in CONTEXTS)
    for context in CONTEXTS:
        hacpo = analyze(bandit_modes(CONTEXTS)["hacpo"], context, 2)
        xgrpo = analyze(XGRPO(), context, 2)
        assert hacpo.angle < 1
        assert hacpo.groups == pytest.approx(xgrpo.groups, rel=0.02)


def test_what_looks_alike_to_a_mode_is_summed_up_once():
    seen = crossings(XGRPO(), CONTEXTS[1], 3)
    assert len(seen) == 4  # 0 to 3 right
    assert sum(seen.values()) == pytest.approx(1)
    assert sum(crossings(SGT(), CONTEXTS[1], 3).values()) == pytest.approx(1)


def test_one_seed_draws_each_success_as_often_as_chance_would():
    """Of three actions the peer takes 0 twice as often as 1: so often is 0 what SGT imitates."""
    context = Context((-9.0, -9.0, 0.0), (math.log(2), 0.0, 0.0), frozenset({0, 1}))
    imitation_samples = [0.0, 0.0]
    for records, chance in crossings(SGT(), context, 3).items():
        update = update_of(SGT(), context, [2, 2, 2], records)
        if records:
            imitation_samples[int(update.argmax())] += chance
    assert imitation_samples[0] == pytest.approx(2 * imitation_samples[1])
    assert sum(imitation_samples) == pytest.approx(1 - 0.25**3)


def test_replays_memory_and_the_table():
    p = CONTEXTS[1].reward("receiver")
    words = replay_sentence(3)
    assert f"{1 - (1 - p) ** 30:.0%} after 10" in words
    for known in (False, True):
        assert set(bandit_table(known, group=2).columns[0].cells) >= set(PUBLISHED)


def test_prp_needs_many_groups_for_a_short_mean_and_xgrpo_scatters_more():
    figures = {name: analyze(bandit_modes(CONTEXTS)[name], CONTEXTS[1]) for name in PUBLISHED}
    for name, found in figures.items():
        mean, square, _ = moments(bandit_modes(CONTEXTS)[name], CONTEXTS[1])
        assert found.length == pytest.approx(float(mean.norm()))
        assert found.spread**2 == pytest.approx(square - found.length**2)
        assert found.groups == pytest.approx((found.spread / found.length) ** 2)
    naive, prp, xgrpo = (figures[name] for name in ("naive", "prp", "xgrpo"))
    assert prp.spread < naive.spread < xgrpo.spread
    assert 10 * prp.length < naive.length


def test_replay_imitates_what_the_receiver_itself_would_find():
    """A correct action, as often as the receiver takes it; the buffer is taken to be filled."""
    context = CONTEXTS[1]
    alone, replay = moments(Solo(), context, 2), moments(Replay(), context, 2)
    all_fail = (1 - context.reward("receiver")) ** 2
    assert replay[2] - alone[2] == pytest.approx(all_fail)

    p = torch.tensor(context.probabilities("receiver"), dtype=torch.float64)
    imitated = p.clone()
    imitated[[a for a in range(4) if a not in context.right]] = 0
    pushed = 0.1 * all_fail * (imitated / imitated.sum() - p)  # the gradient of an NLL
    torch.testing.assert_close(replay[0] - alone[0], pushed)


class ImitatesOwn(Mode):
    """Draws one of the receiver's own correct completions."""

    name = "imitates-own"

    def training_samples(self, receiver, experiences, rng):
        (experience,) = experiences
        group = experience.group
        correct = [rollout for rollout in group.rollouts if rollout.reward]
        samples = []
        if correct:
            drawn = rng.choice(correct)
            samples = [TrainingSample(group.prompt_ids, drawn.completion_ids, loss="imitation")]
        return TrainingBatch(samples)


def test_a_mode_may_draw_one_of_the_receivers_own_solutions():
    """By symmetry, each correct action is drawn as often as the receiver takes it."""
    context = Context((math.log(3), 0.0, 0.0), (0.0, 0.0, 0.0), frozenset({0, 1}))
    mean, _, support = moments(ImitatesOwn(), context, 2)
    drawn = mean + support * torch.tensor(context.probabilities("receiver"))
    either = 1 - 0.2**2  # at least one of two is correct
    assert support == pytest.approx(either)
    # (0, 0) and (0, 2): action 0; (1, 1) and (1, 2): action 1; (0, 1): either, equally often
    assert drawn[0] == pytest.approx(0.6**2 + 2 * 0.6 * 0.2 + 0.6 * 0.2)
    assert drawn[1] == pytest.approx(0.2**2 + 2 * 0.2 * 0.2 + 0.6 * 0.2)
