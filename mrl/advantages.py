"""How good is a completion, compared with others for the same prompt? Pure tensor functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the modes' settings are read without torch
    from torch import Tensor


def group_advantages(rewards: Tensor, scale_by_std: bool = True, eps: float = 1e-6) -> Tensor:
    """Score each completion against its own group.

    A[p, i] = (r[p, i] - mean_i r[p]) / (std_i r[p] + eps)      GRPO, arXiv 2402.03300, 4.1.2
    A[p, i] =  r[p, i] - mean_i r[p]          (scale_by_std=False) Dr. GRPO, arXiv 2503.20783, 3

    rewards: [prompts, group] float.  Returns [prompts, group] float32, no unit.
    If all rewards of a group are equal, its advantages are exactly zero, and it teaches nothing.
    Raises ValueError if group < 2.  The paper does not say which std; we use the population std.
    """
    if rewards.dim() != 2 or rewards.shape[1] < 2:
        raise ValueError(
            f"rewards must be [prompts, group] with group >= 2, not {list(rewards.shape)}"
        )
    rewards = rewards.float()
    centered = rewards - rewards.mean(dim=1, keepdim=True)
    # exact zeros, set explicitly: in floating point, the mean of equal rewards can differ from them
    all_equal = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    centered = centered.masked_fill(all_equal, 0.0)
    if not scale_by_std:
        return centered
    return centered / (rewards.std(dim=1, keepdim=True, correction=0) + eps)


def shared_baseline_advantages(
    rewards: Tensor,
    peer_count: Tensor,
    peer_mean: Tensor,
    peer_std: Tensor,
    peer_share: float = 1.0,
    scale_by_std: bool = True,
    eps: float = 1e-6,
) -> Tensor:
    """Score a policy's own completions against a baseline that includes the peers' rewards.

    A[p, i] = (r[p, i] - mu[p]) / (sigma[p] + eps)               XGRPO, arXiv 2605.07244
    mu[p] = (1 - peer_share) * mean_own[p] + peer_share * mean_all[p]

    mean_all and sigma are the mean and the std of the policy's and its peers' rewards together.
    They are computed from the count, mean and population std of each group. That exactly these
    three numbers are shared is our reading of the paper, and so is `peer_share`.

    rewards: [prompts, group] float; peer_count, peer_mean, peer_std: [prompts, peers], with count 0
    if a peer sent nothing.  Returns [prompts, group] float32, no unit.
    If all these rewards are equal, the result is exactly zero. Without peers, the result is the
    same as that of group_advantages.
    """
    # The mean and std of all rewards come from counts, means and stds: nothing else is shared.
    rewards = rewards.float()
    own = rewards.shape[1]
    total = own + peer_count.sum(dim=1, keepdim=True)  # [prompts, 1]
    own_mean = rewards.mean(dim=1, keepdim=True)
    peer_sum = (peer_count * peer_mean).sum(dim=1, keepdim=True)
    mean_all = (own * own_mean + peer_sum) / total
    # over a group, the squared deviations from any m add up to count * (std^2 + (mean - m)^2)
    own_spread = ((rewards - mean_all) ** 2).sum(dim=1, keepdim=True)
    peer_spread = peer_count * (peer_std**2 + (peer_mean - mean_all) ** 2)
    sigma = ((own_spread + peer_spread.sum(dim=1, keepdim=True)) / total).sqrt()
    centered = rewards - (1 - peer_share) * own_mean - peer_share * mean_all
    centered = centered.masked_fill(sigma < 1e-6, 0.0)  # all rewards are equal, up to rounding
    return centered / (sigma + eps) if scale_by_std else centered


def capability_advantages(rewards: Tensor, capability_ratio: Tensor, eps: float = 1e-6) -> Tensor:
    """Score all agents' completions of one prompt against one learner's scaled baseline.

    A_i = (r_i - mu_k) / (sigma + eps),  mu_k = mean_i w(k, j_i) * r_i    HACPO, arXiv 2603.02604

    The numerator has the raw reward; only the baseline is scaled. sigma is the std of all
    *unscaled* rewards. If every w is 1, the baseline is the plain mean over all agents.

    rewards: [completions] of all agents; capability_ratio: [completions], w(k, j) = P_k / P_j for
    the agent j that wrote each completion.  Returns [completions].
    If all rewards are equal, the result is exactly zero, as in the authors' program. The paper's
    formula would then divide by eps.
    """
    rewards = rewards.float()
    if bool((rewards == rewards[0]).all()):
        return rewards.new_zeros(rewards.shape)
    # a stronger peer has w < 1, so its success raises the baseline less than the learner's own
    baseline = (capability_ratio * rewards).mean()
    return (rewards - baseline) / (rewards.std(correction=0) + eps)
