"""How good was a completion, compared with others for the same prompt? Pure tensor functions."""

from torch import Tensor


def group_advantages(rewards: Tensor, scale_by_std: bool = True, eps: float = 1e-6) -> Tensor:
    """Score each completion against its own group.

    A[p, i] = (r[p, i] - mean_i r[p]) / (std_i r[p] + eps)      GRPO, arXiv 2402.03300, 4.1.2
    A[p, i] =  r[p, i] - mean_i r[p]          (scale_by_std=False) Dr. GRPO, arXiv 2503.20783, 3

    rewards: [prompts, group] float.  Returns [prompts, group] float32, no unit.
    A group whose rewards all agree gives exact zeros: it teaches nothing on its own.
    Raises ValueError if group < 2.  Our reading: population std (the paper does not say).
    """
    if rewards.dim() != 2 or rewards.shape[1] < 2:
        raise ValueError(
            f"rewards must be [prompts, group] with group >= 2, not {list(rewards.shape)}"
        )
    rewards = rewards.float()
    centered = rewards - rewards.mean(dim=1, keepdim=True)
    # exact zeros by construction, not by luck of rounding: 0.1 + ... + 0.1 has a mean beside 0.1
    all_equal = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    centered = centered.masked_fill(all_equal, 0.0)
    if not scale_by_std:
        return centered
    return centered / (rewards.std(dim=1, keepdim=True, correction=0) + eps)
