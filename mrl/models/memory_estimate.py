"""Chooses the placement of a run's policies, and refuses a run that clearly cannot fit.

Weights, gradients and AdamW's moments are counted from each model's config.json, before any weights
are loaded. The memory for activations and caches is not estimated: if it runs out while a policy
learns, learning.py goes on with smaller micro-batches.
"""

import os
import re
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from mrl.config import PolicyConfig, RunConfig
from mrl.errors import MrlError
from mrl.models.loading import shape_of
from mrl.policy import uses_bfloat16

# `auto` keeps all policies on one GPU if this takes at most this share of its free memory. The rest
# is for activations and caches.
ROOM = 0.5
GIB = 2**30
CGROUPS = {  # the directory of a container's limits (cgroups v2 and v1) -> the limit, what is used
    Path("/sys/fs/cgroup"): ("memory.max", "memory.current"),
    Path("/sys/fs/cgroup/memory"): ("memory.limit_in_bytes", "memory.usage_in_bytes"),
}


class Size(NamedTuple):
    """The memory of one policy, in bytes."""

    stays: int  # what `swap` leaves on the device: the base weights under LoRA
    moves: int  # what `swap` keeps in host memory between turns
    gradients: int  # only in the policy's own turn


def size_of(policy: PolicyConfig, device: torch.device) -> Size:
    """The memory that a policy needs in any case, from its model's config.json."""
    size = 2 if uses_bfloat16(policy.dtype, device) else 4  # trainable weights always have 4
    learnt = fixed = 0
    for parameter in shape_of(policy).parameters():
        if parameter.requires_grad:
            learnt += 4 * parameter.numel()
        else:
            fixed += size * parameter.numel()

    moves = 3 * learnt  # weights, and AdamW's two moments
    if policy.kl_coef > 0 and learnt and not fixed:
        moves += learnt  # the reference model; under LoRA it is the base itself
    return Size(fixed, moves, learnt) if learnt else Size(0, fixed, 0)


def needed(sizes: Sequence[Size], placement: str) -> int:
    """Bytes on one device under a placement.

    `resident`: all policies, and the largest gradients. `swap`: the largest policy in its turn, and
    the base weights of the others under LoRA. `parallel`: all policies and all gradients, because
    all turns take place at the same time.
    """
    stays, moves = sum(size.stays for size in sizes), sum(size.moves for size in sizes)
    if placement == "swap":
        return stays + max(size.moves + size.gradients for size in sizes)
    gradients = [size.gradients for size in sizes]
    return stays + moves + (sum(gradients) if placement == "parallel" else max(gradients))


def free_memory(device: str) -> int:
    """Free bytes of a CUDA device or of the host."""
    if device.startswith("cuda"):
        torch.cuda.empty_cache()  # an earlier run in this process may have left a cache
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():  # on Linux; on other systems we count all memory as free
        _, _, available = meminfo.read_text().partition("MemAvailable:")
        return min(1024 * int(available.split()[0]), free_in_container())  # KiB to bytes
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_in_container() -> int:
    """Bytes that the limit of this process's container still allows; `sys.maxsize` without one."""
    free = sys.maxsize
    for folder, names in CGROUPS.items():
        try:
            limit, used = (int((folder / name).read_text()) for name in names)
            stat = (folder / "memory.stat").read_text()
        except (OSError, ValueError):  # the file does not exist, or it says "max"
            continue
        # the kernel frees cached files when their memory is needed
        cached = sum(map(int, re.findall(r"(?m)^(?:in)?active_file (\d+)", stat)))
        free = min(free, limit - used + cached)
    return free


def choose_placement(config: RunConfig, names: Sequence[str], device: str) -> tuple[str, str]:
    """Choose the placement of a run; returns it with a sentence about the memory.

    names: the policies of this process.
    Raises MrlError if the run cannot fit. Otherwise the system would kill the process minutes
    later, without a message.
    """
    # under `parallel`, each policy has its own GPU if there are enough GPUs
    shared = len(config.policies) > torch.cuda.device_count()
    on_device = [policy for policy in config.policies if shared or policy.name in names]
    sizes = [size_of(policy, torch.device(device)) for policy in on_device]

    free = free_memory(device)
    placement = "parallel" if dist.is_initialized() else config.placement
    if placement == "auto":
        fits = device == "cpu" or needed(sizes, "resident") <= ROOM * free
        placement = "resident" if fits else "swap"

    least = needed(sizes, placement)
    text = (
        f"Placement {placement}: weights, gradients and AdamW's moments take {least / GIB:.3g} "
        f"GiB; {free / GIB:.3g} GiB are free on {device}."
    )
    if least > free:
        raise MrlError(
            f"{text} That cannot fit. Use smaller models, lora_rank=16 or another placement."
        )
    return placement, text


def peak_memory(device: str) -> int:
    """The peak memory in bytes so far: of tensors on a CUDA device, of this process on a CPU."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
