"""Assignment 3: a silent bug and two learning curves."""

import csv
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from mrl.advantages import group_advantages
from mrl.classroom import Finding, examine, shown
from mrl.classroom.sandbox import ROOT, Session
from mrl.modes import Receiver, TrainingBatch
from mrl.modes.solo import Solo, samples_with
from mrl.objectives import clipped_loss, token_coefficients, token_ratio
from mrl.records import Record
from mrl.samples import Group

PRELOAD = ("torch",)
BLOCKED = ("mrl.objectives", "mrl.advantages", "mrl.modes", "mrl.learning", "mrl.lab.bandit")
LIMIT_S = 10.0
MEMORY = 1 << 30
CURVES = ROOT / "data" / "results" / "bug"  # healthy.csv, sick.csv: see data/README.md
CAUSES = ("end token", "mixed groups", "sign", "clip", "padding", "learning rate")
STUB = f'''"""A silent bug: nothing crashes, the loss looks as always, the policy does not learn.

Two runs of the tiny pair that differ in one line are drawn in bug-curves.png (the numbers are in
bug-curves.csv): solve rate, length of completions, gradient norm. The line is in the function
below. Look at the curves first: what is as it should be, and so cannot be the cause?

Contract of `policy_loss(logprobs, old_logprobs, rewards, mask)`, GRPO's loss:
- rewards: [prompts, group]; logprobs, old_logprobs, mask (bool): [prompts * group, seq], row by
  row as rewards.flatten() counts them; where the mask is off, log-probs hold anything
- advantages: (r - mean of the group) / (population std of the group + 1e-6)
- loss of a token: -min(ratio * A, clip(ratio, 0.8, 1.2) * A); the mean over a completion's tokens,
  then over completions; a tensor without axes whose gradient reaches logprobs

Repair it, and say in CAUSE what it was: one of {CAUSES}.

Check it with:  python mini_mrl.py assignment check bug.py
"""

import torch
from torch import Tensor

ASSIGNMENT = "bug"
CAUSE = ""


def policy_loss(logprobs: Tensor, old_logprobs: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
    """GRPO's loss over a batch of groups; one line of it is wrong."""
    centered = rewards - rewards.mean(dim=1, keepdim=True)
    advantages = centered / (rewards.std(dim=1, keepdim=True, correction=0) + 1e-6)
    per_row = advantages.T.reshape(-1, 1)  # a row of logprobs each
    difference = (logprobs - old_logprobs).masked_fill(~mask, 0.0)
    ratio = difference.exp()
    losses = -torch.minimum(ratio * per_row, ratio.clamp(0.8, 1.2) * per_row)
    lengths = mask.sum(dim=1).clamp(min=1)
    return ((losses * mask).sum(dim=1) / lengths).mean()
'''


@dataclass
class MixedGroups(Solo):
    """solo with the bug: advantages are handed out as if groups were counted the other way round.

    The sick curve: `--mode mrl/classroom/bug.py:MixedGroups`.
    """

    name = "mixed-groups"

    def training_samples(
        self,
        receiver: Receiver,
        groups: Sequence[Group],
        peers: Mapping[str, Sequence[Record]],
        rng: random.Random,
    ) -> TrainingBatch:
        """Own samples with advantages that belong to others."""
        rewards = torch.tensor([group.rewards for group in groups])
        mixed = group_advantages(rewards).T.reshape(rewards.shape)
        rows = zip(groups, mixed.tolist(), strict=True)
        return TrainingBatch([sample for group, row in rows for sample in samples_with(row, group)])


def also_write(folder: Path) -> list[Path]:
    """The two curves, as a picture and as numbers."""
    from mrl.lab import figures

    keys = ("reward", "completions/mean_length", "grad_norm")
    rows = []
    for run in ("healthy", "sick"):
        with (CURVES / f"{run}.csv").open(newline="") as file:
            rows += [{"policy": run, "step": int(r["step"])} | {k: float(r[k]) for k in keys}
                     for r in csv.DictReader(file)]  # fmt: skip
    table, picture = folder / "bug-curves.csv", folder / "bug-curves.png"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("policy", "step", *keys))
        writer.writeheader()
        writer.writerows(rows)
    titles = dict(zip(keys, ("solve rate", "tokens a completion", "gradient norm"), strict=True))
    figures.draw_curves(rows, picture, titles, "")
    return [picture, table]


