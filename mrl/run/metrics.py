"""The numbers of a step: what each is called and means, and how it is counted from groups."""

import math
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from mrl.alignment import split_text
from mrl.allocation import Turn
from mrl.modes import Receiver
from mrl.modes.peers import retokenize
from mrl.policy import Policy
from mrl.records import RewardStats, RolloutRecord, SuccessRecord
from mrl.residual import Residual, measure
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
    "rescue_set": "prompts that failed here altogether, and to which a peer's right text came",
    "rescues": "peers' texts that were imitated on such prompts",
    "dropped/<reason>": "received texts of peers that are empty or too_long for this policy, "
    "whether its mode wanted them or not",
    "thl/refused/<reason>": "received texts of peers that its tokenizer cannot hold exactly, "
    "whether its mode wanted them or not",
    "thl/<figure>": "sums over the peers' texts that became samples (residual.py): records, bytes, "
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
    "outcome/<outcome>": "share of completions, own, received and replayed: taught, rescued (a "
    "peer's text, imitated), replayed (own earlier successes), clipped (wholly in the flat part), "
    "all_fail, all_pass (no advantage), not_needed (the mode made no sample of it; all of a frozen "
    "policy's), dropped (or of weight 0), refused (by alignment), skipped (the update was not "
    "finite); they add up to 1",
    "mode/<figure>": "what the mode itself notes",
    "exchange/published_records, exchange/published_bytes": "by this policy in this step",
    "exchange/received_records, exchange/received_bytes": "from its peers in this step",
    "exchange/refused/<reason>": "records of this policy that the exchange did not take",
    "exchange/not_confirmed": "peers' claimed verdicts that this receiver's own check denied",
    "time/<phase>_s": "seconds of this policy in rollout, verify, judge and learn",
    "time/step_s": "seconds of the whole step, all policies",
    "memory/peak_bytes": "the most so far: of tensors on a CUDA device, of the process on a CPU",
}
OUTCOMES = ("taught", "rescued", "clipped", "all_fail", "all_pass", "not_needed", "dropped")
OUTCOMES += ("refused", "skipped", "replayed")


def meaning(key: str) -> str:
    """What a metric of `metrics.jsonl` means, from `METRICS`."""
    for names, text in METRICS.items():
        for name in names.split(", "):
            if re.fullmatch(re.sub("<.*?>", ".+", name), key):
                return text
    raise KeyError(key)


def step_metrics(receiver: Receiver, result: StepResult) -> dict[str, float]:
    """All figures of a policy's step that do not depend on where and when it ran.

    A figure that is not finite is left out: JSON cannot hold it, and it would spoil every mean.
    """
    figures = group_metrics(result.groups)
    figures |= transfer_metrics(receiver, result)
    figures |= {f"mode/{name}": note for name, note in sorted(result.batch.notes.items())}
    figures |= result.stats.metrics()
    figures |= outcome_metrics(result, figures)
    return {name: figure for name, figure in figures.items() if math.isfinite(figure)}


def sample_lines(step: int, policy: Policy, result: StepResult) -> list[dict]:
    """The step's lines of samples.jsonl: one completion of each group, all rescues and failures."""
    lines: list[dict] = []
    for group in result.groups:
        shown = group.rollouts[0]
        line = {"step": step, "policy": policy.name, "problem": group.problem.id}
        line |= {"solved": sum(group.rewards), "text": shown.text, "verdict": str(shown.verdict)}
        lines.append(line)

    for group, sample in result.rescues:
        # a peer's text, from the receiver's tokens; a mode of one's own may cut it anywhere
        content = [token for token in sample.completion_ids if token != policy.eos_id]
        text = b"".join(policy.codec.token_bytes(content)).decode("utf-8", errors="replace")
        rescue = {"problem_id": group.problem.id, "prompt": group.problem.prompt}
        rescue |= {"skill": group.problem.skill, "receiver": policy.name, "source": sample.source}
        rescue |= {"receiver_text": group.rollouts[0].text, "source_text": text}
        lines.append({"step": step, "rescue": rescue})

    failures = [*result.stats.warnings, *_nothing_to_judge(step, policy, result.groups)]
    return lines + [{"step": step, "failure": text} for text in failures]


