"""Assignment 5: Success-Gated Transfer from its equation."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from mrl.classroom import Finding, examine, shown
from mrl.classroom.sandbox import Session
from mrl.classroom.toy import END, Table, ask_mode, describe, rollout, samples_of, told
from mrl.records import SuccessRecord
from mrl.samples import Group, Problem, TrainingSample

PRELOAD = ("mrl.classroom.toy",)
BLOCKED = ("mrl.modes.sgt", "mrl.lab.bandit")
LIMIT_S = 30.0
MEMORY = 1 << 30
STUB = '''"""Success-Gated Transfer (arXiv 2605.07244): imitate only where all own attempts fail.

    L_k = L_own,k + lambda * NLL_k(y_peer | x)   on prompts x where every own completion failed and
                                                 some peer has a verified success (the rescue set)

Contract of `training_samples`:
- returns a TrainingBatch whose samples are the own ones (mrl.modes.solo.own_samples makes them) and, for
  each prompt of the rescue set, one TrainingSample with objective "nll", weight
  `imitation_weight`, the peer's name as source, reward 1.0
- one of all the peers' successes is drawn, each with the same chance; use rng and nothing else
- its completion_ids are the *receiver's* tokens, its end token behind them iff the peer had
  finished (mrl.modes.peers.retokenized does both, and gives None for what must be refused)
- `group.kind` is "all_fail", "mixed" or "all_pass"; `peers` is prompt id -> records

Check it with:  python mini_mrl.py assignment check sgt.py
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mrl.records import SuccessRecord
from mrl.modes import TrainingBatch, Mode, Receiver
from mrl.modes.peers import retokenized
from mrl.modes.solo import own_samples
from mrl.samples import Group, TrainingSample

ASSIGNMENT = "sgt"


@dataclass
class MySGT(Mode):
    """Own objective, plus imitation where all own attempts failed."""

    name = "my-sgt"
    consumes = None  # which record type?
    imitation_weight: float = 0.1

    def training_samples(
        self,
        receiver: Receiver,
        groups: Sequence[Group],
        peers: Mapping[str, Sequence[SuccessRecord]],
        rng: random.Random,
    ) -> TrainingBatch:
        """Own samples, and one imitated success for each prompt of the rescue set."""
        raise NotImplementedError("your turn")