def perform(module: ModuleType, do: str, given: Any, ask: Callable[[Any], Any]) -> Any:
    """Call `policy_loss` once and differentiate it, or say CAUSE."""
    if do == "cause":
        return str(module.CAUSE)[:100]
    logprobs = torch.tensor(given["logprobs"], dtype=torch.float64, requires_grad=True)
    rest = [torch.tensor(given[name], dtype=torch.float64) for name in ("old_logprobs", "rewards")]
    loss = module.policy_loss(logprobs, *rest, torch.tensor(given["mask"]))
    loss.backward()
    return {"loss": loss.item(), "gradient": logprobs.grad.tolist()}


def expected(given: dict) -> tuple[float, list]:
    """The right loss and gradient, from the program's own functions."""
    logprobs = torch.tensor(given["logprobs"], dtype=torch.float64, requires_grad=True)
    old, rewards = (
        torch.tensor(given[k], dtype=torch.float64) for k in ("old_logprobs", "rewards")
    )
    mask = torch.tensor(given["mask"])
    advantages = group_advantages(rewards).reshape(-1, 1)
    losses = clipped_loss(token_ratio(logprobs, old, mask), advantages, 0.2, 0.2)
    share = token_coefficients(mask, "sequence", len(mask), int(mask.sum()), mask.shape[1])
    loss = (losses * share).sum()
    loss.backward()
    return loss.item(), logprobs.grad.tolist()


def draw_case(rng: random.Random, prompts: int, group: int, moved: float) -> dict:
    """Random groups; `moved`: how far the policy has moved since it sampled, in nats."""
    rows, seq = prompts * group, 5
    old = [[rng.uniform(-2, 0) for _ in range(seq)] for _ in range(rows)]
    lengths = [rng.randint(1, seq) for _ in range(rows)]
    return {
        "old_logprobs": old,
        "logprobs": [[x + rng.uniform(-moved, moved) for x in row] for row in old],
        "rewards": [
            [float(rng.random() < 0.5) for _ in range(group - 2)] + [0.0, 1.0]
            for _ in range(prompts)
        ],
        "mask": [[t < length for t in range(seq)] for length in lengths],
    }


def check(session: Session, rng: random.Random, say: Callable[[str], None]) -> Iterator[Finding]:
    """Loss and gradient on random groups, on-policy and off; the cause in words."""

    def compare(given: dict) -> str | None:
        said = session.call("call", given)
        loss, gradient = expected(given)
        got = torch.tensor(said["gradient"], dtype=torch.float64)
        want = torch.tensor(gradient, dtype=torch.float64)
        if abs(said["loss"] - loss) > 1e-6:
            return f"the loss is {said['loss']:.5f}, not {loss:.5f}"
        if got.shape == want.shape and torch.allclose(got, want, atol=1e-6):
            return None
        row = int((got - want).abs().sum(1).argmax())
        return (
            f"the loss is right, but the gradient of completion {row} is "
            f"{shown([round(x, 4) for x in got[row].tolist()])}, not "
            f"{shown([round(x, 4) for x in want[row].tolist()])}"
        )

    def cases(shapes: list[tuple[int, int]], moved: float) -> str | None:
        found = (compare(draw_case(rng, *shape, moved)) for shape in shapes)
        return next(filter(None, found), None)

    shapes = [(2, 4), (5, 3), (8, 8)]
    yield examine(4, "just after sampling, every ratio 1", lambda: cases(shapes, 0.0))
    yield examine(2, "when the policy has moved", lambda: cases(shapes, 0.6))
    yield examine(1, "as many prompts as completions a group", lambda: cases([(4, 4)], 0.3))

    def cause() -> str | None:
        said = session.call("cause")
        if said == "mixed groups":
            return None
        if said not in CAUSES:
            return f"CAUSE is {shown(said)}, not one of {', '.join(CAUSES)}"
        return (
            f"not {said!r}. Completions keep their length, and a gradient is there from the first "
            "step; but it is smaller, as if its parts cancelled, and the solve rate sinks slowly"
        )

    yield examine(3, "the cause", cause)
