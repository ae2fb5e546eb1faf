"""What a policy maximises, as pure functions on [batch, seq] tensors.

Every loss here is *per token* and is multiplied by `token_coefficients`, whose sum over a whole
update is fixed before the first micro-batch. So the gradient of an update does not depend on how
it is cut into micro-batches.

Index t of every [batch, seq] array belongs to completion token t; seq covers completions only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Objective:
    """The settings in which the published objectives differ (papers.md's table, in code)."""

    ratio_level: str  # "token" | "sequence": at which level pi_theta / pi_old is formed
    aggregation: str  # "sequence" | "token" | "constant": how token losses are averaged
    clip_low: float  # the ratio counts within 1 - clip_low .. 1 + clip_high
    clip_high: float
    scale_by_std: bool = True  # of the group's rewards


OBJECTIVES = {
    "grpo": Objective("token", "sequence", 0.2, 0.2),  # arXiv 2402.03300
    "dapo": Objective("token", "token", 0.2, 0.28),  # arXiv 2503.14476
    "dr_grpo": Objective("token", "constant", 0.2, 0.2, scale_by_std=False),  # arXiv 2503.20783
    "gspo": Objective("sequence", "sequence", 3e-4, 4e-4),  # arXiv 2507.18071
}


def token_ratio(logprobs: Tensor, behavior_logprobs: Tensor, completion_mask: Tensor) -> Tensor:
    """pi_theta(y_t) / pi_behavior(y_t) for each token; 1 where the mask is off.

    logprobs, behavior_logprobs: [batch, seq] nats.  Returns [batch, seq].
    """
    return torch.exp((logprobs - behavior_logprobs).masked_fill(~completion_mask, 0.0))


def sequence_ratio(logprobs: Tensor, behavior_logprobs: Tensor, completion_mask: Tensor) -> Tensor:
    """s = (pi_theta(y) / pi_behavior(y)) ** (1 / |y|), the same for each token of a sequence.

    GSPO, arXiv 2507.18071, eq. 7.  Inputs [batch, seq] nats; returns [batch, seq].
    """
    difference = (logprobs - behavior_logprobs).masked_fill(~completion_mask, 0.0)
    lengths = completion_mask.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.exp(difference.sum(dim=1, keepdim=True) / lengths).expand_as(logprobs)


def clipped_loss(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A), per token.

    PPO's clipped surrogate as GRPO uses it, arXiv 2402.03300, eq. 3.
    ratio: [batch, seq]; advantages: [batch, 1] or [batch, seq].  Returns [batch, seq].
    At ratio 1 its value is -A, whose mean over a group is 0: the loss starts near 0 by
    construction, its gradient does not.
    """
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def in_flat_part(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """Where clipping takes the gradient away: (below, above), each [batch, seq] bool.

    Below: ratio < 1 - clip_low and A < 0.  Above: ratio > 1 + clip_high and A > 0.
    """
    below = (ratio < 1 - clip_low) & (advantages < 0)
    above = (ratio > 1 + clip_high) & (advantages > 0)
    return below, above


def token_coefficients(
    completion_mask: Tensor,
    aggregation: str,
    sequences: int,
    tokens: int,
    max_completion_length: int,
) -> Tensor:
    """The factor of each token's loss; [batch, seq], zero where the mask is off.

    sequence: 1 / (|y_i| * sequences)                  mean over tokens, then over sequences (GRPO)
    token:    1 / tokens                               mean over all tokens (DAPO)
    constant: 1 / (max_completion_length * sequences)  length never enters (Dr. GRPO)

    sequences, tokens: counts of the *whole* update, samples without gradient included.
    """
    mask = completion_mask.float()
    if aggregation == "sequence":
        return mask / mask.sum(dim=1, keepdim=True).clamp(min=1) / sequences
    if aggregation == "token":
        return mask / tokens
    if aggregation == "constant":
        return mask / (max_completion_length * sequences)
    raise ValueError(f"unknown aggregation {aggregation!r}")
