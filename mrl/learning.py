"""Stage 6: training samples in, optimizer updates out.

The samples of a step may be cut into minibatches, and each minibatch gives one optimizer update.
The samples of an update are cut into micro-batches, which only saves memory: every average divides
by counts of the whole update, so the gradient does not depend on the micro-batches.

diagnostics.py counts what the updates did.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from mrl.config import PolicyConfig
from mrl.diagnostics import LearningStats, TokenStats, token_stats
from mrl.errors import is_out_of_memory
from mrl.logprobs import cut_by_tokens
from mrl.objectives import (
    Objective,
    chunk_ratio,
    chunk_share,
    k3,
    sequence_mean_coefficients,
    sequence_ratio,
    surrogate_loss,
    token_coefficients,
    token_ratio,
)
from mrl.samples import TrainingSample, prompt_and_completion_ids

if TYPE_CHECKING:  # loading a model imports them, and takes long
    from transformers import PreTrainedModel

# Limits for |log-prob at sampling - log-prob at scoring|, in nats, over the policy's own tokens
# before a step's first update. A gap above the limit is more than rounding. In float32 the limit is
# for the largest gap, which TF32 raises to about 1e-3. In bfloat16, rounding alone brings the
# largest gap near 1, so the limit is for the mean gap.
LARGEST_GAP = 2e-2
LARGEST_MEAN_GAP = 5e-2


class Learner(Protocol):
    """What `learn` needs from a policy. A toy with these attributes learns by the same code."""

    name: str
    version: int
    config: PolicyConfig  # only max_grad_norm and kl_coef
    objective: Objective
    reference: PreTrainedModel | None
    max_new_tokens: int
    max_tokens_per_forward: int
    mixed_precision: bool
    sampler_is_wrong: bool

    @property
    def model(self) -> torch.nn.Module:
        """The module whose parameters get the gradients."""
        ...

    def score(
        self,
        prompts: Sequence[list[int]],
        completions: Sequence[list[int]],
        model: PreTrainedModel | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probs with gradient, and their mask (see `Policy.score`)."""
        ...

    def logprobs_of(
        self, prompts: Sequence[list[int]], completions: Sequence[list[int]]
    ) -> list[list[float]]:
        """Log-probs without gradient (see `Policy.logprobs_of`)."""
        ...

    def zero_grad(self) -> None:
        """Forget the current gradients."""
        ...

    def step_optimizer(self) -> None:
        """Update the weights with the current gradients, and count the update."""
        ...


def learn(policy: Learner, samples: Sequence[TrainingSample], updates: int = 1) -> LearningStats:
    """Make at most `updates` optimizer updates from the samples, in their order.

    Every update takes the same number of samples, rounded up, so there may be fewer updates than
    `updates`. For example, with `updates=48`, 128 samples make 43 updates of 3 samples each (the
    last one has only 2).

    The loss of an update has four terms. "Own" samples are those that the policy sampled itself
    (`source` is empty):

        loss = average over the update's "policy" samples of weight * (the clipped objective's loss)
             + mean over its "imitation" samples from peers of weight * (mean NLL of a token)
             + the same mean over its own "imitation" samples
             + kl_coef * average of k3 over own "policy" samples that are computed

    "Average" is the objective's own aggregation, over the whole update. If the samples do not
    divide evenly, the last update has fewer samples, and each of them weighs more.

    A sample that needs no forward pass (weight 0, or a "policy" sample with advantage 0) has no
    gradient and is not computed. It still counts in the denominators of the first three terms;
    otherwise the other samples would weigh more. It does not count in the last term, because its
    KL is never computed.
    """
    size = max(1, math.ceil(len(samples) / updates))  # a step may have no samples
    batches = [samples[start : start + size] for start in range(0, len(samples), size)]

    if policy.mixed_precision:
        # the first minibatch does not need this, because policy_loss sets the ratio to 1 there
        batches[1:] = [_with_scored_logprobs(policy, minibatch) for minibatch in batches[1:]]

    stats = LearningStats()
    for minibatch in batches:
        update_stats = add_gradients_in_memory(policy, minibatch, stats.updates)
        optimizer_step(policy, update_stats)
        stats.add(update_stats)

    if stats.updates_skipped:  # the weights have not changed, so the run can continue
        stats.warnings.append(
            f"{policy.name}: a gradient was not finite, so its update was skipped. If this "
            "repeats, lower the learning rate."
        )
    warn_of_wrong_sampler(policy, stats)
    return stats


