"""The numbers of a step: what each is called and means, and how it is counted from groups."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence

from mrl.rewards import Verdict
from mrl.samples import Group

METRICS = {
    "step": "loop iteration, from 1",
    "policy": "whose line this is",
    "version": "optimizer updates that the policy has made",
    "reward": "mean reward of the step's completions = solve rate",
    "reward_std": "mean over groups of the rewards' standard deviation",
    "frac_reward_zero_std": "share of groups whose rewards all agree: no gradient of their own",
    "groups/<kind>": "share of groups that are all_fail, mixed, all_pass",
    "verdict/<verdict>": "share of completions: correct, wrong, unparsed, truncated, timeout",
    "skill/<skill>": "solve rate of the step's prompts of one skill",
    "completions/mean_length": "tokens, end token included",
    "completions/clipped_ratio": "share of completions cut by the token limit",
    "entropy": "mean of -log p of the sampled tokens, nats: an estimate of the entropy",
    "num_tokens": "sampled completion tokens",
    "rescue_set": "prompts that failed here altogether and that a peer solved",
    "rescues": "successes of peers that were imitated",
    "dropped/<reason>": "peers' records that the mode did not use",
    "loss": "of the own objective; near 0 by construction while ratios are 1",
    "loss_nll": "of the imitation part, weight included",
    "grad_norm": "before clipping",
    "samples_learnt": "training samples that could give a gradient",
    "ratio/mean, ratio/max": "pi_theta / pi_behavior of the tokens learnt from",
    "clip_ratio/low_mean, clip_ratio/high_mean": "share of tokens in the clip's flat part; always "
    "0 with one update per rollout",
    "logprob_gap": "largest |log-prob when sampled - when scored| of a learnt token, nats",
    "exchange/published_records, exchange/published_bytes": "by this policy in this step",
    "exchange/received_records, exchange/received_bytes": "from its peers in this step",
    "exchange/refused/<reason>": "records of this policy that the exchange did not take",
    "time/<phase>_s": "seconds of this policy in rollout, verify, learn",
    "time/step_s": "seconds of the whole step, all policies",
}


def without_time(line: dict) -> dict:
    """A metrics line without its timing fields: what a repeated run must reproduce."""
    return {key: value for key, value in line.items() if not key.startswith("time/")}


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Everything that a policy's own groups of one step say."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    tokens = sum(len(rollout.completion_ids) for rollout in rollouts)
    kinds = Counter(group.kind for group in groups)
    verdicts = Counter(rollout.verdict for rollout in rollouts)
    rewards = [group.rewards for group in groups]
    metrics = {
        "reward": statistics.fmean(reward for row in rewards for reward in row),
        "reward_std": statistics.fmean(statistics.pstdev(row) for row in rewards),
        "frac_reward_zero_std": sum(len(set(row)) == 1 for row in rewards) / len(groups),
        **{f"groups/{k}": kinds[k] / len(groups) for k in ("all_fail", "mixed", "all_pass")},
        **{f"verdict/{verdict}": verdicts[verdict] / len(rollouts) for verdict in Verdict},
        "completions/mean_length": tokens / len(rollouts),
        "completions/clipped_ratio": sum(not r.finished for r in rollouts) / len(rollouts),
        "entropy": -sum(sum(rollout.logprobs) for rollout in rollouts) / tokens,
        "num_tokens": tokens,
    }
    by_skill: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        by_skill[group.problem.skill] += group.rewards
    for skill in sorted(by_skill):
        metrics[f"skill/{skill}"] = statistics.fmean(by_skill[skill])
    return metrics
