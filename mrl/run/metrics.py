"""The metrics of a step: their names, their meanings, and how they are computed."""

import math
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from mrl.alignment import LossyText, Residual, measure, split_text
from mrl.modes import Experience, Receiver
from mrl.placement import Turn
from mrl.policy import Policy
from mrl.records import CompletionRecord
from mrl.reward import Verdict
from mrl.samples import Group, SecondAttempt
from mrl.team import StepResult

METRICS = {
    "step": "number of the training step, starting at 1",
    "policy": "name of the policy that the line is about",
    "version": "number of optimizer updates that the policy has made so far",
    "reward": "mean reward of the step's completions, which is the solve rate",
    "reward_std": "standard deviation of the rewards within a group, mean over groups",
    "groups/<kind>": "share of groups of each kind: all_fail, mixed or all_pass; only mixed groups "
    "give a gradient by themselves",
    "verdict/<verdict>": "share of completions with each verdict: correct, wrong, unparsed (no "
    "readable answer), truncated (cut by the token limit) or timeout",
    "skill/<skill>": "solve rate on the step's prompts of one skill",
    "completions/mean_length": "mean length of the completions in tokens, end token included",
    "completions/clipped_ratio": "share of completions that the token limit cut",
    "entropy": "estimate of the policy's entropy in nats: mean of -log p over sampled tokens",
    "num_tokens": "number of sampled completion tokens",
    "rescue_set": "number of prompts on which all of the policy's attempts failed and a peer sent "
    "a solution",
    "imitated": "number of peers' solutions that were imitated",
    "hinted": "number of second attempts that were imitated",
    "second/attempts, second/successes": "number of second attempts, which continue the beginning "
    "of a peer's solution, and of those that the verifier accepted",
    "second/num_tokens": "number of tokens that were sampled in second attempts",
    "second/share_given": "share of the tokens of a second attempt that its beginning gave, mean "
    "over second attempts",
    "second/recut": "number of correct second attempts that the policy's tokenizer would cut into "
    "other tokens than those that were given and sampled",
    "rescues": "number of those that were imitated because all of the policy's attempts failed",
    "dropped/<reason>": "number of received completions that this policy cannot learn from: empty "
    "or too_long ones (counted even if its mode ignores them)",
    "thl/refused/<reason>": "number of received completions that this policy's tokenizer cannot "
    "encode exactly (counted even if its mode ignores them)",
    "thl/<figure>": "sums over the peers' completions that became training samples (see "
    "alignment.py): records, bytes, bytes_one_to_one, source_tokens, receiver_tokens",
    "loss": "loss of the objective over the policy's own and its peers' samples, mean over "
    "updates; it stays near 0 by construction while ratios are 1 and each group's advantages sum "
    "to 0 (solo, sgt)",
    "loss_nll": "imitation loss multiplied by its weight, mean over updates",
    "kl": "KL divergence from the reference model in nats (k3 estimate), over those of the "
    "policy's own completions that have an advantage, mean over updates; only if kl_coef > 0",
    "updates": "number of optimizer updates in this step",
    "grad_norm": "gradient norm before clipping, mean over the step's updates",
    "update_skipped": "number of updates that were skipped because the gradient was not finite",
    "ratio/mean, ratio/max": "probability ratio pi_theta / pi_behavior, over the tokens of the "
    "policy's own completions from which it learned",
    "clip_ratio/low_mean, clip_ratio/high_mean": "share of these tokens that gave no gradient "
    "because their ratio was clipped; always 0 with one update per step",
    "logprob_gap": "largest difference between a token's log-prob at sampling and at scoring, over "
    "the policy's own completions, in nats; with one update per step it is rounding error alone",
    "outcome/<outcome>": "share of completions with each outcome, among those that the policy "
    "sampled, received or replayed; the shares add up to 1: taught (gave a gradient), imitated (a "
    "peer's solution), hinted (a second attempt, imitated), replayed (a success of the policy "
    "itself, imitated), "
    "clipped (every token), all_fail or all_pass (no advantage), not_needed (the mode did not use "
    "it, or the policy is frozen), dropped (unusable, or of weight 0), refused (by the tokenizer), "
    "skipped (the update was not finite)",
    "mode/<figure>": "a number that the mode itself reports",
    "exchange/published_records, exchange/published_bytes": "records and bytes that this policy "
    "published in this step",
    "exchange/received_records, exchange/received_bytes": "records and bytes that this policy "
    "received from its peers in this step",
    "exchange/refused/<reason>": "number of this policy's records that the exchange refused",
    "exchange/not_confirmed": "number of verdicts claimed by peers that this policy's own check "
    "did not confirm",
    "folder/records": "number of records of other programs that this process read in this step",
    "folder/refused/<reason>": "number of lines in their files that are no usable record",
    "folder/cut_back": "number of files of other programs that became shorter",
    "folder/unreadable_files": "number of links, pipes and other files that were not read",
    "time/<phase>_s": "seconds that this policy spent in each phase: rollout, verify, judge, "
    "try_again (second attempts), learn",
    "time/step_s": "seconds of the whole step, all policies together",
    "memory/peak_bytes": "largest memory so far in bytes: of tensors on a GPU, of the process "
    "on a CPU",
}
OUTCOMES = ("taught", "imitated", "hinted", "replayed", "clipped", "all_fail", "all_pass")
OUTCOMES += ("not_needed", "dropped", "refused", "skipped")


