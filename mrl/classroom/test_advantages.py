"""Assignment 1: group advantages."""

import random
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from mrl.classroom import shown

HIDDEN = ("mrl.advantages", "mrl.modes")
EPS = 1e-6
SMALL = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
EQUAL = [[0.0] * 7, [1.0] * 7, [0.1] * 7, [0.7] * 7, [0.3] * 7]  # some means are beside the value


def expected(rewards: Tensor, eps: float = EPS) -> Tensor:
    """What is right, apart from mrl.advantages."""
    centered = rewards - rewards.mean(dim=1, keepdim=True)
    std = centered.square().mean(dim=1, keepdim=True).sqrt()
    equal = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    return torch.where(equal, torch.zeros_like(centered), centered / (std + eps))


CAUSES: dict[str, Callable[[Tensor], Tensor]] = {
    "the sample standard deviation (torch.std needs correction=0)": lambda r: (
        (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + EPS)
    ),
    "mean and std over all prompts together (dim=1 keeps prompts apart)": lambda r: (
        (r - r.mean()) / (r.std(correction=0) + EPS)
    ),
    "mean and std over the wrong axis, so that different prompts are compared": lambda r: (
        (r - r.mean(0)) / (r.std(0, correction=0) + EPS)
    ),
    "centered rewards without the division by the std": lambda r: r - r.mean(1, keepdim=True),
    "a baseline that leaves the completion itself out": lambda r: (
        (r - r.mean(1, keepdim=True)) * r.shape[1] / (r.shape[1] - 1)
    ),
    "the reward divided by the std, but without the mean taken off": lambda r: (
        r / (r.std(1, keepdim=True, correction=0) + EPS)
    ),
    "the opposite sign": lambda r: -expected(r),
    "a division by the std alone, without the 1e-6": lambda r: expected(r, 0.0),
    "zero where rewards are only close to each other": torch.zeros_like,
}


def called(submission: ModuleType, rewards: Tensor) -> Tensor:
    """The submission's answer, if it is a tensor of that shape."""
    got = submission.advantages(rewards.clone())
    assert isinstance(got, Tensor), f"it returned {shown(got)}, expected a tensor"
    assert got.shape == rewards.shape, (
        f"for rewards {list(rewards.shape)} the result is {list(got.shape)}, expected the same"
    )
    return got.detach().double()


def compare(submission: ModuleType, table: list[list[float]], tolerance: float = 1e-4) -> None:
    """Fail with the first group that is wrong, and what gives such numbers."""
    rewards = torch.tensor(table)
    got, want = called(submission, rewards), expected(rewards).double()

    def near(other: Tensor) -> Tensor:  # nan is near to nothing
        return torch.isclose(got, other.double(), atol=tolerance, rtol=tolerance).all(dim=1)

    for row in (~near(want)).nonzero()[:1, 0].tolist():
        causes = [cause for cause, wrong in CAUSES.items() if near(wrong(rewards)).all()]
        pytest.fail(
            f"for the group {shown(table[row])} expected {shown(want[row].tolist())}, got "
            f"{shown(got[row].tolist())}" + "".join(f"; that is {cause}" for cause in causes[:1]),
            pytrace=False,
        )


@pytest.mark.points(2)
def test_by_hand(submission: ModuleType) -> None:
    """two groups by hand"""
    compare(submission, SMALL)


@pytest.mark.points(2)
def test_random(submission: ModuleType, rng: random.Random) -> None:
    """random rewards, each shape twice"""
    for prompts, group in ((1, 2), (2, 5), (6, 3), (16, 8)) * 2:
        compare(submission, [[round(rng.uniform(-1, 2), 2) for _ in range(group)]
                             for _ in range(prompts)])  # fmt: skip
    for _ in range(2):
        draws = [[float(rng.random() < 0.4) for _ in range(4)] + [1.0, 0.0] for _ in range(9)]
        compare(submission, draws)


@pytest.mark.points(1)
def test_small_std(submission: ModuleType) -> None:
    """rewards that differ by little, where the 1e-6 counts"""
    little = 2.0**-18  # sums of it are exact in float32
    compare(submission, [[0.0, little] * 2, [little, 0.0, 0.0, 0.0]], 1e-2)
    compare(submission, [[1.0, 1.0 + little] * 2], 1e-2)


@pytest.mark.points(2)
def test_equal(submission: ModuleType) -> None:
    """groups that all agree"""
    for width in (7, 2, 3):
        for dtype in (torch.float32, torch.float64):
            table = [row[:width] for row in EQUAL]
            got = called(submission, torch.tensor(table, dtype=dtype)).tolist()
            for rewards, row in zip(table, got, strict=True):
                assert row == [0.0] * width, (
                    f"{width} rewards of {rewards[0]} expected exact zeros, got {shown(row)}; the "
                    "mean of equal numbers need not be that number, and 0 / 0 is nan, so look for "
                    "equality itself"
                )


@pytest.mark.points(1)
def test_rewards_stay(submission: ModuleType, rng: random.Random) -> None:
    """the rewards afterwards"""
    for table in (SMALL, EQUAL, [[rng.random() for _ in range(5)] for _ in range(3)]):
        for dtype in (torch.float32, torch.float64):
            rewards = torch.tensor(table, dtype=dtype)
            before = rewards.clone()
            got = submission.advantages(rewards)
            assert rewards.shape == before.shape and bool((rewards == before).all()), (
                "`rewards` were changed in place; `-=`, `copy_` and `[...] =` do that"
            )
            assert got.data_ptr() != rewards.data_ptr(), "the result is `rewards`, not a new tensor"


@pytest.mark.points(1)
def test_float32(submission: ModuleType) -> None:
    """the result's dtype"""
    for dtype in (torch.float64, torch.float32, torch.float16):
        got = submission.advantages(torch.tensor(SMALL, dtype=dtype)).dtype
        assert got == torch.float32, f"{dtype} rewards gave {got}, expected torch.float32"


@pytest.mark.points(1)
def test_no_groups(submission: ModuleType) -> None:
    """what are no groups"""
    for shape in ([2, 1], [2, 0], [2], [], [2, 2, 2]):
        try:
            got = submission.advantages(torch.zeros(shape))
        except ValueError:
            continue
        except Exception as error:
            got = f"a {type(error).__name__}"
        pytest.fail(f"rewards {shape} are no groups: expected a ValueError, got {shown(got)}")
