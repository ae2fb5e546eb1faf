"""MWRA, Multi-Worker Resource Allocation (arXiv 2605.07244): who is on which device when.

Policies take turns: within a step they sample in the order A B and learn in the order B A, so
that a policy that has just sampled learns without leaving the device, and the one that learnt
last samples first in the next step.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from mrl.errors import MrlError
from mrl.policy import Policy


def pick_device(wanted: str) -> str:
    """`auto` is the first CUDA device if there is one, else the CPU."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise MrlError(f"device is {wanted!r}, which cannot be used here ({reason}).") from None
    return wanted


class Allocation:
    """Gives each policy its turn. Placement `resident`: every policy stays on the device."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        self.policies = list(policies)
        self.seconds: dict[tuple[str, str], float] = {}  # (policy, phase) of the current step

    def order(self, phase: str) -> list[Policy]:
        """Who comes first: A B to sample, B A to learn."""
        return self.policies if phase == "rollout" else self.policies[::-1]

    @contextmanager
    def turn(self, policy: Policy, phase: str) -> Iterator[None]:
        """The policy has the device until the block ends; the time is written down."""
        start = time.perf_counter()
        try:
            yield
        finally:
            key = (policy.name, phase)
            self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - start

    def seconds_of(self, policy: Policy) -> dict[str, float]:
        """What the policy's turns of this step took, by phase."""
        return {
            f"time/{phase}_s": seconds
            for (name, phase), seconds in self.seconds.items()
            if name == policy.name
        }
