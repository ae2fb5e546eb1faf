"""What the updates of a step did, in numbers: the bookkeeping beside learning.py's mathematics.

The tensors of a micro-batch become sums (`TokenStats`), those of an update or a step add up
(`LearningStats`), and at the end they are metrics under the names of metrics.jsonl.
"""

from collections import Counter
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class TokenStats:
    """Sums and maxima of one side, own or peers', over samples whose policy loss was computed."""

    samples: int = 0
    wholly_clipped: int = 0  # samples; of such a sample only a KL term has a gradient
    weight: float = 0.0  # sum over the samples; one that is wholly clipped counts as 0
    tokens: float = 0.0
    ratio: float = 0.0  # sum over the tokens
    ratio_max: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    logprob_gap_max: float = 0.0
    # the same gap, only where the weights have not moved
    on_policy_gap_max: float = 0.0
    on_policy_gap: float = 0.0  # sum over the tokens
    on_policy_tokens: float = 0.0

    def add(self, other: "TokenStats") -> None:
        """Add the figures of one more micro-batch, or of one more update."""
        for name, number in vars(other).items():
            mine = getattr(self, name)
            setattr(self, name, max(mine, number) if name.endswith("_max") else mine + number)

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


def token_stats(
    mask: Tensor,
    ratio: Tensor,
    clipped_low: Tensor,
    clipped_high: Tensor,
    weights: Tensor,
    logprob_gap: Tensor,
    on_policy: bool,
) -> TokenStats:
    """The figures of one micro-batch; no tensor has a gradient.

    mask: [batch, seq] bool, True on completion tokens. ratio: [batch, seq] pi_theta / pi_behavior.
    clipped_low, clipped_high: [batch, seq] bool, because the ratio is below the band, or above it.
    weights: [batch] of the samples. logprob_gap: [batch, seq] |log-prob now - the ratio's
    denominator|, nats. on_policy: own samples, and no update since they were written, so that any
    gap is numerical.
    """
    # padding is neither clipped nor counted
    below, above = clipped_low & mask, clipped_high & mask
    ratio, gaps = ratio * mask, logprob_gap * mask
    wholly_clipped = (below | above).sum(dim=1) == mask.sum(dim=1)  # [batch] bool

    stats = TokenStats(
        samples=len(mask),
        wholly_clipped=int(wholly_clipped.sum()),
        weight=float((weights * ~wholly_clipped).sum()),
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

    updates: int = 0  # optimizer steps that were made; a gradient of 0 makes none
    updates_skipped: int = 0  # because the gradient was not finite
    grad_norm: float = 0.0  # before clipping; of several updates, the sum
    loss: float = 0.0  # of the policy objective
    nll_loss: float = 0.0  # of the imitation, weight included
    kl: float | None = None  # None: no KL term, or no own sample that was computed
    own: TokenStats = field(default_factory=TokenStats)
    peer: TokenStats = field(default_factory=TokenStats)
    # What became of each sample: taught, clipped (in every token), rescued, replayed, dropped
    # (weight 0), all_fail or all_pass (no advantage), skipped. run/metrics.py makes shares.
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

    def add_policy_loss(self, loss: Tensor, figures: TokenStats, from_peer: bool) -> None:
        """Add a micro-batch of the policy objective."""
        self.loss += float(loss.detach())
        self.sample_outcomes["clipped"] += figures.wholly_clipped
        self.sample_outcomes["taught"] += figures.samples - figures.wholly_clipped

        side = self.peer if from_peer else self.own
        side.add(figures)

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