def _nothing_to_judge(step: int, policy: Policy, groups: Sequence[Group]) -> list[str]:
    """A sentence if not one completion of a run's first step has an answer: that is a mistake."""
    verdicts = [rollout.verdict for group in groups for rollout in group.rollouts]
    if step > 1 or set(verdicts) - {Verdict.TRUNCATED, Verdict.UNPARSED}:
        return []

    if set(verdicts) == {Verdict.TRUNCATED}:
        return [
            f"{policy.name}: all {len(verdicts)} completions of the first step were cut at "
            f"{policy.max_new_tokens} tokens, before an answer; raise max_new_tokens, or if the "
            "texts in samples.jsonl go on after their answer, look for the model's end token in "
            "its chat template."
        ]
    return [
        f"{policy.name}: none of the {len(verdicts)} completions of the first step has an answer "
        "in \\boxed{}, and nothing else is judged; ask for one in system_prompt, or name a judge "
        "with --set judge=FILE."
    ]


def time_metrics(ledger: Sequence[Turn], policy: str) -> dict[str, float]:
    """One policy's part of a step's ledger: seconds by phase, and those of the whole step."""
    seconds: Counter[str] = Counter()
    for turn in ledger:
        if turn.policy == policy:
            seconds[f"time/{turn.phase}_s"] += turn.stop_s - turn.start_s

    seconds["time/step_s"] = time.perf_counter() - ledger[0].start_s
    return seconds


def transfer_metrics(receiver: Receiver, result: StepResult) -> dict[str, float]:
    """What became of the peers' texts that a policy was given, and what alignment cost."""
    used = Counter(
        (sample.source, tuple(sample.prompt_ids), tuple(sample.completion_ids))
        for sample in result.batch.samples
    )
    refusals: Counter[str] = Counter()
    residual = Residual()
    rescue_set = 0

    for group, texts in _peers_texts(result):
        solved = any(record.verdict == Verdict.CORRECT for record in texts)
        rescue_set += solved and group.outcome == "all_fail"

        # retokenize once more, because a mode keeps no account of what it could not use
        for record in texts:
            token_ids, refusal = retokenize(receiver, record)
            key = record.source, tuple(group.prompt_ids), tuple(token_ids)
            if refusal:
                refusals[refusal] += 1
            elif used[key]:
                used[key] -= 1  # of equal texts one may have been drawn, or all

                content = token_ids[:-1] if record.finished else token_ids
                source_tokens = split_text(record.text, record.token_lengths)
                receiver_tokens = receiver.codec.token_bytes(content)
                residual.update(measure(source_tokens, receiver_tokens, record.canonical))

    figures: dict[str, float] = {"rescue_set": rescue_set, "rescues": len(result.rescues)}
    for refusal, number in sorted(refusals.items()):
        by_tokenizer = refusal.startswith("refused/")
        figures[f"{'thl' if by_tokenizer else 'dropped'}/{refusal}"] = number
    return figures | {f"thl/{name}": number for name, number in sorted(residual.items())}


def _peers_texts(result: StepResult) -> Iterator[tuple[Group, list[RolloutRecord | SuccessRecord]]]:
    """Each group with the records of peers that hold a text."""
    for group in result.groups:
        records = result.confirmed.get(group.problem.id, [])
        yield group, [record for record in records if not isinstance(record, RewardStats)]


def outcome_metrics(result: StepResult, figures: dict[str, float]) -> dict[str, float]:
    """Shares of what became of every completion, own or a peer's: where did my gradient go?

    figures: those of `transfer_metrics`.
    """
    left = 0  # completions that never became a sample
    for group, texts in _peers_texts(result):
        left += len(group.rollouts) + len(texts)

    # an own text of an earlier step (as in mode replay) is not one of this step's completions
    now = {rollout.version for group in result.groups for rollout in group.rollouts}
    for sample in result.batch.samples:
        is_strong = sample.loss == "policy" and sample.behavior_logprobs is None
        if sample.source or (is_strong and sample.sampled_version in {None, *now}):
            left -= 1

    counts = Counter(result.stats.sample_outcomes)  # of the samples
    for name, number in figures.items():
        if name.startswith(("dropped/", "thl/refused/")):
            counts["refused" if name.startswith("thl/") else "dropped"] += number
            left -= number

    # a mode of one's own may use a text twice, or one that `retokenize` refuses: then too few
    counts["not_needed"] = max(left, 0)
    return {f"outcome/{name}": counts[name] / counts.total() for name in OUTCOMES}


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
