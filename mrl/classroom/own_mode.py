"""Assignment 6: a sharing mode of one's own that beats solo on a given budget."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from statistics import fmean, stdev
from types import ModuleType
from typing import Any

import torch

from mrl.classroom import Finding, examine
from mrl.classroom.sandbox import Session
from mrl.classroom.toy import ACTIONS, Table, ask_mode, describe, rollout, samples_of, told
from mrl.learning import learn
from mrl.modes.solo import own_samples
from mrl.records import RECORD_TYPES, make_records
from mrl.samples import Group, Problem

PRELOAD = ("mrl.classroom.toy",)
BLOCKED = (
    "mrl.modes.sgt", "mrl.modes.graft", "mrl.modes.hacpo", "mrl.modes.naive", "mrl.modes.prp",
    "mrl.modes.xgrpo", "mrl.lab.bandit", "mrl.classroom.own_mode",
)  # fmt: skip
LIMIT_S = 120.0
MEMORY = 1 << 30
STUB = '''"""A sharing mode of your own: what crosses, and what does the receiver do with it?

Two policies train side by side on eight problems with six possible answers each, of which two are
right. Each knows half of the problems; on the others it is right in a few of a hundred tries.
Both sample a budget of 1,920 completions each, four a problem and step. Your mode is compared with
`solo` by the expected reward of both at the end, over eight hidden pairs and seeds.

Contract:
- one subclass of Mode in this file; `consumes` is RolloutRecord, RewardStats or SuccessRecord
  (mrl.records); records are honest and verified
- training_samples returns a TrainingBatch; see mrl/modes/solo.py for the own part, mrl/modes/peers.py
  for a peer's text in the receiver's tokens, mrl/samples.py for what a sample may say
- no other mode of mrl.modes may be imported
- `rollout_factor = 2` samples twice as many completions a step, and makes half as many steps

Check it with:  python mini_mrl.py assignment check own-mode.py
Try it on language models with:  python mini_mrl.py --mode own-mode.py:Mine --steps 40
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mrl.records import Record
from mrl.modes import TrainingBatch, Mode, Receiver
from mrl.modes.solo import own_samples
from mrl.samples import Group

ASSIGNMENT = "own-mode"


@dataclass
class Mine(Mode):
    """Say in one line what yours does."""

    name = "mine"
    consumes = None

    def training_samples(
        self,
        receiver: Receiver,
        groups: Sequence[Group],
        peers: Mapping[str, Sequence[Record]],
        rng: random.Random,
    ) -> TrainingBatch:
        """As solo does it; now let peers take part."""
        return TrainingBatch([sample for group in groups for sample in own_samples(receiver, group)])
