"""HACPO (arXiv 2603.02604): learn from peers' rollouts with four corrections.

Each of the n agents j writes G completions for a prompt. For a learner k:

1. capability-aware advantage  A_i = (r_i - mu_k) / sigma,  mu_k = mean_i w(k, j) * r_i,
   w(k, j) = P_k / P_j, P = an agent's mean reward over the last `window` steps, this one included
2. capability discrepancy      a sample of j has the weight w(j, k) = P_j / P_k, so a stronger
                               peer's sample weighs more. It multiplies the learner's advantage of
                               part 1, as in eq. 50 (eq. 10 has the source's advantage)
3. exponential importance      s * sg[s]^alpha, s = (pi_k(y) / pi_j,old(y))^(1/|y|), each side over
                               its own tokens; sg[.] is stop-gradient
4. stepwise clipping           after u updates, only s within [1 - delta + u * delta_step, 1.0] has
                               a gradient; a peer's sample has no min() around the clip

alpha=0 turns part 3 off. delta=1 with delta_step=0 turns part 4's lower clip bound off. (With
delta=1 alone, the bound is off in the first update, and each further update raises it by
delta_step.)

The learner's own samples follow GSPO (`own_objective`), as published. With own_objective="" they
use the ratio, clipping and averaging of the learner's own objective. In both cases the advantage is
that of part 1.

The authors' released program differs from the text of the paper (v1):

    item                     paper                   released program      here
    -----------------------  ----------------------  --------------------  -------------------------
    w                        no bounds               within [0.1, 10]      released (P_k can be 0)
    rewards all equal        divide by eps           A = 0                 released
    s to the power alpha     s                       the clipped s         released (same gradient)
    mean over samples        own mean + peers' mean  one mean over n * G   released
    P                        mean reward             share of rewards > 0  paper
                                                     (at least 1e-8)
    sigma                    std                     sample std            paper (population std)
    mu_k                     as in part 1            k's own mean if mu_k  paper
                                                     exceeds 1
    log s                    no bounds               within +-10           within +-20
    minibatch order          -                       own samples first     own and peers' samples of
                                                                           a prompt together
    KL term of own samples   none                    k3 times 1e-3         paper (kl_coef adds one)
    EOS                      kept                    cut off               kept, so k learns to stop
    too long for k           -                       truncated             dropped

In the released program, the learner's samples come first, so no peer's sample meets the widest
band, which is that of the first update.

A record that the exchange refused counts nowhere. A record that only the receiver's tokenizer
refused counts in P, but not in mu.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from mrl.advantages import capability_advantages
from mrl.config import setting
from mrl.modes.mode import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.own import samples_with
from mrl.modes.peers import peer_sample, source_logprobs
from mrl.objectives import OBJECTIVES, Objective, clip
from mrl.records import RolloutRecord
from mrl.samples import TrainingSample

if TYPE_CHECKING:  # the settings of modes are read without torch
    from torch import Tensor

RATIO_BOUNDS = (0.1, 10.0)  # bounds of a capability ratio, as in the released program


@dataclass
class HACPO(Mode[RolloutRecord]):
    """Learn from the policy's own and its peers' rollouts.

    Peers' samples are weighted by relative capability, and they count only inside a ratio band that
    narrows with each update.
    """

    name = "hacpo"
    consumes = RolloutRecord
    published_updates = 4
    own_objective: str = setting(
        "gspo",
        'objective of a policy\'s own samples ("": the setting `objective`)',
        choices=("", *OBJECTIVES),
    )
    alpha: float = setting(
        1.0, "exponent of the importance weight (part 3 of HACPO); 0 turns it off", least=0
    )
    delta: float = setting(0.2, "lower clip bound is 1 - delta (part 4 of HACPO)", least=0, most=1)
    delta_step: float = setting(0.025, "rise of the lower clip bound with each update", least=0)
    window: int = setting(
        5, "number of steps over which a policy's capability P is averaged", least=1
    )
    _windows: dict[str, deque] = field(default_factory=dict, init=False, repr=False)

    @property
    def objective_of_paper(self) -> str:
        """The setting `own_objective`."""
        return self.own_objective

    def training_samples(
        self,
        receiver: Receiver,
        experiences: Sequence[Experience[RolloutRecord]],
        rng: random.Random,
    ) -> TrainingBatch:
        """The receiver's and its peers' samples of each prompt together, each with its weight."""
        batch = TrainingBatch()
        capability = self._update_capability(receiver.name, experiences)

        # the receiver's own samples and its peers' samples are clipped in different ways
        own_objective = OBJECTIVES.get(self.own_objective)  # None: the receiver's own objective
        peer_objective = Objective(
            ratio_level="sequence",
            aggregation="sequence",
            clip_low=self.delta,  # the band reaches from 1 - delta ...
            clip_high=0.0,  # ... to 1
            surrogate=NarrowingBand(self.alpha, self.delta, self.delta_step),  # 3. and 4.
        )

        for experience in experiences:
            group = experience.group
            pooled = samples_with([0.0] * len(group.rollouts), group, own_objective)
            for received in experience.usable:
                record, sample = received.record, peer_sample(group, received)
                # Each side averages over its own tokens, and the ratio needs only the mean.
                mean = fmean(source_logprobs(record))
                sample.behavior_logprobs = [mean] * len(sample.completion_ids)
                sample.objective = peer_objective
                # 2. the sample of a more capable peer weighs more
                sample.weight = _capability_ratio(
                    capability[record.source], capability[receiver.name]
                )
                pooled.append(sample)

            # 1. advantages over all samples of the prompt together
            self._set_advantages(receiver.name, pooled, capability)
            batch.samples += pooled

        batch.notes = {f"capability/{name}": mean for name, mean in capability.items()}
        return batch

    def _update_capability(
        self, receiver: str, experiences: Sequence[Experience[RolloutRecord]]
    ) -> dict[str, float]:
        """Add each agent's mean reward of this step to its window. Returns P of every agent."""
        rewards: dict[str, list[float]] = {receiver: []}  # agent -> its rewards of this step
        for experience in experiences:
            rewards[receiver] += experience.group.rewards
            for record in experience.records:
                rewards.setdefault(record.source, []).append(record.reward)

        # one number per step and agent, however many records arrived
        for name, values in rewards.items():
            self._windows.setdefault(name, deque(maxlen=self.window)).append(fmean(values))
        return {name: fmean(values) for name, values in self._windows.items()}

    def _set_advantages(
        self, receiver: str, pooled: list[TrainingSample], capability: dict[str, float]
    ) -> None:
        """Set the advantages of one prompt's samples, with the receiver's baseline."""
        import torch  # not above: the settings of modes are read without torch

        rewards = torch.tensor([sample.reward for sample in pooled])
        ratios = []  # w(k, j) for each sample
        for sample in pooled:
            writer = sample.source or receiver
            ratios.append(_capability_ratio(capability[receiver], capability[writer]))

        advantages = capability_advantages(rewards, torch.tensor(ratios))
        for sample, advantage in zip(pooled, advantages.tolist(), strict=True):
            sample.advantage = advantage

    def state(self) -> dict:
        """The capability windows."""
        return {name: list(values) for name, values in self._windows.items()}

    def restore(self, state: dict) -> None:
        """Restore the capability windows from a checkpoint."""
        self._windows = {name: deque(values, self.window) for name, values in state.items()}


