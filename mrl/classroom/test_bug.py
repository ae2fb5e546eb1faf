"""Assignment 3: a silent bug in a loss, and five learning curves."""

import random
from types import ModuleType

import pytest
import torch
from torch import Tensor

from mrl.classroom import shown
from mrl.classroom.curves import LETTERS, drawn

HIDDEN = (
    "mrl.advantages", "mrl.objectives", "mrl.learning", "mrl.modes", "mrl.lab",
    "mrl.classroom.curves",
)  # fmt: skip
NAN = float("nan")
SHAPES = ((2, 4), (5, 3), (8, 8))  # prompts, completions a prompt
Case = dict[str, Tensor]


def draw_case(rng: random.Random, prompts: int, group: int, moved: float, off: float = 0.0) -> Case:
    """Random groups. moved: since it sampled, in nats; off: the log-probs where the mask is off."""
    rows, seq = prompts * group, 5
    mask = torch.zeros(rows, seq, dtype=torch.bool)
    for row in mask:
        row[: rng.randint(1, seq)] = True
    old = torch.tensor([[rng.uniform(-2, 0) for _ in range(seq)] for _ in range(rows)]).double()
    new = old + torch.tensor(
        [[rng.uniform(-moved, moved) for _ in range(seq)] for _ in range(rows)]
    )
    rewards = [[float(rng.random() < 0.5) for _ in range(group - 2)] + [0.0, 1.0]
               for _ in range(prompts)]  # fmt: skip
    return {
        "logprobs": torch.where(mask, new, off or new),
        "old_logprobs": torch.where(mask, old, off or old),
        "rewards": torch.tensor(rewards).double(),
        "mask": mask,
    }


def expected(logprobs: Tensor, old_logprobs: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
    """GRPO's loss completion by completion, apart from mrl.objectives."""
    total = logprobs.new_zeros(())
    mean, std = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True, correction=0)
    for row, advantage in enumerate(((rewards - mean) / (std + 1e-6)).flatten()):
        on = mask[row]
        ratio = (logprobs[row][on] - old_logprobs[row][on]).exp()
        total = total - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    return total / len(mask)


def compare(submission: ModuleType, case: Case) -> None:
    """Fail if loss or gradient differ; nan differs from everything."""
    results = []
    for function in (submission.policy_loss, expected):
        logprobs = case["logprobs"].clone().requires_grad_()
        rest = [case[name].clone() for name in ("old_logprobs", "rewards", "mask")]
        loss = function(logprobs, *rest)
        assert isinstance(loss, Tensor) and loss.shape == (), (
            f"the loss is {shown(loss)}, expected a tensor without axes"
        )
        assert loss.requires_grad, "the loss has no gradient: is something detached?"
        loss.backward()
        grad = torch.zeros_like(logprobs) if logprobs.grad is None else logprobs.grad
        results.append((loss.item(), grad))
    (loss, got), (right, want) = results
    assert abs(loss - right) < 1e-5, (
        f"the loss is {loss:.5f}, expected {right:.5f}; which tokens are averaged, and is "
        "anything taken from where the mask is off?"
    )
    bad = (~torch.isclose(got.double(), want, atol=1e-5)).any(dim=1).nonzero()[:1, 0].tolist()
    for row in bad:
        pytest.fail(
            f"the loss is right, but the gradient of completion {row} is {shown(got[row].tolist())}"
            f", expected {shown(want[row].tolist())}; its group's rewards are "
            f"{shown(case['rewards'][row // case['rewards'].shape[1]].tolist())}",
            pytrace=False,
        )


@pytest.mark.points(2)
def test_on_policy(submission: ModuleType, rng: random.Random) -> None:
    """just after sampling, every ratio 1"""
    for shape in SHAPES:
        compare(submission, draw_case(rng, *shape, 0.0))


@pytest.mark.points(2)
def test_off_policy(submission: ModuleType, rng: random.Random) -> None:
    """when the policy has moved"""
    for shape in (*SHAPES, (4, 4)):
        compare(submission, draw_case(rng, *shape, 0.6))


@pytest.mark.points(1)
def test_equal_groups(submission: ModuleType, rng: random.Random) -> None:
    """groups whose rewards all agree"""
    case = draw_case(rng, 3, 4, 0.3)
    case["rewards"][1:] = torch.tensor([[0.0], [1.0]])
    compare(submission, case)
    compare(submission, {**case, "rewards": torch.ones(3, 4).double()})


@pytest.mark.points(1)
def test_masked(submission: ModuleType, rng: random.Random) -> None:
    """log-probs of 0, -100, -inf and nan where the mask is off"""
    for off in (1e-9, -100.0, -torch.inf, NAN):
        compare(submission, draw_case(rng, 3, 4, 0.3, off))


@pytest.mark.points(4)
def test_curves(submission: ModuleType) -> None:
    """which curve has which cause"""
    said, right = dict(submission.CAUSES), drawn(int(submission.CURVES))
    assert sorted(said) == list(LETTERS), f"CAUSES has {shown(sorted(said))}, expected A to E"
    assert said == right, (
        "not all five are right (which ones is not said, or one could guess). Compare each panel "
        "with the healthy run: does the solve rate fall, stand still, or break off? Is there a "
        "gradient, and is it as large? Do completions get longer, or never longer than a limit?"
    )
