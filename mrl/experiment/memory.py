"""How much memory a run will need, and the placement that follows from it."""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch

from mrl.config import RunConfig
from mrl.logprobs import CHUNK
from mrl.policy import Policy

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None

ACTIVATION_FACTOR = 32  # tensors of the hidden size that a layer keeps for its backward pass
LOGIT_COPIES = 4  # logits, float32 copy, log-probs, gradient
HEADROOM = 0.9  # of the device's memory that a plan may fill
GIB = 2**30


class Estimate(NamedTuple):
    """Bytes of one policy at this run's batch sizes."""

    policy: str
    at_rest: int  # while another policy has its turn, under `resident`
    turn: int  # what its own turn adds: the larger of sampling and learning

    @property
    def peak(self) -> int:
        """In its own turn."""
        return self.at_rest + self.turn


def estimate(policy: Policy, config: RunConfig, prompt_tokens: int) -> Estimate:
    """What a policy will need: the sum of what is big. prompt_tokens: of the longest prompt."""
    model, shape = policy.model, policy.model.config
    layers, hidden = shape.num_hidden_layers, shape.hidden_size
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    size = 2 if policy.computes_in_bfloat16 else 4
    held = weights * (2 if policy.reference is not None else 1)
    if policy.computes_in_bfloat16 and next(model.parameters()).element_size() == 4:
        held += weights // 2  # autocast keeps a bfloat16 copy while it works
    rows = config.prompts_per_step * policy.config.group_size
    tokens = prompt_tokens + policy.config.max_new_tokens
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    head_size = getattr(shape, "head_dim", None) or hidden // shape.num_attention_heads
    kv_cache = rows * tokens * 2 * layers * heads * head_size * size  # keys and values
    trained = max(min(policy.config.micro_batch, rows * tokens), tokens)
    # with checkpointing: one layer's activations, and the hidden state of every layer
    kept = ACTIVATION_FACTOR + layers if policy.config.checkpointing else ACTIVATION_FACTOR * layers
    activations = trained * kept * hidden * size
    logits = min(trained, CHUNK) * shape.vocab_size * 4 * LOGIT_COPIES
    at_rest = held + 2 * weights  # AdamW keeps two moments a parameter
    return Estimate(policy.name, at_rest, max(kv_cache, weights + activations + logits))


def needed(estimates: Sequence[Estimate], placement: str) -> int:
    """Bytes on one device: everybody's rest and the largest turn, or only the largest turn."""
    if placement == "resident":
        return sum(e.at_rest for e in estimates) + max(e.turn for e in estimates)
    return max(e.peak for e in estimates)


class Placement(NamedTuple):
    """Where the policies live, and one sentence for the person: what was counted, and why."""

    name: str
    sentence: str


def choose_placement(estimates: Sequence[Estimate], wanted: str, device: str) -> Placement:
    """What was asked for; `auto` is parallel under torchrun, resident if that fits, else swap."""
    name, why = "resident" if wanted == "auto" else wanted, ""
    if torch.distributed.is_initialized():
        name, why = "parallel", ", a process for each policy"
    elif wanted == "auto" and device.startswith("cuda"):
        free, _ = torch.cuda.mem_get_info(device)
        why = f", {free / GIB:.0f} GiB are free"
        if needed(estimates, name) > HEADROOM * free:
            name = "swap"
        if needed(estimates, name) > HEADROOM * free:
            why += "; one policy alone may not fit: lower micro_batch or set checkpointing=true"
    counted = ", ".join(f"{e.policy} {e.peak / GIB:.1f}" for e in estimates)
    peak = needed(estimates, name) / GIB
    sentence = f"Placement {name}: {peak:.1f} GiB of tensors at the peak ({counted} alone){why}."
    return Placement(name, sentence)


def peak_memory(device: str) -> int:
    """Bytes at the highest so far: of tensors on a CUDA device, of this process on a CPU."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    if resource is None:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
