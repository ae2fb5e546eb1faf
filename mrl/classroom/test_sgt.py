"""Assignment 3: Success-Gated Transfer from its equation."""

import random
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from types import ModuleType
from typing import Any

import pytest
import torch

from mrl.classroom import shown
from mrl.classroom.letters import END, LETTERS, Alphabet, group_of, mode_of, receiver, samples_of
from mrl.modes.solo import own_samples
from mrl.records import SuccessRecord
from mrl.samples import Group, TrainingSample

HIDDEN = ("mrl.modes.sgt", "mrl.lab")
KINDS = {"all_fail": (False,) * 3, "mixed": (True, False, False), "all_pass": (True,) * 3}
IMITATED = ("prompt_ids", "completion_ids", "loss", "weight", "source", "reward")
OWN = (*IMITATED, "advantage", "behavior_logprobs")
RECEIVER = receiver("a", torch.zeros(10, len(LETTERS)))
Step = Sequence[tuple[int, str, list[SuccessRecord]]]  # prompt, kind of the own group, successes


def own_group(prompt: int, kind: str) -> Group:
    """Three completions of different letters and log-probs."""
    answers = [("abc"[n], -1.0 - n - prompt / 8, right) for n, right in enumerate(KINDS[kind])]
    return group_of(prompt, answers)


def success(prompt: int, text: str, source: str = "b", finished: bool = True) -> SuccessRecord:
    """A verified success of a peer that writes one letter a token."""
    return SuccessRecord(
        prompt_id=f"p{prompt}", source=source, version=0, text=text, finished=finished,
        answer="?", token_lengths=(1,) * len(text.encode()), canonical=True, verdict="correct",
    )  # fmt: skip


def imitated(prompt: int, record: SuccessRecord, weight: float = 0.1) -> TrainingSample:
    """What a success has to become."""
    ids = Alphabet().encode(record.text) + [END] * record.finished
    about = {"weight": weight, "source": record.source, "reward": 1.0}
    return TrainingSample([prompt], ids, "imitation", **about)


def made(
    submission: ModuleType, step: Step, seed: int = 0, **settings: Any
) -> tuple[list[TrainingSample], list[TrainingSample]]:
    """Own and imitated samples that the mode makes."""
    prompts = [(own_group(prompt, kind), list(records)) for prompt, kind, records in step]
    mode = mode_of(submission)(**settings)
    samples = samples_of(mode, RECEIVER, prompts, random.Random(seed))
    return tuple([s for s in samples if (s.loss == "imitation") == rescued] for rescued in (0, 1))


def compare(found: list, expected: list, fields: Sequence[str]) -> None:
    """Fail with their number, or with the first field that differs."""
    assert len(found) == len(expected), f"{len(found)} of them, expected {len(expected)}"
    order = attrgetter("prompt_ids", "completion_ids")
    for sample, right in zip(sorted(found, key=order), sorted(expected, key=order), strict=True):
        for name in fields:
            got, want = getattr(sample, name), getattr(right, name)
            assert got == want or got == pytest.approx(want, abs=1e-5), (
                f"on prompt {right.prompt_ids}, with reward {right.reward}: {name} is "
                f"{shown(got)}, expected {shown(want)}"
            )


@pytest.mark.points(1)
def test_consumes(submission: ModuleType) -> None:
    """what it consumes"""
    consumes = mode_of(submission).consumes
    assert consumes is SuccessRecord, f"it consumes {shown(consumes)}, expected SuccessRecord"


@pytest.mark.points(2)
def test_gate(submission: ModuleType) -> None:
    """when it imitates"""
    two = [success(0, "d"), success(0, "e", "c")]
    cases = ("all_fail", two, 1), ("mixed", two, 0), ("all_pass", two, 0), ("all_fail", [], 0)
    for kind, records, want in cases:
        got = len(made(submission, [(0, kind, records)])[1])
        assert got == want, f"{kind}, {len(records)} successes: {got} imitated, expected {want}"


@pytest.mark.points(2)
def test_imitated(submission: ModuleType) -> None:
    """imitated samples, of a text that was finished and of one that was not"""
    for record in (success(2, "dc", "c"), success(2, "dc", "c", finished=False)):
        for settings in ({}, {"imitation_weight": 0.5}):
            found = made(submission, [(2, "all_fail", [record])], **settings)[1]
            compare(found, [imitated(2, record, *settings.values())], IMITATED)


@pytest.mark.points(2)
def test_many(submission: ModuleType, rng: random.Random) -> None:
    """imitated samples of a step with several prompts to rescue"""
    for _ in range(3):
        step = [(8 + n, "all_fail", [success(8 + n, text)]) for n, text in enumerate(("ef", "fed"))]
        for prompt in rng.sample(range(8), 8):
            kind, text = rng.choice(list(KINDS)), "".join(rng.choices(LETTERS, k=3))
            step.append((prompt, kind, [success(prompt, text, rng.choice("bc"))]))
        want = [imitated(prompt, *records) for prompt, kind, records in step if kind == "all_fail"]
        compare(made(submission, step)[1], want, IMITATED)


@pytest.mark.points(1)
def test_own(submission: ModuleType) -> None:
    """the own samples"""
    step = [(p, kind, [success(p, "d")]) for p, kind in enumerate([*KINDS, "mixed"])]
    want = [sample for p, kind, _ in step for sample in own_samples(RECEIVER, own_group(p, kind))]
    compare(made(submission, step)[0], want, OWN)


@pytest.mark.points(1)
def test_draws(submission: ModuleType, rng: random.Random) -> None:
    """which success is drawn"""
    records = [success(0, letter, "b") for letter in "cde"] + [success(0, "f", "c")]
    seeds = rng.sample(range(10**6), 400)
    drawn = []
    for seed in [*seeds, *seeds[:20]]:
        found = made(submission, [(0, "all_fail", records)], seed)[1]
        assert len(found) == 1, f"{len(found)} of four successes were imitated, expected 1"
        drawn.append(found[0].completion_ids[0])
    assert drawn[400:] == drawn[:20], (
        "the same rng draws another success the second time: is there other chance in it?"
    )
    times = [Counter(drawn[:400])[token] for token in (2, 3, 4, 5)]
    assert all(57 <= count <= 143 for count in times), (  # 100 each, 5 sigma
        f"of four successes (three of one peer), 400 draws took {times}, expected about 100 each"
    )


@pytest.mark.points(1)
def test_refused(submission: ModuleType) -> None:
    """imitated and own samples where the receiver cannot hold the text for one of two prompts"""
    right = success(1, "d")
    step = [(0, "all_fail", [success(0, "\u00e9")]), (1, "all_fail", [right])]
    own, found = made(submission, step)
    compare(found, [imitated(1, right)], IMITATED)
    assert len(own) == 6, f"{len(own)} own samples, expected 6"
