"""PRP, Peer Rollout Pooling (arXiv 2605.07244; our reading): peers' rollouts join the group.

The receiver's group for a prompt consists of its own G completions and of each peer's completions,
retokenized. Advantages are computed over this pooled group. The receiver's own completions have the
usual ratio. A peer's completion has

    ratio = pi_theta(receiver's tokens) / pi_peer,old(the peer's log-probs, carried over by THL)

clipped at `clip_low` and `clip_high`, whatever the receiver's own objective uses. A completion that
the receiver's tokenizer refused does not count in the pooled advantages.

Only this density ratio corrects for who wrote a completion. Its disadvantages are its variance, and
what alignment loses. `ratio_level` says what the ratio is computed over:

- token: a chunk's log-prob is spread over its receiver tokens by bytes, which is approximate;
- chunk: both sides are summed between shared byte boundaries, so nothing is spread (our default). A
  chunk's ratio counts once in the loss, however many tokens the receiver has in it;
- sequence: the geometric mean over the whole completion, as in GSPO. It has little variance, but it
  hardly corrects for who wrote the completion, so it is the most biased. On the tiny pair, it is
  the level that closes the blind spots (TUTORIAL_2.md, section 11).

The sums cover only the tokens that were sampled. Other tokenizations of the same text are not
counted, so the mean of a ratio over the peer's samples is not exactly 1.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mrl.config import setting
from mrl.modes.mode import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.peers import peer_sample, pool_with_advantages, project_logprobs
from mrl.records import RolloutRecord

LEVELS = ("token", "chunk", "sequence")


@dataclass
class PRP(Mode[RolloutRecord]):
    """All policies' rollouts in one group; a density ratio corrects for who wrote each of them."""

    name = "prp"
    consumes = RolloutRecord
    ratio_level: str = setting(
        "chunk", "unit over which the ratio of a peer's sample is computed", choices=LEVELS
    )
    clip_low: float = setting(0.2, "width of the clip range below 1, for peers' samples", least=0)
    clip_high: float = setting(0.2, "width of the clip range above 1, for peers' samples", least=0)

    def training_samples(
        self,
        receiver: Receiver,
        experiences: Sequence[Experience[RolloutRecord]],
        rng: random.Random,
    ) -> TrainingBatch:
        """The receiver's and peers' samples of each prompt, with advantages over all of them."""
        batch = TrainingBatch()
        # the objective of peers' samples; the receiver's samples keep its own objective
        objective = replace(
            receiver.objective,
            ratio_level=self.ratio_level,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
        )

        for experience in experiences:
            peers_samples = []
            for received in experience.usable:
                sample = peer_sample(experience.group, received)
                # the ratio's denominator: the log-probs with which the peer sampled the completion
                sample.behavior_logprobs, sample.chunk_of = project_logprobs(receiver, received)
                sample.objective = objective
                peers_samples.append(sample)

            # set last, because a peer's success lowers the advantages of the receiver's successes
            batch.samples += pool_with_advantages(receiver, experience.group, peers_samples)
        return batch
