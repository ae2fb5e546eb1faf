"""How much memory a run will need, and the placement that follows from it.

All of it is foreseen from each model's config.json, before any weights are loaded.
"""

import os
import re
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from mrl.allocation import gather
from mrl.config import PolicyConfig, RunConfig
from mrl.errors import MrlError
from mrl.logprobs import TOKENS_AT_ONCE
from mrl.policy import uses_bfloat16
from mrl.runtime.evaluation import problems_at_once
from mrl.runtime.loading import shape_of
from mrl.samples import Problem

# fitted to the peaks of simulated learning steps of Qwen2.5-0.5B and SmolLM2-360M
# mixed precision? -> numbers that a layer keeps for its backward pass, per token, in hidden sizes
KEPT = {True: 17, False: 11}
KEPT_INNER = 4  # and in sizes of the MLP
LOGIT_BYTES = 14  # a logit while its gradient is computed: three times float32, and as it came
DRAW_BYTES = 22  # a logit while a token is drawn, in float64
FILL = 0.9  # how full a micro-batch of whole groups is
HEADROOM = 0.9  # of a CUDA device's memory that a plan may fill
PINNED = 1.1  # pinned bytes for a byte that waits there: see allocation.in_blocks
TOKEN_BYTES, TEMPLATE_TOKENS = 3, 60  # of a prompt, for whose tokens no tokenizer is asked here
SMALL_MICRO_BATCH = 2048  # tokens; tried before policies are moved for every turn
GIB = 2**30
# settings that need less memory, for the person whose run does not fit
SMALLER = ({"micro_batch": 512}, {"checkpointing": True}, {"lora_rank": 16})


class Estimate(NamedTuple):
    """Bytes of one policy at this run's batch sizes."""

    policy: str
    at_rest: int  # while another policy has its turn, under `resident`
    turn: int  # added by its own turn: the larger of sampling and learning
    stays: int = 0  # the part of at_rest that is not moved under `swap`: the base of LoRA

    @property
    def peak(self) -> int:
        """Bytes in its own turn."""
        return self.at_rest + self.turn


class Plan(NamedTuple):
    """Where the policies of a run will be."""

    placement: str
    config: RunConfig  # the run's, perhaps with a smaller micro-batch
    sentence: str  # for the person: what was counted, and why


def estimate(
    model: PreTrainedModel,
    policy: PolicyConfig,
    config: RunConfig,
    prompt_tokens: int,
    device: torch.device,
    rollout_factor: int = 1,
) -> Estimate:
    """Estimate what a policy will need, as the sum of the large tensors.

    model: its shapes, with adapters; the meta device will do. prompt_tokens: of the longest prompt.
    rollout_factor: the mode's factor on the group size.
    """
    shape = model.config.get_text_config()
    group = policy.group_size * rollout_factor
    layers, hidden, vocab = shape.num_hidden_layers, shape.hidden_size, shape.vocab_size
    inner = getattr(shape, "intermediate_size", None) or 4 * hidden
    inner = max(inner) if isinstance(inner, list | tuple) else inner  # Gemma 3n: a size a layer
    tokens = prompt_tokens + policy.max_new_tokens

    # the weights, those of a reference (LoRA's is the base itself), and the part that learns
    mixed = uses_bfloat16(policy.dtype, device)
    learnt = 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    fixed = (2 if mixed else 4) * sum(p.numel() for p in model.parameters() if not p.requires_grad)
    weights = learnt + fixed
    lora = learnt > 0 and fixed > 0
    reference = learnt if policy.kl_coef > 0 and not lora else 0
    size = 2 if mixed else 4
    copies = (learnt + reference) // 2 if mixed else 0  # autocast's, in bfloat16

    # sampling, or scoring held-out problems: keys, values, and the logits that are drawn from
    scored = problems_at_once(device, config.eval_samples) * config.eval_samples
    rows = max(config.prompts_per_step * group, scored)
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    head_size = getattr(shape, "head_dim", None) or hidden // shape.num_attention_heads
    kv_cache = rows * tokens * 2 * layers * heads * head_size * size
    sampling = copies + kv_cache + rows * vocab * DRAW_BYTES

    # learning: what a micro-batch keeps for its backward pass, logits, and gradients
    whole = config.prompts_per_step * (tokens + (group - 1) * policy.max_new_tokens)
    trained = max(min(int(FILL * policy.micro_batch), whole), tokens)
    kept = (KEPT[mixed] * hidden + KEPT_INNER * inner) * size  # bytes per token of one layer
    if policy.checkpointing:  # one layer's at a time, and the hidden state of every layer
        activations = trained * (kept + layers * hidden * (2 if mixed and fixed else 4))
    else:
        activations = trained * layers * kept + copies
    logits = min(trained, TOKENS_AT_ONCE) * vocab * LOGIT_BYTES
    if not lora:  # a second gradient of the embedding, while micro-batches add it up
        logits += vocab * hidden * 4
    # the gradients, and besides what is larger: the backward pass, or AdamW's square roots later
    learning = 0 if policy.frozen else learnt + max(activations + logits, learnt)

    at_rest = weights + reference + 2 * learnt  # AdamW keeps two moments a parameter
    return Estimate(policy.name, at_rest, max(sampling, learning), fixed if lora else 0)


