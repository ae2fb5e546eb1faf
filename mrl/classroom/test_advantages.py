"""Assignment 1: group advantages."""

import random
from contextlib import suppress
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from mrl.classroom import shown

FLOATS = (torch.float32, torch.float64)
# for some of these groups, the computed mean differs from the rewards
EQUAL = [[0.0] * 7, [1.0] * 7, [0.1] * 7, [0.7] * 7, [0.3] * 7]
LITTLE = 2.0**-20  # a difference that makes the std less than 1e-6, while float32 sums stay exact
NEARLY = ([0.0, LITTLE, 0.0, 0.0], [1.0, 1.0 + LITTLE, 1.0, 1.0])


def scored(submission: ModuleType, rewards: Tensor) -> Tensor:
    """The submission's advantages, after a check of their shape."""
    # converted, because a list should cost points in another part only
    got = torch.as_tensor(submission.advantages(rewards.clone()))
    assert got.shape == rewards.shape, (
        f"for rewards {list(rewards.shape)} it returned {list(got.shape)}, expected the same shape"
    )
    return got.double()


def rotations(group: list[float]) -> Tensor:
    """All rotations of a group, so that a mean over the wrong axis gives the same result."""
    return torch.tensor([group[place:] + group[:place] for place in range(len(group))])


def test_centered(submission: ModuleType, rng: random.Random) -> None:
    """3 points: rewards minus the mean of their own group, at any scale"""
    # a shape occurs twice, because a result must not be cached by shape
    for prompts, group in ((1, 2), (6, 3), (16, 8), (6, 3)):
        draws = [[round(rng.uniform(-1, 2), 2) for _ in range(group)] for _ in range(prompts)]
        rewards = torch.tensor(draws, dtype=torch.float64)
        right = normalize(rewards - rewards.mean(1, keepdim=True))
        got = normalize(scored(submission, rewards.float()))

        row = int((got - right).abs().sum(dim=1).argmax())  # the worst group
        assert torch.allclose(got, right, atol=1e-3), (
            f"for the group {shown(draws[row])} expected numbers proportional to "
            f"{shown(right[row].tolist())}, got {shown(got[row].tolist())}; did you subtract the "
            "mean of each prompt's own group (dim=1)?"
        )


def test_scale(submission: ModuleType) -> None:
    """2 points: divided by the group's population standard deviation"""
    small = [0.0, 1.0, 0.0, 0.25, 0.5]
    rewards = torch.cat([rotations(small), 3 * rotations(small)])
    got = scored(submission, rewards).std(1, correction=0)

    assert torch.allclose(got, torch.ones(10).double(), atol=1e-3), (
        f"for the group {small}, and for three times it, the advantages have a population std of "
        f"{got[0]:.3f} and {got[-1]:.3f}, expected 1; do you divide by each group's "
        "population std (torch.std needs correction=0)?"
    )


def test_small_std(submission: ModuleType) -> None:
    """1 point: rewards that differ so little that the 1e-6 matters"""
    for group in NEARLY:
        got = scored(submission, rotations(group)).std(1, correction=0)
        assert all(0.2 < std < 0.4 for std in got.tolist()), (  # also with the sample std
            f"for the group {group} the advantages have a std of {got[0]:.3f}, expected 0.29; "
            "it would be 1 without the 1e-6, and 0 if such rewards were treated as equal"
        )


def test_equal(submission: ModuleType) -> None:
    """1 point: exact zeros for groups of equal rewards"""
    for dtype in FLOATS:
        got = scored(submission, torch.tensor(EQUAL, dtype=dtype))
        assert not got.any(), (
            f"for the groups {shown(EQUAL)} expected zeros, got {shown(got.tolist())}; the mean "
            "of equal numbers may differ from them, and 0 / 0 is nan, so test for equality"
        )


def test_rewards_stay(submission: ModuleType) -> None:
    """1 point: the rewards and earlier results stay unchanged"""
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.3, 0.3, 0.3, 0.3]])
    before, kept = rewards.clone(), scored(submission, rewards)
    first = submission.advantages(rewards)

    assert torch.equal(rewards, before), (
        "`rewards` were changed in place; `-=`, `copy_` and `[...] =` do that"
    )

    submission.advantages(1 - rewards)
    same = torch.equal(torch.as_tensor(first).double(), kept)
    assert same, "a result changed during the next call; return a new tensor"


def test_float32(submission: ModuleType) -> None:
    """1 point: the result is a tensor of float32"""
    for dtype in (*FLOATS, torch.float16):
        result = submission.advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=dtype))
        got = getattr(result, "dtype", type(result))
        assert got == torch.float32, f"{dtype} rewards gave {got}, expected torch.float32"


def test_no_groups(submission: ModuleType) -> None:
    """1 point: a ValueError for rewards that are not groups"""
    for shape in ([2, 1], [2, 0], [2], [], [2, 2, 2]):
        with suppress(ValueError):
            got = submission.advantages(torch.zeros(shape))
            pytest.fail(f"rewards {shape} are not groups: expected a ValueError, got {shown(got)}")