def meaning(key: str) -> str:
    """The description of a metric of `metrics.jsonl`; KeyError for an unknown one."""
    for names, text in METRICS.items():
        for name in names.split(", "):
            if re.fullmatch(re.sub("<.*?>", ".+", name), key):
                return text
    raise KeyError(key)


def step_metrics(receiver: Receiver, result: StepResult) -> dict[str, float]:
    """All metrics of a policy's step except times and memory, which differ between machines.

    Values that are not finite are left out, because JSON cannot hold them.
    """
    metrics = group_metrics(result.groups)
    metrics |= transfer_metrics(receiver, result)
    metrics |= second_metrics(receiver, result)
    metrics |= {f"mode/{name}": note for name, note in sorted(result.batch.notes.items())}
    metrics |= result.stats.metrics()
    metrics |= outcome_metrics(result)
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def sample_lines(step: int, policy: Policy, result: StepResult) -> list[dict]:
    """A policy's lines of samples.jsonl: one completion per group, all rescues, all warnings."""
    lines: list[dict] = []
    for group in result.groups:
        shown = group.rollouts[0]
        line = {"step": step, "policy": policy.name, "problem": group.problem.id}
        line |= {"solved": sum(group.rewards), "text": shown.text, "verdict": str(shown.verdict)}
        lines.append(line)

    for group, record in result.rescues:
        rescue = {"problem_id": group.problem.id, "prompt": group.problem.prompt}
        rescue |= {"skill": group.problem.skill, "receiver": policy.name, "source": record.source}
        rescue |= {"receiver_text": group.rollouts[0].text, "source_text": record.text}
        lines.append({"step": step, "rescue": rescue})

    for sample in result.batch.samples:
        attempt, record = sample.rollout, sample.record
        if isinstance(attempt, SecondAttempt) and record and sample.imitates == "hinted":
            hint = {"problem_id": record.prompt_id, "receiver": policy.name}
            hint |= {"source": record.source, "source_text": record.text}
            hint |= {"given": attempt.given, "text": attempt.text}
            lines.append({"step": step, "hint": hint})

    failures = [*result.stats.warnings, *_nothing_to_judge(step, policy, result.groups)]
    return lines + [{"step": step, "failure": text} for text in failures]


def _nothing_to_judge(step: int, policy: Policy, groups: Sequence[Group]) -> list[str]:
    """A warning if no completion of a run's first step has an answer: then the setup is wrong."""
    verdicts = [rollout.verdict for group in groups for rollout in group.rollouts]
    if step > 1 or set(verdicts) - {Verdict.TRUNCATED, Verdict.UNPARSED}:
        return []

    if set(verdicts) == {Verdict.TRUNCATED}:
        return [
            f"{policy.name}: all {len(verdicts)} completions of the first step reached the limit "
            f"of {policy.max_new_tokens} tokens without an answer. Raise max_new_tokens. If the "
            "completions in samples.jsonl do not stop after their answer, check the model's end "
            "token in its chat template."
        ]
    return [
        f"{policy.name}: none of the {len(verdicts)} completions of the first step has an answer "
        "in \\boxed{}, and only such answers are judged. Ask for them in system_prompt, or use "
        "your own judge: --set judge=FILE."
    ]


