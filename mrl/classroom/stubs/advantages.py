"""Group advantages: how good is a completion, compared with the other completions of its prompt?

    A[p, i] = (r[p, i] - mean_i r[p]) / (std_i r[p] + 1e-6)        GRPO, arXiv 2402.03300, 4.1.2

Contract of `advantages(rewards)`:
- `rewards` is a tensor [prompts, group] of floats. Row p has the rewards of prompt p's completions.
- It returns a new float32 tensor [prompts, group], and does not change `rewards`.
- std is the population standard deviation (divide by the group's size, not by one less).
- A group whose rewards are all equal gets *exact* zeros, for any value (try 0.1). Rewards that are
  merely close are not equal.
- It raises ValueError unless `rewards` has two axes and at least two completions per group.

Check it with:  python mini_mrl.py assignment check advantages.py
"""

import torch
from torch import Tensor

ASSIGNMENT = "advantages"


def advantages(rewards: Tensor) -> Tensor:
    """Score each completion relative to its own group."""
    raise NotImplementedError("your turn")
