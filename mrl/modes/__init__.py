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

import difflib
import importlib.util
from pathlib import Path
from typing import Any

from mrl.config import check_table
from mrl.errors import MrlError
from mrl.modes.graft import GRAFT
from mrl.modes.hacpo import HACPO
from mrl.modes.mode import Mode, Prompts, Receiver, Rescue, TrainingBatch
from mrl.modes.naive import Naive
from mrl.modes.prp import PRP
from mrl.modes.sgt import SGT
from mrl.modes.solo import Solo, SoloX2
from mrl.modes.xgrpo import XGRPO

__all__ = [
    "MODES",
    "Mode",
    "Prompts",
    "Receiver",
    "Rescue",
    "TrainingBatch",
    "make_mode",
    "mode_class",
]

MODES: dict[str, type[Mode]] = {
    kind.name: kind for kind in (Solo, SoloX2, Naive, PRP, XGRPO, SGT, HACPO, GRAFT)
}


def mode_class(name: str) -> type[Mode]:
    """The class of a mode, by its name or as `file.py:Class`; MrlError if there is none."""
    if ".py" in name:
        return _class_from_file(*name.partition(":")[::2])
    if name not in MODES:
        near = difflib.get_close_matches(name.lower(), MODES, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise MrlError(
            f"There is no mode {name!r}.{hint} Modes: {', '.join(MODES)}, or your own as "
            "file.py:Class."
        )
    return MODES[name]


def _class_from_file(path: str, class_name: str) -> type[Mode]:
    where = f"--mode {path}:{class_name}"
    if not class_name:
        raise MrlError(f"--mode {path}: name the class, too, as {path}:MyMode.")
    if not Path(path).is_file():
        raise MrlError(f"{where}: there is no file {path}.")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise MrlError(f"{where}: {path} cannot be loaded ({error!r}).") from error
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Mode)):
        raise MrlError(f"{where}: {path} has no class {class_name} that is a mrl.modes.Mode.")
    if getattr(found, "__abstractmethods__", None):
        raise MrlError(f"{where}: {class_name} does not define training_samples yet.")
    if not isinstance(getattr(found, "name", None), str):
        raise MrlError(f'{where}: {class_name} needs a name, as `name = "mine"` in the class.')
    return found


def make_mode(name: str, settings: dict[str, dict[str, Any]]) -> Mode:
    """The mode of that name; settings are by mode name. MrlError names the nearest right one."""
    chosen = mode_class(name)
    made = chosen(**check_table(settings.get(chosen.name, {}), chosen, f"settings.{chosen.name}"))
    if made.minibatches < 1:
        raise MrlError(f"{chosen.name}.minibatches is {made.minibatches}, but must be 1 or more.")
    return made
