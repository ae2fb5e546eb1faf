"""Sharing modes: the one place where strategies differ. One file a mode.

A mode declares which record type it consumes and turns (own groups, peers' records, receiver)
into training samples. It never samples, never touches a device, never steps an optimizer.

To add one, write a subclass of `Mode` in a file of this folder and name it in `MODES`; or in any
file, and run it with `--mode that_file.py:ItsClass`.

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
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from mrl.alignment import ByteCodec
from mrl.config import check_table
from mrl.errors import MrlError
from mrl.objectives import Objective
from mrl.records import Record
from mrl.residual import Residual
from mrl.samples import Group, TrainingSample


class Receiver(Protocol):
    """What a mode may know of the policy that is about to learn."""

    name: str
    codec: ByteCodec
    objective: Objective
    end_id: int
    max_new_tokens: int

    def score(
        self, prompts: Sequence[list[int]], completions: Sequence[list[int]]
    ) -> list[list[float]]:
        """Its log-probs of completions' tokens before this step's first update, nats."""


@dataclass
class Rescue:
    """A prompt that the receiver failed on and a peer solved: shown to people, never trained on."""

    problem_id: str
    prompt: str
    skill: str
    receiver: str
    receiver_text: str  # one of its failures
    source: str
    source_text: str


@dataclass
class Lesson:
    """What a mode hands to the trainer for one receiver and step."""

    samples: list[TrainingSample] = field(default_factory=list)  # in the order of learning
    rescues: list[Rescue] = field(default_factory=list)
    rescue_set: int = 0  # prompts that all failed here and that a peer solved
    dropped: Counter[str] = field(default_factory=Counter)  # peers' records, by the mode's reason
    residual: Residual = field(default_factory=Residual)  # of the records that it retokenized
    replaced: int = 0  # own completions of failed groups in whose place a peer's group stands
    notes: dict[str, float] = field(default_factory=dict)  # the mode's own figures, by name


@dataclass
class Mode(ABC):
    """Base of all modes. Settings of a mode are the fields of its dataclass.

    Every policy has an instance of its own: what one remembers comes from the groups and records
    that its policy was given, so nothing crosses between policies past the exchange.
    """

    name: ClassVar[str]
    consumes: ClassVar[type[Record] | None] = None  # the only record type it is ever given
    rollout_factor: ClassVar[int] = 1  # times the policy's group size
    peers_are_live: ClassVar[bool] = True  # False with the stored records of a finished run

    minibatches: int = 1  # optimizer updates that a step's samples are cut into

    def state(self) -> dict:
        """What it remembers from step to step, as JSON for a checkpoint."""
        return {}

    def restore(self, state: dict) -> None:  # noqa: B027, most modes have nothing to take back
        """Take back what `state` gave."""

    @abstractmethod
    def training_samples(
        self,
        receiver: Receiver,
        groups: Sequence[Group],
        peers: Mapping[str, Sequence[Record]],
        rng: random.Random,
    ) -> Lesson:
        """Turn own groups and peers' records (by prompt id) into what the receiver learns from.

        rng: seeded by run, step and receiver; the only source of chance that a mode may use.
        """


MODES = {
    "solo": "mrl.modes.solo:Solo",
    "solo-x2": "mrl.modes.solo:SoloX2",
    "naive": "mrl.modes.naive:Naive",
    "prp": "mrl.modes.prp:PRP",
    "xgrpo": "mrl.modes.xgrpo:XGRPO",
    "sgt": "mrl.modes.sgt:SGT",
    "hacpo": "mrl.modes.hacpo:HACPO",
    "graft": "mrl.modes.graft:GRAFT",
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
    module, class_name = MODES[name].split(":")
    return getattr(import_module(module), class_name)


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
