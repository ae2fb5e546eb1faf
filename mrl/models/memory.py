"""Estimates how much memory a run will need, and chooses the placement of its policies.

The estimate uses each model's config.json, before any weights are loaded. It is within 25% of what
was measured on a GPU (data/results/gpu.json).
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
from transformers import PreTrainedModel

from mrl.config import PolicyConfig, RunConfig
from mrl.errors import MrlError
from mrl.logprobs import TOKENS_AT_ONCE
from mrl.models.loading import shape_of
from mrl.policy import uses_bfloat16
from mrl.samples import Problem

# For its backward pass, a layer keeps KEPT * hidden size + KEPT_INNER * MLP size numbers per token.
# Both factors were fitted to simulated learning steps of Qwen2.5-0.5B and SmolLM2-360M.
KEPT, KEPT_INNER = 12, 4
LOGIT_BYTES = 14  # bytes per logit during its gradient: three copies in float32, one in bfloat16
DRAW_BYTES = 22  # bytes per logit while a token is drawn, in float64
HEADROOM = 0.9  # share of a GPU's memory that a plan may use
PINNED = 1.1  # bytes of pinned memory per byte that waits there; see allocation.in_blocks
GIB = 2**30
PROBLEMS_AT_ONCE = 64  # held-out problems per batch on a CPU
# the advice to a user whose run does not fit
LESS = (
    "lower max_tokens_per_forward, group_size or max_new_tokens, set gradient_checkpointing=true "
    "or lora_rank=16, or use another placement or smaller models"
)


class Estimate(NamedTuple):
    """The memory of one policy, in bytes: what it always needs, and what its turn adds."""

    policy: str
    stays: int  # what `swap` leaves on the device: the base weights under LoRA
    moves: int  # what `swap` keeps in host memory between turns
    turn: int  # what sampling or learning adds, whichever needs more

    @property
    def peak(self) -> int:
        """Bytes in the policy's own turn."""
        return self.stays + self.moves + self.turn


def estimate(
    model: PreTrainedModel, policy: PolicyConfig, rows: int, tokens: int, device: torch.device
) -> Estimate:
    """Estimate the memory of a policy as the sum of its large tensors.

    model: the model with its adapters; it may be on the meta device. rows: number of completions
    that are sampled at once. tokens: length of the longest prompt with its completion, in tokens.
    """
    shape = model.config.get_text_config()
    layers, hidden, vocab = shape.num_hidden_layers, shape.hidden_size, shape.vocab_size
    inner = getattr(shape, "intermediate_size", None) or 4 * hidden
    inner = max(inner) if isinstance(inner, list | tuple) else inner  # Gemma 3n has one per layer
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    head_size = getattr(shape, "head_dim", None) or hidden // shape.num_attention_heads
    mixed = uses_bfloat16(policy.dtype, device)
    size = 2 if mixed else 4  # bytes per number; trainable weights always have 4

    # weights, with AdamW's two moments, and the reference model (with LoRA it is the base itself)
    learnt = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    fixed = size * sum(p.numel() for p in model.parameters() if not p.requires_grad)
    stays = fixed if learnt else 0
    reference = learnt if policy.kl_coef > 0 and not stays else 0
    at_rest = fixed + 3 * learnt + reference

    # sampling: keys, values and logits; learning: gradients, activations and logits
    turn = rows * (tokens * 2 * layers * heads * head_size * size + vocab * DRAW_BYTES)
    if not policy.frozen:
        trained = max(tokens, min(policy.max_tokens_per_forward, rows * tokens))
        kept = (KEPT * hidden + KEPT_INNER * inner) * size  # bytes per token of one layer
        # gradient checkpointing keeps these of one layer at a time, and the inputs of all layers
        kept = kept + 4 * layers * hidden if policy.gradient_checkpointing else kept * layers
        logits = min(trained, TOKENS_AT_ONCE) * vocab * LOGIT_BYTES
        turn = max(turn, learnt + trained * kept + logits)
    if mixed and not policy.gradient_checkpointing:
        turn += (learnt + reference) // 2  # copies of the weights in bfloat16
    return Estimate(policy.name, stays, at_rest - stays, turn)


def estimate_all(
    config: RunConfig,
    policies: Sequence[PolicyConfig],
    problems: Sequence[Problem],
    device: str,
    factor: int,
    tries_again: bool = False,
) -> list[Estimate]:
    """Estimate the memory of each policy.

    factor: the mode's factor on the group size. tries_again: whether the mode makes second
    attempts. Their rows have different beginnings and one limit, so the longest may be longer.
    """
    # no tokenizer is loaded yet, so we assume three bytes per token, and 60 tokens for a template
    prompt_tokens = max(len(problem.prompt.encode()) for problem in problems) // 3 + 60
    at, estimates = torch.device(device), []
    scored = problems_at_once(at, config.eval_samples) * config.eval_samples
    for policy in policies:
        rows = max(config.prompts_per_step * policy.group_size * factor, scored)
        tokens = prompt_tokens + policy.max_new_tokens
        tokens += tries_again * policy.max_new_tokens // 2
        estimates.append(estimate(shape_of(policy), policy, rows, tokens, at))
    return estimates


