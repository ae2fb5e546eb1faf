"""A sharing mode of your own: what crosses, and what does the receiver do with it?

Two policies train side by side on eight problems with six possible answers each, of which two are
right, drawn for each problem. Each knows half of the problems; on the others it is right about once
in a hundred tries. Each samples four completions a problem and step, for forty steps. Your mode
is compared by the expected reward of both at the end, over twenty drawn pairs, with the best of
three controls: `solo`, itself with its records exchanged between problems (without what the peer
really knows), and itself without any records.

Only your idea counts: the checker makes one update a step, and moves each problem's logits by the
same length, in the direction of your samples. So larger weights, more updates, `rollout_factor`
and a step size gain nothing.

Contract:
- one subclass of Mode in this file; `consumes` is RolloutRecord, RewardStats or SuccessRecord
  (mrl.records); records are honest and verified
- training_samples returns a TrainingBatch; see mrl/modes/solo.py for the own part,
  mrl/modes/peers.py for a peer's text in the receiver's tokens, mrl/samples.py for what a sample
  holds; an `objective` of a sample's own does not count here
- it learns from its own tries as well: without records it ends at most 10 points below `solo`
- what it remembers is kept in `self`: each policy has a mode of its own. A global belongs to both
  policies, to all pairs and to the controls
- no mode of mrl.modes but Solo may be imported

Check it with:  python mini_mrl.py assignment check own-mode.py
Try it on language models with:  python mini_mrl.py --mode own-mode.py:Mine --steps 40
"""

import random
from dataclasses import dataclass

from mrl.modes import GroupsAndRecords, Mode, Receiver, TrainingBatch
from mrl.modes.solo import own_samples

ASSIGNMENT = "own-mode"


@dataclass
class Mine(Mode):
    """Say in one line what yours does."""

    name = "mine"
    consumes = None

    def training_samples(
        self, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
    ) -> TrainingBatch:
        """As solo does it; now let peers take part."""
        return TrainingBatch(
            [s for group, _ in groups_and_records for s in own_samples(receiver, group)]
        )
