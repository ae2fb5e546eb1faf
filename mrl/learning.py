"""One learning step: training samples in, optimizer updates out.

The step's samples may be cut into minibatches, one update each; an update into micro-batches,
which only save memory: the gradient does not depend on them.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mrl.objectives import (
    Objective,
    chunk_ratio,
    chunk_share,
    in_flat_part,
    k3,
    sequence_ratio,
    surrogate_loss,
    token_coefficients,
    token_ratio,
)
from mrl.policy import Policy
from mrl.samples import TrainingSample
from mrl.scoring import cut_by_tokens


@dataclass
class Learnt:
    """What a learning step did: sums for the metrics, and what became of every sample."""

    totals: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    highest: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    fates: Counter[str] = field(default_factory=Counter)  # sample -> what it did, by kind
    updates: int = 0
    notes: list[str] = field(default_factory=list)  # sentences for the person
    gradients: dict[str, float] = field(default_factory=dict)  # own and peers' part, if measured


def learn(
    policy: Policy,
    samples: Sequence[TrainingSample],
    minibatches: int = 1,
    measure_gradients: bool = False,
) -> Learnt:
    """Make up to `minibatches` optimizer updates from the samples, in their order.

    loss of an update = the objective over its "policy" samples
                      + mean over its "nll" samples of weight * mean-token NLL
                      + kl_coef * k3 over its own samples
    Samples that cannot give a gradient (advantage 0) count in the averages but are not computed.
    If the memory does not suffice, the micro-batch is halved and that update begins anew.
    """
    learnt = Learnt()
    probe = _Probe(policy) if measure_gradients else None
    size = math.ceil(len(samples) / minibatches) or 1
    for update, start in enumerate(range(0, len(samples), size)):
        minibatch = samples[start : start + size]
        while True:
            attempt = Learnt()
            try:
                _backward(policy, minibatch, update, attempt, probe)
                break
            except torch.OutOfMemoryError:
                probe = None  # it may have seen a part of this update already
                policy.optimizer.zero_grad(set_to_none=True)
                if policy.micro_batch <= max(len(s.completion_ids) for s in minibatch):
                    raise  # it is one completion that does not fit
                policy.micro_batch //= 2
                learnt.notes.append(
                    f"{policy.name} ran out of memory; it goes on with micro-batches of "
                    f"{policy.micro_batch} tokens."
                )
        _update(policy, attempt)
        _add(learnt, attempt)
    if probe:
        learnt.gradients = probe.figures()
    return learnt


def _backward(
    policy: Policy,
    samples: Sequence[TrainingSample],
    update: int,
    learnt: Learnt,
    probe: "_Probe | None",
) -> None:
    """Add the gradients of one update up, micro-batch by micro-batch; own samples come first."""
    counted = [sample for sample in samples if sample.objective == "policy"]
    counts = {
        "sequences": len(counted),
        "tokens": sum(len(sample.completion_ids) for sample in counted),
        "max_completion_length": policy.config.max_new_tokens,
    }
    imitated = len(samples) - len(counted)
    policy.optimizer.zero_grad(set_to_none=True)
    own_part_done = False
    for sample in samples:
        if sample.weight == 0:
            learnt.fates["dropped"] += 1
        elif not sample.can_teach:  # nothing to compare with: every reward was the same
            learnt.fates["all_pass" if sample.reward else "all_fail"] += 1
    for batch in _micro_batches(samples, policy.micro_batch):
        if probe and batch[0].source and not own_part_done:
            own_part_done = True
            probe.note_own()
        logprobs, mask = policy.completion_logprobs(
            [sample.prompt_ids for sample in batch], [sample.completion_ids for sample in batch]
        )
        if batch[0].objective == "nll":
            loss = _nll_loss(batch, logprobs, mask, imitated, learnt)
        else:
            loss = _policy_loss(policy, batch, logprobs, mask, counts, update, learnt)
            if policy.reference is not None and not batch[0].source:
                loss = loss + _kl_loss(policy, batch, logprobs, mask, counts, learnt)
        loss.backward()
    if probe:
        probe.note_whole(own_part_done)


def _micro_batches(samples: Sequence[TrainingSample], most: int) -> Iterator[list[TrainingSample]]:
    """Samples of one kind, own before peers', up to `most` tokens of neighbours together."""
    kinds: dict[tuple, list[TrainingSample]] = {}
    for sample in samples:
        if sample.can_teach:
            kind = (bool(sample.source), sample.objective == "nll", sample.surrogate)
            kinds.setdefault(kind, []).append(sample)
    for _, chosen in sorted(kinds.items(), key=lambda item: item[0][:2]):
        prompts = [sample.prompt_ids for sample in chosen]
        for part in cut_by_tokens(prompts, [sample.completion_ids for sample in chosen], most):
            yield chosen[part]


