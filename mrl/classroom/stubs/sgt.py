"""Success-Gated Transfer (arXiv 2605.07244): imitate only where all own attempts fail.

    L_k = L_own,k + lambda * NLL_k(y_peer | x)   on prompts x where every own completion failed and
                                                 some peer has a verified success (the rescue set)

Contract of `training_samples`:
- prompts: pairs of an own group and the peers' records about its prompt; `group.outcome` is
  "all_fail", "mixed" or "all_pass"
- returns a TrainingBatch whose samples are the own ones (mrl.modes.solo.own_samples makes them)
  and, for *each* prompt of the rescue set, one TrainingSample with loss "imitation", weight
  `imitation_weight`, the peer's name as source, reward 1.0
- one of all the peers' successes is drawn, each with the same chance; use rng and nothing else
- its completion_ids are the *receiver's* tokens, its end token behind them iff the peer had
  finished: mrl.modes.peers.retokenize(receiver, record) does both. It gives two values, tokens and
  "", or no tokens and the reason why a text must be refused (drawing another one then is right, and
  so is not)

Check it with:  python mini_mrl.py assignment check sgt.py
"""

import random
from dataclasses import dataclass

from mrl.errors import MrlError
from mrl.modes import GroupsAndRecords, Mode, Receiver, TrainingBatch
from mrl.modes.peers import retokenize
from mrl.modes.solo import own_samples
from mrl.records import SuccessRecord
from mrl.samples import TrainingSample

ASSIGNMENT = "sgt"


@dataclass
class SGT(Mode):
    """Own objective, plus imitation where all own attempts failed."""

    name = "sgt"
    consumes = None  # which record type?
    imitation_weight: float = 0.1

    def training_samples(
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """Own samples, and one imitated success for each prompt of the rescue set."""
        raise MrlError("Write training_samples of `sgt` first; until then take `--mode solo`.")