def add_gradients_in_memory(
    policy: Learner, samples: Sequence[TrainingSample], updates_done: int
) -> LearningStats:
    """Run `add_gradients`; whenever memory runs out, halve the micro-batch and try again."""
    warnings: list[str] = []
    while True:
        try:
            stats = add_gradients(policy, samples, updates_done)
            stats.warnings += warnings
            return stats
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            longest = max(len(s.completion_ids) for s in samples if s.needs_forward)
            if policy.max_tokens_per_forward <= longest:  # a single completion does not fit
                raise
            policy.max_tokens_per_forward //= 2
            warnings.append(
                f"{policy.name} ran out of memory; it continues with "
                f"{policy.max_tokens_per_forward} tokens per forward pass."
            )
        # Retry only here, after `except`: its traceback keeps the failed tensors alive.


def warn_of_wrong_sampler(policy: Learner, stats: LearningStats) -> None:
    """Add a warning, once per policy, if the sampler's log-probs differ from those of scoring.

    Before the first update, the ratios of own samples are 1 by definition, so no other number would
    show this fault. Its cause may be a model that decodes differently than it scores, or a CUDA
    graph (models/cuda_graph.py) that was right only for the step at which it was recorded.
    """
    if policy.mixed_precision:
        kind, gap, most = "on average", stats.own.on_policy_gap_mean, LARGEST_MEAN_GAP
    else:
        kind, gap, most = "at most", stats.own.on_policy_gap_max, LARGEST_GAP

    if gap > most and not policy.sampler_is_wrong:
        policy.sampler_is_wrong = True
        stats.warnings.append(
            f"{policy.name}: log-probs at sampling and at scoring differ by {gap:.2g} nats {kind}, "
            "which is more than rounding error. Its results cannot be trusted; use another model."
        )


def _with_scored_logprobs(
    policy: Learner, samples: Sequence[TrainingSample]
) -> list[TrainingSample]:
    """The samples; own ones have the log-probs that scoring gives before the first update.

    Sampling and scoring round differently in bfloat16. In the recorded runs of two pretrained
    models, a token's two log-probs are up to 0.94 nats apart (metric `logprob_gap`). gspo clips
    outside 1 - 3e-4 .. 1 + 4e-4, so rounding alone would make it clip. After this replacement, both
    sides of the ratio come from scoring, and the rounding cancels.

    Other samples keep their log-probs. A completion of an earlier step was sampled by older
    weights. For a peer's completion, the modes naive and graft have just computed the log-probs in
    nearly this way; in hacpo and prp they come from the peer, whose model is not available here.
    """
    own = []
    for row, sample in enumerate(samples):
        if sample.loss == "policy" and sample.needs_forward and _is_on_policy(policy, sample):
            own.append(row)
    scored = policy.logprobs_of(*prompt_and_completion_ids([samples[row] for row in own]))

    changed = list(samples)
    for row, logprobs in zip(own, scored, strict=True):
        changed[row] = replace(samples[row], behavior_logprobs=logprobs)
    return changed


def _is_on_policy(policy: Learner, sample: TrainingSample) -> bool:
    """Whether the policy itself sampled this completion, with the weights that it has now."""
    return not sample.source and sample.sampled_version == policy.version


