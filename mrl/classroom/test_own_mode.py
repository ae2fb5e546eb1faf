"""Assignment 6: what a mode of one's own gains by its idea, everything else being equal.

Two tables of logits learn side by side. Of a mode only the *direction* of its updates counts: the
checker moves each problem's row once a step and always by the same length, so larger weights, more
updates and another step size gain nothing. The control is the better of two: `solo`, and the same
mode with its records exchanged between problems; what a mode gains whatever they say is its own.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean, stdev
from types import ModuleType

import pytest

from mrl.classroom import shown
from mrl.classroom.letters import END, LETTERS, Learner, flaw, group_of, log_softmax, mode_of
from mrl.modes import Mode
from mrl.modes.solo import Solo
from mrl.records import RECORD_TYPES, Record, make_records
from mrl.samples import Group, TrainingSample

HIDDEN = tuple(f"mrl.modes.{name}" for name in ("sgt", "graft", "hacpo", "naive", "prp", "xgrpo"))
PROBLEMS, RIGHT, GROUP, STEPS, LENGTH, PAIRS = 8, 2, 4, 40, 0.2, 5
T = 2.776  # Student's t for 95 % and PAIRS - 1 degrees of freedom
Table = list[list[float]]  # logits, [problems, letters]


def draw_pair(seed: int, apart: bool) -> tuple[list[Table], list[set[int]]]:
    """Two policies and the right letters of each problem, drawn.

    apart: each knows its half; else the second is wrong wherever the first is.
    """
    rng = random.Random(f"pair {seed}")
    right = [set(rng.sample(range(len(LETTERS)), RIGHT)) for _ in range(PROBLEMS)]
    known = set(rng.sample(range(PROBLEMS), PROBLEMS // 2))

    def row(problem: int, knows: bool) -> list[float]:
        logits = [rng.uniform(-0.3, 0.3) for _ in LETTERS]
        for letter in right[problem]:
            logits[letter] += 1.0 if knows else -3.0
        wrong = rng.choice([x for x in range(len(LETTERS)) if x not in right[problem]])
        logits[wrong] += 0.0 if knows else 1.5
        return logits

    first = [row(problem, problem in known) for problem in range(PROBLEMS)]
    second = [row(problem, (problem in known) != apart) for problem in range(PROBLEMS)]
    return [first, second], right


def sample(table: Table, right: list[set[int]], rng: random.Random) -> list[Group]:
    """A group a problem."""
    groups = []
    for problem, logits in enumerate(table):
        logprobs = log_softmax(logits)
        letters = rng.choices(range(len(LETTERS)), [math.exp(x) for x in logprobs], k=GROUP)
        answers = [(LETTERS[a], logprobs[a], a in right[problem]) for a in letters]
        groups.append(group_of(problem, answers))
    return groups


def update(table: Table, samples: Sequence[TrainingSample]) -> None:
    """Move each row by LENGTH along the ascent direction of GRPO's objective and of imitation.

    As in mrl/learning.py: a mean over the policy samples and one over those that are imitated.
    """
    before = [log_softmax(row) for row in table]
    ascent = [[0.0] * len(LETTERS) for _ in table]
    counts = Counter(s.loss for s in samples)
    for s in samples:
        problem, letter = s.prompt_ids[0], s.completion_ids[0]
        if letter == END:
            continue
        factor = s.weight / counts[s.loss]
        if s.loss == "policy":
            ratio = math.exp(max(-20, min(before[problem][letter] - s.behavior_logprobs[0], 20)))
            flat = ratio > 1.2 if s.advantage > 0 else ratio < 0.8  # clipped: no gradient
            factor *= 0.0 if flat else ratio * s.advantage
        for other, logprob in enumerate(before[problem]):
            ascent[problem][other] += factor * ((other == letter) - math.exp(logprob))
    for row, up in zip(table, ascent, strict=True):
        length = math.hypot(*up)
        assert math.isfinite(length), "weights or advantages are too large to add up"
        if length > 1e-12:
            row[:] = [x + LENGTH * y / length for x, y in zip(row, up, strict=True)]


def moved(records: list[Record], rng: random.Random) -> list[Record]:
    """Records exchanged between the problems that have some: only what they say is wrong then."""
    ids = sorted({record.prompt_id for record in records})
    shift = rng.randrange(1, max(len(ids), 2))
    other = dict(zip(ids, ids[shift:] + ids[:shift], strict=True))
    return [replace(record, prompt_id=other[record.prompt_id]) for record in records]


def train(kind: type[Mode], seed: int, apart: bool, honest: bool = True) -> float:
    """Expected reward of both policies at the end, 0 to 1. honest: records are not exchanged."""
    tables, right = draw_pair(seed, apart)
    modes = [kind() for _ in tables]
    for step in range(STEPS):
        chance = [random.Random(f"{seed} {step} {who}") for who in range(len(tables))]
        groups = [sample(table, right, rng) for table, rng in zip(tables, chance, strict=True)]
        sent: list[list[Record]] = [[], []]
        if kind.consumes:
            sent = [
                list(make_records(kind.consumes, "ab"[who], step, groups[who], Learner.codec))
                for who in range(len(tables))
            ]
        if not honest:
            sent = [moved(records, rng) for records, rng in zip(sent, chance, strict=True)]
        for who, table in enumerate(tables):
            prompts = [
                (group, [r for r in sent[1 - who] if r.prompt_id == group.problem.id])
                for group in groups[who]
            ]
            batch = modes[who].training_samples(Learner("ab"[who], table), prompts, chance[who])
            trouble = next(filter(None, (flaw(s, groups[who]) for s in batch.samples)), "")
            assert not trouble, f"in step {step + 1}: {trouble}"
            update(table, batch.samples)
    return fmean(
        sum(math.exp(log_softmax(row)[letter]) for letter in letters)
        for table in tables
        for row, letters in zip(table, right, strict=True)
    )


@cache
def solo(seed: int, apart: bool) -> float:
    """What the control comes to on a drawn pair."""
    return train(Solo, seed, apart)


class Comparison:
    """What a mode gains on the drawn pairs, in points of expected reward."""

    def __init__(self, kind: type[Mode], seeds: Sequence[int], apart: bool) -> None:
        mine = [100 * train(kind, seed, apart) for seed in seeds]
        control = [100 * solo(seed, apart) for seed in seeds]
        self.control = "solo"
        if apart:
            deaf = [100 * train(kind, seed, apart, honest=False) for seed in seeds]
            if fmean(deaf) > fmean(control):
                control, self.control = deaf, "itself with exchanged records"
        gains = [a - b for a, b in zip(mine, control, strict=True)]
        self.gain, self.half = fmean(gains), T * stdev(gains) / len(gains) ** 0.5

    def __str__(self) -> str:
        return (
            f"{self.gain:+.1f} ± {self.half:.1f} points of expected reward over {PAIRS} drawn "
            f"pairs, against {self.control}"
        )


@pytest.fixture(scope="module")
def kind(submission: ModuleType) -> type[Mode]:
    """The submission's class, if a run could use it."""
    found = mode_of(submission)
    assert found.consumes in (None, *RECORD_TYPES.values()), (
        f"`consumes` is {shown(found.consumes)}, expected a type of mrl.records, or None"
    )
    return found


