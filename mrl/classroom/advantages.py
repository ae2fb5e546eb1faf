"""Assignment 1: group advantages."""

import random
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from mrl.classroom import Finding, examine, shown
from mrl.classroom.sandbox import Raised, Session

PRELOAD = ("torch",)
BLOCKED = ("mrl.advantages", "mrl.modes", "mrl.lab.bandit")
LIMIT_S = 10.0
MEMORY = 1 << 30
STUB = '''"""Group advantages: how good was a completion, compared with others for the same prompt?

    A[p, i] = (r[p, i] - mean_i r[p]) / (std_i r[p] + 1e-6)        GRPO, arXiv 2402.03300, 4.1.2

Contract of `advantages(rewards)`:
- rewards: a tensor [prompts, group] of floats; row p holds the rewards of prompt p's completions
- returns a new tensor [prompts, group], float32; `rewards` itself stays as it was
- std is the population standard deviation (divided by the group's size, not by one less)
- a group whose rewards all agree gets *exact* zeros, whatever the rewards are (0.1 is one to try)
- raises ValueError if `rewards` has not two axes or a group of fewer than two

Check it with:  python mini_mrl.py assignment check advantages.py
"""

import torch
from torch import Tensor

ASSIGNMENT = "advantages"


def advantages(rewards: Tensor) -> Tensor:
    """Score each completion against its own group."""
    raise NotImplementedError("your turn")
'''
EQUAL = ([0.0] * 7, [1.0] * 7, [0.1] * 7, [0.7] * 7, [0.3] * 7)  # some means are beside the value
SMALL = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
EPS = 1e-6


def perform(module: ModuleType, do: str, given: Any, ask: Callable[[Any], Any]) -> Any:
    """Call the submission's `advantages` once."""
    rewards = torch.tensor(given, dtype=torch.float64 if do == "double" else torch.float32)
    before = rewards.clone()
    try:
        got = module.advantages(rewards)
    except ValueError as error:
        return {"refused": str(error)[:200]}
    if not isinstance(got, Tensor):
        return {"type": type(got).__name__}
    unchanged = rewards.shape == before.shape and bool((rewards == before).all())
    return {"values": got.tolist(), "dtype": str(got.dtype), "unchanged": unchanged}


def expected(rewards: Tensor) -> Tensor:
    """What is right, once more and apart from mrl.advantages."""
    centered = rewards - rewards.mean(dim=1, keepdim=True)
    spread = centered.square().mean(dim=1, keepdim=True).sqrt()
    equal = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    return torch.where(equal, torch.zeros_like(centered), centered / (spread + EPS))


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
    "centred rewards without the division by the std": lambda r: r - r.mean(1, keepdim=True),
    "a baseline that leaves the completion itself out": lambda r: (
        (r - r.mean(1, keepdim=True)) * r.shape[1] / (r.shape[1] - 1)
    ),
    "the reward divided by the std, but without the mean taken off": lambda r: (
        r / (r.std(1, keepdim=True, correction=0) + EPS)
    ),
    "the opposite sign": lambda r: -expected(r),
}


def check(session: Session, rng: random.Random, say: Callable[[str], None]) -> Iterator[Finding]:
    """Small cases by hand, random ones, equal groups, manners."""

    def compare(rewards: list[list[float]], do: str = "call") -> str | None:
        said = session.call(do, rewards)
        if "values" not in said:
            return f"for {shown(rewards)} it {_instead(said)}, not a tensor"
        want = expected(torch.tensor(rewards))
        got = _tensor(said["values"])
        if got is None or got.shape != want.shape:
            return f"for rewards {list(want.shape)} the result is {shown(said['values'])}"
        if torch.allclose(got, want, atol=1e-4, rtol=1e-4):
            return None
        rows = (~torch.isclose(got, want, atol=1e-4, rtol=1e-4)).any(dim=1)
        row = int(rows.nonzero()[0])
        words = (
            f"for the group {shown(rewards[row])} expected {shown(want[row].tolist())}, got "
            f"{shown(got[row].tolist())}"
        )
        for cause, wrong in CAUSES.items():
            if torch.allclose(got, wrong(torch.tensor(rewards)), atol=1e-4, rtol=1e-4):
                return f"{words}; that is {cause}"
        return words

    yield examine(3, "two groups by hand", lambda: compare(SMALL))
    sizes = [(1, 2), (2, 5), (6, 3), (16, 8)]
    tables = [[[round(rng.random(), 2) for _ in range(g)] for _ in range(p)] for p, g in sizes]
    tables.append([[float(rng.random() < 0.4) for _ in range(4)] + [1.0, 0.0] for _ in range(9)])
    yield examine(
        2, "random rewards in five shapes", lambda: next(filter(None, map(compare, tables)), None)
    )

    def zeros() -> str | None:
        said = session.call("call", list(EQUAL))
        got = _tensor(said.get("values"))
        if got is None or got.shape != (len(EQUAL), 7):
            return f"it {_instead(said)}"
        for rewards, row in zip(EQUAL, got.tolist(), strict=True):
            if any(value != 0.0 for value in row):
                return (
                    f"seven rewards of {rewards[0]} expected exact zeros, got {shown(row)}; a mean "
                    "of equal numbers need not be that number, and 0 / 0 is nan, so look for "
                    "equality itself"
                )
        return None

    yield examine(2, "groups that all agree", zeros)

    def untouched() -> str | None:
        said = session.call("call", SMALL)
        if "values" not in said:
            return f"it {_instead(said)}"
        return None if said["unchanged"] else "`rewards` were changed in place (`-=` does that)"

    yield examine(1, "the rewards afterwards", untouched)

    def float32() -> str | None:
        dtype = session.call("double", SMALL).get("dtype")
        return None if dtype == "torch.float32" else f"float64 rewards gave {dtype}, not float32"

    yield examine(1, "the result's dtype", float32)

    def refuses() -> str | None:
        for rewards in ([[1.0], [0.0]], [1.0, 0.0]):
            try:
                said = session.call("call", rewards)
            except Raised as error:
                return f"rewards {rewards} are no groups: expected a ValueError, got {error}"
            if "refused" not in said:
                return f"rewards {rewards} are no groups: expected a ValueError, but it returned"
        return None

    yield examine(1, "groups of one", refuses)


def _instead(said: dict) -> str:
    if "refused" in said:
        return f"raised ValueError ({said['refused']})"
    return f"returned {said.get('type', 'something of another shape')}"


def _tensor(values: Any) -> Tensor | None:
    try:
        return torch.tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        return None