def add_gradients(
    policy: Learner, samples: Sequence[TrainingSample], updates_done: int
) -> LearningStats:
    """Add up the gradients of one update, micro-batch by micro-batch.

    updates_done: number of optimizer updates made so far in this step.
    """
    # an earlier try that ran out of memory may have left gradients behind
    policy.zero_grad()
    stats = LearningStats()
    _count_samples_without_gradient(samples, stats)

    # Samples without gradient count as well. Otherwise, in a batch with many groups whose rewards
    # are all equal, each of the other samples would get a larger weight.
    policy_samples = [sample for sample in samples if sample.loss == "policy"]
    objective_counts = _counts_to_average_over(policy, policy_samples)
    own = [sample for sample in policy_samples if sample.needs_forward and not sample.source]
    kl_counts = _counts_to_average_over(policy, own)
    # separate means, so that a weight means the same however many own ones there are
    imitated = Counter(bool(sample.source) for sample in samples if sample.loss == "imitation")

    for batch in micro_batches(samples, policy.max_tokens_per_forward):
        # logprobs: [batch, seq] nats, with gradient; mask: True on completion tokens, including EOS
        logprobs, mask = policy.score(*prompt_and_completion_ids(batch))
        loss = logprobs.new_zeros(())
        for rows in rows_with_one_loss(batch):
            part, some_logprobs, some_mask = [batch[i] for i in rows], logprobs[rows], mask[rows]
            from_peer = bool(part[0].source)

            if part[0].loss == "imitation":
                nll = imitation_loss(part, some_logprobs, some_mask, imitated[from_peer])
                stats.nll_loss += float(nll.detach())
                stats.sample_outcomes.update(sample.imitates for sample in part)
                loss = loss + nll
                continue

            surrogate, numbers = policy_loss(
                policy, part, some_logprobs, some_mask, objective_counts, updates_done
            )
            stats.add_policy_loss(surrogate, numbers, from_peer)
            loss = loss + surrogate
            if policy.reference is not None and not from_peer:
                kl = kl_divergence(policy, part, some_logprobs, kl_counts)
                stats.kl = (stats.kl or 0.0) + float(kl.detach())
                loss = loss + policy.config.kl_coef * kl

        loss.backward()
    return stats


def _counts_to_average_over(policy: Learner, samples: Sequence[TrainingSample]) -> dict[str, int]:
    """The counts over a whole update that `token_coefficients` divides by, as its arguments."""
    return {
        "sequences": len(samples),
        "tokens": sum(len(sample.completion_ids) for sample in samples),
        "max_completion_length": policy.max_new_tokens,
    }


def micro_batches(
    samples: Sequence[TrainingSample], max_tokens: int
) -> Iterator[list[TrainingSample]]:
    """Cut the samples that need a forward pass into micro-batches of about `max_tokens` tokens."""
    needed = [sample for sample in samples if sample.needs_forward]
    for part in cut_by_tokens(*prompt_and_completion_ids(needed), max_tokens):
        yield needed[part]


def rows_with_one_loss(batch: Sequence[TrainingSample]) -> list[list[int]]:
    """The rows of a micro-batch, grouped so that one loss function fits each group.

    Samples share a group only if they agree in four things: whether they are a peer's, whether they
    are imitated, which version of the policy sampled them, and their objective.
    """
    rows: dict[tuple, list[int]] = {}
    for row, sample in enumerate(batch):
        key = (bool(sample.source), sample.loss, sample.sampled_version, sample.objective)
        rows.setdefault(key, []).append(row)
    return list(rows.values())


def policy_loss(
    policy: Learner,
    batch: Sequence[TrainingSample],
    logprobs: Tensor,
    mask: Tensor,
    counts: dict[str, int],
    updates_done: int,
) -> tuple[Tensor, TokenStats]:
    """The clipped objective over one micro-batch (a scalar), and its statistics.

    logprobs: [batch, seq] nats, with gradient; mask: [batch, seq] bool, True on completion tokens.
    counts: taken over the whole update. updates_done: number of updates made so far in this step.
    """
    objective = batch[0].objective or policy.objective  # the same in a whole micro-batch
    advantages = logprobs.new_tensor([[sample.advantage] for sample in batch])  # [batch, 1]
    weights = logprobs.new_tensor([[sample.weight] for sample in batch])  # [batch, 1]

    # The ratio's denominator. It gets the dtype of `logprobs`, so that numbers which the policy
    # computed itself give a ratio of exactly 1.
    behavior_logprobs = torch.zeros_like(logprobs)  # [batch, seq]
    for row, sample in enumerate(batch):
        values = logprobs.new_tensor(sample.behavior_logprobs)
        behavior_logprobs[row, : len(values)] = values
    logprob_gap = (logprobs.detach() - behavior_logprobs).abs()

    # If the current weights sampled these completions, a gap can only be rounding. Then the
    # samples' numbers are not used, and the ratio is exactly 1; its gradient is not 0.
    on_policy = _is_on_policy(policy, batch[0])  # the same in a whole micro-batch
    if on_policy:
        behavior_logprobs = logprobs.detach()

    # A chunk's ratio is repeated at each of its tokens; this weight makes it count only once.
    chunk_weight: Tensor | float = 1.0
    if objective.ratio_level == "token":
        ratio = token_ratio(logprobs, behavior_logprobs, mask)
    elif objective.ratio_level == "sequence":
        ratio = sequence_ratio(logprobs, behavior_logprobs, mask)
    else:
        chunk_of = torch.zeros_like(mask, dtype=torch.int64)
        for row, sample in enumerate(batch):
            chunk_of[row, : len(sample.chunk_of)] = torch.tensor(sample.chunk_of)
        ratio = chunk_ratio(logprobs, behavior_logprobs, mask, chunk_of)
        chunk_weight = chunk_share(mask, chunk_of)

    # [batch, seq] each; below and above are True where a token is clipped and has no gradient
    token_losses, below, above = surrogate_loss(ratio, advantages, objective, updates_done)
    coefficients = token_coefficients(mask, objective.aggregation, **counts)
    # With grpo and only own samples, the *value* of the loss is about 0 while ratios are 1, because
    # the advantages of a group sum to 0. The gradient is not 0: the value says nothing about
    # progress.
    loss = (token_losses * (weights * chunk_weight * coefficients)).sum()

    ratio = ratio.detach()
    return loss, token_stats(mask, ratio, below, above, logprob_gap, on_policy)


