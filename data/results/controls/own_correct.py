"""A control for `sft`: imitation of the peer's solutions and of the policy's own, without RL.

Next to a peer that lacks a skill, `sgt` keeps this skill and `sft` loses it. Is RL the reason, or
is it enough to train on one's own correct completions? This mode is `sft` with one addition: for
each prompt, it also imitates one of the policy's own correct completions, if there is one. So it
learns from its own attempts, but without advantages and without incorrect completions, as in
rejection fine-tuning (arXiv 2308.01825).

    python mini_mrl.py --mode data/results/controls/own_correct.py:OwnCorrect
"""

import random
from dataclasses import dataclass

from mrl.modes import Experience, Receiver, TrainingBatch
from mrl.modes.sft import SFT
from mrl.records import SuccessRecord
from mrl.samples import TrainingSample, Verdict


@dataclass
class OwnCorrect(SFT):
    """`sft` that also imitates one of the policy's own correct completions per prompt."""

    name = "sft-own"

    def training_samples(
        self,
        receiver: Receiver,
        experiences: list[Experience[SuccessRecord]],
        rng: random.Random,
    ) -> TrainingBatch:
        """The samples of `sft`, and an own correct completion of each prompt that has one."""
        batch = super().training_samples(receiver, experiences, rng)
        for experience in experiences:
            group = experience.group
            correct = [each for each in group.rollouts if each.verdict is Verdict.CORRECT]
            if correct:
                rollout = rng.choice(correct)
                sample = TrainingSample(
                    prompt_ids=group.prompt_ids,
                    completion_ids=rollout.completion_ids,
                    loss="imitation",
                    rollout=rollout,
                    reward=1.0,
                )
                batch.samples.append(sample)
        return batch