'''
KINDS = {"all_fail": (0, 0, 0), "mixed": (1, 0, 0), "all_pass": (1, 1, 1)}


def perform(module: ModuleType, do: str, given: Any, ask: Callable[[Any], Any]) -> Any:
    """Describe the submission's mode, or ask it for a batch."""
    return describe(module) if do == "describe" else ask_mode(module, given)


def group_of(name: str, prompt: int, rewards: tuple[int, ...]) -> Group:
    """Three completions of one letter and an end token."""
    rollouts = [rollout([n, END], [-1.0 - n, -0.25], r) for n, r in enumerate(rewards)]
    return Group(Problem(name, "?", "a"), [prompt], rollouts)


def success(prompt_id: str, text: str, source: str = "b", finished: bool = True) -> SuccessRecord:
    """A verified success of a peer that writes one letter a token."""
    return SuccessRecord(
        prompt_id=prompt_id, source=source, version=0, text=text, finished=finished, answer="a",
        token_lengths=(1,) * len(text.encode()), canonical=True, verdict="correct",
    )  # fmt: skip


def check(session: Session, rng: random.Random, say: Callable[[str], None]) -> Iterator[Finding]:
    """What it consumes, when it rescues, what it imitates, and that own samples stay."""
    receiver = Table("a", [[0.0] * 6 for _ in range(4)])

    def batch(
        groups: list[Group], records: list[SuccessRecord], seed: int = 0, **settings: Any
    ) -> list[TrainingSample] | str:
        return samples_of(session.call("batch", told(receiver, groups, records, seed, **settings)))

    def rescues(
        groups: list[Group], records: list[SuccessRecord], seed: int = 0, **settings: Any
    ) -> list[TrainingSample] | str:
        found = batch(groups, records, seed, **settings)
        return found if isinstance(found, str) else [s for s in found if s.loss == "imitation"]

    def consumes() -> str | None:
        kind = session.call("describe")["kind"]
        return None if kind == "success" else f"it consumes {kind}; SGT needs verified successes"

    yield examine(1, "what it consumes", consumes)

    def gate(kind: str, records: list[SuccessRecord], wanted: int) -> str | None:
        found = rescues([group_of("x", 0, KINDS[kind])], records)
        if isinstance(found, str):
            return found
        if len(found) == wanted:
            return None
        who = "a peer succeeded" if records else "no peer succeeded"
        return f"on a prompt that is {kind} here, while {who}: {len(found)} imitated, not {wanted}"

    two = [success("x", "d"), success("x", "e")]
    yield examine(2, "a failed group and a peer's success", lambda: gate("all_fail", two, 1))
    cases = [("mixed", two, 0), ("all_pass", two, 0), ("all_fail", [], 0)]
    nothing = (gate(*case) for case in cases)  # a generator: asked when it is looked at
    yield examine(2, "where nothing is to be rescued", lambda: next(filter(None, nothing), None))

    def imitated() -> str | None:
        for text, finished, ids in (("dc", True, [3, 2, END]), ("dc", False, [3, 2])):
            found = rescues([group_of("x", 2, (0, 0, 0))], [success("x", text, "c", finished)])
            if isinstance(found, str):
                return found
            if len(found) != 1:
                return f"{len(found)} samples to imitate, not 1"
            (s,) = found
            got = (s.completion_ids, s.prompt_ids, s.source, s.reward, s.weight)
            want = (ids, [2], "c", 1.0, 0.1)
            for name, a, b in zip(
                ("completion_ids", "prompt_ids", "source", "reward", "weight"), got, want,
                strict=True,
            ):  # fmt: skip
                if a != b:
                    state = "finished" if finished else "cut"
                    return f"of a {state} success {text!r}: {name} is {shown(a)}, not {shown(b)}"
        found = rescues([group_of("x", 2, (0, 0, 0))], [success("x", "d")], imitation_weight=0.5)
        if isinstance(found, str):
            return found
        return None if found[0].weight == 0.5 else "imitation_weight=0.5 does not reach the sample"

    yield examine(2, "what is imitated", imitated)

    def own() -> str | None:
        groups = [group_of("x", 0, (0, 0, 0)), group_of("y", 1, (1, 0, 0))]
        found = batch(groups, [success("x", "d")])
        if isinstance(found, str):
            return found
        policy = [s for s in found if s.loss == "policy"]
        if len(policy) != 6:
            return f"{len(policy)} own samples of two groups of three, not 6"
        advantages = [round(s.advantage, 3) for s in policy]
        if sorted(advantages) != [-0.707, -0.707, 0, 0, 0, 1.414]:
            return f"the own advantages are {shown(advantages)}"
        if any(s.behavior_logprobs != [-1.0 - s.completion_ids[0], -0.25] for s in policy):
            return "the own behaviour log-probs are not those of the moment of sampling"
        return None

    yield examine(1, "the own samples", own)

    def uniform() -> str | None:
        records = [success("x", letter, "b") for letter in "cde"] + [success("x", "f", "c")]
        seeds = rng.sample(range(10**6), 400)
        drawn: list[int] = []
        for seed in [*seeds, *seeds[:20]]:
            found = rescues([group_of("x", 0, (0, 0, 0))], records, seed)
            if isinstance(found, str) or len(found) != 1:
                return "it does not draw one success"
            drawn.append(found[0].completion_ids[0])
        if drawn[400:] != drawn[:20]:
            return "the same rng draws another success the second time: is there other chance in it"
        times = Counter(drawn[:400])
        if all(57 <= times[letter] <= 143 for letter in (2, 3, 4, 5)):  # 100 each, 5 sigma
            return None
        return f"of four successes, 400 draws took {[times[n] for n in (2, 3, 4, 5)]}; not uniform"

    yield examine(1, "which success is drawn", uniform)

    def refused() -> str | None:
        found = rescues([group_of("x", 0, (0, 0, 0))], [success("x", "\u00e9")])
        if isinstance(found, str):
            return found
        return f"{len(found)} imitated of a text that its tokenizer cannot hold" if found else None

    yield examine(1, "a text that cannot be retokenized", refused)
