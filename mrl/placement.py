"""MWRA, Multi-Worker Resource Allocation (arXiv 2605.07244): whose turn it is, and where.

Policies take turns: `with allocation.turn(policy, "learn"):`. During a turn, everything that the
phase needs from the policy is on the device. Turns follow each other in a fixed order, so they
cannot deadlock. There are three placements, of which models/memory_estimate.py and run/launch.py
choose one:

    resident  all policies stay on one device
    swap      one policy is on the device, and the others wait in host memory. For sampling, only
              the weights move; the optimizer's state follows for learning
    parallel  one process per policy, each with its own device or CPU core; processes communicate
              only in `gather` (run/launch.py starts them)

Policies sample in the order A B and learn in the order B A. The policy that sampled last learns
without leaving the device, and the one that learned last samples first in the next step. Every
placement gives the same results, except when a verdict times out, because how long judging takes
depends on the machine.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from mrl.errors import PeerLost, RunFailed, is_out_of_memory
from mrl.policy import Policy

# The parts of a policy that move (gradients never do). "reference" is the frozen model of the KL
# term, which only learning needs.
PARTS = {"weights", "reference", "optimizer"}
# the parts that a phase needs on the device; a phase that is not listed needs the weights
NEEDS = {"verify": set(), "judge": set(), "learn": PARTS}

BLOCK = 2**28  # bytes of host memory allocated at once

T = TypeVar("T")
Places = dict[torch.Tensor, torch.Tensor]  # a policy's tensor -> the tensor that receives its copy


@dataclass
class Turn:
    """One entry of the ledger: a policy's turn in a phase. Times are in seconds (perf_counter)."""

    policy: str
    phase: str
    start_s: float
    stop_s: float
    moved_bytes: int = 0


class Allocation:
    """Gives the policies of this process their turns, and records each turn in a ledger.

    names: the names of all policies of the run; under `parallel`, this process holds only one
    policy.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        names: Sequence[str],
        placement: str = "resident",
        device: str = "cpu",
        threads: int = 1,
    ) -> None:
        self.policies = policies
        self.names = names
        self.placement = placement
        self.device = device
        self.threads = threads  # torch's CPU threads during a turn: results depend on their number
        self.ledger: list[Turn] = []  # emptied at the start of every step
        self._fetched: dict[str, set[str]] = {policy.name: set() for policy in policies}
        self._host_places: Places = {}  # kept while the tensors are on the device
        if placement == "swap":  # all policies start in host memory
            for policy in policies:
                _move(policy, PARTS, "cpu", self._host_places)

    @contextmanager
    def turn(self, policy: Policy, phase: str) -> Iterator[None]:
        """A policy's turn: put what the phase needs on the device, and record the turn."""
        start = time.perf_counter()
        try:
            with torch_settings(self.threads):
                moved = self._fetch(policy, phase)
                yield
        except FloatingPointError as error:
            raise RunFailed(f"{policy.name} failed in its {phase} turn: {error}.") from error
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise  # a bug in a mode or a model keeps its traceback
            raise RunFailed(
                f"{policy.name} ran out of memory in its {phase} turn; in the run's config.json "
                "lower prompts_per_step, group_size or max_new_tokens, set gradient_checkpointing "
                "to true, or, on a GPU, placement to swap."
            ) from error
        self.ledger.append(Turn(policy.name, phase, start, time.perf_counter(), moved))

    def gather(self, mine: dict[str, T]) -> dict[str, T]:
        """The entries of all processes, by policy name and in the order of the policies."""
        entries = gather_from_all(mine)
        # in this order, records and log lines are the same under every placement
        return {name: entries[name] for name in self.names if name in entries}

    def wait_for_all(self) -> None:
        """Return once every process has called this; at once if there is only one process."""
        self.gather({})

    def _fetch(self, policy: Policy, phase: str) -> int:
        """Make room, then fetch what the phase needs. Returns the bytes moved in and out."""
        wanted = NEEDS.get(phase, {"weights"})
        if self.placement != "swap" or not wanted:
            return 0

        moved = 0
        # evict first, because the device may be too small for two policies
        for other in self.policies:
            if other is not policy:
                moved += _move(other, self._fetched[other.name], "cpu", self._host_places)
                self._fetched[other.name] = set()

        missing = wanted - self._fetched[policy.name]
        # recorded first: if the fetch fails halfway, the next eviction still undoes all of it
        self._fetched[policy.name] |= wanted
        return moved + _move(policy, missing, self.device, {})


