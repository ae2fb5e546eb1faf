"""The numbers of a step: what each is called and means, and how it is counted from groups."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields

from mrl.modes import Lesson
from mrl.residual import Residual
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
    "thl/<figure>": "sums over the retokenized peers' records (alignment.Residual): records, "
    "bytes, bytes_one_to_one, source_tokens, receiver_tokens, sampled_otherwise, source_nats, "
    "spread_nats",
    "thl/share_one_to_one, thl/length_ratio": "of this step's records",
    "thl/receiver_bits_per_byte": "of what was imitated, under the receiver, end token included",
    "thl/refused/<reason>": "peers' texts that the receiver's tokenizer cannot hold exactly",
    "loss": "of the own objective; near 0 by construction while ratios are 1",
    "loss_nll": "of the imitation part, weight included",
    "grad_norm": "before clipping; 0 if it was not finite",
    "update_skipped": "1 if the gradient was not finite and the weights were left alone",
    "samples_learnt": "training samples that could give a gradient",
    "ratio/mean, ratio/max": "pi_theta / pi_behavior of the tokens learnt from",
    "clip_ratio/low_mean, clip_ratio/high_mean": "share of tokens in the clip's flat part; always "
    "0 with one update per rollout",
    "logprob_gap": "largest |log-prob when sampled - when scored| of a learnt token, nats",
    "exchange/published_records, exchange/published_bytes": "by this policy in this step",
    "exchange/received_records, exchange/received_bytes": "from its peers in this step",
    "exchange/refused/<reason>": "records of this policy that the exchange did not take",
    "exchange/not_believed": "peers' claimed successes that this receiver's own check denied",
    "time/<phase>_s": "seconds of this policy in rollout, verify, learn",
    "time/step_s": "seconds of the whole step, all policies",
}


RESIDUAL_SUMS = tuple(entry.name for entry in fields(Residual) if entry.name != "refused")


def without_time(line: dict) -> dict:
    """A metrics line without its timing fields: what a repeated run must reproduce."""
    return {key: value for key, value in line.items() if not key.startswith("time/")}


def lesson_metrics(lesson: Lesson, nll_nats: float) -> dict[str, float]:
    """What a mode did, and what alignment cost. nll_nats: of what was imitated, summed."""
    residual = lesson.residual
    metrics: dict[str, float] = {
        "rescue_set": lesson.rescue_set,
        "rescues": len(lesson.rescues),
        **{f"dropped/{reason}": number for reason, number in sorted(lesson.dropped.items())},
        **{f"thl/refused/{why}": number for why, number in sorted(residual.refused.items())},
    }
    if residual.records:
        metrics |= {f"thl/{name}": getattr(residual, name) for name in RESIDUAL_SUMS}
        metrics["thl/share_one_to_one"] = residual.share_one_to_one
        metrics["thl/length_ratio"] = residual.length_ratio
        metrics["thl/receiver_bits_per_byte"] = nll_nats / math.log(2) / residual.bytes
    return metrics


def run_residual(lines: Iterable[dict]) -> Residual:
    """The residual of a whole run (or of one policy's lines), from its metrics."""
    total = Residual()
    for line in lines:
        sums = {name: line.get(f"thl/{name}", 0) for name in RESIDUAL_SUMS}
        refused = {key[12:]: line[key] for key in line if key.startswith("thl/refused/")}
        total += Residual(**sums, refused=Counter(refused))
    return total


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
