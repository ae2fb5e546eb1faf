"""Success-Gated Transfer (arXiv 2605.07244): imitate a peer only if all your own attempts failed.

    L_k = L_own,k + lambda * NLL_k(y_peer | x)   on prompts x where all of k's attempts failed and
                                                 some peer has a verified success (the rescue set)

Contract of `training_samples`:
- `groups_and_records` is a list of pairs: one of the receiver's own groups, and the peers' records
  about its prompt. `group.outcome` is "all_fail", "mixed" or "all_pass".
- It returns a TrainingBatch with the samples of all of these groups (mrl.modes.solo.own_samples
  makes them). For *each* prompt of the rescue set, it adds one TrainingSample with loss
  "imitation", weight `imitation_weight`, the peer's name as source, and reward 1.0.
- Draw one of all the peers' successes, each with the same probability. Use only `rng` for this.
- The sample's completion_ids are the *receiver's* tokens, followed by its end token if and only if
  the peer had finished. mrl.modes.peers.retokenize(receiver, record) does both. It returns the
  tokens and "", or no tokens and the reason why the text must be refused. After a refusal, you may
  draw another success or leave the prompt out.

Check it with:  python mini_mrl.py assignment check sgt.py
"""

import random
from dataclasses import dataclass

from mrl.modes import GroupsAndRecords, Mode, Receiver, TrainingBatch
from mrl.modes.peers import retokenize
from mrl.modes.solo import own_samples
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
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """The receiver's own samples, and one imitated success for each prompt to rescue."""
        raise NotImplementedError("your turn")
