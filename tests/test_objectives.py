import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mrl.advantages import group_advantages
from mrl.modes.hacpo import NarrowingBand
from mrl.objectives import (
    OBJECTIVES,
    Objective,
    chunk_ratio,
    chunk_share,
    clipped_loss,
    k3,
    sequence_ratio,
    surrogate_loss,
    token_coefficients,
    token_ratio,
)

MASK = torch.tensor([[True, True, True], [True, False, False]])


def test_token_ratio_by_hand_and_one_outside_the_mask():
    new = torch.log(torch.tensor([[0.5, 0.2, 0.9], [0.3, 0.7, 0.1]]))
    old = torch.log(torch.tensor([[0.25, 0.4, 0.9], [0.6, 0.1, 0.9]]))
    want = torch.tensor([[2.0, 0.5, 1.0], [0.5, 1.0, 1.0]])
    torch.testing.assert_close(token_ratio(new, old, MASK), want)


def test_sequence_ratio_is_the_geometric_mean_over_the_completion():
    new = torch.log(torch.tensor([[0.5, 0.2, 0.9], [0.3, 0.7, 0.1]]))
    old = torch.log(torch.tensor([[0.25, 0.4, 0.1], [0.6, 0.1, 0.9]]))
    got = sequence_ratio(new, old, MASK)
    want = (2.0 * 0.5 * 9.0) ** (1 / 3)
    torch.testing.assert_close(got, torch.tensor([[want] * 3, [0.5] * 3]))


def test_clipped_loss_by_hand():
    # A > 0: gain is capped above at 1.28 A; A < 0: the loss is floored below at 0.8 |A|
    ratio = torch.tensor([[0.5, 1.0, 2.0], [0.5, 1.0, 2.0]])
    advantages = torch.tensor([[1.0], [-1.0]])
    got = clipped_loss(ratio, advantages, clip_low=0.2, clip_high=0.28)
    torch.testing.assert_close(got, torch.tensor([[-0.5, -1.0, -1.28], [0.8, 1.0, 2.0]]))


def test_the_flat_part_is_where_the_gradient_is_zero():
    ratio = torch.tensor([[0.5, 1.0, 2.0], [0.5, 1.0, 2.0]], requires_grad=True)
    advantages = torch.tensor([[1.0], [-1.0]])
    clipped_loss(ratio, advantages, 0.2, 0.28).sum().backward()
    _, below, above = surrogate_loss(ratio.detach(), advantages, OBJECTIVES["dapo"])
    assert torch.equal(ratio.grad == 0, below | above)
    assert below.tolist() == [[False] * 3, [True, False, False]]
    assert above.tolist() == [[False, False, True], [False] * 3]


@pytest.mark.parametrize(
    ("aggregation", "want"),
    [
        ("sequence", [[1 / 12, 1 / 12, 1 / 12], [1 / 4, 0, 0]]),  # 1/(|y| * 4 sequences)
        ("token", [[0.1, 0.1, 0.1], [0.1, 0, 0]]),  # 1/10 tokens
        ("constant", [[1 / 32, 1 / 32, 1 / 32], [1 / 32, 0, 0]]),  # 1/(8 * 4)
    ],
)
def test_token_coefficients_by_hand(aggregation, want):
    got = token_coefficients(MASK, aggregation, sequences=4, tokens=10, max_completion_length=8)
    torch.testing.assert_close(got, torch.tensor(want))


def test_a_row_without_tokens_gives_zeros_not_nan():
    mask = torch.zeros(2, 3, dtype=torch.bool)
    got = token_coefficients(mask, "sequence", sequences=2, tokens=1, max_completion_length=3)
    assert torch.equal(got, torch.zeros(2, 3))


@pytest.mark.parametrize("name", ["ratio_level", "aggregation"])
def test_an_objective_that_no_loss_could_follow_is_refused_where_it_is_made(name):
    for known in OBJECTIVES.values():
        with pytest.raises(ValueError, match=f"{name}.*sequense"):
            replace(known, **{name: "sequense"})


def slow_loss(objective, new, old, lengths, advantages, max_length):
    """The same losses with Python loops over sequences and tokens."""
    total = 0.0
    tokens = sum(lengths)
    for i, length in enumerate(lengths):
        differences = [new[i][t] - old[i][t] for t in range(length)]
        whole = sum(differences) / length
        for t in range(length):
            level = differences[t] if objective.ratio_level == "token" else whole
            ratio = math.exp(level)
            low, high = 1 - objective.clip_low, 1 + objective.clip_high
            weight = min(max(ratio, low), high)
            gain = min(ratio * advantages[i], weight * advantages[i])
            if objective.weighs_logprobs:
                gain = weight * advantages[i] * differences[t]
            scale = {
                "sequence": 1 / length / len(lengths),
                "token": 1 / tokens,
                "constant": 1 / max_length / len(lengths),
            }[objective.aggregation]
            total -= gain * scale
    return total