@pytest.fixture(scope="module")
def seeds(seed: int) -> list[int]:
    """Of the drawn pairs: the same for all submissions of one check."""
    return random.Random(seed).sample(range(10**6), PAIRS)


@pytest.fixture(scope="module")
def helped(kind: type[Mode], seeds: list[int]) -> Comparison:
    """With a peer that knows what the receiver does not."""
    return Comparison(kind, seeds, apart=True)


@pytest.mark.points(1)
def test_runs(kind: type[Mode], seeds: list[int]) -> None:
    """it runs, and its samples can be learnt from"""
    train(kind, seeds[0], apart=True)


@pytest.mark.parametrize(
    "least",
    [
        pytest.param(least, marks=pytest.mark.points(points), id=f"{least} points gained")
        for least, points in ((0, 3), (2, 1), (10, 1), (20, 1))
    ],
)
def test_gains(
    helped: Comparison, least: float, record_property: Callable[[str, object], None]
) -> None:
    """with a peer that knows what you do not"""
    record_property("gain", helped)
    assert helped.gain - helped.half > 0 and helped.gain >= least, (
        f"{helped}; wanted were {least} or more and an interval above 0. The updates' length is "
        "the checker's, so only what the peer's records change can gain: on which problems does "
        "the receiver learn nothing by itself?"
    )


@pytest.mark.points(3)
def test_harmless(kind: type[Mode], seeds: list[int], helped: Comparison) -> None:
    """with a peer that fails on the same problems"""
    assert helped.gain - helped.half > 0, "not looked at, as nothing is gained where it could be"
    found = Comparison(kind, seeds, apart=False)
    assert found.gain > -5, (
        f"{found}; it may lose 5. Is something imitated that is no success, or in place of own "
        "samples that teach more?"
    )
