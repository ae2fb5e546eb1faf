"""rft: imitate one's own correct completions and a peer's solutions, without RL.

`sft` imitates a peer alone, and forgets what the peer does not show. This mode also imitates the
policy's own correct completions. For each prompt, it draws one of the peers' solutions and one of
the policy's own correct completions, if there are any:

    L_k = mean over prompts x with a peer's solution of NLL_k(y_peer | x)
        + mean over prompts x with an own correct completion of NLL_k(y_own | x)

NLL is the mean over the completion's tokens. There are no advantages, and nothing is learned from
incorrect completions. So next to `sgt`, this mode shows what RL adds to imitation. It is the
strongest competitor of `sgt` among models that write alike.

Imitating one's own correct completions is rejection-sampling fine-tuning (arXiv 2308.01825), from
which the mode has its name. There, the completions are sampled once; here, they are sampled anew in
each step.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mrl.modes.mode import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.sgt import imitation_samples
from mrl.records import SuccessRecord
from mrl.samples import Group, TrainingSample


@dataclass
class RFT(Mode[SuccessRecord]):
    """Fine-tuning on peers' solutions and on own correct completions, without RL."""

    name = "rft"
    consumes = SuccessRecord

    def training_samples(
        self,
        receiver: Receiver,
        experiences: Sequence[Experience[SuccessRecord]],
        rng: random.Random,
    ) -> TrainingBatch:
        """For each prompt, at most one solution of a peer and one own correct completion."""
        batch = TrainingBatch()
        for experience in experiences:
            batch.samples += imitation_samples(experience, 1.0, rng)
            batch.samples += own_correct_samples(experience.group, rng)
        return batch


def own_correct_samples(group: Group, rng: random.Random) -> list[TrainingSample]:
    """One of the policy's own correct completions, as a sample to imitate; [] if there is none."""
    correct = [rollout for rollout in group.rollouts if rollout.reward]
    if not correct:
        return []
    rollout = rng.choice(correct)
    sample = TrainingSample(
        prompt_ids=group.prompt_ids,
        completion_ids=rollout.completion_ids,
        loss="imitation",
        rollout=rollout,
        reward=1.0,
    )
    return [sample]
