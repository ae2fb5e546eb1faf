"""What the updates of a step did, in numbers: the bookkeeping beside learning.py's mathematics.

`policy_loss` returns its loss and the tensors that describe it (`PolicyDiagnostics`). Here they
become sums (`LearningStats`), and the sums become metrics under the names of metrics.jsonl.
"""

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class PolicyDiagnostics:
    """Tensors without gradient that describe the policy loss of one micro-batch."""

    mask: Tensor  # [batch, seq] bool, True on completion tokens
    ratio: Tensor  # [batch, seq] pi_theta / pi_behavior
    clipped_low: Tensor  # [batch, seq] bool: clipped, because the ratio is below the band
    clipped_high: Tensor  # [batch, seq] bool: clipped, because the ratio is above the band
    weights: Tensor  # [batch] of the samples
    logprob_gap: Tensor  # [batch, seq] |log-prob now - the ratio's denominator|, nats
    on_policy: bool  # own samples, and no update since they were written: any gap is numerical

    @property
    def wholly_clipped(self) -> Tensor:
        """[batch] bool: every token is clipped, so of its losses only a KL term has a gradient."""
        clipped = (self.clipped_low | self.clipped_high) & self.mask
        return clipped.sum(dim=1) == self.mask.sum(dim=1)


@dataclass
class TokenStats:
    """Sums and maxima of one side, own or peers', over samples whose policy loss was computed."""

    samples: int = 0
    tokens: float = 0.0
    ratio: float = 0.0  # sum over the tokens
    ratio_max: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    weight: float = 0.0  # sum over the samples; one that is wholly clipped counts as 0
    logprob_gap_max: float = 0.0
    # the same gap, only where the weights have not moved
    on_policy_gap_max: float = 0.0
    on_policy_gap: float = 0.0  # sum over the tokens
    on_policy_tokens: float = 0.0

    def add_micro_batch(self, micro: PolicyDiagnostics) -> None:
        """Add one micro-batch."""
        mask, ratio = micro.mask, micro.ratio * micro.mask
        self.samples += len(mask)
        self.tokens += float(mask.sum())
        self.ratio += float(ratio.sum())
        self.clipped_low += float((micro.clipped_low & mask).sum())
        self.clipped_high += float((micro.clipped_high & mask).sum())
        self.weight += float((micro.weights * ~micro.wholly_clipped).sum())
        self.ratio_max = max(self.ratio_max, float(ratio.max()))
        gaps = micro.logprob_gap * mask
        gap = float(gaps.max())
        self.logprob_gap_max = max(self.logprob_gap_max, gap)
        if micro.on_policy:
            self.on_policy_gap_max = max(self.on_policy_gap_max, gap)
            self.on_policy_gap += float(gaps.sum())
            self.on_policy_tokens += float(mask.sum())

    def add(self, other: "TokenStats") -> None:
        """Add the sums of one more update."""
        self.samples += other.samples
        self.tokens += other.tokens
        self.ratio += other.ratio
        self.clipped_low += other.clipped_low
        self.clipped_high += other.clipped_high
        self.weight += other.weight
        self.ratio_max = max(self.ratio_max, other.ratio_max)
        self.logprob_gap_max = max(self.logprob_gap_max, other.logprob_gap_max)
        self.on_policy_gap_max = max(self.on_policy_gap_max, other.on_policy_gap_max)
        self.on_policy_gap += other.on_policy_gap
        self.on_policy_tokens += other.on_policy_tokens

    @property
    def on_policy_gap_mean(self) -> float:
        """Mean over the tokens; 0 where there was none."""
        return self.on_policy_gap / max(self.on_policy_tokens, 1.0)

    def metrics(self, prefix: str = "") -> dict[str, float]:
        """Means over the tokens, and the largest ratio; nothing where there was no token."""
        if not self.tokens:
            return {}
        return {
            f"{prefix}ratio/mean": self.ratio / self.tokens,
            f"{prefix}ratio/max": self.ratio_max,
            f"{prefix}clip_ratio/low_mean": self.clipped_low / self.tokens,
            f"{prefix}clip_ratio/high_mean": self.clipped_high / self.tokens,
        }


@dataclass
class LearningStats:
    """What one update did, or all updates of a step together."""

    updates: int = 0  # optimizer steps that were made; a gradient of 0 makes none
    updates_skipped: int = 0  # because the gradient was not finite
    grad_norm: float = 0.0  # before clipping; of several updates, the sum
    loss: float = 0.0  # of the policy objective
    nll_loss: float = 0.0  # of the imitation, weight included
    kl: float | None = None  # None: no KL term, or no own sample that had a gradient
    own: TokenStats = field(default_factory=TokenStats)
    peer: TokenStats = field(default_factory=TokenStats)
    # What became of each sample: taught, clipped (in every token), rescued, replayed, dropped
    # (weight 0), all_fail or all_pass (no advantage), skipped. runtime/metrics.py makes shares.
    sample_outcomes: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)  # sentences for the person who runs it

    def add(self, update: "LearningStats") -> None:
        """Add the figures of one more update."""
        self.updates += update.updates
        self.updates_skipped += update.updates_skipped
        self.grad_norm += update.grad_norm
        self.loss += update.loss
        self.nll_loss += update.nll_loss
        if update.kl is not None:
            self.kl = (self.kl or 0.0) + update.kl

        self.own.add(update.own)
        self.peer.add(update.peer)
        self.sample_outcomes.update(update.sample_outcomes)
        self.warnings += update.warnings

    def metrics(self) -> dict[str, float]:
        """The figures under their names in metrics.jsonl.

        Losses and norm are sums over all minibatches, divided by the updates that were made.
        """
        updates = max(self.updates, 1)
        metrics: dict[str, float] = {
            "updates": self.updates,
            "loss": self.loss / updates,
            "loss_nll": self.nll_loss / updates,
            "grad_norm": self.grad_norm / updates,
            "update_skipped": self.updates_skipped,
            "logprob_gap": self.own.logprob_gap_max,
            "logprob_gap_mean": self.own.on_policy_gap_mean,
        }
        if self.kl is not None:
            metrics["kl"] = self.kl / updates

        metrics |= self.own.metrics()
        metrics |= self.peer.metrics("peer/")
        if self.peer.samples:
            metrics["peer/weight_mean"] = self.peer.weight / self.peer.samples
        return metrics
