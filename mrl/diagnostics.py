"""What the updates of a step did, in numbers. learning.py makes the updates.

The tensors of a micro-batch become sums (`TokenStats`). These are added up over an update and over
a step (`LearningStats`), and at the end they become the metrics of metrics.jsonl.
"""

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class TokenStats:
    """Sums and maxima over samples whose policy loss was computed."""

    samples: int = 0
    wholly_clipped: int = 0  # samples with all tokens clipped; only a KL term has a gradient
    tokens: float = 0.0
    ratio: float = 0.0  # sum over tokens
    ratio_max: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    logprob_gap_max: float = 0.0
    # the same gap, only over tokens that the current weights sampled
    on_policy_gap_max: float = 0.0
    on_policy_gap: float = 0.0  # sum over tokens
    on_policy_tokens: float = 0.0

    def add(self, other: "TokenStats") -> None:
        """Add the numbers of another micro-batch or update."""
        for name, number in vars(other).items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, number) if name.endswith("_max") else mine + number)

    @property
    def on_policy_gap_mean(self) -> float:
        """The mean gap over on-policy tokens, nats; 0 if there are none."""
        return self.on_policy_gap / max(self.on_policy_tokens, 1.0)


def token_stats(
    mask: Tensor,
    ratio: Tensor,
    clipped_low: Tensor,
    clipped_high: Tensor,
    logprob_gap: Tensor,
    on_policy: bool,
) -> TokenStats:
    """The statistics of one micro-batch. The tensors have no gradient.

    mask: [batch, seq] bool, True on completion tokens. ratio: [batch, seq], pi_theta / pi_behavior.
    clipped_low, clipped_high: [batch, seq] bool, True where the ratio is below or above the band.
    logprob_gap: [batch, seq], |log-prob now - the ratio's denominator|, nats. on_policy: True
    if the current weights sampled the micro-batch, so that any gap is due to rounding.
    """
    # padding is neither clipped nor counted
    below, above = clipped_low & mask, clipped_high & mask
    ratio, gaps = ratio * mask, logprob_gap * mask
    wholly_clipped = (below | above).sum(dim=1) == mask.sum(dim=1)  # [batch] bool

    stats = TokenStats(
        samples=len(mask),
        wholly_clipped=int(wholly_clipped.sum()),
        tokens=float(mask.sum()),
        ratio=float(ratio.sum()),
        ratio_max=float(ratio.max()),
        clipped_low=float(below.sum()),
        clipped_high=float(above.sum()),
        logprob_gap_max=float(gaps.max()),
    )
    if on_policy:
        stats.on_policy_gap_max = stats.logprob_gap_max
        stats.on_policy_gap = float(gaps.sum())
        stats.on_policy_tokens = stats.tokens
    return stats


@dataclass
class LearningStats:
    """What one update did, or all updates of a step together."""

    updates: int = 0  # number of optimizer steps; a gradient of 0 causes none
    updates_skipped: int = 0  # number of steps skipped because the gradient was not finite
    grad_norm: float = 0.0  # norm before clipping, summed over updates
    loss: float = 0.0  # policy objective
    nll_loss: float = 0.0  # imitation loss, multiplied by the samples' weights
    kl: float | None = None  # None if no sample had a KL term
    own: TokenStats = field(default_factory=TokenStats)  # only the policy's own samples
    # The number of samples by outcome: taught, clipped (all tokens), imitated, hinted, replayed,
    # dropped (weight 0), all_fail or all_pass (no advantage), skipped. run/metrics.py computes
    # shares.
    sample_outcomes: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)  # sentences for the user

    def add(self, update: "LearningStats") -> None:
        """Add the numbers of another update."""
        self.updates += update.updates
        self.updates_skipped += update.updates_skipped
        self.grad_norm += update.grad_norm
        self.loss += update.loss
        self.nll_loss += update.nll_loss
        if update.kl is not None:
            self.kl = (self.kl or 0.0) + update.kl

        self.own.add(update.own)
        self.sample_outcomes.update(update.sample_outcomes)
        self.warnings += update.warnings

    def add_policy_loss(self, loss: Tensor, numbers: TokenStats, from_peer: bool) -> None:
        """Add a micro-batch of the policy objective."""
        self.loss += float(loss.detach())
        self.sample_outcomes["clipped"] += numbers.wholly_clipped
        self.sample_outcomes["taught"] += numbers.samples - numbers.wholly_clipped
        if not from_peer:
            self.own.add(numbers)

    def metrics(self) -> dict[str, float]:
        """The numbers under their names in metrics.jsonl.

        Losses and the gradient norm are sums over minibatches, divided by the number of updates.
        """
        updates = max(self.updates, 1)
        metrics: dict[str, float] = {
            "updates": self.updates,
            "loss": self.loss / updates,
            "loss_nll": self.nll_loss / updates,
            "grad_norm": self.grad_norm / updates,
            "update_skipped": self.updates_skipped,
            "logprob_gap": self.own.logprob_gap_max,
        }
        if self.kl is not None:
            metrics["kl"] = self.kl / updates

        if self.own.tokens:
            metrics["ratio/mean"] = self.own.ratio / self.own.tokens
            metrics["ratio/max"] = self.own.ratio_max
            metrics["clip_ratio/low_mean"] = self.own.clipped_low / self.own.tokens
            metrics["clip_ratio/high_mean"] = self.own.clipped_high / self.own.tokens
        return metrics
