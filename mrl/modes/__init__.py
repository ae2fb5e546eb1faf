"""The sharing modes, one file each, and how one is found by its name.

To add one, write a subclass of `Mode` (mode.py) in a file of this folder and name it in `MODES`; or
in any file, and run it with `--mode that_file.py:ItsClass`.

| mode    | paper         | what crosses        | what the receiver pays                           |
|---------|---------------|---------------------|--------------------------------------------------|
| solo    | -             | nothing             | -                                                |
| solo-x2 | -             | nothing             | twice the rollouts and updates                   |
| naive   | 2603.02604    | rollouts            | a forward and a training pass on every one       |
| prp     | 2605.07244    | rollouts, log-probs | a training pass on every one; ratio variance     |
| xgrpo   | 2605.07244    | reward statistics   | nothing: only its baseline changes               |
| sgt     | 2605.07244    | verified successes  | one more sample for each rescued prompt          |
| hacpo   | 2603.02604    | rollouts, log-probs | a training pass on every one                     |
| graft   | 2609.37868    | rollouts, log-probs | a forward and a training pass on grafted groups  |
"""

from mrl.modes.graft import GRAFT
from mrl.modes.hacpo import HACPO
from mrl.modes.mode import Mode, Prompts, Receiver, Rescue, TrainingBatch
from mrl.modes.naive import Naive
from mrl.modes.prp import PRP
from mrl.modes.sgt import SGT
from mrl.modes.solo import Solo, SoloX2
from mrl.modes.xgrpo import XGRPO

__all__ = ["MODES", "Mode", "Prompts", "Receiver", "Rescue", "TrainingBatch"]

MODES: dict[str, type[Mode]] = {
    kind.name: kind for kind in (Solo, SoloX2, Naive, PRP, XGRPO, SGT, HACPO, GRAFT)
}
