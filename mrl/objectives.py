"""What a policy maximises, as pure functions on [batch, seq] tensors.

Every loss here is *per token*. `token_coefficients` makes an average of them. It divides by counts
of the whole update, which are known before its first micro-batch. So the gradient of an update does
not depend on how it is cut into micro-batches.

Index t of every [batch, seq] array belongs to completion token t; seq covers completions only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

KNOWN = {  # what an objective may have as
    "ratio_level": ("token", "chunk", "sequence", "text"),
    "aggregation": ("sequence", "token", "constant"),
}


@dataclass(frozen=True)
class Objective:
    """The settings in which the published objectives differ (TUTORIAL.md, appendix)."""

    # Where pi_theta / pi_behavior is formed: "token", "chunk", "sequence" or "text". A text's ratio
    # is a sequence's between two tokenizers: each side's mean is over its own tokens (HACPO).
    ratio_level: str
    aggregation: str  # "sequence" | "token" | "constant": how token losses are averaged
    clip_low: float  # outside 1 - clip_low .. 1 + clip_high a ratio is pushed no further out
    clip_high: float
    scale_by_std: bool = True  # of the group's rewards
    ratio_power: float | None = None  # None: PPO's min(); a number: HACPO's peers (surrogate_loss)
    clip_low_step: float = 0.0  # with a power: clip_low shrinks so with each update

    def __post_init__(self) -> None:
        for name, known in KNOWN.items():
            if getattr(self, name) not in known:
                words = ", ".join(known)
                raise ValueError(f"{name} is {getattr(self, name)!r}, but must be one of {words}")


OBJECTIVES = {
    "grpo": Objective("token", "sequence", 0.2, 0.2),  # arXiv 2402.03300
    # arXiv 2503.14476, without its dynamic sampling and its overlong reward shaping
    "dapo": Objective("token", "token", 0.2, 0.28),
    "dr_grpo": Objective("token", "constant", 0.2, 0.2, scale_by_std=False),  # arXiv 2503.20783
    "gspo": Objective("sequence", "sequence", 3e-4, 4e-4),  # arXiv 2507.18071
}


MAX_LOG_RATIO = 20.0  # a peer may claim any log-prob; beyond this a ratio has no gradient


def token_ratio(logprobs: Tensor, behavior_logprobs: Tensor, completion_mask: Tensor) -> Tensor:
    """pi_theta(y_t) / pi_behavior(y_t) for each token; 1 where the mask is off.

    logprobs, behavior_logprobs: [batch, seq] nats.  Returns [batch, seq].
    """
    # before the exp: what stands in the padding may be anything, even infinite
    log_ratio = (logprobs - behavior_logprobs).masked_fill(~completion_mask, 0.0)
    return torch.exp(log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def sequence_ratio(logprobs: Tensor, behavior_logprobs: Tensor, completion_mask: Tensor) -> Tensor:
    """s = (pi_theta(y) / pi_behavior(y)) ** (1 / |y|), the same for each token of a sequence.

    GSPO, arXiv 2507.18071, eq. 7.  Inputs [batch, seq] nats; returns [batch, seq].
    In the padding it stands, too: `token_coefficients` are 0 there.
    """
    log_ratio = (logprobs - behavior_logprobs).masked_fill(~completion_mask, 0.0)
    lengths = completion_mask.sum(dim=1, keepdim=True).clamp(min=1)  # [batch, 1]
    mean_log_ratio = log_ratio.sum(dim=1, keepdim=True) / lengths  # [batch, 1]
    ratio = torch.exp(mean_log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    return ratio.expand_as(logprobs)


def chunk_ratio(
    logprobs: Tensor, behavior_logprobs: Tensor, completion_mask: Tensor, chunk_of: Tensor
) -> Tensor:
    """pi_theta / pi_behavior of the chunk that a token is in, the same for all its tokens.

    Defined between two tokenizers, where a token's ratio is not (arXiv 2605.07244, THL): by the
    chain rule a chunk's log-prob is the sum over its tokens on either side.

    logprobs, behavior_logprobs: [batch, seq] nats, of which only the sums over a chunk matter;
    chunk_of: [batch, seq] int64, the chunk's number within its row.  Returns [batch, seq].
    """
    log_ratio = (logprobs - behavior_logprobs).masked_fill(~completion_mask, 0.0)
    chunks = int(chunk_of.max()) + 1
    # [batch, seq] -> [batch, chunks]; padding adds its zeros to chunk 0
    sums = log_ratio.new_zeros(len(log_ratio), chunks).scatter_add(1, chunk_of, log_ratio)
    chunk_log_ratio = sums.gather(1, chunk_of)  # [batch, seq]
    ratio = torch.exp(chunk_log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    return ratio.masked_fill(~completion_mask, 1.0)


def chunk_share(completion_mask: Tensor, chunk_of: Tensor) -> Tensor:
    """1 / the number of tokens in a token's chunk; [batch, seq].

    A chunk's ratio depends on all its n tokens and stands at each of them: without this share its
    tokens would weigh n times as much as others. With it, at ratio 1 the gradient is that of token
    ratios.
    """
    mask = completion_mask.float()
    sizes = mask.new_zeros(len(mask), int(chunk_of.max()) + 1).scatter_add(1, chunk_of, mask)
    return 1 / sizes.gather(1, chunk_of).clamp(min=1)


def clip(ratio: Tensor, low: float, high: float) -> Tensor:
    """The ratio held within low .. high, with gradient 1 inside the band and at its bounds.

    At a bound `torch.clamp` has gradient 1 up to torch 2.13 and 0 since 2.15. A peer's text that is
    as likely for the learner as it was for the peer (s = 1) stands exactly there.
    """
    outside = (ratio < low) | (ratio > high)
    return torch.where(outside, ratio.detach().clamp(low, high), ratio)


def clipped_loss(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A), per token.

    PPO's clipped objective as GRPO uses it, arXiv 2402.03300, eq. 3.
    ratio: [batch, seq]; advantages: [batch, 1] or [batch, seq].  Returns [batch, seq].

    At ratio 1 its value is -A. Where a group's A sum to 0 (solo, sgt) the loss starts near 0 by
    construction, but its gradient does not.
    """
    clipped = clip(ratio, 1 - clip_low, 1 + clip_high)
    # the smaller of both: a clip must never make a policy look better than it is
    return -torch.minimum(ratio * advantages, clipped * advantages)