def time_metrics(ledger: Sequence[Turn], policy: str) -> dict[str, float]:
    """Seconds of each phase of one policy, and of the whole step, from the step's ledger."""
    seconds: dict[str, float] = {}
    for turn in ledger:
        if turn.policy == policy:
            name = f"time/{turn.phase}_s"
            seconds[name] = seconds.get(name, 0.0) + (turn.stop_s - turn.start_s)

    seconds["time/step_s"] = time.perf_counter() - ledger[0].start_s
    return seconds


def transfer_metrics(receiver: Receiver, result: StepResult) -> dict[str, float]:
    """What became of the peers' completions that a policy received, and what alignment lost."""
    learned = {id(sample.record) for sample in result.batch.samples if not sample.rollout}
    refusals: Counter[str] = Counter()
    residual = Residual()
    rescue_set = 0

    for experience in result.experiences:
        solved = any(record.verdict == Verdict.CORRECT for record, _ in _texts(experience))
        rescue_set += solved and experience.group.outcome == "all_fail"
        refusals.update(one.refusal for one in experience.received if one.refusal)

        for record, token_ids in _texts(experience):
            if id(record) in learned and token_ids:
                content = token_ids[:-1] if record.finished else token_ids
                source_tokens = split_text(record.text, record.token_lengths)
                receiver_tokens = receiver.codec.token_bytes(content)
                residual.update(measure(source_tokens, receiver_tokens))

    metrics: dict[str, float] = {"rescue_set": rescue_set}
    metrics |= {"imitated": len(result.imitated), "rescues": len(result.rescues)}
    metrics |= dict(sorted(refusals.items()))
    return metrics | {f"thl/{name}": number for name, number in sorted(residual.items())}


def second_metrics(receiver: Receiver, result: StepResult) -> dict[str, float]:
    """What the policy's second attempts gave; nothing if it made none."""
    attempts = [attempt for one in result.experiences for attempt in one.second_attempts]
    if not attempts:
        return {}
    solved = [attempt for attempt in attempts if attempt.reward]
    lengths = [len(attempt.completion_ids) for attempt in attempts]
    shares = [one.given / length for one, length in zip(attempts, lengths, strict=True)]
    return {
        "hinted": sum(sample.imitates == "hinted" for sample in result.batch.samples),
        "second/attempts": len(attempts),
        "second/successes": len(solved),
        "second/num_tokens": sum(len(attempt.logprobs) for attempt in attempts),
        "second/share_given": statistics.fmean(shares),
        "second/recut": sum(_is_recut(receiver, attempt) for attempt in solved),
    }


def _is_recut(receiver: Receiver, attempt: SecondAttempt) -> bool:
    """Whether the receiver's tokenizer would cut the text into other tokens."""
    try:
        return receiver.codec.encode(attempt.text) != attempt.content_ids
    except LossyText:
        return True


def _texts(experience: Experience) -> list[tuple[CompletionRecord, list[int]]]:
    """The received records that hold a text, each with the text in the receiver's tokens."""
    pairs = [(received.record, received.token_ids) for received in experience.received]
    return [pair for pair in pairs if isinstance(pair[0], CompletionRecord)]


def _texts_of_samples(result: StepResult) -> set[int]:
    """The `id` of each record and of each own completion that a sample was made from."""
    return {id(text) for sample in result.batch.samples for text in (sample.record, sample.rollout)}


def outcome_metrics(result: StepResult) -> dict[str, float]:
    """What became of the policy's own and its peers' completions: the share of each outcome."""
    pointed_at = _texts_of_samples(result)
    own = [rollout for group in result.groups for rollout in group.rollouts]
    texts = [text for experience in result.experiences for text in _texts(experience)]
    received = [one for experience in result.experiences for one in experience.received]
    refusals = [one.refusal for one in received if one.refusal]

    counts = Counter(result.stats.sample_outcomes)
    counts["refused"] += sum(name.startswith("thl/") for name in refusals)
    counts["dropped"] += sum(name.startswith("dropped/") for name in refusals)
    counts["not_needed"] = sum(id(rollout) not in pointed_at for rollout in own)
    counts["not_needed"] += sum(id(record) not in pointed_at for record, ids in texts if ids)
    return {f"outcome/{name}": counts[name] / counts.total() for name in OUTCOMES}


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The metrics of a policy's own groups of one step."""
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
