import math

import pytest
import torch

from mrl.advantages import (
    capability_advantages,
    group_advantages,
    shared_baseline_advantages,
)


def test_advantages_of_a_mixed_group_by_hand():
    # rewards 1 0 0 0: mean 1/4, population variance 3/16, std sqrt(3)/4 = 0.4330127
    got = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), eps=0.0)
    want = torch.tensor([[0.75, -0.25, -0.25, -0.25]]) / 0.4330127
    torch.testing.assert_close(got, want)


def test_eps_is_added_to_the_std_not_put_under_the_root():
    got = group_advantages(torch.tensor([[1.0, 0.0]]), eps=0.5)
    torch.testing.assert_close(got, torch.tensor([[0.5, -0.5]]))  # 0.5 / (0.5 + 0.5)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 3])
def test_a_group_whose_rewards_agree_gives_exact_zeros(value):
    got = group_advantages(torch.full((2, 7), value))
    assert torch.equal(got, torch.zeros(2, 7))


def test_against_a_slow_second_implementation():
    torch.manual_seed(0)
    rewards = torch.rand(20, 6)
    for scale in (True, False):
        got = group_advantages(rewards, scale)
        for p in range(20):
            row = [float(r) for r in rewards[p]]
            mean = sum(row) / 6
            std = (sum((r - mean) ** 2 for r in row) / 6) ** 0.5
            for i in range(6):
                want = (row[i] - mean) / (std + 1e-6 if scale else 1.0)
                assert float(got[p, i]) == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize("shape", [(3, 1), (4,), (1, 2, 3)])
def test_a_group_of_one_is_refused(shape):
    with pytest.raises(ValueError, match="group >= 2"):
        group_advantages(torch.zeros(shape))


NOBODY = torch.zeros(1, 0)


def shared(rewards, peers, **settings):
    """peers: one list of rewards a peer, which cross as count, mean and std."""
    stats = [torch.tensor([float(len(p)) for p in peers])[None]]
    stats.append(torch.tensor([sum(p) / len(p) for p in peers])[None])
    stats.append(torch.tensor([torch.tensor(p).std(correction=0) for p in peers])[None])
    return shared_baseline_advantages(torch.tensor([rewards]), *stats, **settings)


def test_an_all_fail_group_with_a_succeeding_peer_is_pushed_down_by_hand():
    # union 0 0 1 1: mean 1/2, std 1/2
    got = shared([0.0, 0.0], [[1.0, 1.0]], eps=0.0)
    torch.testing.assert_close(got, torch.tensor([[-1.0, -1.0]]))


def test_the_shared_baseline_is_that_of_the_union():
    own, peers = [1.0, 0.0, 0.0], [[1.0, 1.0, 0.0, 1.0], [0.0, 1.0]]
    union = torch.tensor([[*own, *peers[0], *peers[1]]])
    torch.testing.assert_close(shared(own, peers), group_advantages(union)[:, :3])
    centred = shared(own, peers, scale_by_std=False)
    torch.testing.assert_close(centred, group_advantages(union, scale_by_std=False)[:, :3])


def test_mix_zero_keeps_the_own_mean_and_mix_one_half_is_half_way():
    own, peers = [1.0, 0.0], [[0.0, 0.0]]  # own mean 1/2, mean of all 1/4, std sqrt(3)/4
    for mix, baseline in ((0.0, 0.5), (0.5, 0.375), (1.0, 0.25)):
        got = shared(own, peers, peer_share=mix, eps=0.0) * 0.4330127
        torch.testing.assert_close(got, torch.tensor([[1 - baseline, -baseline]]))


@pytest.mark.parametrize("mix", [0.0, 0.7, 1.0])
def test_without_peers_the_shared_baseline_is_the_own_one(mix):
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    got = shared_baseline_advantages(rewards, NOBODY, NOBODY, NOBODY, peer_share=mix)
    torch.testing.assert_close(got, group_advantages(rewards))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_union_whose_rewards_agree_gives_exact_zeros(value):
    for mix in (0.0, 0.3, 1.0):
        got = shared([value] * 3, [[value] * 5], peer_share=mix)
        assert torch.equal(got, torch.zeros(1, 3))


def test_capability_advantages_by_hand():
    # two completions of the learner, two of a peer that is twice as capable: w(k, peer) = 1/2
    rewards = torch.tensor([1.0, 0.0, 1.0, 1.0])
    capability = torch.tensor([1.0, 1.0, 0.5, 0.5])
    baseline = (1 + 0 + 0.5 + 0.5) / 4
    sigma = math.sqrt(3) / 4
    got = capability_advantages(rewards, capability)
    want = torch.tensor([(r - baseline) / sigma for r in (1.0, 0.0, 1.0, 1.0)])
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)


def test_equal_capabilities_give_the_plain_group_advantage():
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0])
    got = capability_advantages(rewards, torch.ones(5))
    torch.testing.assert_close(got, group_advantages(rewards[None])[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_rewards_that_agree_give_exact_zeros_whatever_the_capabilities(reward):
    got = capability_advantages(torch.full((4,), reward), torch.tensor([1.0, 1.0, 0.1, 10.0]))
    assert got.tolist() == [0.0] * 4


def test_a_union_that_agrees_gives_zero_whatever_the_mix():
    for mix in (0.0, 0.07, 0.3, 0.91, 1.0):
        for value in (0.0, 1.0):
            got = shared([value] * 8, [[value] * 5], peer_share=mix)
            assert torch.equal(got, torch.zeros(1, 8)), mix


def test_prompts_do_not_mix_in_the_shared_baseline():
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    count, mean, std = (
        torch.tensor([[2.0], [4.0]]),
        torch.tensor([[1.0], [0.5]]),
        torch.tensor([[0.0], [0.5]]),
    )
    both = shared_baseline_advantages(rewards, count, mean, std)
    for row in (0, 1):
        one = (x[row : row + 1] for x in (rewards, count, mean, std))
        assert torch.equal(both[row : row + 1], shared_baseline_advantages(*one))