def surrogate_loss(
    ratio: Tensor, advantages: Tensor, objective: Objective, updates_done: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """One objective's loss per token, and where clipping takes its gradient away.

    All but HACPO's peer samples have `clipped_loss`. Theirs is, with ratio s after u updates (arXiv
    2603.02604 v1, eq. 50 and 52):
        -clip(s, 1 - clip_low + u * clip_low_step, 1 + clip_high) * sg[s] ** ratio_power * A
    sg is stop-gradient, `.detach()`. There is no min(): outside the band there is no gradient, for
    either sign of A. We raise the clipped s to the power, not s itself: inside the band both are
    equal, outside there is no gradient, and the clipped one cannot overflow.

    ratio: [batch, seq]; advantages: [batch, 1] or [batch, seq].  Returns the loss and two masks,
    all [batch, seq]: no gradient because the ratio is below the band, or above it.
    """
    if objective.ratio_power is None:  # PPO's min() clips only what would look better than it is
        loss = clipped_loss(ratio, advantages, objective.clip_low, objective.clip_high)
        below = (ratio < 1 - objective.clip_low) & (advantages < 0)
        above = (ratio > 1 + objective.clip_high) & (advantages > 0)
        return loss, below, above

    high = 1 + objective.clip_high
    # the band narrows with each update, and never inverts
    low = min(1 - objective.clip_low + updates_done * objective.clip_low_step, high)
    clipped = clip(ratio, low, high)
    # inside the band the gradient is s^power * grad s, for either sign of A
    loss = -clipped * clipped.detach() ** objective.ratio_power * advantages
    return loss, ratio < low, ratio > high


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Estimate of KL(pi_theta || pi_ref) for each sampled token: exp(d) - d - 1, d = ref - theta.

    arXiv 2402.03300, eq. 4. Never negative; unbiased for tokens that pi_theta sampled. That is its
    *value*: its gradient, (1 - pi_ref / pi_theta) * grad log pi_theta, is on average the one of
    KL(pi_ref || pi_theta), the other direction. After the first update of a step the tokens are of
    an older pi_theta, and both are slightly biased.

    logprobs, ref_logprobs: [batch, seq] nats.  Returns [batch, seq].
    """
    difference = ref_logprobs - logprobs
    return torch.exp(difference) - difference - 1


def sequence_mean_coefficients(completion_mask: Tensor, sequences: int) -> Tensor:
    """1 / (|y_i| * sequences) for each token: a mean over tokens, then over all sequences.

    completion_mask: [batch, seq] bool; sequences: of the *whole* update.  Returns [batch, seq].
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
    constant: 1 / (max_completion_length * sequences)  length never enters (Dr. GRPO)

    sequences, tokens: counts of the *whole* update; learning.py says which samples count.
    """
    if aggregation == "sequence":  # a short answer's tokens weigh more than a long one's
        return sequence_mean_coefficients(completion_mask, sequences)
    if aggregation == "token":
        return completion_mask.float() / tokens
    if aggregation == "constant":
        return completion_mask.float() / (max_completion_length * sequences)
    raise ValueError(f"unknown aggregation {aggregation!r}")
