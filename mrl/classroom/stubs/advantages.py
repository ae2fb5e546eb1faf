"""Group advantages: how good was a completion, compared with others for the same prompt?

    A[p, i] = (r[p, i] - mean_i r[p]) / (std_i r[p] + 1e-6)        GRPO, arXiv 2402.03300, 4.1.2

Contract of `advantages(rewards)`:
- rewards: a tensor [prompts, group] of floats; row p holds the rewards of prompt p's completions
- returns a new tensor [prompts, group], float32; `rewards` itself stays as it was
- std is the population standard deviation (divided by the group's size, not by one less)
- a group whose rewards all agree gets *exact* zeros, whatever the rewards are (0.1 is one to try);
  rewards that are only close to each other do not agree
- raises ValueError if `rewards` has not two axes or a group of fewer than two

Check it with:  python mini_mrl.py assignment check advantages.py
"""

import torch
from torch import Tensor

ASSIGNMENT = "advantages"


def advantages(rewards: Tensor) -> Tensor:
    """Score each completion against its own group."""
    raise NotImplementedError("your turn")
