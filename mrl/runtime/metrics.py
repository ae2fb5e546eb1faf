"""The numbers of a step: what each is called and means, and how it is counted from groups."""

import math
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from mrl.allocation import Turn
from mrl.modes import TrainingBatch
from mrl.samples import Group, Verdict
from mrl.team import StepResult

METRICS = {
    "step": "loop iteration, from 1",
    "policy": "whose line this is",
    "version": "optimizer updates that the policy has made",
    "reward": "mean reward of the step's completions = solve rate",
    "reward_std": "mean over groups of the rewards' standard deviation",
    "groups/<kind>": "share of groups that are all_fail, mixed, all_pass; only mixed ones have a "
    "gradient of their own",
    "verdict/<verdict>": "share of completions: correct, wrong, unparsed, truncated, timeout",
    "skill/<skill>": "solve rate of the step's prompts of one skill",
    "completions/mean_length": "tokens, end token included",
    "completions/clipped_ratio": "share of completions cut by the token limit",
    "entropy": "mean of -log p of the sampled tokens, nats: an estimate of the entropy",
    "num_tokens": "sampled completion tokens",
    "rescue_set": "prompts that failed here altogether, on which the mode would use a peer's text",
    "rescues": "successes of peers that were imitated",
    "dropped/<reason>": "peers' records that the mode wanted and could not use",
    "thl/refused/<reason>": "peers' texts that the receiver's tokenizer cannot hold exactly",
    "thl/<figure>": "sums over the retokenized peers' records (residual.py): records, bytes, "
    "bytes_one_to_one, source_tokens, receiver_tokens, sampled_otherwise",
    "loss": "of the objective, own and peers' samples; mean over updates; near 0 by construction "
    "while ratios are 1 and each group's advantages sum to 0 (solo, sgt)",
    "loss_nll": "of the imitation part, weight included; mean over updates",
    "kl": "k3 estimate of KL to the frozen reference, over own completions with an advantage, if "
    "kl_coef > 0; mean over updates",
    "updates": "optimizer updates of this step",
    "grad_norm": "before clipping, mean over the step's updates",
    "update_skipped": "updates whose gradient was not finite: the weights were left alone",
    "ratio/mean, ratio/max": "pi_theta / pi_behavior of the own tokens learnt from, if any",
    "clip_ratio/low_mean, clip_ratio/high_mean": "share of own tokens in the clip's flat part; "
    "always 0 with one update per rollout",
    "peer/ratio/<mean|max>, peer/clip_ratio/<low|high>_mean": "the same of peers' tokens",
    "peer/weight_mean": "effective weight of peers' samples: 0 for one in the clip's flat part",
    "logprob_gap": "largest |log-prob when sampled - when scored| of an own token, nats; "
    "with one update per step only rounding keeps it from 0",
    "logprob_gap_mean": "mean of the same before the step's first update: rounding alone",
    "outcome/<outcome>": "share of completions, own, received and replayed: taught, rescued, "
    "replayed (own earlier successes), clipped (wholly in the flat part), all_fail, all_pass (no "
    "advantage), not_needed (and all of a frozen policy's), dropped, refused (by "
    "alignment), skipped (the update was not finite); they add up to 1",
    "mode/<figure>": "what the mode itself notes",
    "exchange/published_records, exchange/published_bytes": "by this policy in this step",
    "exchange/received_records, exchange/received_bytes": "from its peers in this step",
    "exchange/<kind>/<source>/records, exchange/<kind>/<source>/bytes": "what was received in this "
    "step, of one type of record from one peer",
    "exchange/refused/<reason>": "records of this policy that the exchange did not take",
    "exchange/not_believed": "peers' claimed verdicts that this receiver's own check denied",
    "time/<phase>_s": "seconds of this policy in rollout, verify, learn (step_s has the rest)",
    "time/turns": "the ledger: [phase, start, stop, bytes moved], seconds since the step began",
    "time/step_s": "seconds of the whole step, all policies",
    "memory/peak_bytes": "the most so far: of tensors on a CUDA device, of the process on a CPU",
}
OUTCOMES = ("taught", "rescued", "clipped", "all_fail", "all_pass", "not_needed", "dropped")
OUTCOMES += ("refused", "skipped", "replayed")


def meaning(key: str) -> str:
    """What a metric of `metrics.jsonl` means: the entry of `METRICS`, behind its name."""
    for names, text in METRICS.items():
        for name in names.split(", "):
            if re.fullmatch(re.sub("<.*?>", ".+", name), key):
                return f"{name}: {text}"
    raise KeyError(key)


def step_metrics(result: StepResult) -> dict[str, float]:
    """All figures of a policy's step that do not depend on where and when it ran.

    A figure that is not finite is left out: JSON cannot hold it, and it would spoil every mean.
    """
    figures = {
        **group_metrics(result.groups),
        **batch_metrics(result.batch),
        **result.stats.metrics(),
        **outcome_metrics(result),
    }
    return {name: figure for name, figure in figures.items() if math.isfinite(figure)}


