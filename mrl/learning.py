"""Stage 6: training samples in, optimizer updates out.

A step's samples may be cut into minibatches, one update each; an update into micro-batches, which
only save memory: the gradient does not depend on them, because every average is taken over counts
of the whole update.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mrl.logprobs import cut_by_tokens
from mrl.objectives import (
    Objective,
    chunk_ratio,
    chunk_share,
    k3,
    sequence_ratio,
    surrogate_loss,
    token_coefficients,
    token_ratio,
)
from mrl.policy import Policy
from mrl.samples import TrainingSample, ids_of


@dataclass
class UpdateStats:
    """What updates did: sums for the metrics, and what became of every sample."""

    totals: Counter[str] = field(default_factory=Counter)
    highest: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    outcomes: Counter[str] = field(default_factory=Counter)  # outcome -> number of samples
    updates: int = 0
    notes: list[str] = field(default_factory=list)  # sentences for the person

    def add(self, other: "UpdateStats") -> None:
        """Take the figures of one more update in."""
        self.totals.update(other.totals)  # adds, negative numbers too
        self.outcomes.update(other.outcomes)
        self.updates += other.updates
        self.notes += other.notes
        for name, value in other.highest.items():
            self.highest[name] = max(self.highest[name], value)


def learn(policy: Policy, samples: Sequence[TrainingSample], minibatches: int = 1) -> UpdateStats:
    """Make up to `minibatches` optimizer updates from the samples, in their order.

    loss of an update = the objective over its "policy" samples
                      + mean over its "imitation" samples of weight * mean-token NLL
                      + kl_coef * k3 over its own samples that have an advantage
    Samples that cannot give a gradient (advantage 0) count in the averages but are not computed.
    """
    stats = UpdateStats()
    size = math.ceil(len(samples) / minibatches) or 1  # of a minibatch, in samples
    parts = [samples[start : start + size] for start in range(0, len(samples), size)]
    for minibatch in parts[1:] if policy.mixed_precision else ():
        _score_again(policy, minibatch)
    for minibatch in parts:
        update = _gradient(policy, minibatch, stats.updates)
        _update(policy, update)
        stats.add(update)
    return stats


def _score_again(policy: Policy, samples: Sequence[TrainingSample]) -> None:
    """Give own samples the log-probs that learning would compute now, before the first update.

    bfloat16 samples and scores up to 0.2 nats a token apart; gspo's band is 3e-4 wide.
    Peers' samples keep theirs: naive and graft took them from the same `logprobs_of` before the
    same update, and in the other modes they are the source's, which cannot be computed here.
    """
    own = [s for s in samples if s.has_gradient and s.loss == "policy" and not s.source]
    scored = policy.logprobs_of(*ids_of(own))
    for sample, logprobs in zip(own, scored, strict=True):
        sample.behavior_logprobs = logprobs


def _gradient(policy: Policy, samples: Sequence[TrainingSample], updates_done: int) -> UpdateStats:
    """One update's gradient; if memory runs out it begins again, with half the micro-batch."""
    notes: list[str] = []
    while True:
        try:
            return replace(_backward(policy, samples, updates_done), notes=notes)
        except torch.OutOfMemoryError:
            if policy.micro_batch <= max(len(s.completion_ids) for s in samples):
                raise  # it is one completion that does not fit
            n = policy.micro_batch = policy.micro_batch // 2
            notes.append(f"{policy.name} ran out of memory; it goes on with {n} tokens at once.")


def _backward(policy: Policy, samples: Sequence[TrainingSample], updates_done: int) -> UpdateStats:
    """Add the gradients of one update up, micro-batch by micro-batch; own samples come first."""
    stats = UpdateStats()
    counted = [sample for sample in samples if sample.loss == "policy"]
    # samples without gradient are counted: else the others would weigh more where groups are flat
    counts = _counts(policy, counted)
    own = _counts(policy, [s for s in counted if s.has_gradient and not s.source])
    imitated = len(samples) - len(counted)
    policy.optimizer.zero_grad(set_to_none=True)
    for sample in samples:
        if sample.weight == 0:
            stats.outcomes["dropped"] += 1
        elif not sample.has_gradient:  # its reward is the baseline, as where all agree
            stats.outcomes["all_pass" if sample.reward else "all_fail"] += 1
    for batch in _micro_batches(samples, policy.micro_batch):
        # [batch, seq] nats, with gradient; True on completion tokens, the end token included
        logprobs, mask = policy.completion_logprobs(*ids_of(batch))
        if batch[0].loss == "imitation":
            loss = _nll_loss(batch, logprobs, mask, imitated, stats)
        else:
            loss = _policy_loss(policy, batch, logprobs, mask, counts, updates_done, stats)
            if policy.reference is not None and not batch[0].source:
                loss = loss + _kl_loss(policy, batch, logprobs, mask, own, stats)
        loss.backward()
    return stats


def _counts(policy: Policy, samples: Sequence[TrainingSample]) -> dict[str, int]:
    """What `token_coefficients` divides by: the samples of a whole update."""
    return {
        "sequences": len(samples),
        "tokens": sum(len(sample.completion_ids) for sample in samples),
        "max_completion_length": policy.max_new_tokens,
    }


def _micro_batches(samples: Sequence[TrainingSample], most: int) -> Iterator[list[TrainingSample]]:
    """Samples of one kind, own before peers', up to `most` tokens of neighbours together."""
    kinds: dict[tuple, list[TrainingSample]] = {}
    for sample in samples:
        if sample.has_gradient:  # an all-fail group costs no forward pass
            kind = (bool(sample.source), sample.loss == "imitation", sample.objective)
            kinds.setdefault(kind, []).append(sample)
    for _, chosen in sorted(kinds.items(), key=lambda item: item[0][:2]):
        for part in cut_by_tokens(*ids_of(chosen), most):
            yield chosen[part]