def _policy_loss(
    policy: Policy,
    batch: list[TrainingSample],
    logprobs: Tensor,
    mask: Tensor,
    counts: dict[str, int],
    update: int,
    learnt: Learnt,
) -> Tensor:
    objective = batch[0].surrogate or policy.objective
    behavior = torch.zeros_like(logprobs)
    for row, sample in enumerate(batch):
        told = logprobs.new_tensor(sample.behavior_logprobs)
        behavior[row, : len(sample.completion_ids)] = told
    advantages = logprobs.new_tensor([[sample.advantage] for sample in batch])
    weights = logprobs.new_tensor([[sample.weight] for sample in batch])
    ratio, share = _ratio(objective, batch, logprobs, behavior, mask)  # [batch, seq]
    losses = surrogate_loss(ratio, advantages, objective, update)
    factors = weights * share * token_coefficients(mask, objective.aggregation, **counts)
    with torch.no_grad():
        below, above = in_flat_part(ratio, advantages, objective, update)
        flat = ((below | above) & mask).sum(dim=1) == mask.sum(dim=1)  # [batch]
        learnt.fates["clipped"] += int(flat.sum())
        learnt.fates["taught"] += int((~flat).sum())
        who = "peer" if batch[0].source else "own"
        for name, value in (
            ("tokens", mask), ("ratio", ratio * mask),
            ("clip_low", below & mask), ("clip_high", above & mask),
        ):  # fmt: skip
            learnt.totals[f"{who}/{name}"] += float(value.sum())
        learnt.totals[f"{who}/weight"] += float((weights[:, 0] * ~flat).sum())
        learnt.totals[f"{who}/samples"] += len(batch)
        largest = {"ratio": ratio * mask, "logprob_gap": (logprobs - behavior).abs() * mask}
        for name, value in largest.items():
            key = f"{who}/{name}"
            learnt.highest[key] = max(learnt.highest[key], float(value.max()))
    loss = (losses * factors).sum()
    learnt.totals["loss"] += float(loss.detach())
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
    batch: list[TrainingSample], logprobs: Tensor, mask: Tensor, imitated: int, learnt: Learnt
) -> Tensor:
    weights = logprobs.new_tensor([[sample.weight] for sample in batch])
    loss = -(logprobs * weights * token_coefficients(mask, "sequence", imitated, 0, 0)).sum()
    learnt.totals["nll_loss"] += float(loss.detach())
    learnt.totals["nll_nats"] -= float(logprobs.detach().sum())
    learnt.fates["rescued"] += len(batch)
    return loss


def _kl_loss(
    policy: Policy,
    batch: list[TrainingSample],
    logprobs: Tensor,
    mask: Tensor,
    counts: dict[str, int],
    learnt: Learnt,
) -> Tensor:
    """kl_coef * k3 against the frozen reference, averaged as the objective averages.

    Our reading: completions without advantage are left out, as they are not computed at all.
    """
    with torch.no_grad():
        ref_logprobs, _ = policy.completion_logprobs(
            [sample.prompt_ids for sample in batch],
            [sample.completion_ids for sample in batch],
            policy.reference,
        )
    factors = token_coefficients(mask, policy.objective.aggregation, **counts)
    divergence = (k3(logprobs, ref_logprobs) * factors).sum()
    learnt.totals["kl"] += float(divergence.detach())
    return policy.config.kl_coef * divergence


def _update(policy: Policy, attempt: Learnt) -> None:
    """Step the optimizer, unless the gradient is not finite: then weights stay as they were."""
    teaching = [fate for fate in ("taught", "clipped", "rescued") if attempt.fates[fate]]
    if teaching:
        norm = torch.nn.utils.clip_grad_norm_(
            policy.model.parameters(), policy.config.max_grad_norm
        )
        if bool(torch.isfinite(norm)):
            policy.optimizer.step()
            policy.version += 1
            attempt.updates += 1
            attempt.totals["grad_norm"] += float(norm)
        else:
            attempt.totals["update_skipped"] += 1
            attempt.fates["skipped"] += sum(attempt.fates.pop(fate) for fate in teaching)
    policy.optimizer.zero_grad(set_to_none=True)


def _add(learnt: Learnt, attempt: Learnt) -> None:
    """Take an update's figures in; an update that was begun anew counts once."""
    for name, value in attempt.totals.items():
        learnt.totals[name] += value
    for name, value in attempt.highest.items():
        learnt.highest[name] = max(learnt.highest[name], value)
    learnt.fates += attempt.fates
    learnt.updates += attempt.updates


class _Probe:
    """Gradients of the own and of the peers' samples apart, summed over a step's updates."""

    def __init__(self, policy: Policy) -> None:
        self._parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self._own = [torch.zeros_like(p, dtype=torch.float32) for p in self._parameters]
        self._peer = [torch.zeros_like(own) for own in self._own]

    def note_own(self) -> None:
        """Own samples are done, peers' come next: what is there now is not theirs."""
        self._add_to(self._own, 1)
        self._add_to(self._peer, -1)

    def note_whole(self, own_was_noted: bool) -> None:
        """The whole update is done."""
        self._add_to(self._peer if own_was_noted else self._own, 1)

    def _add_to(self, sums: list[Tensor], sign: int) -> None:
        for total, parameter in zip(sums, self._parameters, strict=True):
            if parameter.grad is not None:
                total.add_(parameter.grad, alpha=sign)

    def figures(self) -> dict[str, float]:
        """Both norms and, if there are both parts, the cosine between them."""
        own, peer = (
            math.sqrt(sum(float((total * total).sum()) for total in part))
            for part in (self._own, self._peer)
        )
        found = {"gradient/own_norm": own, "gradient/peer_norm": peer}
        if own > 0 and peer > 0:
            pairs = zip(self._own, self._peer, strict=True)
            found["gradient/cosine"] = sum(float((a * b).sum()) for a, b in pairs) / own / peer
        return found
