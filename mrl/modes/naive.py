"""naive: peers' rollouts as if they were one's own (the baseline of arXiv 2603.02604).

Pools as PRP does, but the ratio of a peer's completion has the receiver's *own* old log-probs
in its denominator, as if the receiver had sampled the text itself:

    ratio = pi_theta(receiver's tokens) / pi_theta,old(the same tokens)

Nothing corrects for who wrote the text. The gradient is biased, most where the policies differ
most; it is known to hurt, and that is what it is here for.
"""

import random
from dataclasses import dataclass

from mrl.modes.mode import GroupsAndRecords, Mode, Receiver, TrainingBatch
from mrl.modes.peers import peer_samples, pool_with_advantages
from mrl.records import RolloutRecord
from mrl.samples import prompt_and_completion_ids


@dataclass
class Naive(Mode):
    """Own and peers' rollouts in one group, peers' taken for one's own."""

    name = "naive"
    consumes = RolloutRecord

    def training_samples(
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """Own and peers' samples of a prompt side by side, advantages over all of them."""
        batch = TrainingBatch()
        for group, records in groups_and_records:
            peers_samples = []
            for sample, _ in peer_samples(receiver, group, records):
                peers_samples.append(sample)  # without the peer's log-probs, see below
            batch.samples += pool_with_advantages(receiver, group, peers_samples)

        # The records hold the peer's log-probs, but the denominator takes the receiver's own. Only
        # samples with an advantage need them: this forward pass is what the mode costs.
        used = [sample for sample in batch.samples if sample.source and sample.needs_forward]
        scored = receiver.logprobs_of(*prompt_and_completion_ids(used))
        for sample, old_logprobs in zip(used, scored, strict=True):
            sample.behavior_logprobs = old_logprobs
        return batch