@contextmanager
def torch_settings(threads: int) -> Iterator[None]:
    """Set the options of torch that results depend on; afterwards, restore the old ones."""
    before, cudnn = torch.get_num_threads(), torch.backends.cuda.cudnn_sdp_enabled()
    torch.set_num_threads(threads)
    # cuDNN's attention prepares a plan for every new shape, and nearly every micro-batch has a new
    # shape. On one card, each plan took a second. At some lengths the gradient is NaN (pytorch
    # issue 196678).
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.backends.cuda.enable_cudnn_sdp(cudnn)


def gather_from_all(mine: dict[str, T]) -> dict[str, T]:
    """The entries of all processes, merged into one dictionary."""
    if not dist.is_initialized():
        return mine

    parts: list = [None] * dist.get_world_size()
    try:
        # gloo sends pickles: records and log lines, never weights
        dist.all_gather_object(parts, mine)
    except RuntimeError as error:  # for example "Connection closed by peer"
        raise PeerLost("Another policy's process ended; its own message says why.") from error

    entries: dict[str, T] = {}
    for part in parts:
        entries |= part
    return entries


@torch.no_grad()
def _move(policy: Policy, parts: Iterable[str], device: str, places: Places) -> int:
    """Copy parts of a policy to another device. Returns the number of bytes.

    places: the tensors that receive the copies; missing ones are added. The caller keeps the places
    in host memory for the next move, because pinning memory takes longer than copying. It keeps no
    places on the device. If the device is the CPU, both directions end in host memory; the copy is
    made anyway, so that such a run executes the same code.
    """
    tensors: list[torch.Tensor] = []
    if "weights" in parts:
        tensors += [*policy.model.parameters(), *policy.model.buffers()]
    if "reference" in parts and policy.reference is not None:
        tensors += [*policy.reference.parameters(), *policy.reference.buffers()]
    if policy.config.lora_rank:  # the base model has no gradient and no moments, so it stays
        tensors = [tensor for tensor in tensors if tensor.requires_grad]
    if "optimizer" in parts:  # without "step": AdamW keeps its step counters on the CPU
        for state in policy.optimizer.state.values():
            tensors += [moment for name, moment in state.items() if name != "step"]

    if device == "cpu":
        _add_host_places(tensors, places)
    for tensor in tensors:
        if tensor not in places:
            places[tensor] = torch.empty_like(tensor.data, device=device)

        # keep the same Parameter object: the optimizer finds its state by that object
        tensor.data = places[tensor].copy_(tensor.data)

    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _add_host_places(tensors: Sequence[torch.Tensor], places: Places) -> None:
    """Allocate host memory for tensors without a place, pinned if they come from a CUDA device."""
    new = [tensor for tensor in tensors if tensor not in places]
    sizes, starts = in_blocks([tensor.nbytes for tensor in new])

    blocks: list[torch.Tensor] = []
    for size in sizes:
        blocks.append(torch.empty(size, dtype=torch.uint8, pin_memory=new[0].is_cuda))

    for tensor, (block, start) in zip(new, starts, strict=True):
        part = blocks[block][start : start + tensor.nbytes]
        places[tensor] = part.view(tensor.dtype).view(tensor.shape)


def in_blocks(sizes: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """Lay out pieces of memory in a few large blocks.

    CUDA rounds pinned memory up to a power of two. If each tensor were pinned separately, the 9.6
    GiB of the real pair would take 16.8 GiB. The blocks here are powers of two and nearly full.

    sizes: bytes.  Returns the bytes of each block, and (block, first byte) of each piece.
    """
    used: list[int] = []
    places: list[tuple[int, int]] = []
    for size in sizes:
        size = -(-size // 64) * 64  # aligned, because the alignment decides which kernel a CPU uses

        # use the first block with room: its size is rounded up to a power of two anyway
        block = 0
        while block < len(used) and used[block] + size > max(BLOCK, _power_of_two(used[block])):
            block += 1
        if block == len(used):
            used.append(0)
        places.append((block, used[block]))
        used[block] += size

    return list(map(_power_of_two, used)), places


def _power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()
