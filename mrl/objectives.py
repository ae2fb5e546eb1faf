"""The objectives that a policy maximizes, as pure functions on [batch, seq] tensors.

Every loss here is *per token*, and `token_coefficients` turns token losses into an average. It
divides by counts of the whole update, which are known before the first micro-batch. So the gradient
of an update does not depend on how the update is cut into micro-batches.

Index t of every [batch, seq] tensor belongs to completion token t; seq covers completions only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the settings name objectives, and are read without torch
    from collections.abc import Callable

    from torch import Tensor

    # (ratio, advantages, number of updates made so far in the step) -> as `surrogate_loss`
    Surrogate = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]]

KNOWN = {  # the values that a field of an objective may have
    "ratio_level": ("token", "chunk", "sequence"),
    "aggregation": ("sequence", "token", "constant"),
}


@dataclass(frozen=True)
class Objective:
    """The settings in which the published objectives differ (TUTORIAL_2.md, appendix)."""

    # what the ratio pi_theta / pi_behavior is computed over: "token", "chunk" or "sequence"
    ratio_level: str
    aggregation: str  # "sequence", "token" or "constant": how token losses are averaged
    # A ratio outside 1 - clip_low .. 1 + clip_high gets no gradient that pushes it further out.
    # (With `weighs_logprobs`, this band limits the weights instead.)
    clip_low: float
    clip_high: float
    scale_by_std: bool = True  # whether advantages are divided by the std of the group's rewards
    weighs_logprobs: bool = False  # `weighted_logprob_loss` instead of PPO's clipped one
    # a mode's own loss, instead of both (see surrogate_loss)
    surrogate: Surrogate | None = None

    def __post_init__(self) -> None:
        for name, known in KNOWN.items():
            if getattr(self, name) not in known:
                words = ", ".join(known)
                raise ValueError(f"{name} is {getattr(self, name)!r}, but must be one of {words}")


OBJECTIVES = {
    "grpo": Objective("token", "sequence", 0.2, 0.2),  # arXiv 2402.03300
    # arXiv 2503.14476, without its dynamic sampling and without its overlong reward shaping
    "dapo": Objective("token", "token", 0.2, 0.28),
    "dr_grpo": Objective("token", "constant", 0.2, 0.2, scale_by_std=False),  # arXiv 2503.20783
    "gspo": Objective("sequence", "sequence", 3e-4, 4e-4),  # arXiv 2507.18071
    # CISPO, arXiv 2506.13585: no lower bound. The paper names no upper one; 5 is our choice.
    "cispo": Objective("token", "token", 1.0, 4.0, weighs_logprobs=True),
}


MAX_LOG_RATIO = 20.0  # a peer may claim any log-prob; beyond +-20, the ratio has no gradient


def token_ratio(logprobs: Tensor, behavior_logprobs: Tensor, completion_mask: Tensor) -> Tensor:
    """pi_theta(y_t) / pi_behavior(y_t) for each token; 1 where the mask is off.

    logprobs, behavior_logprobs: [batch, seq] nats.  Returns [batch, seq].
    """
    # masked before the exp, because padding may hold any number, even an infinite one
    log_ratio = (logprobs - behavior_logprobs).masked_fill(~completion_mask, 0.0)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_ratio(logprobs: Tensor, behavior_logprobs: Tensor, completion_mask: Tensor) -> Tensor:
    """s = (pi_theta(y) / pi_behavior(y)) ** (1 / |y|), the same for each token of a sequence.

    GSPO, arXiv 2507.18071, eq. 7.  Inputs [batch, seq] nats; returns [batch, seq].
    Padding positions get the ratio as well; `token_coefficients` zero them out.
    """
    log_ratio = (logprobs - behavior_logprobs).masked_fill(~completion_mask, 0.0)
    lengths = completion_mask.sum(dim=1, keepdim=True).clamp(min=1)  # [batch, 1]
    mean_log_ratio = log_ratio.sum(dim=1, keepdim=True) / lengths  # [batch, 1]
    ratio = mean_log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return ratio.expand_as(logprobs)


def chunk_ratio(
    logprobs: Tensor, behavior_logprobs: Tensor, completion_mask: Tensor, chunk_of: Tensor
) -> Tensor:
    """pi_theta / pi_behavior of each token's chunk, the same for all tokens of the chunk.

    Unlike a token's ratio, this one is defined between two tokenizers (arXiv 2605.07244, THL): by
    the chain rule, the log-prob of a chunk is the sum over its tokens on either side.

    logprobs, behavior_logprobs: [batch, seq] nats; only their sums over each chunk matter.
    chunk_of: [batch, seq] int64, the number of each token's chunk within its row.
    Returns [batch, seq].
    """
    log_ratio = (logprobs - behavior_logprobs).masked_fill(~completion_mask, 0.0)
    chunks = int(chunk_of.max()) + 1
    # [batch, seq] -> [batch, chunks]; padding adds its zeros to chunk 0
    sums = log_ratio.new_zeros(len(log_ratio), chunks).scatter_add(1, chunk_of, log_ratio)
    chunk_log_ratio = sums.gather(1, chunk_of)  # [batch, seq]
    ratio = chunk_log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return ratio.masked_fill(~completion_mask, 1.0)


def chunk_share(completion_mask: Tensor, chunk_of: Tensor) -> Tensor:
    """1 / the number of tokens in a token's chunk; [batch, seq].

    A chunk's ratio depends on all its n tokens and is repeated at each of them. Without this share,
    its tokens would weigh n times as much as others. With it, the gradient at ratio 1 is the one
    that token ratios give.
    """
    mask = completion_mask.float()
    sizes = mask.new_zeros(len(mask), int(chunk_of.max()) + 1).scatter_add(1, chunk_of, mask)
    return 1 / sizes.gather(1, chunk_of).clamp(min=1)


def clip(ratio: Tensor, low: float, high: float) -> Tensor:
    """The ratio, limited to low .. high, with gradient 1 inside the band and at its bounds.

    At a bound, `torch.clamp` has gradient 1 up to torch 2.13 and gradient 0 since 2.15. This
    matters: HACPO's upper bound is 1, and a peer's completion has exactly this ratio if both
    policies find it equally likely.
    """
    outside = (ratio < low) | (ratio > high)
    return ratio.detach().clamp(low, high).where(outside, ratio)


def clipped_loss(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A), per token.

    PPO's clipped objective as GRPO uses it, arXiv 2402.03300, eq. 3.
    ratio: [batch, seq]; advantages: [batch, 1] or [batch, seq].  Returns [batch, seq].

    At ratio 1, the loss is -A. If the advantages of a group sum to 0 (solo, sgt), its mean
    starts near 0 by construction, but the gradient does not.
    """
    clipped = clip(ratio, 1 - clip_low, 1 + clip_high)
    # take the smaller one: clipping must never make a policy look better than it is
    return -(ratio * advantages).minimum(clipped * advantages)


