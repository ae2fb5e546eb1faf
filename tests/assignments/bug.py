"""Reference solution; `assignment start bug` has the contract."""

import torch
from torch import Tensor

ASSIGNMENT = "bug"
CURVES = 7
CAUSES = {
    "A": "sign",
    "B": "temperature near 0",
    "C": "learning rate too high",
    "D": "length limit",
    "E": "learning rate too low",
}


def policy_loss(
    logprobs: Tensor, behavior_logprobs: Tensor, rewards: Tensor, mask: Tensor
) -> Tensor:
    """GRPO's loss over a batch of groups."""
    centered = rewards - rewards.mean(dim=1, keepdim=True)
    # exact zeros where all agree: the mean of equal numbers need not be that number
    all_agree = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    centered = centered.masked_fill(all_agree, 0.0)
    advantages = centered / (rewards.std(dim=1, keepdim=True, correction=0) + 1e-6)
    per_row = advantages.reshape(-1, 1)  # a row of logprobs each
    difference = (logprobs - behavior_logprobs).masked_fill(~mask, 0.0)
    ratio = difference.exp()
    losses = -torch.minimum(ratio * per_row, ratio.clamp(0.8, 1.2) * per_row)
    lengths = mask.sum(dim=1).clamp(min=1)
    return ((losses * mask).sum(dim=1) / lengths).mean()