def needed(estimates: Sequence[Estimate], placement: str) -> int:
    """Bytes on one device: all policies at rest and the largest turn; under `swap` one policy.

    Under `parallel` the turns of all that share the device come at the same time.
    """
    if placement == "parallel":
        return sum(e.peak for e in estimates)
    if placement == "resident":
        return sum(e.at_rest for e in estimates) + max(e.turn for e in estimates)
    return sum(e.stays for e in estimates) + max(e.peak - e.stays for e in estimates)


def needed_in_host(estimates: Sequence[Estimate], placement: str, device: str) -> int:
    """Bytes of host memory: all of the run on a CPU, on CUDA what waits under `swap`."""
    waiting = sum(e.at_rest - e.stays for e in estimates) if placement == "swap" else 0
    if device.startswith("cuda"):
        return int(PINNED * waiting)
    return waiting + needed(estimates, placement)


def choose_placement(
    as_set: Sequence[Estimate], smaller: Sequence[Estimate], wanted: str, device: str, free: int
) -> tuple[str, bool]:
    """A placement, and whether it takes the smaller micro-batch to fit the device.

    as_set: with the micro-batch of the settings; free: bytes of the device.
    """
    if dist.is_initialized():
        return "parallel", False
    if wanted != "auto" or not device.startswith("cuda"):
        return ("resident" if wanted == "auto" else wanted), False

    for placement in ("resident", "swap"):
        for estimates in (as_set, smaller):
            if needed(estimates, placement) <= HEADROOM * free:
                return placement, estimates is smaller
    return "swap", True


def plan_memory(
    config: RunConfig,
    names: Sequence[str],
    problems: Sequence[Problem],
    device: str,
    rollout_factor: int,
) -> Plan:
    """Foresee what the policies named will need, and choose their placement.

    names: of the policies of this process. Raises MrlError if the host's memory does not hold the
    run: what comes then is a kill, minutes later and without a word.
    """
    longest = max(len(problem.prompt.encode()) for problem in problems)
    tokens = longest // TOKEN_BYTES + TEMPLATE_TOKENS
    foresee = partial(_estimates, config, names, tokens, torch.device(device), rollout_factor)
    free = free_memory(device)  # read before any process loads, because all have to meet here

    as_set, free = _sharing(foresee(), device, free)
    smaller = foresee(micro_batch=SMALL_MICRO_BATCH)
    placement, is_smaller = choose_placement(as_set, smaller, config.placement, device, free)
    estimates = smaller if is_smaller else as_set

    host = needed_in_host(estimates, placement, device)
    available = free_memory("cpu")
    if host > available:
        raise MrlError(
            f"Placement {placement} would need {host / GIB:.1f} GiB of host memory ("
            f"{_each_alone(estimates)}), and {available / GIB:.1f} GiB are available; "
            f"{_what_fits(foresee, estimates, placement, device, available)}."
        )

    sentence = _sentence(estimates, placement, device, free, host)
    if is_smaller:
        config = _changed(config, micro_batch=SMALL_MICRO_BATCH)
        sentence += f" For that, micro_batch is {SMALL_MICRO_BATCH} at most."
    return Plan(placement, config, sentence)