def needed(estimates: Sequence[Estimate], placement: str) -> int:
    """Bytes on one device under a placement.

    `resident`: all policies, and the largest turn. `swap`: the largest policy in its turn, and the
    base weights of the others under LoRA. `parallel`: all policies and all their turns, which take
    place at the same time.
    """
    if placement == "parallel":
        return sum(e.peak for e in estimates)
    stays = sum(e.stays for e in estimates)
    if placement == "swap":
        return stays + max(e.moves + e.turn for e in estimates)
    return stays + sum(e.moves for e in estimates) + max(e.turn for e in estimates)


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


def free_in_container(
    groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> int:
    """Bytes that the control groups (cgroups, v1 or v2) of this process still allow.

    If there is no limit, returns `sys.maxsize`.
    groups: the file that lists the process's groups; mounted: the directory of their files.
    """
    free = sys.maxsize
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        names = {  # v1 has one tree per controller
            "": ("memory.max", "memory.current"),
            "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        }.get(controllers)
        if not names:
            continue

        # a group's parents limit it as well; in a container, perhaps only the topmost is mounted
        group = mounted / controllers / path.lstrip("/")
        for folder in (group, *group.parents):
            limit, used = (folder / name for name in names)
            if limit.exists() and limit.read_text().strip() != "max":
                # the kernel frees cached files when their memory is needed
                stat = (folder / "memory.stat").read_text()
                cached = sum(map(int, re.findall(r"(?m)^(?:in)?active_file (\d+)", stat)))
                allowed = int(limit.read_text()) - int(used.read_text()) + cached
                free = min(free, max(0, allowed))
    return free


def plan_memory(
    config: RunConfig,
    names: Sequence[str],
    problems: Sequence[Problem],
    device: str,
    factor: int,
    tries_again: bool = False,
) -> tuple[str, str]:
    """Estimate a run's memory, and choose its placement; returns it with a sentence about it.

    names: the policies of this process; factor: the mode's factor on the group size; tries_again:
    whether the mode makes second attempts.
    Raises MrlError if the run cannot fit. Otherwise the system would kill the process minutes
    later, without a message.
    """
    # under `parallel`, each policy has its own GPU if there are enough GPUs
    shared = len(config.policies) > torch.cuda.device_count()
    on_device = [policy for policy in config.policies if shared or policy.name in names]
    estimates = estimate_all(config, on_device, problems, device, factor, tries_again)

    on_gpu, free, free_in_host = device.startswith("cuda"), free_memory(device), free_memory("cpu")
    placement = "parallel" if dist.is_initialized() else config.placement
    if placement == "auto":
        fits = not on_gpu or needed(estimates, "resident") <= HEADROOM * free
        placement = "resident" if fits else "swap"

    peak = needed(estimates, placement)
    waiting = sum(e.moves for e in estimates) if placement == "swap" else 0
    in_host = int(PINNED * waiting) if on_gpu else waiting + peak

    counted = ", ".join(f"{e.policy} {e.peak / GIB:.1f}" for e in estimates)
    text = (
        f"Placement {placement}: expected peak {peak / GIB:.1f} GiB of tensors (alone: {counted})"
    )
    if on_gpu:
        text += f"; {free / GIB:.0f} GiB are free on {device}"
    if placement == "swap":
        text += f"; {in_host / GIB:.1f} GiB in host memory"

    if in_host > free_in_host:
        raise MrlError(
            f"{text}; but the host has only {free_in_host / GIB:.1f} GiB free. To make it fit, "
            f"{LESS}."
        )
    # smaller micro-batches make a turn smaller, but not the weights and moments
    if on_gpu and needed([e._replace(turn=0) for e in estimates], placement) > free:
        raise MrlError(
            f"{text}. Even the weights and AdamW's moments do not fit. To make them fit, {LESS}."
        )
    if on_gpu and peak > HEADROOM * free:
        text += f". This may not fit; if memory runs out, {LESS}"
    return placement, f"{text}."


def peak_memory(device: str) -> int:
    """The peak memory in bytes so far: of tensors on a CUDA device, of this process on a CPU."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def problems_at_once(device: torch.device, samples: int) -> int:
    """How many problems are sampled in one batch: more on a GPU, where more rows are cheap."""
    return max(PROBLEMS_AT_ONCE, 256 // samples) if device.type == "cuda" else PROBLEMS_AT_ONCE
