"""Assignment 1: group advantages."""

import random
from contextlib import suppress
from copy import deepcopy
from itertools import product
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from mrl.classroom import input_in_errors, shown

HIDDEN = ("mrl.advantages", "mrl.modes")
FLOATS = (torch.float32, torch.float64)
SMALL = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
EQUAL = [[0.0] * 7, [1.0] * 7, [0.1] * 7, [0.7] * 7, [0.3] * 7]  # some means are beside the value
LITTLE = 2.0**-20  # a std below 1e-6; sums of it are exact in float32
NEARLY = ([0.0, LITTLE, 0.0, 0.0], [1.0, 1.0 + LITTLE, 1.0, 1.0])


def scored(submission: ModuleType, rewards: Tensor) -> Tensor:
    """Its advantages, if they have the shape of the rewards."""
    with input_in_errors(f"rewards {shown(rewards.tolist())}"):
        got = torch.as_tensor(submission.advantages(rewards.clone()))  # a list costs the last part
    assert got.shape == rewards.shape, (
        f"for rewards {list(rewards.shape)} it returned {list(got.shape)}, expected the same shape"
    )
    return got.double()


def rotations(group: list[float]) -> Tensor:
    """A prompt for each rotation: so rows and columns have one mean, and a wrong axis no effect."""
    return torch.tensor([group[place:] + group[:place] for place in range(len(group))])


def test_centered(submission: ModuleType, rng: random.Random) -> None:
    """3 points: rewards less their own group's mean, whatever the scale"""
    for prompts, group in ((1, 2), (6, 3), (16, 8), (6, 3)):  # no result may be cached by shape
        draws = [[round(rng.uniform(-1, 2), 2) for _ in range(group)] for _ in range(prompts)]
        rewards = torch.tensor(draws, dtype=torch.float64)
        right = rewards - rewards.mean(1, keepdim=True)
        got = normalize(scored(submission, rewards.float()))

        hint = "look at the axes"
        if torch.allclose(got, normalize(rewards - rewards.mean()), atol=1e-3):
            hint = "that is the mean of all prompts (dim=1 keeps them apart)"
        if torch.allclose(got, normalize(rewards - rewards.mean(0)), atol=1e-3):
            hint = "that is the mean over the wrong axis (dim=1 is the group)"

        row = int((got - normalize(right)).abs().sum(dim=1).argmax())  # the worst
        assert torch.allclose(got, normalize(right), atol=1e-3), (
            f"for the group {shown(draws[row])} expected numbers in proportion to "
            f"{shown(right[row].tolist())}, got {shown(got[row].tolist())}; {hint}"
        )


def test_scale(submission: ModuleType) -> None:
    """2 points: divided by the group's population standard deviation"""
    small = [0.0, 1.0, 0.0, 0.25, 0.5]
    rewards = torch.cat([rotations(small), 3 * rotations(small)])
    got = scored(submission, rewards).std(1, correction=0)

    cause = "is it the std of each group?"
    if torch.allclose(got, torch.tensor(0.8).double().sqrt(), atol=1e-3):
        cause = "that is the sample standard deviation (torch.std needs correction=0)"
    if torch.allclose(got, rewards.double().std(1, correction=0), atol=1e-3):
        cause = "that is centered, but not divided by the std"

    assert torch.allclose(got, torch.ones(10).double(), atol=1e-3), (
        f"for the group {small}, and for three times it, the advantages have a population std of "
        f"{got[0]:.3f} and {got[-1]:.3f}, expected 1; {cause}"
    )


def test_small_std(submission: ModuleType) -> None:
    """1 point: rewards that differ by little, where the 1e-6 counts"""
    for group in NEARLY:
        got = scored(submission, rotations(group)).std(1, correction=0)
        assert all(0.2 < std < 0.4 for std in got.tolist()), (  # also with the sample's std
            f"for the group {group} the advantages have a std of {got[0]:.3f}, expected 0.29; with "
            "no 1e-6 beside the std it is 1, and 0 if such rewards are taken to agree"
        )


def test_equal(submission: ModuleType) -> None:
    """1 point: groups that all agree get exact zeros"""
    for width, dtype in product((7, 3), FLOATS):
        rewards = torch.tensor(EQUAL, dtype=dtype)[:, :width]
        for group, row in zip(rewards.tolist(), scored(submission, rewards).tolist(), strict=True):
            assert not any(row), (
                f"for the group {shown(group)} expected zeros, got {shown(row)}; the mean of equal "
                "numbers need not be that number, and 0 / 0 is nan: look for equality"
            )


def test_rewards_stay(submission: ModuleType) -> None:
    """1 point: the rewards, and an earlier result, afterwards"""
    first = submission.advantages(torch.tensor(SMALL))
    kept = deepcopy(first)
    submission.advantages(1 - torch.tensor(SMALL))
    same = torch.equal(torch.as_tensor(first), torch.as_tensor(kept))
    assert same, "a result changed with the next call: return a new tensor"

    for table, dtype in product((SMALL, EQUAL), FLOATS):
        rewards = torch.tensor(table, dtype=dtype)
        submission.advantages(rewards)
        assert torch.equal(rewards, torch.tensor(table, dtype=dtype)), (
            "`rewards` were changed in place; `-=`, `copy_` and `[...] =` do that"
        )


def test_float32(submission: ModuleType) -> None:
    """1 point: the result's type: a tensor of float32"""
    for dtype in (*FLOATS, torch.float16):
        result = submission.advantages(torch.tensor(SMALL, dtype=dtype))
        got = getattr(result, "dtype", type(result))
        assert got == torch.float32, f"{dtype} rewards gave {got}, expected torch.float32"


def test_no_groups(submission: ModuleType) -> None:
    """1 point: a ValueError for what are no groups"""
    for shape in ([2, 1], [2, 0], [2], [], [2, 2, 2]):
        with suppress(ValueError):
            got = submission.advantages(torch.zeros(shape))
            pytest.fail(f"rewards {shape} are no groups: expected a ValueError, got {shown(got)}")