def free_memory(device: str) -> int:
    """Bytes that can be had now, of a CUDA device or of the host."""
    if device.startswith("cuda"):
        torch.cuda.empty_cache()  # what an earlier run in this process has left
        return torch.cuda.mem_get_info(device)[0]

    with suppress(OSError):  # Linux; elsewhere take all that there is
        return 1024 * int(re.search(r"MemAvailable: *(\d+)", Path("/proc/meminfo").read_text())[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _changed(config: RunConfig, **settings: int | bool) -> RunConfig:
    """A run's settings with others for every policy; a micro-batch only gets smaller."""
    policies = []
    for policy in config.policies:
        now = dict(settings)
        if "micro_batch" in now:
            now["micro_batch"] = min(now["micro_batch"], policy.micro_batch)
        policies.append(replace(policy, **now))
    return replace(config, policies=policies)


def _estimates(
    config: RunConfig,
    names: Sequence[str],
    prompt_tokens: int,
    device: torch.device,
    rollout_factor: int,
    **settings: int | bool,
) -> list[Estimate]:
    """Of the policies named, from their config.json, with other settings than the run's."""
    estimates = []
    for policy in _changed(config, **settings).policies:
        if policy.name in names:
            model = shape_of(policy)
            estimates.append(estimate(model, policy, config, prompt_tokens, device, rollout_factor))
    return estimates


def _sharing(estimates: list[Estimate], device: str, free: int) -> tuple[list[Estimate], int]:
    """The estimates of all processes on this one's device, and the bytes that are free there."""
    place = f"{socket.gethostname()} {device}"
    everywhere = gather({each.policy: (each, place, free) for each in estimates})
    here = [(each, free) for each, where, free in everywhere.values() if where == place]
    return [each for each, _ in here], min(free for _, free in here)


def _each_alone(estimates: Sequence[Estimate]) -> str:
    return ", ".join(f"{e.policy} {e.peak / GIB:.1f}" for e in estimates) + " alone"


def _sentence(
    estimates: Sequence[Estimate], placement: str, device: str, free: int, host: int
) -> str:
    """What was counted, and why this placement, for the person."""
    each = ", a process for each policy" if placement == "parallel" else ""
    peak = needed(estimates, placement)
    start = f"Placement {placement}{each}: {peak / GIB:.1f} GiB of tensors at the peak"
    why = f"({_each_alone(estimates)})"
    if not device.startswith("cuda"):
        return f"{start} {why}."

    why += f", {free / GIB:.0f} GiB are free on {device}"
    if placement == "swap":
        why += f"; those that wait take {host / GIB:.1f} GiB of host memory"
    if peak > HEADROOM * free:
        alone = placement == "swap" or len(estimates) == 1
        less = "lower max_new_tokens or set checkpointing=true" if alone else "--placement auto"
        why += f"; that may not fit: {less}"
    return f"{start} {why}."


def _what_fits(
    foresee: Callable[..., list[Estimate]],
    estimates: Sequence[Estimate],
    placement: str,
    device: str,
    available: int,
) -> str:
    """What would fit the host's memory instead, for the person."""
    ways = []
    if placement == "parallel":  # what other processes would need is not known here
        if needed(estimates, "resident") <= available:
            ways.append("--placement resident")
    else:
        for settings in SMALLER:
            if needed_in_host(foresee(**settings), placement, device) <= available:
                words = [f"--set {name}={str(value).lower()}" for name, value in settings.items()]
                ways.append(" ".join(words))
        if len(estimates) > 1 and min(e.peak for e in estimates) <= available:
            ways.append("one of the models alone")
    return f"it would fit with {', or '.join(ways)}" if ways else "take smaller models"


def peak_memory(device: str) -> int:
    """The most bytes so far: of tensors on a CUDA device, of this process on a CPU."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