'''
PROBLEMS, RIGHT, GROUP, BUDGET, SEEDS, RATE = 8, (0, 1), 4, 1920, 8, 2.0


def perform(module: ModuleType, do: str, given: Any, ask: Callable[[Any], Any]) -> Any:
    """Describe the submission's mode, or ask it for a batch."""
    return describe(module) if do == "describe" else ask_mode(module, given)


def draw_pair(rng: random.Random, apart: bool) -> list[Table]:
    """Two policies. apart: each knows its half; else the second is wrong wherever the first is."""

    def row(knows: bool) -> list[float]:
        logits = [rng.uniform(-0.3, 0.3) for _ in ACTIONS]
        for action in RIGHT:
            logits[action] += 1.0 if knows else -3.0
        logits[rng.randrange(2, len(ACTIONS))] += 0.0 if knows else 1.5
        return logits

    first = [row(problem % 2 == 0) for problem in range(PROBLEMS)]
    second = [row(problem % 2 == (1 if apart else 0)) for problem in range(PROBLEMS)]
    return [Table("a", first, RATE), Table("b", second, RATE)]


def train(
    pair: list[Table], ask: Callable[[dict], Any] | None, about: dict, seed: int
) -> float | str:
    """The expected reward of both after the budget; what is wrong with an answer otherwise.

    ask: the submission's mode; None trains as solo does.
    """
    generator = torch.Generator().manual_seed(seed)
    size = GROUP * about["factor"]
    kind = RECORD_TYPES.get(about["kind"])
    for step in range(BUDGET // (PROBLEMS * size)):
        groups = {policy.name: _sample(policy, size, generator) for policy in pair}
        records = {
            policy.name: list(
                make_records(kind, policy.name, step, groups[policy.name], policy.codec)
            )
            for policy in (pair if kind else ())
        }
        for policy in pair:
            own = groups[policy.name]
            if ask is None:
                learn(policy, [sample for group in own for sample in own_samples(policy, group)])
                continue
            others = [
                r for name, told_by in records.items() if name != policy.name for r in told_by
            ]
            said = ask(told(policy, own, others, 1000 * seed + step))
            samples = samples_of(said)
            if isinstance(samples, str):
                return samples
            learn(policy, samples, max(1, min(int(said["minibatches"]), 16)))
    return fmean(
        float(torch.softmax(policy.model.logits.detach(), 1)[:, list(RIGHT)].sum(1).mean())
        for policy in pair
    )  # fmt: skip


@cache
def solo(seed: int, apart: bool) -> float:
    """What solo comes to on a hidden pair."""
    return train(draw_pair(random.Random(seed), apart), None, {"kind": None, "factor": 1}, seed)


def _sample(policy: Table, size: int, generator: torch.Generator) -> list[Group]:
    logprobs = torch.log_softmax(policy.model.logits.detach(), 1)
    drawn = torch.multinomial(logprobs.exp(), size, replacement=True, generator=generator)
    return [
        Group(
            Problem(str(problem), "?", "a"),
            [problem],
            [
                rollout([a], [float(logprobs[problem, a])], float(a in RIGHT))
                for a in drawn[problem].tolist()
            ],
        )
        for problem in range(PROBLEMS)
    ]


def check(session: Session, rng: random.Random, say: Callable[[str], None]) -> Iterator[Finding]:
    """Runs at all; beats solo where the peer helps; loses nothing where it cannot."""
    about: dict = {}

    def runs() -> str | None:
        about.update(session.call("describe"))
        if about["kind"] not in (None, *RECORD_TYPES) or about["factor"] not in range(1, 9):
            return "`consumes` is no record type, or `rollout_factor` is not from 1 to 8"
        return None

    yield examine(1, "the class", runs)
    seeds = rng.sample(range(10**6), SEEDS)

    def gains(apart: bool) -> list[float] | str:
        found = []
        for seed in seeds:
            said = f"{'complementary' if apart else 'useless'} peer, {len(found) + 1} of {SEEDS}"
            say(said)
            mine = train(
                draw_pair(random.Random(seed), apart), lambda g: session.call("batch", g), about,
                seed,
            )  # fmt: skip
            if isinstance(mine, str):
                return mine
            found.append(100 * (mine - solo(seed, apart)))
        return found

    def words(found: list[float]) -> str:
        half = 2.365 * stdev(found) / SEEDS**0.5  # Student's t, 95 %, eight seeds
        return f"{fmean(found):+.1f} ± {half:.1f} points against solo over {SEEDS} pairs"

    if not about:
        yield Finding(0, 9, "nothing else was tried.")
        return
    helped: list[float] = []

    def beats(least: float) -> str | None:
        if not helped:
            found = gains(apart=True)
            if isinstance(found, str):
                return found
            helped.extend(found)
        half = 2.365 * stdev(helped) / SEEDS**0.5
        if fmean(helped) - half > 0 and fmean(helped) >= least:
            return None
        return f"{words(helped)}; wanted were {least:g} and an interval above 0"

    finding = examine(4, "with a complementary peer, better than solo", lambda: beats(1.0))
    yield replace(finding, text=f"{finding.text} {words(helped)}") if finding.points else finding
    yield examine(2, "and by a lot", lambda: beats(20.0))

    def harmless() -> str | None:
        if beats(1.0):
            return "not looked at, because it does not beat solo where it could"
        found = gains(apart=False)
        if isinstance(found, str):
            return found
        return None if fmean(found) > -5.0 else f"{words(found)}; it may lose 5"

    yield examine(3, "with a peer that fails on the same problems, not worse", harmless)
