"""How much memory a run will need, and the placement that follows from it."""

import resource
import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch

from mrl.config import RunConfig
from mrl.logprobs import TOKENS_AT_ONCE
from mrl.policy import Policy
from mrl.runtime.evaluation import problems_at_once

# fitted to the peaks of simulated learning steps of Qwen2.5-0.5B and SmolLM2-360M
# mixed precision? -> numbers that a layer keeps for its backward pass, per token, in hidden sizes
KEPT = {True: 17, False: 11}
KEPT_INNER = 4  # and in sizes of the MLP
LOGIT_BYTES = 14  # a logit while its gradient is computed: three times float32, and as it came
DRAW_BYTES = 22  # a logit while a token is drawn, in float64
FILL = 0.9  # how full a micro-batch of whole groups is
HEADROOM = 0.9  # of the device's memory that a plan may fill
GIB = 2**30


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


def estimate(
    policy: Policy, config: RunConfig, prompt_tokens: int, rollout_factor: int = 1
) -> Estimate:
    """Estimate what a policy will need, as the sum of the large tensors.

    prompt_tokens: of the longest prompt; rollout_factor: the mode's factor on the group size.
    """
    model, shape = policy.model, policy.model.config.get_text_config()
    group = policy.config.group_size * rollout_factor
    layers, hidden, vocab = shape.num_hidden_layers, shape.hidden_size, shape.vocab_size
    inner = getattr(shape, "intermediate_size", None) or 4 * hidden
    tokens = prompt_tokens + policy.config.max_new_tokens

    # the weights, those of a reference (LoRA's is the base itself), and the part that learns
    lora = policy.config.lora_rank > 0
    weights = sum(p.nbytes for p in model.parameters())
    reference = 0
    if policy.reference and not lora:
        reference = sum(p.nbytes for p in policy.reference.parameters())
    learnt = sum(p.nbytes for p in model.parameters() if p.requires_grad or not lora)
    size = 2 if policy.mixed_precision else 4
    in_float32 = weights + reference if model.dtype == torch.float32 else learnt
    copies = in_float32 // 2 if policy.mixed_precision else 0  # autocast's, in bfloat16

    # sampling, or scoring held-out problems: keys, values, and the logits that are drawn from
    scored = problems_at_once(model.device, config.eval_samples) * config.eval_samples
    rows = max(config.prompts_per_step * group, scored)
    heads = getattr(shape, "num_key_value_heads", None) or shape.num_attention_heads
    head_size = getattr(shape, "head_dim", None) or hidden // shape.num_attention_heads
    kv_cache = rows * tokens * 2 * layers * heads * head_size * size
    sampling = copies + kv_cache + rows * vocab * DRAW_BYTES

    # learning: what a micro-batch keeps for its backward pass, logits, and gradients
    whole = config.prompts_per_step * (tokens + (group - 1) * policy.config.max_new_tokens)
    trained = max(min(int(FILL * policy.config.micro_batch), whole), tokens)
    # bytes per token of one layer
    kept = (KEPT[policy.mixed_precision] * hidden + KEPT_INNER * inner) * size
    if policy.config.checkpointing:  # one layer's at a time, and the hidden state of every layer
        activations = trained * (kept + layers * hidden * 4)
    else:
        activations = trained * layers * kept + copies
    logits = min(trained, TOKENS_AT_ONCE) * vocab * LOGIT_BYTES
    if not lora:  # a second gradient of the embedding, while micro-batches add it up
        logits += vocab * hidden * 4
    # the gradients, and besides what is larger: the backward pass, or AdamW's square roots later
    learning = learnt + max(activations + logits, learnt)

    at_rest = weights + reference + 2 * learnt  # AdamW keeps two moments a parameter
    if policy.config.frozen:
        at_rest, learning = weights, 0
    stays = weights - learnt if lora else 0
    return Estimate(policy.name, at_rest, max(sampling, learning), stays)


def needed(estimates: Sequence[Estimate], placement: str) -> int:
    """Bytes on one device: all policies at rest and the largest turn; under `swap` one policy."""
    if placement == "resident":
        return sum(e.at_rest for e in estimates) + max(e.turn for e in estimates)
    return sum(e.stays for e in estimates) + max(e.peak - e.stays for e in estimates)


def choose_placement(estimates: Sequence[Estimate], wanted: str, device: str) -> tuple[str, str]:
    """Choose a placement: parallel under torchrun; else `auto` is resident if that fits, or swap.

    Returns the placement and one sentence for the person: what was counted, and why.
    """
    name = "resident" if wanted == "auto" else wanted
    why = ""
    if torch.distributed.is_initialized():
        name, why = "parallel", ", a process for each policy"
    elif wanted == "auto" and device.startswith("cuda"):
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device)  # the weights are there already
        why = f", {free / GIB:.0f} GiB are free"
        if needed(estimates, name) > HEADROOM * free:
            name = "swap"
        if needed(estimates, name) > HEADROOM * free:
            why += "; one policy alone may not fit: lower micro_batch or set checkpointing=true"

    if name == "swap" and device.startswith("cuda"):
        # pinned memory comes in powers of two, a tensor at a time
        most = 2 * sum(e.at_rest for e in estimates) / GIB
        why += f"; those that wait take up to {most:.1f} GiB of host memory"

    counted = ", ".join(f"{e.policy} {e.peak / GIB:.1f}" for e in estimates)
    peak = needed(estimates, name) / GIB
    return name, f"Placement {name}: {peak:.1f} GiB of tensors at the peak ({counted} alone){why}."


def peak_memory(device: str) -> int:
    """The most bytes so far: of tensors on a CUDA device, of this process on a CPU."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
