"""naive: peers' rollouts treated as the policy's own (the baseline of arXiv 2603.02604).

The receiver's and its peers' completions form one group, as in PRP. But the ratio of a peer's
completion has the receiver's *own* old log-probs in the denominator, as if the receiver had sampled
the completion itself:

    ratio = pi_theta(receiver's tokens) / pi_theta,old(the same tokens)

Nothing corrects for who wrote the completion. So the gradient is biased, and most of all where the
policies differ most. This is known to hurt, and the mode exists to show it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mrl.modes.mode import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.peers import peer_sample, pool_with_advantages
from mrl.records import RolloutRecord
from mrl.samples import prompt_and_completion_ids


@dataclass
class Naive(Mode[RolloutRecord]):
    """The policy's and its peers' rollouts in one group, all treated as the policy's own."""

    name = "naive"
    consumes = RolloutRecord

    def training_samples(
        self,
        receiver: Receiver,
        experiences: Sequence[Experience[RolloutRecord]],
        rng: random.Random,
    ) -> TrainingBatch:
        """The receiver's and peers' samples of each prompt, with advantages over all of them."""
        batch = TrainingBatch()
        for experience in experiences:
            # without the peer's log-probs: see below
            peers_samples = [peer_sample(experience.group, one) for one in experience.usable]
            batch.samples += pool_with_advantages(receiver, experience.group, peers_samples)

        # The records hold the peer's log-probs, but the denominator needs the receiver's. Samples
        # with advantage 0 do not need it. This forward pass is the computing cost of the mode.
        used = [sample for sample in batch.samples if sample.source and sample.needs_forward]
        scored = receiver.logprobs_of(*prompt_and_completion_ids(used))
        for sample, logprobs in zip(used, scored, strict=True):
            sample.behavior_logprobs = logprobs
        return batch
