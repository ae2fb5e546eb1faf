"""Assignment 6: what a mode of one's own gains by its idea, everything else being equal.

Two tables of logits learn side by side. Of a mode only the *direction* of its updates counts: the
checker moves each problem's row once a step and always by the same length, so larger weights, more
updates and another step size gain nothing.

The control is the best of three: `solo`, the same mode with its records exchanged between problems,
and the same mode without any records. What a mode gains whatever the records say is its own: a mode
that replays its own earlier successes gains 20 points on `solo`, and shares nothing.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from multiprocessing import connection, get_context
from statistics import fmean, stdev
from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from mrl.classroom.letters import END, LETTERS, Alphabet, group_of, mode_of, receiver, samples_of
from mrl.modes import Mode
from mrl.modes.solo import Solo
from mrl.records import Record, make_records
from mrl.samples import Group, TrainingSample

OTHERS = ("graft", "hacpo", "naive", "prp", "replay", "sgt", "xgrpo")
HIDDEN = tuple(f"mrl.modes.{name}" for name in OTHERS)
PROBLEMS, RIGHT, GROUP, STEPS, LENGTH = 8, 2, 4, 40, 0.2
PAIRS = 20  # with five, a small gain was now and then not told from 0; 20 take some seconds
T = 2.093  # Student's t for 95 % and PAIRS - 1 degrees of freedom
SULKS = 10  # so many points below `solo` without records: it does not learn from its own tries


def draw_pair(seed: int) -> tuple[list[Tensor], list[list[int]]]:
    """Two policies' logits, [problems, letters], and the right letters of each problem, drawn."""
    rng = random.Random(f"pair {seed}")
    drawn = [rng.sample(range(len(LETTERS)), RIGHT + 1) for _ in range(PROBLEMS)]
    known = set(rng.sample(range(PROBLEMS), PROBLEMS // 2))

    def policy(knows: Iterable[int]) -> Tensor:
        logits = [[rng.uniform(-0.3, 0.3) for _ in LETTERS] for _ in range(PROBLEMS)]
        for problem, (*right, wrong) in enumerate(drawn):
            for letter in right:
                logits[problem][letter] += 1.0 if problem in knows else -3.0
            logits[problem][wrong] += 0.0 if problem in knows else 1.5
        return torch.tensor(logits).double()

    return [policy(known), policy(set(range(PROBLEMS)) - known)], [right for *right, _ in drawn]


def sample(table: Tensor, right: list[list[int]], rng: random.Random) -> list[Group]:
    """A group a problem."""
    groups = []
    for problem, logprobs in enumerate(table.log_softmax(1).tolist()):
        drawn = rng.choices(range(len(LETTERS)), list(map(math.exp, logprobs)), k=GROUP)
        answers = [(LETTERS[a], logprobs[a], a in right[problem]) for a in drawn]
        groups.append(group_of(problem, answers))
    return groups


def update(table: Tensor, samples: Sequence[TrainingSample]) -> None:
    """Move each row by LENGTH along the ascent direction of GRPO's objective and of imitation.

    As in mrl/learning.py: a mean over the policy samples and one over those that are imitated.
    """
    before, counts = table.log_softmax(1).tolist(), Counter(s.loss for s in samples)
    pull = torch.zeros_like(table)  # gradient in the log-probs of letters
    for s in samples:
        problem, letter = s.prompt_ids[0], s.completion_ids[0]
        if letter == END:
            continue
        factor = s.weight / counts[s.loss]
        if s.loss == "policy":
            moved = before[problem][letter] - s.behavior_logprobs[0]
            ratio = math.exp(max(-20, min(moved, 20)))
            flat = ratio > 1.2 if s.advantage > 0 else ratio < 0.8  # clipped: no gradient
            factor *= 0.0 if flat else ratio * s.advantage
        pull[problem, letter] += factor
    up = pull - table.softmax(1) * pull.sum(1, keepdim=True)
    assert up.norm().isfinite(), "weights or advantages are too large to add up"
    table += LENGTH * normalize(up, dim=1)


def exchanged(records: list[Record], rng: random.Random) -> list[Record]:
    """Records exchanged between the problems that have some: only what they say is wrong then."""
    ids = sorted({record.prompt_id for record in records})
    shift = rng.randrange(1, max(len(ids), 2))
    other = dict(zip(ids, ids[shift:] + ids[:shift], strict=True))
    return [replace(record, prompt_id=other[record.prompt_id]) for record in records]


def train(kind: type[Mode], seed: int, received: str = "records") -> float:
    """Points of expected reward of both policies at the end.

    received: "records", the peer's; "exchanged", those of another problem; or "nothing".
    """
    tables, right = draw_pair(seed)
    modes = [kind() for _ in tables]
    for step in range(STEPS):
        chance = [random.Random(f"{seed} {step} {who}") for who in "ab"]
        groups = [sample(table, right, rng) for table, rng in zip(tables, chance, strict=True)]
        for me, table in enumerate(tables):
            peer, records = 1 - me, []
            if kind.consumes and received != "nothing":
                records = [*make_records(kind.consumes, "ab"[peer], step, groups[peer], Alphabet())]
            if received == "exchanged":
                records = exchanged(records, chance[me])
            prompts = [(g, [r for r in records if r.prompt_id == g.problem.id]) for g in groups[me]]
            update(table, samples_of(modes[me], receiver("ab"[me], table), prompts, chance[me]))

    solved = [table.softmax(1).gather(1, torch.tensor(right)).sum(1) for table in tables]
    return 100 * float(torch.cat(solved).mean())


def train_all(
    kind: type[Mode], seeds: Sequence[int], received: str, answer: connection.Connection
) -> None:
    """Answer with the results of some pairs, or with words if the mode raises an error."""
    try:
        answer.send([train(kind, seed, received) for seed in seeds])
    except Exception as error:
        answer.send(f"{type(error).__name__}: {error}")


def results(kind: type[Mode], seeds: Sequence[int]) -> dict[str, list[float]]:
    """What the mode comes to by what it receives.

    Each in a process of its own, all at once: what one leaves in globals does not reach another.
    """
    fork, answers, by_received = get_context("fork"), {}, {}
    for received in ("records", "exchanged", "nothing"):
        answers[received], answer = fork.Pipe(duplex=False)
        fork.Process(target=train_all, args=(kind, seeds, received, answer), daemon=True).start()
        answer.close()

    for received, answer in answers.items():
        try:
            result = answer.recv()
        except EOFError:
            result = "it ended its process"
        assert isinstance(result, list), f"while it received {received}: {result}"
        by_received[received] = result
    return by_received


@pytest.fixture(scope="module")
def helped(submission: ModuleType, seed: str) -> tuple[float, float, str]:
    """What a mode gains on drawn pairs, half of its interval, and both in words."""
    kind, seeds = mode_of(submission), random.Random(seed).sample(range(10**6), PAIRS)
    solo = [train(Solo, seed) for seed in seeds]
    own = results(kind, seeds)
    lag = fmean(solo) - fmean(own["nothing"])
    assert lag < SULKS, (
        f"without any records it ends {lag:.0f} points below `solo`: it has to learn from its own "
        "tries as well, or what it gains by records cannot be told from what it does by itself"
    )

    controls = {
        "solo": solo,
        "itself with exchanged records": own["exchanged"],
        "itself without any records": own["nothing"],
    }
    name = max(controls, key=lambda name: fmean(controls[name]))
    gains = [
        with_peer - other for with_peer, other in zip(own["records"], controls[name], strict=True)
    ]
    gain, half = fmean(gains), T * stdev(gains) / PAIRS**0.5
    words = f"{gain:+.1f} ± {half:.1f} points of expected reward over {PAIRS} drawn pairs"
    return gain, half, f"{words}, against {name}"


@pytest.mark.points(1)
def test_runs(submission: ModuleType) -> None:
    """it runs, and its samples can be learnt from"""
    train(mode_of(submission), seed=0)


@pytest.mark.parametrize(
    "least",
    [
        pytest.param(least, marks=pytest.mark.points(points), id=f"{least} points gained")
        for least, points in ((0.5, 6), (2, 1), (10, 1), (20, 1))
    ],
)
def test_gains(helped: tuple, least: float, record_property: Callable) -> None:
    """with a peer that knows what you do not"""
    gain, half, words = helped
    record_property("gain", words)
    assert gain - half > 0 and gain >= least, (
        f"{words}; wanted are as many, and an interval above 0. The updates' length is "
        "the checker's, so only what the peer's records change can gain: on which problems does "
        "the receiver learn nothing by itself?"
    )
