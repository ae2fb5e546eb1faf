"""Reference solution; `assignment start advantages` has the contract."""

from torch import Tensor

ASSIGNMENT = "advantages"


def advantages(rewards: Tensor) -> Tensor:
    """Score each completion against its own group."""
    if rewards.dim() != 2 or rewards.shape[1] < 2:
        raise ValueError("rewards must be [prompts, group] with a group of two or more")
    rewards = rewards.float()
    centered = rewards - rewards.mean(dim=1, keepdim=True)
    scaled = centered / (rewards.std(dim=1, keepdim=True, correction=0) + 1e-6)
    agree = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    return scaled.masked_fill(agree, 0.0)
