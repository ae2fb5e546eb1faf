"""A control for PRP's ratio levels: one ratio per chunk, but none below a floor.

With one ratio per completion, `prp` closes the blind spots, and with one per chunk it does not. Is
the reason that the chunks that matter have a ratio near 0? This mode is `prp` with one ratio per
chunk, except that a peer's chunk whose ratio would be lower than `floor` gets the ratio `floor`.

    python mini_mrl.py --mode data/results/controls/prp_floor.py:Floor
"""

import math
import random
from collections import Counter
from dataclasses import dataclass

from mrl.config import setting
from mrl.modes import Experience, Receiver, TrainingBatch
from mrl.modes.prp import PRP
from mrl.records import RolloutRecord


@dataclass
class Floor(PRP):
    """`prp` whose ratios start the step at `floor` or higher."""

    name = "prp-floor"
    floor: float = setting(0.5, "lowest ratio of a peer's chunk before the step's first update")

    def training_samples(
        self,
        receiver: Receiver,
        experiences: list[Experience[RolloutRecord]],
        rng: random.Random,
    ) -> TrainingBatch:
        """The samples of `prp`, with the ratio's denominator lowered where the ratio is too low."""
        batch = super().training_samples(receiver, experiences, rng)
        samples = [sample for sample in batch.samples if sample.source]
        scored = receiver.logprobs_of(
            [sample.prompt_ids for sample in samples],
            [sample.completion_ids for sample in samples],
        )

        for sample, logprobs in zip(samples, scored, strict=True):
            log_ratio = dict.fromkeys(sample.chunk_of, 0.0)  # chunk -> log of its ratio
            for own, peer, chunk in zip(
                logprobs, sample.behavior_logprobs, sample.chunk_of, strict=True
            ):
                log_ratio[chunk] += own - peer

            tokens = Counter(sample.chunk_of)
            lowered = []
            for peer, chunk in zip(sample.behavior_logprobs, sample.chunk_of, strict=True):
                missing = max(0.0, math.log(self.floor) - log_ratio[chunk])
                lowered.append(peer - missing / tokens[chunk])
            sample.behavior_logprobs = lowered
        return batch