def fast_loss(objective, new, old, mask, advantages, max_length):
    form_ratio = token_ratio if objective.ratio_level == "token" else sequence_ratio
    losses, _, _ = surrogate_loss(form_ratio(new, old, mask), advantages, objective)
    factors = token_coefficients(
        mask, objective.aggregation, len(mask), int(mask.sum()), max_length
    )
    return (losses * factors).sum()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_each_objective_against_a_slow_second_implementation(name):
    generator = torch.Generator().manual_seed(3)
    lengths = [5, 1, 3, 4]
    mask = torch.arange(5)[None] < torch.tensor(lengths)[:, None]
    old = -3 * torch.rand(4, 5, generator=generator)
    new = old + 0.5 * torch.randn(4, 5, generator=generator)
    advantages = torch.randn(4, 1, generator=generator)
    got = fast_loss(OBJECTIVES[name], new, old, mask, advantages, 9)
    want = slow_loss(
        OBJECTIVES[name], new.tolist(), old.tolist(), lengths, advantages[:, 0].tolist(), 9
    )
    assert float(got) == pytest.approx(want, rel=1e-4)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_against_finite_differences(name):
    generator = torch.Generator().manual_seed(4)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    old = -torch.rand(2, 3, generator=generator, dtype=torch.float64)
    # inside the clip range of each objective, where the loss is smooth
    noise = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    new = (old + 1e-4 * noise).requires_grad_()
    advantages = torch.tensor([[1.3], [-0.7]], dtype=torch.float64)
    if OBJECTIVES[name].weighs_logprobs:  # r log(r) has the gradient of sg[r] log(r) only at r = 1
        old = new.detach().clone()
    assert torch.autograd.gradcheck(
        lambda logprobs: fast_loss(OBJECTIVES[name], logprobs, old, mask, advantages, 4),
        (new,),
        eps=1e-7,
        atol=1e-5,
    )


def test_the_loss_starts_at_zero_and_its_gradient_does_not():
    logprobs = torch.full((4, 2), -1.0, requires_grad=True)
    advantages = torch.tensor([[1.5], [-0.5], [-0.5], [-0.5]])
    mask = torch.ones(4, 2, dtype=torch.bool)
    loss = fast_loss(OBJECTIVES["grpo"], logprobs, logprobs.detach(), mask, advantages, 2)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-6)
    torch.testing.assert_close(logprobs.grad, -advantages.expand(4, 2) / 8)


def test_chunk_ratio_by_hand():
    # chunk 0 holds tokens 0 and 1, chunk 1 token 2; only the sums over a chunk matter
    new = torch.tensor([[-1.0, -1.0, -2.0, 0.0]])
    behavior = torch.tensor([[-0.5, -2.5, -2.0, 0.0]])
    mask = torch.tensor([[True, True, True, False]])
    chunk_of = torch.tensor([[0, 0, 1, 0]])
    got = chunk_ratio(new, behavior, mask, chunk_of)
    torch.testing.assert_close(got, torch.tensor([[math.e, math.e, 1.0, 1.0]]))
    spread = torch.tensor([[-3.0, 0.0, -2.0, 9.0]])
    torch.testing.assert_close(chunk_ratio(new, spread, mask, chunk_of), got)


def test_with_a_token_a_chunk_the_chunk_ratio_is_the_token_ratio():
    generator = torch.Generator().manual_seed(1)
    new, old = (-torch.rand(2, 3, generator=generator) for _ in range(2))
    mask = torch.ones(2, 3, dtype=torch.bool)
    each = torch.arange(3).expand(2, 3)
    torch.testing.assert_close(chunk_ratio(new, old, mask, each), token_ratio(new, old, mask))


def test_no_logprob_that_a_peer_claims_makes_a_ratio_infinite():
    new, claimed = torch.tensor([[-1.0]], requires_grad=True), torch.tensor([[-1e30]])
    mask = torch.ones(1, 1, dtype=torch.bool)
    zero = torch.zeros(1, 1, dtype=torch.int64)
    for ratio in (
        token_ratio(new, claimed, mask),
        sequence_ratio(new, claimed, mask),
        chunk_ratio(new, claimed, mask, zero),
    ):
        (gradient,) = torch.autograd.grad(ratio.sum(), new)
        assert torch.isfinite(ratio).all()
        assert float(gradient) == 0.0


def test_the_flat_part_of_hacpos_peers_is_outside_a_narrowing_band_that_never_inverts():
    objective = Objective("sequence", "sequence", 0.2, 0.0, surrogate=NarrowingBand(1, 0.2, 0.05))
    for updates, want in ((0, [1, 0, 0, 0, 1]), (1, [1, 1, 0, 0, 1]), (9, [1, 1, 1, 0, 1])):
        for advantage in (torch.ones(1, 1), -torch.ones(1, 1)):
            ratio = torch.tensor([[0.7, 0.82, 0.95, 1.0, 1.1]], requires_grad=True)
            loss, below, above = surrogate_loss(ratio, advantage, objective, updates)
            assert (below | above).int().tolist() == [want]
            loss.sum().backward()
            slope = -advantage * ratio.detach() * (1 - torch.tensor([want]))  # sg[s] ** 1
            torch.testing.assert_close(ratio.grad, slope)