@dataclass(frozen=True)
class NarrowingBand:
    """Parts 3 and 4: the loss of a peer's sample. Its band narrows with each update.

    With ratio s, after u updates, it is (arXiv 2603.02604 v1, eq. 50 and 52):

        -clip(s, 1 - delta + u * delta_step, 1) * sg[s] ** alpha * A

    sg is stop-gradient, `.detach()`. Without a min(), there is no gradient outside the band,
    whatever the sign of A. Instead of s, we raise the clipped s to the power. Inside the band both
    are equal; outside there is no gradient, and the clipped s cannot overflow.
    """

    alpha: float
    delta: float
    delta_step: float

    def __call__(
        self, ratio: "Tensor", advantages: "Tensor", updates_done: int
    ) -> "tuple[Tensor, Tensor, Tensor]":
        """The loss of each token, and where the ratio is below and above the band."""
        # the bounds of the band never cross
        low = min(1 - self.delta + updates_done * self.delta_step, 1.0)
        clipped = clip(ratio, low, 1.0)
        # inside the band the gradient is s ** alpha * grad s, whatever the sign of A
        loss = -clipped * clipped.detach() ** self.alpha * advantages
        return loss, ratio < low, ratio > 1.0


def _capability_ratio(numerator: float, denominator: float) -> float:
    """The ratio of two capabilities, within `RATIO_BOUNDS`; 1 if both are 0."""
    low, high = RATIO_BOUNDS
    if denominator == 0:
        return 1.0 if numerator == 0 else high
    return min(max(numerator / denominator, low), high)
