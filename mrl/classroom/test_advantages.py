"""Assignment 1: group advantages."""

import random
from contextlib import suppress
from itertools import product
from types import ModuleType

import pytest
import torch
from torch import Tensor

from mrl.classroom import shown

HIDDEN = ("mrl.advantages", "mrl.modes")
EPS = 1e-6
FLOATS = (torch.float32, torch.float64)
SMALL = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
EQUAL = [[0.0] * 7, [1.0] * 7, [0.1] * 7, [0.7] * 7, [0.3] * 7]  # some means are beside the value
LOOK = "the mean of equal numbers need not be that number, and 0 / 0 is nan: look for equality"
CAUSES = {  # what gives such numbers -> what is taken off the rewards, and what they are divided by
    "that is zero, though these rewards do not all agree": lambda r, mean, std: (mean, torch.inf),
    "that is the sample standard deviation (torch.std needs correction=0)":
        lambda r, mean, std: (mean, r.std(1, keepdim=True) + EPS),
    "that is mean and std over all prompts together (dim=1 keeps prompts apart)":
        lambda r, mean, std: (r.mean(), r.std(correction=0) + EPS),
    "that is mean and std over the wrong axis, so that different prompts are compared":
        lambda r, mean, std: (r.mean(0), r.std(0, correction=0) + EPS),
    "that is centered, but not divided by the std": lambda r, mean, std: (mean, 1.0),
    "that is the opposite sign": lambda r, mean, std: (mean, -std - EPS),
    "that is a division by the std alone, without the 1e-6": lambda r, mean, std: (mean, std),
}  # fmt: skip


def compare(submission: ModuleType, rewards: Tensor, tolerance: float = 1e-4) -> None:
    """Fail with the first group that is wrong, and what gives such numbers."""
    got = submission.advantages(rewards.clone())
    assert isinstance(got, Tensor) and got.shape == rewards.shape, (
        f"for rewards {list(rewards.shape)} it returned {shown(got)}, expected a tensor like them"
    )
    mean, std = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True, correction=0)
    equal = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    want = ((rewards - mean) / (std + EPS)).masked_fill(equal, 0.0)

    def near(other: Tensor, atol: float = tolerance) -> list[bool]:  # nan is near to nothing
        close = torch.isclose(got.double(), other.double(), atol=atol, rtol=tolerance)
        return close.all(dim=1).tolist()

    right = near(want)
    if not all(right):
        row = right.index(False)
        terms = {cause: wrong(rewards, mean, std) for cause, wrong in CAUSES.items()}
        hints = [
            cause for cause, (off, by) in terms.items() if all(near((rewards - off) / by, 1e-7))
        ]
        group, numbers, expected = (each[row].tolist() for each in (rewards, got, want))
        said = f"for the group {shown(group)} expected {shown(expected)}, got {shown(numbers)}"
        pytest.fail("; ".join([said, *([LOOK] if equal[row] else hints[:1])]))


@pytest.mark.points(2)
def test_by_hand(submission: ModuleType) -> None:
    """two groups by hand"""
    compare(submission, torch.tensor(SMALL))


@pytest.mark.points(2)
def test_random(submission: ModuleType, rng: random.Random) -> None:
    """random rewards, each shape twice"""
    for prompts, group in ((1, 2), (2, 5), (6, 3), (16, 8)) * 2:
        draws = [[round(rng.uniform(-1, 2), 2) for _ in range(group)] for _ in range(prompts)]
        compare(submission, torch.tensor(draws))


@pytest.mark.points(1)
def test_small_std(submission: ModuleType) -> None:
    """rewards that differ by little, where the 1e-6 counts"""
    little = 2.0**-18  # sums of it are exact in float32
    compare(submission, torch.tensor([[0.0, little] * 2, [little, 0.0, 0.0, 0.0]]), 1e-2)
    compare(submission, torch.tensor([[1.0, 1.0 + little] * 2]), 1e-2)


@pytest.mark.points(2)
def test_equal(submission: ModuleType) -> None:
    """groups that all agree get exact zeros"""
    for width, dtype in product((7, 2, 3), FLOATS):
        compare(submission, torch.tensor(EQUAL, dtype=dtype)[:, :width], tolerance=0.0)


@pytest.mark.points(1)
def test_rewards_stay(submission: ModuleType) -> None:
    """the rewards afterwards"""
    for table, dtype in product((SMALL, EQUAL), FLOATS):
        rewards = torch.tensor(table, dtype=dtype)
        submission.advantages(rewards)
        assert torch.equal(rewards, torch.tensor(table, dtype=dtype)), (
            "`rewards` were changed in place; `-=`, `copy_` and `[...] =` do that"
        )


@pytest.mark.points(1)
def test_float32(submission: ModuleType) -> None:
    """the result's dtype"""
    for dtype in (*FLOATS, torch.float16):
        got = submission.advantages(torch.tensor(SMALL, dtype=dtype)).dtype
        assert got == torch.float32, f"{dtype} rewards gave {got}, expected torch.float32"


@pytest.mark.points(1)
def test_no_groups(submission: ModuleType) -> None:
    """a ValueError for what are no groups"""
    for shape in ([2, 1], [2, 0], [2], [], [2, 2, 2]):
        with suppress(ValueError):
            got = submission.advantages(torch.zeros(shape))
            pytest.fail(f"rewards {shape} are no groups: expected a ValueError, got {shown(got)}")