def _policy_loss(
    policy: Policy,
    batch: list[TrainingSample],
    logprobs: Tensor,
    mask: Tensor,
    counts: dict[str, int],
    updates_done: int,
    stats: UpdateStats,
) -> Tensor:
    objective = batch[0].objective or policy.objective  # one for all: see _micro_batches
    behavior = torch.zeros_like(logprobs)
    for row, sample in enumerate(batch):
        # in the dtype of logprobs: numbers that it computed itself then give a ratio of exactly 1
        behavior[row, : len(sample.completion_ids)] = logprobs.new_tensor(sample.behavior_logprobs)
    gap = (logprobs.detach() - behavior).abs() * mask
    if policy.version == policy.sampled_version and not batch[0].source:
        # no update since it wrote these: the gap is rounding, and its ratios are 1
        behavior = logprobs.detach()
    advantages = logprobs.new_tensor([[sample.advantage] for sample in batch])  # [batch, 1]
    weights = logprobs.new_tensor([[sample.weight] for sample in batch])
    ratio, share = _ratio(objective, batch, logprobs, behavior, mask)  # [batch, seq]
    # [batch, seq] each; True where a token is clipped, so without gradient
    losses, below, above = surrogate_loss(ratio, advantages, objective, updates_done)
    factors = weights * share * token_coefficients(mask, objective.aggregation, **counts)
    loss = (losses * factors).sum()  # near 0 while ratios are 1 if a group's A sum to 0
    with torch.no_grad():
        clipped = ((below | above) & mask).sum(dim=1) == mask.sum(dim=1)  # [batch]: every token
        stats.outcomes.update(clipped=int(clipped.sum()), taught=int((~clipped).sum()))
        sums = {
            "tokens": mask,
            "ratio": ratio * mask,
            "clip_low": below & mask,
            "clip_high": above & mask,
            "weight": weights[:, 0] * ~clipped,
        }
        who = "peer" if batch[0].source else "own"
        stats.totals.update({f"{who}/{name}": float(value.sum()) for name, value in sums.items()})
        stats.totals.update({f"{who}/samples": len(batch), "loss": float(loss)})
        for name, value in (("ratio", sums["ratio"]), ("logprob_gap", gap)):
            stats.highest[f"{who}/{name}"] = max(stats.highest[f"{who}/{name}"], float(value.max()))
    return loss


def _ratio(
    objective: Objective,
    batch: list[TrainingSample],
    logprobs: Tensor,
    behavior: Tensor,
    mask: Tensor,
) -> tuple[Tensor, Tensor | float]:
    """Each token's ratio, and what share of that ratio's loss stands at the token."""
    if objective.ratio_level == "token":
        return token_ratio(logprobs, behavior, mask), 1.0
    if objective.ratio_level == "sequence":  # its gradient has the 1 / |y| within it
        return sequence_ratio(logprobs, behavior, mask), 1.0
    chunk_of = torch.zeros_like(mask, dtype=torch.int64)
    for row, sample in enumerate(batch):
        chunk_of[row, : len(sample.chunk_of)] = torch.tensor(sample.chunk_of)
    return chunk_ratio(logprobs, behavior, mask, chunk_of), chunk_share(mask, chunk_of)


def _nll_loss(
    batch: list[TrainingSample], logprobs: Tensor, mask: Tensor, imitated: int, stats: UpdateStats
) -> Tensor:
    weights = logprobs.new_tensor([[sample.weight] for sample in batch])
    # mean over a text's tokens, then over the update's imitated texts: a long one weighs no more
    loss = -(logprobs * weights * token_coefficients(mask, "sequence", imitated, 0, 0)).sum()
    stats.totals["nll_loss"] += float(loss.detach())
    # own earlier successes (mode replay) have no source
    stats.outcomes["rescued" if batch[0].source else "replayed"] += len(batch)
    return loss


def _kl_loss(
    policy: Policy,
    batch: list[TrainingSample],
    logprobs: Tensor,
    mask: Tensor,
    counts: dict[str, int],
    stats: UpdateStats,
) -> Tensor:
    """kl_coef * k3 against the frozen reference, averaged as the objective averages.

    Over the own completions that have an advantage (our reading: the others are not computed), so
    that neither flat groups nor peers' samples change its scale.
    """
    with torch.no_grad():
        ref_logprobs, _ = policy.completion_logprobs(*ids_of(batch), policy.reference)
    objective = batch[0].objective or policy.objective
    factors = token_coefficients(mask, objective.aggregation, **counts)
    divergence = (k3(logprobs, ref_logprobs) * factors).sum()
    stats.totals["kl"] += float(divergence.detach())
    return policy.config.kl_coef * divergence


def _update(policy: Policy, stats: UpdateStats) -> None:
    """Step the optimizer, if the gradient is finite and not 0; else the weights stay."""
    parameters = policy.model.parameters()
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, policy.config.max_grad_norm))
    if not math.isfinite(norm):
        stats.totals["update_skipped"] = 1
        computed = ("taught", "clipped", "rescued", "replayed")
        stats.outcomes["skipped"] = sum(stats.outcomes.pop(key, 0) for key in computed)
    elif norm > 0:  # with 0 (all clipped) Adam's momentum would move the weights all the same
        policy.optimizer.step()
        policy.version += 1
        stats.updates = 1
        stats.totals["grad_norm"] = norm
    policy.optimizer.zero_grad(set_to_none=True)
