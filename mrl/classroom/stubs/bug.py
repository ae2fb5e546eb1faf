"""Silent bugs: nothing crashes and the loss looks normal, but the policy does not learn.

Task 1. One line of the function below has such a bug. Repair it.

Contract of `policy_loss(logprobs, behavior_logprobs, rewards, mask)`, GRPO's loss:
- `rewards` is [prompts, group], with any numbers.
- `logprobs`, `behavior_logprobs` and `mask` (bool) are [prompts * group, seq]. Their rows have the
  order of rewards.flatten(). The mask may have gaps; where it is False, log-probs may be anything,
  even nan.
- An advantage is (r - mean of the group) / (population std of the group + 1e-6). It is exactly 0 in
  a group whose rewards are all equal, so that such a group has no gradient.
- The loss of a token is -min(ratio * A, clip(ratio, 0.8, 1.2) * A). The result is the mean over a
  completion's tokens, then over completions: a tensor without axes, with a gradient to logprobs.

Task 2. bug-curves.png shows solve rate, length of completions and gradient norm of a healthy run of
the tiny pair, and of five runs that differ from it in one thing each. Which run has which bug? For
each run, ask what looks normal, and which bugs that excludes. Each run has a different bug. There
are eight bugs, so three of them have no run:

    mixed groups            the advantages of one prompt are used for another prompt's completions
    sign                    the loss is maximized
    learning rate too high  30 times the usual one
    learning rate too low   a hundredth of the usual one
    length limit            completions are cut before correct ones are finished
    temperature near 0      all completions of a prompt are equal
    end token               its log-prob is masked out of the loss
    clip                    the ratio is not clipped, with one update per step

Check it with:  python mini_mrl.py assignment check bug.py
"""

import torch
from torch import Tensor

ASSIGNMENT = "bug"
CURVES = 0  # decides which curves `assignment start` chose for you; do not change it
CAUSES = {"A": "", "B": "", "C": "", "D": "", "E": ""}  # the names above


def policy_loss(
    logprobs: Tensor, behavior_logprobs: Tensor, rewards: Tensor, mask: Tensor
) -> Tensor:
    """GRPO's loss over a batch of groups. One line is wrong."""
    centered = rewards - rewards.mean(dim=1, keepdim=True)
    # exact zeros if all are equal, because the mean of equal floats may differ from them
    all_agree = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    centered = centered.masked_fill(all_agree, 0.0)
    advantages = centered / (rewards.std(dim=1, keepdim=True, correction=0) + 1e-6)
    per_row = advantages.T.reshape(-1, 1)  # one advantage per row of logprobs
    difference = (logprobs - behavior_logprobs).masked_fill(~mask, 0.0)
    ratio = difference.exp()
    losses = -torch.minimum(ratio * per_row, ratio.clamp(0.8, 1.2) * per_row)
    lengths = mask.sum(dim=1).clamp(min=1)
    return ((losses * mask).sum(dim=1) / lengths).mean()