def imitation_loss(
    batch: Sequence[TrainingSample], logprobs: Tensor, mask: Tensor, imitation_count: int
) -> Tensor:
    """Weighted negative log-likelihood of one micro-batch, a scalar.

    The mean is first over the tokens of a completion, so that a long one weighs no more than a
    short one, and then over the `imitation_count` imitated completions of the whole update: those
    of peers, or those of the policy itself.
    """
    weights = logprobs.new_tensor([[sample.weight] for sample in batch])  # [batch, 1]
    coefficients = sequence_mean_coefficients(mask, imitation_count)  # [batch, seq]
    return -(logprobs * weights * coefficients).sum()


def kl_divergence(
    policy: Learner,
    batch: Sequence[TrainingSample],
    logprobs: Tensor,
    counts: dict[str, int],
) -> Tensor:
    """The k3 estimate of KL to the frozen reference, averaged like the objective; a scalar.

    counts: taken over the policy's own completions whose advantage is not 0. So neither groups with
    equal rewards nor peers' samples change the scale of the KL term. (This is our reading of the
    paper: a mean over all own completions would count a 0 for each one whose KL is not computed.)
    """
    with torch.no_grad():
        ref_logprobs, mask = policy.score(*prompt_and_completion_ids(batch), policy.reference)
    logprobs = logprobs[:, : mask.shape[1]]  # the longest completion may be in another batch
    objective = batch[0].objective or policy.objective
    coefficients = token_coefficients(mask, objective.aggregation, **counts)
    return (k3(logprobs, ref_logprobs) * coefficients).sum()


def optimizer_step(policy: Learner, update_stats: LearningStats) -> None:
    """Update the weights and count the update, if the gradient is finite and not 0.

    The gradient is 0 if no sample was computed, or if every token was clipped and there is no KL
    term. In that case, Adam's momentum alone would still move the weights.
    """
    norm = float(
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), policy.config.max_grad_norm)
    )
    if not math.isfinite(norm):
        update_stats.updates_skipped = 1
        # the update did none of this
        for outcome in ("taught", "clipped", "imitated", "hinted", "replayed"):
            update_stats.sample_outcomes["skipped"] += update_stats.sample_outcomes.pop(outcome, 0)
    elif norm > 0:
        policy.step_optimizer()
        update_stats.updates = 1
        update_stats.grad_norm = norm
    policy.zero_grad()


def _count_samples_without_gradient(
    samples: Sequence[TrainingSample], stats: LearningStats
) -> None:
    for sample in samples:
        if sample.weight == 0:
            stats.sample_outcomes["dropped"] += 1
        elif not sample.needs_forward:
            # Its advantage is 0, so all rewards of its group equal its own reward. (In some modes,
            # a reward can also lie exactly at the baseline; such a sample is counted here as well.)
            stats.sample_outcomes["all_pass" if sample.reward else "all_fail"] += 1