def sample_lines(step: int, policy: str, result: StepResult) -> list[dict]:
    """The step's lines of samples.jsonl: one completion of each group, all rescues and failures."""
    lines: list[dict] = []
    for group in result.groups:
        shown = group.rollouts[0]
        line = {"step": step, "policy": policy, "problem": group.problem.id}
        line |= {"solved": sum(group.rewards), "text": shown.text, "verdict": str(shown.verdict)}
        lines.append(line)

    for group, success in result.batch.rescues:
        rescue = {"problem_id": group.problem.id, "prompt": group.problem.prompt}
        rescue |= {"skill": group.problem.skill, "receiver": policy, "source": success.source}
        rescue |= {"receiver_text": group.rollouts[0].text, "source_text": success.text}
        lines.append({"step": step, "rescue": rescue})

    return lines + [{"step": step, "failure": text} for text in result.stats.warnings]


def time_metrics(ledger: Sequence[Turn], policy: str) -> dict[str, object]:
    """One policy's part of a step's ledger: seconds by phase, bytes moved, the turns."""
    began = ledger[0].start_s
    seconds: Counter[str] = Counter()
    turns = []
    for turn in ledger:
        if turn.policy == policy:
            start, stop = turn.start_s - began, turn.stop_s - began
            seconds[f"time/{turn.phase}_s"] += turn.stop_s - turn.start_s
            turns.append([turn.phase, round(start, 4), round(stop, 4), turn.moved_bytes])

    return {**seconds, "time/step_s": time.perf_counter() - began, "time/turns": turns}


def batch_metrics(batch: TrainingBatch) -> dict[str, float]:
    """The figures of what a mode did, and of what alignment cost."""
    return {
        "rescue_set": batch.rescue_set_size,
        "rescues": len(batch.rescues),
        **{f"dropped/{why}": number for why, number in sorted(batch.dropped.items()) if number},
        **{f"thl/{name}": number for name, number in sorted(batch.residual.items())},
        **{f"mode/{name}": figure for name, figure in sorted(batch.notes.items())},
    }


def outcome_metrics(result: StepResult) -> dict[str, float]:
    """Shares of what became of every completion, own or a peer's: where did my gradient go?"""
    batch = result.batch
    own = sum(len(group.rollouts) for group in result.groups)
    received = 0
    for records in result.believed.values():
        received += sum(hasattr(record, "text") for record in records)

    # an own text of an earlier step (mode replay) is none of this step's completions
    written_now = set()
    for group in result.groups:
        for rollout in group.rollouts:
            written_now.add((*group.prompt_ids, *rollout.completion_ids))

    own_used, peers_used, earlier = 0, 0, 0
    for sample in batch.samples:
        if sample.source:
            peers_used += 1
        elif (*sample.prompt_ids, *sample.completion_ids) in written_now:
            own_used += 1
        else:
            earlier += 1

    # learning has counted what became of the samples; here is what never became one
    counts = Counter(result.stats.sample_outcomes)
    dropped, refused = sum(batch.dropped.values()), batch.residual.refused
    counts["refused"] = refused
    counts["dropped"] += dropped
    counts["all_fail"] += batch.replaced
    counts["not_needed"] = received - peers_used - refused - dropped
    counts["not_needed"] += own - own_used - batch.replaced  # all of a frozen policy's

    completions = own + received + earlier
    return {f"outcome/{name}": counts[name] / completions for name in OUTCOMES}


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """All figures that a policy's own groups of one step give."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    tokens = sum(len(rollout.completion_ids) for rollout in rollouts)
    outcomes = Counter(group.outcome for group in groups)
    verdicts = Counter(rollout.verdict for rollout in rollouts)
    rewards = [group.rewards for group in groups]

    metrics = {
        "reward": statistics.fmean(reward for row in rewards for reward in row),
        "reward_std": statistics.fmean(statistics.pstdev(row) for row in rewards),
        **{f"groups/{o}": outcomes[o] / len(groups) for o in ("all_fail", "mixed", "all_pass")},
        **{f"verdict/{verdict}": verdicts[verdict] / len(rollouts) for verdict in Verdict},
        "completions/mean_length": tokens / len(rollouts),
        "completions/clipped_ratio": sum(not r.finished for r in rollouts) / len(rollouts),
        "entropy": -sum(sum(rollout.logprobs) for rollout in rollouts) / tokens,
        "num_tokens": tokens,
    }

    by_skill: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        by_skill[group.problem.skill] += group.rewards
    return metrics | {f"skill/{s}": statistics.fmean(by_skill[s]) for s in sorted(by_skill)}
