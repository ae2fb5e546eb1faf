"""MWRA, Multi-Worker Resource Allocation (arXiv 2605.07244): who is on which device when.

A step has phases; in each, every policy gets its turn: `run(phase, job)`. Placements:

    resident  all policies stay on one device
    swap      one policy is on the device; the others wait in host memory. For a rollout only the
              weights move; the optimizer's state follows for learning
    spread    each policy has a device of its own, and they work at the same time

The order is A B to sample and B A to learn, so that whoever sampled last learns without leaving the
device, and whoever learnt last samples first in the next step. Whatever the placement, a run learns
the same. (One process a policy, also on several machines: distributed.py.)

Nobody waits for ever: a turn that raises, or overruns its budget, is given up and said; the policy
is left out of that step and tried again in the next. After `PATIENCE` steps in a row without it the
run goes on for good.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from mrl.errors import MrlError
from mrl.policy import Policy

PATIENCE = 3  # steps in a row that a policy may miss
FIRST_BUDGET_S = 600.0  # of a turn, before anything is known about how long one takes
LEAST_BUDGET_S = 20.0
BUDGET_FACTOR = 10  # times the longest turn of that phase so far
FAILURES = (RuntimeError, MemoryError, OSError, ArithmeticError)  # of a worker; the rest are bugs

PARTS = {"weights", "optimizer"}  # of a policy that move; gradients never do
NEEDS = {"verify": set(), "learn": PARTS}  # on the device, by phase; else the weights

T = TypeVar("T")


def pick_device(wanted: str) -> str:
    """`auto` is CUDA if it is there (under torchrun each process its own device), else the CPU."""
    if wanted == "auto" and torch.cuda.is_available():
        return f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
    if wanted == "auto":
        return "cpu"
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise MrlError(f"device is {wanted!r}, which cannot be used here ({reason}).") from None
    return wanted


def spread_devices(device: str, policies: int) -> list[str]:
    """A device for each policy. On a CPU all are the same memory, but work side by side."""
    if not device.startswith("cuda"):
        return [device] * policies
    there = torch.cuda.device_count()
    if there < policies:
        raise MrlError(
            f"placement spread needs a device for each of {policies} policies, but there "
            f"{'is' if there == 1 else 'are'} {there}; use swap or resident."
        )
    return [f"cuda:{number}" for number in range(policies)]


@dataclass
class Turn:
    """One entry of the ledger: a policy's turn in a phase, in seconds since the step began."""

    policy: str
    phase: str
    start_s: float
    stop_s: float
    moved_bytes: int = 0


