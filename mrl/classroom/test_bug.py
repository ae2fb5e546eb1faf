"""Assignment 2: a silent bug in a loss, and five learning curves."""

import random
from collections.abc import Callable
from itertools import product
from types import ModuleType

import pytest
import torch
from torch import Tensor

from mrl.classroom import shown
from mrl.classroom.curves import BUGS, LETTERS, drawn

UNCLIPPED = 0.1  # nats; ratios then stay within 0.8 and 1.2, so a missing clip costs one part only
SHAPES = ((2, 4), (5, 3), (4, 4))  # prompts, completions per prompt


def draw_case(rng: random.Random, prompts: int, group: int, moved: float) -> list[Tensor]:
    """Draw arguments of the loss. moved: largest change of a log-prob since sampling, in nats."""
    torch.manual_seed(rng.randrange(2**31))
    rows, seq = prompts * group, 5

    mask = torch.rand(rows, seq) < 0.6
    mask[torch.arange(rows), torch.randint(seq, (rows,))] = True  # at least one token

    old = -2 * torch.rand(rows, seq).double()
    new = old + moved * (2 * torch.rand(rows, seq) - 1)

    rewards = torch.randint(4, (prompts, group)).double() / 3
    rewards[:, -2:] = torch.tensor([0.0, 1.0])  # so that no group has equal rewards
    return [new, old, rewards, mask]


def expected(logprobs: Tensor, behavior_logprobs: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
    """GRPO's loss, completion by completion, without mrl.objectives."""
    losses = []
    mean, std = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True, correction=0)
    all_agree = (rewards == rewards[:, :1]).all(1, keepdim=True)
    advantages = ((rewards - mean) / (std + 1e-6)).masked_fill(all_agree, 0.0)
    for row, advantage in enumerate(advantages.flatten()):
        ratio = (logprobs[row] - behavior_logprobs[row])[mask[row]].exp()
        losses.append(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean())
    return -torch.stack(losses).mean()


def compare(submission: ModuleType, *arguments: Tensor, strict: bool = False) -> None:
    """Fail if the loss or its gradient is wrong.

    strict: fail even if both are wrong by the same factor (a sign, or the sample std). Only one
    part is strict, so that such a factor costs the points of that part alone.
    """
    results = []
    for function in (expected, submission.policy_loss):
        leaf, *rest = (argument.clone() for argument in arguments)
        loss = function(leaf.requires_grad_(), *rest)
        # torch raises if the loss has axes, or if something is detached
        (gradient,) = torch.autograd.grad(loss, leaf)
        results += [loss.item(), gradient.double()]

    right, want, loss, got = results
    factor = 1.0
    if got.any() and not strict:
        factor = float((want * got).sum() / got.square().sum())
    if abs(factor * loss - right) < 1e-5 and torch.allclose(factor * got, want, atol=1e-5):
        return

    row = int((got - want).abs().sum(dim=1).argmax())  # the worst row
    pytest.fail(
        f"the loss is {loss:.5f}, expected {right:.5f}; the gradient of completion {row} is "
        f"{shown(got[row].tolist())}, expected {shown(want[row].tolist())}; the rewards are "
        f"{shown(arguments[2].tolist())}. Follow one completion through each line: whose "
        "advantage does it get, with which sign, and over how many tokens is its mean? Is the std "
        "the population std (correction=0)? nan comes from 0 / 0, and from nan * 0. The mean of "
        "equal rewards may differ from them, so test for equality"
    )


def test_on_policy(submission: ModuleType, rng: random.Random) -> None:
    """2 points: just after sampling, when every ratio is 1; also for nearly equal rewards"""
    for shape, scale in product(SHAPES, (1.0, 1e-5)):
        new, old, rewards, mask = draw_case(rng, *shape, moved=0.0)
        compare(submission, new, old, rewards * scale, mask, strict=True)


def test_off_policy(submission: ModuleType, rng: random.Random) -> None:
    """1 point: after the policy has changed since sampling"""
    for shape in SHAPES:
        compare(submission, *draw_case(rng, *shape, moved=0.6))


def test_equal_groups(submission: ModuleType, rng: random.Random) -> None:
    """1 point: groups whose rewards are all equal"""
    for equal in ([[0.0], [1.0]], [[1.0], [1.0], [1.0]], [[0.1], [0.7]]):
        new, old, rewards, mask = draw_case(rng, 3, 7, UNCLIPPED)
        rewards = rewards.float()  # in float32, the mean of seven rewards of 0.1 is not 0.1
        rewards[-len(equal) :] = torch.tensor(equal)
        compare(submission, new, old, rewards, mask)


def test_masked(submission: ModuleType, rng: random.Random) -> None:
    """1 point: log-probs of 0, -100, -inf and nan where the mask is False"""
    for off in (0.0, -100.0, -torch.inf, torch.nan):
        new, old, rewards, mask = draw_case(rng, 3, 4, UNCLIPPED)
        compare(submission, new.where(mask, off), old.where(mask, off), rewards, mask)


def test_curves(submission: ModuleType, record_property: Callable) -> None:
    """5 points: which run has which bug, one point each"""
    causes = submission.CAUSES
    odd = [cause for cause in causes.values() if cause not in (*BUGS, "end token", "clip", "")]
    assert not odd, f"{shown(odd)} must be among the eight names in the docstring, spelled the same"

    right = drawn(int(submission.CURVES))
    points = sum(causes.get(letter) == right[letter] for letter in LETTERS)
    record_property("points", points)
    assert points == len(LETTERS), (
        f"{points} of five are correct (the check does not say which). Compare each panel with the "
        "healthy run: does the solve rate fall, stay constant, or collapse? Is there a gradient, "
        "and is it as large? Do completions get longer, or are they limited in length?"
    )
