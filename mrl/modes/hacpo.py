"""HACPO (arXiv 2603.02604): peers' rollouts with four corrections.

For a learner k and the completions of all n agents j, G each, on a prompt:

1. capability-aware advantage  A_i = (r_i - mu_k) / sigma,  mu_k = mean_i w(k, j) * r_i,
   w(k, j) = P_k / P_j, P = an agent's mean reward over the last `window` steps, this one included
2. capability discrepancy      a sample of j weighs w(j, k) = P_j / P_k, the inverse of part 1's
                               ratio, so a stronger peer's sample weighs more. It multiplies the
                               learner's advantage, that of part 1, as in eq. 50 (in eq. 10 it
                               multiplies the source's)
3. exponential importance      s * sg[s]^alpha, s = (pi_k(y) / pi_j,old(y))^(1/|y|), each side over
                               its own tokens; sg[.] is stop-gradient
4. stepwise clipping           only s within [1 - delta + u * delta_step, 1.0] teaches after u
                               updates: a peer's sample has no min() around the clip

Parts 3 and 4 can be left out: `alpha=0`; and `delta=1` with `delta_step=0`, which takes the band's
lower end away. (With `delta=1` alone it is gone in the first update and comes back by `delta_step`
with each further one.)

Own samples follow GSPO (`own_objective`), as published; with `own_objective=""` they have ratio,
clip and averaging of the receiver's own objective. The advantage is part 1's with each of them.

We follow the text (v1). In four places the released program departs from it, and we do the same:

- w stays within [0.1, 10], because P_k = 0 happens;
- A = 0 if all rewards of a prompt agree;
- the clipped s is raised to alpha, which has the same gradient as s;
- there is one mean over all n * G samples, where the text adds a mean of own and one of peers'.

In these it departs from the text, and we do not:

- P is the share of rewards > 0, at least 1e-8;
- sigma is the sample std, and mu_k is replaced by k's own mean where it exceeds 1;
- log s stays within +-10 (here: 20);
- own minibatches come first, so that no peer's sample meets the widest band;
- own samples have a k3 KL term of 1e-3;
- the end token is cut off and too long texts are truncated. We train stopping, and drop a text
  that is too long.

A record that the exchange refused counts nowhere. One that only the receiver's tokenizer refused
counts in P, but not in mu.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

import torch

from mrl.advantages import capability_advantages
from mrl.config import setting
from mrl.modes.mode import GroupsAndRecords, Mode, Receiver, TrainingBatch
from mrl.modes.peers import peer_samples, source_logprobs
from mrl.modes.solo import samples_with
from mrl.objectives import OBJECTIVES, Objective
from mrl.records import RolloutRecord
from mrl.samples import TrainingSample

RATIO_BOUNDS = (0.1, 10.0)  # of a capability ratio; the released program's clamp


@dataclass
class HACPO(Mode):
    """Own and peers' rollouts, weighted by how capable who is, peers' within a narrowing band."""

    name = "hacpo"
    consumes = RolloutRecord
    published_updates = 4
    own_objective: str = setting(
        "gspo",
        'objective of own samples ("": the policy\'s own objective)',
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

    def training_samples(
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """Own and peers' samples of a prompt side by side, each with its weight."""
        batch = TrainingBatch()
        capability = self._update_capability(receiver.name, groups_and_records)

        # own and peers' samples are clipped in different ways
        own_objective = OBJECTIVES.get(self.own_objective)  # None: the receiver's
        peer_objective = Objective(
            ratio_level="text",  # each side's mean is over its own tokens
            aggregation="sequence",
            clip_low=self.delta,  # 4. the band, from 1 - delta ...
            clip_high=0.0,  # ... to 1
            clip_low_step=self.delta_step,
            ratio_power=self.alpha,  # 3. s once more, without gradient
        )

        for group, records in groups_and_records:
            pooled = samples_with([0.0] * len(group.rollouts), group, own_objective)
            for sample, record in peer_samples(receiver, group, records):
                sample.behavior_logprobs = source_logprobs(record)  # in the source's own tokens
                sample.objective = peer_objective
                # 2. a more capable peer weighs more
                sample.weight = _capability_ratio(
                    capability[record.source], capability[receiver.name]
                )
                pooled.append(sample)

            # 1. among own and peers' samples together
            self._set_advantages(receiver.name, pooled, capability)
            batch.samples += pooled

        batch.notes = {f"capability/{name}": mean for name, mean in capability.items()}
        return batch

    def _update_capability(
        self, receiver: str, groups_and_records: GroupsAndRecords
    ) -> dict[str, float]:
        """Add this step's mean reward of each agent to its window; returns P of every agent."""
        rewards: dict[str, list[float]] = {receiver: []}  # of this step
        for group, records in groups_and_records:
            rewards[receiver] += group.rewards
            for record in records:
                rewards.setdefault(record.source, []).append(record.reward)

        # one number per step and agent, however many of its records arrived
        for name, values in rewards.items():
            self._windows.setdefault(name, deque(maxlen=self.window)).append(fmean(values))
        return {name: fmean(values) for name, values in self._windows.items()}

    def _set_advantages(
        self, receiver: str, pooled: list[TrainingSample], capability: dict[str, float]
    ) -> None:
        """Advantages among own and peers' samples of one prompt, by the receiver's baseline."""
        rewards = torch.tensor([sample.reward for sample in pooled])
        ratios = []  # w(k, j) of each sample
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
        """The capability windows of a checkpoint."""
        self._windows = {name: deque(values, self.window) for name, values in state.items()}


def _capability_ratio(numerator: float, denominator: float) -> float:
    """The quotient of two capabilities within `RATIO_BOUNDS`; 1 if both are 0."""
    low, high = RATIO_BOUNDS
    if denominator == 0:
        return 1.0 if numerator == 0 else high
    return min(max(numerator / denominator, low), high)