def test_a_ratio_at_a_bound_teaches_on_every_version_of_torch(monkeypatch):
    """Since torch 2.15 `clamp` has gradient 0 at its bounds, which is planted here."""
    plain = torch.Tensor.clamp

    def newest(tensor, min=None, max=None):
        inside = (tensor > min) & (tensor < max)
        return torch.where(inside, tensor, plain(tensor, min, max).detach())

    monkeypatch.setattr(torch.Tensor, "clamp", newest)
    peers = Objective("sequence", "sequence", 0.25, 0.0, surrogate=NarrowingBand(1, 0.25, 0))
    ratio = torch.tensor([[0.75, 1.0]], requires_grad=True)
    loss, below, above = surrogate_loss(ratio, torch.ones(1, 1), peers)
    assert not (below | above).any()
    assert torch.autograd.grad(loss.sum(), ratio)[0].tolist() == [[-0.75, -1.0]]
    own = clipped_loss(ratio, torch.ones(1, 1), clip_low=0.25, clip_high=0.0)
    assert torch.autograd.grad(own.sum(), ratio)[0].tolist() == [[-1.0, -1.0]]


def test_no_power_of_a_ratio_that_a_peer_claims_is_infinite():
    objective = Objective("sequence", "sequence", 0.2, 0.0, surrogate=NarrowingBand(5, 0.2, 0))
    ratio = torch.tensor([[math.exp(20.0)]], requires_grad=True)
    loss, _, _ = surrogate_loss(ratio, torch.ones(1, 1), objective)
    assert torch.isfinite(loss).all()
    assert torch.autograd.grad(loss.sum(), ratio)[0].item() == 0


def test_cispo_weighs_the_gradient_of_each_logprob_and_drops_none():
    """By hand, from the paper's formula: weight * A * grad log-prob, also outside the band."""
    old = torch.tensor([[-3.0, -2.0, -1.0]])
    new = torch.tensor([[-0.5, -2.3, -1.0]], requires_grad=True)  # ratios 12.2, 0.74 and 1
    for advantage in (1.5, -1.5):
        mask = torch.ones(1, 3, dtype=torch.bool)
        loss = fast_loss(OBJECTIVES["cispo"], new, old, mask, torch.tensor([[advantage]]), 9)
        (gradient,) = torch.autograd.grad(loss, new)
        want = torch.tensor([[5.0, math.exp(-0.3), 1.0]]) * -advantage / 3
        torch.testing.assert_close(gradient, want)


nats = st.floats(-30, 0, width=32)


@given(st.lists(st.tuples(nats, st.floats(-3, 3, width=32)), min_size=1, max_size=6))
def test_k3_is_never_negative_and_exact_near_0(pairs):
    new = torch.tensor([[one for one, _ in pairs]])
    for scale in (1.0, 1e-4):
        ref = new + scale * torch.tensor([[d for _, d in pairs]])
        got, difference = k3(new, ref), (ref - new).double()
        assert (got >= 0).all()
        if scale == 1e-4:  # d ** 2 / 2, up to the next term of the series and one rounding of d
            most = difference.abs() ** 3 + 6e-8 * difference.abs()
            assert ((got - difference**2 / 2).abs() <= most).all()


eighths = st.integers(-24, 24).map(lambda number: number / 8)  # a product does not round to 0


@given(st.lists(eighths, min_size=2, max_size=9), st.booleans())
def test_the_advantages_of_a_group_add_up_to_0(rewards, scale_by_std):
    advantages = group_advantages(torch.tensor([rewards]), scale_by_std)
    assert float(advantages.sum()) == pytest.approx(0, abs=1e-3)
    assert bool(advantages.isfinite().all())


@given(
    st.lists(st.tuples(st.floats(-4, 4), eighths), min_size=1, max_size=8),
    st.sampled_from(["grpo", "dapo", "dr_grpo"]),
)
def test_a_token_that_counts_as_clipped_has_no_gradient_and_every_other_has_one(tokens, name):
    logprobs = torch.tensor([[shift for shift, _ in tokens]], requires_grad=True)
    advantages = torch.tensor([[advantage for _, advantage in tokens]])
    mask = torch.ones(1, len(tokens), dtype=torch.bool)
    ratio = token_ratio(logprobs, torch.zeros(1, len(tokens)), mask)
    loss, below, above = surrogate_loss(ratio, advantages, OBJECTIVES[name])
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    assert torch.equal(gradient == 0, below | above | (advantages == 0))


def test_chunk_shares_by_hand():
    chunk_of = torch.tensor([[0, 0, 1, 0]])  # padding claims chunk 0, too
    mask = torch.tensor([[True, True, True, False]])
    assert chunk_share(mask, chunk_of)[:, :3].tolist() == [[0.5, 0.5, 1.0]]


def test_k3_by_hand_and_on_average():
    new, ref = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -1.0]])
    torch.testing.assert_close(k3(new, ref), torch.tensor([[0.0, math.e - 2]]))
    p, q = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.3, 0.3, 0.4]).log()
    exact = (p.exp() * (p - q)).sum()
    torch.testing.assert_close((p.exp() * k3(p, q)).sum(), exact)  # its expectation is the KL
    assert (k3(p, q) >= 0).all()
