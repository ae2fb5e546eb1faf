"""Silent bugs: nothing crashes, the loss looks as always, the policy does not learn.

1. The function below has one of them, in one line. Repair it.

Contract of `policy_loss(logprobs, old_logprobs, rewards, mask)`, GRPO's loss:
- rewards: [prompts, group], any numbers; logprobs, old_logprobs, mask (bool, with blind spots):
  [prompts * group, seq], row by row as rewards.flatten() counts them; where the mask is off,
  log-probs hold anything, nan too
- advantages: (r - mean of the group) / (population std of the group + 1e-6), and exactly 0 in a
  group whose rewards all agree, so that it has no gradient
- loss of a token: -min(ratio * A, clip(ratio, 0.8, 1.2) * A); the mean over a completion's tokens,
  then over completions; a tensor without axes whose gradient reaches logprobs

2. bug-curves.png draws a healthy run of the tiny pair and five that differ from it in one thing:
solve rate, length of completions, gradient norm. Which curve belongs to which? What is as it should
be in a curve, and so excludes which cause? Each curve has another bug; these are eight, so three
have no curve:

    mixed groups            the advantages of one prompt reach completions of another
    sign                    the loss is maximized
    learning rate too high  30 times the usual
    learning rate too low   a hundredth of the usual
    length limit            completions are cut where the right ones still go on
    temperature near 0      a prompt's completions are all alike
    end token               its log-prob is masked out of the loss
    clip                    the ratio is not clipped, with one update a rollout

Check it with:  python mini_mrl.py assignment check bug.py
"""

import torch
from torch import Tensor

ASSIGNMENT = "bug"
CURVES = 0  # which curves `assignment start` drew for you; leave it as it is
CAUSES = {"A": "", "B": "", "C": "", "D": "", "E": ""}  # the names above


def policy_loss(logprobs: Tensor, old_logprobs: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
    """GRPO's loss over a batch of groups; one line of it is wrong."""
    centered = rewards - rewards.mean(dim=1, keepdim=True)
    # exact zeros where all agree: the mean of equal numbers need not be that number
    all_agree = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)
    centered = centered.masked_fill(all_agree, 0.0)
    advantages = centered / (rewards.std(dim=1, keepdim=True, correction=0) + 1e-6)
    per_row = advantages.T.reshape(-1, 1)  # a row of logprobs each
    difference = (logprobs - old_logprobs).masked_fill(~mask, 0.0)
    ratio = difference.exp()
    losses = -torch.minimum(ratio * per_row, ratio.clamp(0.8, 1.2) * per_row)
    lengths = mask.sum(dim=1).clamp(min=1)
    return ((losses * mask).sum(dim=1) / lengths).mean()