@dataclass
class Allocation:
    """Gives every policy its turns, keeps the ledger of a step and says who is in trouble."""

    policies: Sequence[Policy]
    placement: str = "resident"
    device: str = "cpu"
    budget_s: float = 0.0  # 0: from the turns so far
    before_turn: Callable[[str, str, int], None] = lambda policy, phase, step: None  # faults.py
    ledger: list[Turn] = field(default_factory=list)  # of the current step
    troubles: list[str] = field(default_factory=list)  # sentences about the current step

    def __post_init__(self) -> None:
        self.step = 0
        self._began = time.perf_counter()
        self._longest: dict[str, float] = {}  # phase -> seconds
        self._stuck: dict[str, _Started] = {}  # policy -> the turn it did not come back from
        self._fetched: dict[str, set[str]] = {policy.name: set() for policy in self.policies}
        if self.placement == "swap":  # all wait in host memory; the first turn fetches
            for policy in self.policies:
                _move(policy, PARTS, "cpu")
        elif self.placement == "spread":
            devices = spread_devices(self.device, len(self.policies))
            for policy, device in zip(self.policies, devices, strict=True):
                _move(policy, PARTS, device)

    def begin_step(self, step: int) -> None:
        """A new step: an empty ledger, no troubles yet."""
        self.step = step
        self._began = time.perf_counter()
        self.ledger.clear()
        self.troubles.clear()

    def order(self, phase: str) -> list[Policy]:
        """Who comes first: A B to sample, B A to learn."""
        return list(self.policies)[:: -1 if phase == "learn" else 1]

    def run(self, phase: str, job: Callable[[Policy], T], among: Sequence[str]) -> dict[str, T]:
        """Give each policy named in `among` its turn; the results of those that came back."""
        policies = [policy for policy in self.order(phase) if policy.name in among]
        results: dict[str, T] = {}
        at_once = len(policies) if self.placement == "spread" else 1
        for first in range(0, len(policies), at_once):
            started = [
                self._start(policy, phase, job, results)
                for policy in policies[first : first + at_once]
            ]
            for turn in started:
                self._await(turn, phase)
        return {name: results[name] for name in among if name in results}  # in the caller's order

    def _start(
        self, policy: Policy, phase: str, job: Callable[[Policy], T], results: dict[str, T]
    ) -> "_Started":
        """Begin a turn in a thread of its own, because a hanging one can only be left behind."""
        stuck = self._stuck.get(policy.name)
        if stuck is not None and stuck.thread.is_alive():
            stuck.error = TimeoutError("it has still not come back from an earlier turn")
            return stuck

        def work() -> None:
            try:
                self.before_turn(policy.name, phase, self.step)
                start = time.perf_counter()
                moved = self._fetch(policy, phase)
                result = job(policy)
                if not turn.given_up:
                    self.note(policy.name, phase, start, moved)
                    results[policy.name] = result
            except Exception as error:  # handed to the main thread, which decides
                turn.error = error

        turn = _Started(policy.name, threading.Thread(target=work, daemon=True))
        turn.thread.start()
        return turn

    def _await(self, turn: "_Started", phase: str) -> None:
        if not turn.given_up:
            budget_s = self.budget_of(phase)
            turn.thread.join(budget_s)
            if turn.thread.is_alive():
                turn.given_up = True
                turn.error = TimeoutError(f"it did not come back within {budget_s:.0f} s")
                self._stuck[turn.policy] = turn
        if turn.error is None:
            return
        if not isinstance(turn.error, FAILURES) or isinstance(turn.error, MrlError):
            raise turn.error
        reason = str(turn.error).strip().split("\n")[0]
        self.troubles.append(f"{turn.policy} failed in its {phase} turn: {reason}")

    def budget_of(self, phase: str) -> float:
        """Seconds that a turn of this phase may take."""
        if phase == "evaluate":
            return threading.TIMEOUT_MAX  # happens once, and takes as long as it takes
        if self.budget_s:
            return self.budget_s
        longest = self._longest.get(phase)
        return FIRST_BUDGET_S if longest is None else max(LEAST_BUDGET_S, BUDGET_FACTOR * longest)

    def note(self, policy: str, phase: str, start: float, moved_bytes: int = 0) -> None:
        """Write a turn that began at `start` (time.perf_counter) and ends now into the ledger."""
        stop = time.perf_counter()
        self._longest[phase] = max(self._longest.get(phase, 0.0), stop - start)
        self.ledger.append(
            Turn(policy, phase, start - self._began, stop - self._began, moved_bytes)
        )

    def ledger_of(self, policy: str) -> dict[str, object]:
        """The ledger of one policy's step, as metrics: seconds by phase, bytes moved, the turns."""
        turns = [turn for turn in self.ledger if turn.policy == policy]
        seconds: dict[str, float] = {}
        for turn in turns:
            key = f"time/{turn.phase}_s"
            seconds[key] = seconds.get(key, 0.0) + turn.stop_s - turn.start_s
        spans = [[t.phase, round(t.start_s, 4), round(t.stop_s, 4), t.moved_bytes] for t in turns]
        moved = sum(turn.moved_bytes for turn in turns)
        whole = time.perf_counter() - self._began
        return {
            **seconds,
            "time/step_s": whole,
            "time/moved_bytes": moved,
            "time/turns": spans,
        }

    # -------------------------------------------------------------------------- swapping

    def _fetch(self, policy: Policy, phase: str) -> int:
        """Make room and bring what the phase needs; returns the bytes moved, both ways together."""
        wanted = NEEDS.get(phase, {"weights"})
        if self.placement != "swap" or not wanted:
            return 0
        moved = 0
        for other in self.policies:
            if other is not policy:
                moved += _move(other, self._fetched[other.name], "cpu")
                self._fetched[other.name] = set()
        moved += _move(policy, wanted - self._fetched[policy.name], self.device)
        self._fetched[policy.name] |= wanted
        return moved


@dataclass
class _Started:
    """A turn that runs in its thread."""

    policy: str
    thread: threading.Thread
    given_up: bool = False
    error: Exception | None = None


@torch.no_grad()
def _move(policy: Policy, parts: Iterable[str], device: str) -> int:
    """Copy parts of a policy to another place; returns the bytes.

    Host memory is pinned where there is CUDA. On a CPU both places are the same memory, and the
    copy is made all the same, so that a run there goes through the same code.
    """
    tensors: list[torch.Tensor] = []
    if "weights" in parts:
        models = [policy.model, policy.reference] if policy.reference else [policy.model]
        for model in models:
            tensors += [*model.parameters(), *model.buffers()]
    if "optimizer" in parts:  # AdamW keeps its step counters on the CPU
        states = policy.optimizer.state.values()
        tensors += [state[name] for state in states for name in state if name != "step"]
    for tensor in tensors:
        moved = tensor.data.to(device, copy=True)
        pinned = device == "cpu" and torch.cuda.is_available()
        tensor.data = moved.pin_memory() if pinned else moved
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
