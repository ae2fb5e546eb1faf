"""Success-Gated Transfer (arXiv 2605.07244): imitate a peer only if all your own attempts failed.

    L_k = L_own,k + lambda * NLL_k(y_peer | x)   on prompts x where all of k's attempts failed and
                                                 some peer has a verified success (the rescue set)

Contract of `training_samples`:
- `experiences` has one entry for each prompt. `experience.group` is the receiver's own group, and
  its `outcome` is "all_fail", "mixed" or "all_pass". `experience.received` has one entry for each
  success of a peer: its `record`, and its `token_ids`, which are the text in the *receiver's*
  tokens, with the receiver's end token if and only if the peer had finished.
- If the receiver cannot use a text, its `token_ids` are empty. `experience.usable` leaves such
  entries out.
- It returns a TrainingBatch with the samples of all groups (mrl.modes.own.own_samples makes them).
  For *each* prompt of the rescue set, it adds one TrainingSample with loss "imitation", weight
  `imitation_weight`, the peer's record, and reward 1.0.
- Draw one of the peers' successes, each with the same probability. Use only `rng` for this. If you
  draw one that cannot be used, you may draw another one or leave the prompt out.

Check it with:  python mini_mrl.py assignment check sgt.py
"""

import random
from dataclasses import dataclass

from mrl.modes import Experience, Mode, Receiver, TrainingBatch
from mrl.modes.own import own_samples
from mrl.records import SuccessRecord
from mrl.samples import TrainingSample

ASSIGNMENT = "sgt"


@dataclass
class SGT(Mode):
    """The policy's own objective, plus imitation of a peer if all its own attempts failed."""

    name = "sgt"
    consumes = None  # which record type?
    imitation_weight: float = 0.1

    def training_samples(
        self, receiver: Receiver, experiences: list[Experience], rng: random.Random
    ) -> TrainingBatch:
        """The receiver's own samples, and one imitated success for each prompt to rescue."""
        raise NotImplementedError("your turn")
