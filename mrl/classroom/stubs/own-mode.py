"""Your own sharing mode: what is shared, and what does the receiver do with it?

Two policies train side by side on eight problems. Each problem has six possible answers, of which
two, drawn at random, are correct. Each policy knows half of the problems. On the others it is
correct about once in a hundred attempts. Each policy samples four completions per problem in each
of forty steps.

Your mode is measured by the expected reward of both policies at the end, over twenty random pairs.
It is compared with the best of three controls: `solo`, your mode with its records shuffled
across problems (so that they no longer show what the peer knows), and your mode without any
records.

Only your idea counts, not the size of its updates. The checker makes one update per step. Your
samples decide in which direction each problem's logits move, but not how far: that is always the
same length. So larger weights, more updates, `rollout_factor` or a step size gain nothing.

Contract:
- This file has one subclass of Mode. Its `consumes` is RolloutRecord, RewardStats or SuccessRecord
  (mrl.records). Records are honest and verified.
- training_samples returns a TrainingBatch. See mrl/modes/own.py for samples of the receiver's own
  completions, mrl/modes/peers.py for samples of a peer's completion, and
  mrl/samples.py for the fields of a sample. A sample's `objective` is ignored here.
- The mode also learns from the receiver's own attempts: without records it ends at most 10 points
  below `solo`.
- The mode stores what it remembers in `self`, because each policy has its own mode object. A global
  variable would be shared by both policies, all pairs and the controls.
- Do not import any mode of mrl.modes except Solo.

Check it with:  python mini_mrl.py assignment check own-mode.py
Try it on language models with:  python mini_mrl.py --mode own-mode.py:Mine --steps 40
"""

import random
from dataclasses import dataclass

from mrl.modes import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.own import own_samples

ASSIGNMENT = "own-mode"


@dataclass
class Mine(Mode):
    """Say in one line what your mode does."""

    name = "mine"
    consumes = None

    def training_samples(
        self, receiver: Receiver, experiences: list[Experience], rng: random.Random
    ) -> TrainingBatch:
        """The same samples as in solo; now use the peers' records."""
        return TrainingBatch(
            [s for experience in experiences for s in own_samples(receiver, experience.group)]
        )
