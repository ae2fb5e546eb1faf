"""Estimates how much memory a run will need, and chooses the placement of its policies.

The estimate uses each model's config.json, before any weights are loaded.
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

# These numbers were fitted to the memory peaks of simulated learning steps of Qwen2.5-0.5B and
# SmolLM2-360M.
# Numbers that a layer keeps per token for its backward pass: KEPT hidden sizes (with and without
# mixed precision) plus KEPT_INNER sizes of the MLP.
KEPT = {True: 17, False: 11}
KEPT_INNER = 4
LOGIT_BYTES = 14  # bytes per logit during its gradient: three copies in float32, one in bfloat16
DRAW_BYTES = 22  # bytes per logit while a token is drawn, in float64
FILL = 0.9  # typical share of max_tokens_per_forward that a micro-batch of whole groups fills
HEADROOM = 0.9  # share of a GPU's memory that a plan may use
PINNED = 1.1  # bytes of pinned memory per byte that waits there; see allocation.in_blocks
TOKEN_BYTES, TEMPLATE_TOKENS = 3, 60  # estimates: bytes per token of a prompt, tokens of a template
GIB = 2**30
PROBLEMS_AT_ONCE = 64  # held-out problems per batch on a CPU
# the advice to a user whose run does not fit
LESS = (
    "lower max_tokens_per_forward, group_size or max_new_tokens, set gradient_checkpointing=true "
    "or lora_rank=16, or use another placement or smaller models"
)


class Estimate(NamedTuple):
    """The memory in bytes that one policy needs at this run's batch sizes."""

    policy: str
    at_rest: int  # under `resident`, while another policy has its turn
    turn: int  # additional bytes in its own turn: the larger of sampling and learning
    stays: int = 0  # the part of at_rest that `swap` does not move: the base of LoRA

    @property
    def peak(self) -> int:
        """Bytes in the policy's own turn."""
        return self.at_rest + self.turn


def estimate(
    model: PreTrainedModel,
    policy: PolicyConfig,
    config: RunConfig,
    prompt_tokens: int,
    device: torch.device,
    rollout_factor: int = 1,
) -> Estimate:
    """Estimate the memory of a policy as the sum of its large tensors.

    model: the model with adapters; it may be on the meta device. prompt_tokens: tokens of the
    longest prompt. rollout_factor: the mode's factor on the group size.
    """
    shape = model.config.get_text_config()
    group = policy.group_size * rollout_factor
    layers, hidden, vocab = shape.num_hidden_layers, shape.hidden_size, shape.vocab_size
    inner = getattr(shape, "intermediate_size", None) or 4 * hidden
    inner = (
        max(inner) if isinstance(inner, list | tuple) else inner
    )  # Gemma 3n has one size per layer
    tokens = prompt_tokens + policy.max_new_tokens

    # the trainable and frozen weights, and a reference's (with LoRA it is the base itself)
    mixed = uses_bfloat16(policy.dtype, device)
    size = 2 if mixed else 4
    learnt = fixed = 0
    for parameter in model.parameters():
        if parameter.requires_grad:
            learnt += 4 * parameter.numel()
        else:
            fixed += size * parameter.numel()
    weights = learnt + fixed

    lora = learnt > 0 and fixed > 0
    reference = learnt if policy.kl_coef > 0 and not lora else 0
    copies = (learnt + reference) // 2 if mixed else 0  # made by autocast, in bfloat16

    # sampling, or scoring of held-out problems: keys, values, and logits
    scored = problems_at_once(device, config.eval_samples) * config.eval_samples
    rows = max(config.prompts_per_step * group, scored)
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    head_size = getattr(shape, "head_dim", None) or hidden // shape.num_attention_heads
    kv_cache = rows * tokens * 2 * layers * heads * head_size * size
    sampling = copies + kv_cache + rows * vocab * DRAW_BYTES

    # learning: activations of a micro-batch, logits, and gradients
    whole = config.prompts_per_step * (tokens + (group - 1) * policy.max_new_tokens)
    trained = max(min(int(FILL * policy.max_tokens_per_forward), whole), tokens)
    kept = (KEPT[mixed] * hidden + KEPT_INNER * inner) * size  # bytes per token of one layer
    if policy.gradient_checkpointing:  # activations of one layer at a time, and every layer's input
        activations = trained * (kept + layers * hidden * (2 if mixed and fixed else 4))
    else:
        activations = trained * layers * kept + copies
    logits = min(trained, TOKENS_AT_ONCE) * vocab * LOGIT_BYTES
    if not lora:  # a second gradient of the embedding, while micro-batches accumulate it
        logits += vocab * hidden * 4
    # gradients, plus the larger of the backward pass and, later, AdamW's square roots
    learning = 0 if policy.frozen else learnt + max(activations + logits, learnt)

    at_rest = weights + reference + 2 * learnt  # AdamW keeps two moments per parameter
    return Estimate(policy.name, at_rest, max(sampling, learning), fixed if lora else 0)


