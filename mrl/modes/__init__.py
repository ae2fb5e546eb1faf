"""The sharing modes, one file each, by name.

To add a mode, write a subclass of `Mode` (mode.py) in a new file of this folder and list it in
`LISTED`. Or write it in any file and run it with `--mode that_file.py:ItsClass`.

README.md has a table of what each mode shares, and what its receiver gains.
"""

from mrl.modes.graft import GRAFT
from mrl.modes.hacpo import HACPO
from mrl.modes.hint import Hint
from mrl.modes.mode import Beginning, Experience, Mode, Received, Receiver, TrainingBatch
from mrl.modes.naive import Naive
from mrl.modes.prp import PRP
from mrl.modes.replay import Replay
from mrl.modes.rft import RFT
from mrl.modes.sft import SFT
from mrl.modes.sgt import SGT
from mrl.modes.solo import Solo, SoloX2
from mrl.modes.xgrpo import XGRPO

__all__ = ["MODES", "Beginning", "Experience", "Mode", "Received", "Receiver", "TrainingBatch"]

LISTED: list[type[Mode]] = [
    Solo,
    SoloX2,
    Replay,
    SFT,
    RFT,
    Naive,
    PRP,
    XGRPO,
    SGT,
    Hint,
    HACPO,
    GRAFT,
]
MODES: dict[str, type[Mode]] = {mode.name: mode for mode in LISTED}