def weighted_logprob_loss(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """-sg[clip(ratio, 1 - clip_low, 1 + clip_high)] * A * log(ratio), per token.

    CISPO, arXiv 2506.13585, eq. 4. sg is stop-gradient, so the clipped ratio is only the weight of
    the token's log-prob, and every token has a gradient. The paper writes log pi_theta for
    log(ratio). They differ by a constant, log pi_behavior, and have the same gradient.
    ratio: [batch, seq]; advantages: [batch, 1] or [batch, seq].  Returns [batch, seq].
    """
    weight = ratio.detach().clamp(1 - clip_low, 1 + clip_high)
    return -weight * ratio.log() * advantages


def surrogate_loss(
    ratio: Tensor, advantages: Tensor, objective: Objective, updates_done: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of each token under one objective, and which tokens are clipped.

    It is `clipped_loss`, unless the objective has a `surrogate` of its own, as for peers' samples
    in mode hacpo. updates_done: number of updates made so far in this step.

    ratio: [batch, seq]; advantages: [batch, 1] or [batch, seq].  Returns the loss and two masks,
    [batch, seq] each. The masks are True where a token has no gradient: in the first one because
    the ratio is below the band, in the second because it is above.
    """
    if objective.surrogate:
        return objective.surrogate(ratio, advantages, updates_done)
    if objective.weighs_logprobs:
        band = objective.clip_low, objective.clip_high
        no_token = ratio < 0  # no ratio is negative
        return weighted_logprob_loss(ratio, advantages, *band), no_token, no_token
    # PPO's min() clips only where a policy would look too good
    loss = clipped_loss(ratio, advantages, objective.clip_low, objective.clip_high)
    below = (ratio < 1 - objective.clip_low) & (advantages < 0)
    above = (ratio > 1 + objective.clip_high) & (advantages > 0)
    return loss, below, above


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Estimate of KL(pi_theta || pi_ref) for each sampled token: exp(d) - d - 1, d = ref - theta.

    arXiv 2402.03300, eq. 4. Its *value* is never negative, and is unbiased for tokens that pi_theta
    sampled. Its gradient, (1 - pi_ref / pi_theta) * grad log pi_theta, is on average that of
    KL(pi_ref || pi_theta), the other direction. After the first update of a step, the tokens come
    from an older pi_theta, and both value and gradient are slightly biased.

    logprobs, ref_logprobs: [batch, seq] nats.  Returns [batch, seq].
    """
    difference = ref_logprobs - logprobs
    # `expm1(d)` is exp(d) - 1 without its rounding, which is larger than k3 itself if d is small
    return difference.expm1() - difference


def sequence_mean_coefficients(completion_mask: Tensor, sequences: int) -> Tensor:
    """1 / (|y_i| * sequences) for each token: a mean over tokens, then over all sequences.

    completion_mask: [batch, seq] bool; sequences: number of sequences in the *whole* update.
    Returns [batch, seq].
    """
    mask = completion_mask.float()
    lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)  # [batch, 1]
    return mask / lengths / sequences


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
    constant: 1 / (max_completion_length * sequences)  independent of length (Dr. GRPO)

    sequences, tokens: numbers of these in the *whole* update; learning.py says which count.
    """
    # with "sequence", a token of a short completion weighs more than a token of a long one
    if aggregation == "sequence":
        return sequence_mean_coefficients(completion_mask, sequences)
    if aggregation == "token":
        return completion_mask.float() / tokens
    return completion_mask.float() / (max_completion_length * sequences)