def needed(estimates: Sequence[Estimate], placement: str) -> int:
    """Bytes on one device under a placement.

    `resident`: all policies at rest, and the largest turn. `swap`: the largest policy alone, and
    the LoRA bases of the others.
    `parallel`: the turns of all policies on the device, because they take place at the same time.
    """
    if placement == "parallel":
        return sum(e.peak for e in estimates)
    if placement == "resident":
        return sum(e.at_rest for e in estimates) + max(e.turn for e in estimates)
    return sum(e.stays for e in estimates) + max(e.peak - e.stays for e in estimates)


def needed_in_host(estimates: Sequence[Estimate], placement: str, device: str) -> int:
    """Bytes of host memory: the whole run on a CPU; with a GPU, the policies that `swap` parks."""
    waiting = sum(e.at_rest - e.stays for e in estimates) if placement == "swap" else 0
    if device.startswith("cuda"):
        return int(PINNED * waiting)
    return waiting + needed(estimates, placement)


def free_memory(device: str) -> int:
    """Free bytes of a CUDA device or of the host."""
    if device.startswith("cuda"):
        torch.cuda.empty_cache()  # left by an earlier run in this process
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():  # on Linux; on other systems we count all memory as free
        free = 1024 * int(re.search(r"MemAvailable: *(\d+)", meminfo.read_text())[1])
        return min(free, free_in_container())
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_in_container(
    groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> int:
    """Bytes that the control groups (cgroups, v1 or v2) of this process still allow.

    Without a limit it is `sys.maxsize`.
    groups: the file that lists the process's groups; mounted: the directory of their files.
    """
    free = sys.maxsize
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):  # v1 has one tree per controller
            continue
        tree = mounted / controllers
        limit, used = "memory.max", "memory.current"
        if controllers:
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"

        # parent groups limit it as well; in a container, only the last parent may be mounted
        group = tree / path.lstrip("/")
        for folder in (group, *group.parents):
            if (folder / limit).exists() and (folder / limit).read_text().strip() != "max":
                allowed = int((folder / limit).read_text()) - int((folder / used).read_text())
                cached = re.findall(
                    r"(?m)^(?:in)?active_file (\d+)", (folder / "memory.stat").read_text()
                )  # cached files, whose memory the kernel frees when needed
                free = min(free, max(0, allowed + sum(map(int, cached))))
    return free


def choose_placement(estimates: Sequence[Estimate], wanted: str, device: str, free: int) -> str:
    """Choose the placement. wanted: the setting; free: free bytes of the device."""
    if dist.is_initialized():
        return "parallel"
    if wanted != "auto":
        return wanted

    fits = needed(estimates, "resident") <= HEADROOM * free
    return "resident" if fits or not device.startswith("cuda") else "swap"


def estimate_all(
    config: RunConfig,
    policies: Sequence[PolicyConfig],
    problems: Sequence[Problem],
    device: str,
    factor: int,
) -> list[Estimate]:
    """Estimate the memory of each policy. factor: the mode's factor on the group size."""
    longest = max(len(problem.prompt.encode()) for problem in problems)
    tokens = longest // TOKEN_BYTES + TEMPLATE_TOKENS
    estimates = []
    for policy in policies:
        model = shape_of(policy)
        estimates.append(estimate(model, policy, config, tokens, torch.device(device), factor))
    return estimates


def plan_memory(
    config: RunConfig, names: Sequence[str], problems: Sequence[Problem], device: str, factor: int
) -> tuple[str, str]:
    """Estimate the memory of a run and choose its placement; returns it and a sentence about it.

    names: the policies of this process; factor: the mode's factor on the group size.
    Raises MrlError if the host has too little memory. Otherwise the system would kill the process
    minutes later, without a message.
    """
    # under `parallel`, each policy has its own GPU if there are enough
    shared = len(config.policies) > torch.cuda.device_count()
    on_device = [policy for policy in config.policies if shared or policy.name in names]
    estimates = estimate_all(config, on_device, problems, device, factor)

    free, free_in_host = free_memory(device), free_memory("cpu")
    placement = choose_placement(estimates, config.placement, device, free)

    # the estimate, compared with the memory of device and host
    peak, in_host = needed(estimates, placement), needed_in_host(estimates, placement, device)
    counted = ", ".join(f"{e.policy} {e.peak / GIB:.1f}" for e in estimates)
    text = (
        f"Placement {placement}: expected peak {peak / GIB:.1f} GiB of tensors (alone: {counted})"
    )
    if device.startswith("cuda"):
        text += f"; {free / GIB:.0f} GiB are free on {device}"
    if placement == "swap":
        text += f"; {in_host / GIB:.1f} GiB in host memory"

    if in_host > free_in_host:
        raise MrlError(
            f"{text}; but the host has only {free_in_host / GIB:.1f} GiB free. To fit, {LESS}."
        )
    if device.startswith("cuda") and peak > HEADROOM * free:
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
