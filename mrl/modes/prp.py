"""PRP, Peer Rollout Pooling (arXiv 2605.07244; our reading): peers' rollouts join the group.

The receiver's group for a prompt becomes its own G completions plus each peer's, retokenize;
advantages are taken over the pooled group. An own completion has the usual ratio. A peer's has

    ratio = pi_theta(receiver's tokens) / pi_peer,old(the peer's log-probs, carried over by THL)

clipped at `clip_low`, `clip_high`, whatever the own objective has. What the receiver's tokenizer
refused takes no part in the pooled advantages.

Only the density ratio corrects for who wrote a text. The price is its variance, and what alignment
loses. `ratio_level` says of what the ratio is formed:

- token: a chunk's log-prob spread over its receiver tokens by bytes; approximate;
- chunk: both sides summed between shared byte boundaries, nothing is spread (our default). A
  chunk's ratio stands once in the loss, however many tokens the receiver has in it;
- sequence: the geometric mean over the whole completion, as in GSPO: little variance, but it
  corrects for the mean of a token only, so it is biased.

The sums are those of the tokens that were sampled. Other tokenizations of the same text are not
counted, so the mean of a ratio over the peer's samples is not exactly 1.
"""

import random
from dataclasses import dataclass, replace

from mrl.config import setting
from mrl.modes.mode import GroupsAndRecords, Mode, Receiver, TrainingBatch
from mrl.modes.peers import peer_samples, pool_with_advantages, project_logprobs
from mrl.records import RolloutRecord

LEVELS = ("token", "chunk", "sequence")


@dataclass
class PRP(Mode):
    """Own and peers' rollouts in one group, peers' corrected by the density ratio."""

    name = "prp"
    consumes = RolloutRecord
    ratio_level: str = setting(
        "chunk", "unit over which the ratio of a peer's sample is computed", choices=LEVELS
    )
    clip_low: float = setting(0.2, "clip range below 1 for the ratios of peers' samples", least=0)
    clip_high: float = setting(0.2, "clip range above 1 for the ratios of peers' samples", least=0)

    def training_samples(
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """Own and peers' samples of a prompt side by side, advantages over all of them."""
        batch = TrainingBatch()
        # of peers' samples; own ones keep the receiver's objective
        objective = replace(
            receiver.objective,
            ratio_level=self.ratio_level,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
        )

        for group, records in groups_and_records:
            peers_samples = []
            for sample, record in peer_samples(receiver, group, records):
                # the ratio's denominator: what the peer itself gave this text when it wrote it
                sample.behavior_logprobs, sample.chunk_of = project_logprobs(
                    receiver, record, sample.completion_ids
                )
                sample.objective = objective
                peers_samples.append(sample)

            # advantages need all of them: a peer's success lowers those of own successes
            batch.samples += pool_with_advantages(receiver, group, peers_samples)
        return batch
