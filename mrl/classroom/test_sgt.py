"""Assignment 5: Success-Gated Transfer from its equation."""

import random
from collections import Counter
from types import ModuleType
from typing import Any

import pytest

from mrl.classroom import shown
from mrl.classroom.letters import END, Alphabet, Learner, flaw, group_of, mode_of
from mrl.modes.solo import own_samples
from mrl.records import SuccessRecord
from mrl.samples import Group, TrainingSample

HIDDEN = ("mrl.modes.sgt", "mrl.lab")
KINDS = {"all_fail": (0, 0, 0), "mixed": (1, 0, 0), "all_pass": (1, 1, 1)}
FIELDS = ("prompt_ids", "completion_ids", "loss", "weight", "source", "reward")
RECEIVER = Learner("a", [[0.0] * 6 for _ in range(10)])


def own_group(prompt: int, kind: str) -> Group:
    """Three completions of different letters and log-probs."""
    rewards = zip("abc", KINDS[kind], strict=True)
    answers = [(x, -1.0 - n - prompt / 8, bool(r)) for n, (x, r) in enumerate(rewards)]
    return group_of(prompt, answers, f"p{prompt}")


def success(prompt: int, text: str, source: str = "b", finished: bool = True) -> SuccessRecord:
    """A verified success of a peer that writes one letter a token."""
    return SuccessRecord(
        prompt_id=f"p{prompt}", source=source, version=0, text=text, finished=finished,
        answer="?", token_lengths=(1,) * len(text.encode()), canonical=True, verdict="correct",
    )  # fmt: skip


def batch(
    submission: ModuleType, step: list[tuple], seed: int = 0, **settings: Any
) -> tuple[list[TrainingSample], list[TrainingSample]]:
    """Own and imitated samples that the mode makes of (prompt, kind, records), if sound."""
    prompts = [(own_group(prompt, kind), list(records)) for prompt, kind, records in step]
    mode = mode_of(submission)(**settings)
    samples = list(mode.training_samples(RECEIVER, prompts, random.Random(seed)).samples)
    trouble = next(filter(None, (flaw(s, [g for g, _ in prompts]) for s in samples)), "")
    assert not trouble, trouble
    return tuple([s for s in samples if (s.loss == "imitation") == rescued] for rescued in (0, 1))


def about(sample: TrainingSample) -> tuple:
    """What is compared of an imitated sample."""
    return tuple(getattr(sample, name) for name in FIELDS)


def rescued(prompt: int, success: SuccessRecord, weight: float = 0.1) -> tuple:
    """What `about` has to be."""
    ids = Alphabet().encode(success.text) + [END] * success.finished
    return ([prompt], ids, "imitation", weight, success.source, 1.0)


@pytest.mark.points(1)
def test_consumes(submission: ModuleType) -> None:
    """what it consumes"""
    consumes = mode_of(submission).consumes
    assert consumes is SuccessRecord, f"it consumes {shown(consumes)}, expected SuccessRecord"


@pytest.mark.points(2)
def test_gate(submission: ModuleType) -> None:
    """when it imitates"""
    two = [success(0, "d"), success(0, "e", "c")]
    for kind, records in (("all_fail", two), ("mixed", two), ("all_pass", two), ("all_fail", [])):
        found, wanted = (
            batch(submission, [(0, kind, records)])[1],
            int(kind == "all_fail" and records != []),
        )
        assert len(found) == wanted, (
            f"on a prompt that is {kind} here, with {len(records)} successes of peers, "
            f"{len(found)} were imitated, expected {wanted}"
        )


@pytest.mark.points(2)
def test_imitated(submission: ModuleType) -> None:
    """what is imitated"""
    for record in (success(2, "dc", "c"), success(2, "dc", "c", finished=False)):
        for settings in ({}, {"imitation_weight": 0.5}):
            found = batch(submission, [(2, "all_fail", [record])], **settings)[1]
            assert found, f"nothing was imitated of a success {record.text!r}"
            want = rescued(2, record, *settings.values())
            for name, got, right in zip(FIELDS, about(found[0]), want, strict=True):
                assert got == right, (
                    f"of a success {record.text!r}, finished {record.finished}, with {settings}: "
                    f"{name} is {shown(got)}, expected {shown(right)}"
                )


@pytest.mark.points(2)
def test_many(submission: ModuleType, rng: random.Random) -> None:
    """a step with several prompts to rescue"""
    for _ in range(3):
        step = [(8 + n, "all_fail", [success(8 + n, text)]) for n, text in enumerate(("ef", "fed"))]
        for prompt in rng.sample(range(8), 8):
            kind, text = rng.choice(list(KINDS)), "".join(rng.choices("abcdef", k=3))
            step.append((prompt, kind, [success(prompt, text, rng.choice("bc"))]))
        want = [rescued(p, records[0]) for p, kind, records in step if kind == "all_fail"]
        found = [about(sample) for sample in batch(submission, step)[1]]
        assert len(found) == len(want), (
            f"{len(want)} of {len(step)} prompts were to be rescued, {len(found)} were"
        )
        assert sorted(found) == sorted(want), (
            f"for one of {len(want)} prompts to rescue: {FIELDS} is "
            f"{shown(next(x for x in found if x not in want))}; is a text of one prompt "
            "imitated on another?"
        )


@pytest.mark.points(1)
def test_own(submission: ModuleType) -> None:
    """the own samples"""
    step = [(p, kind, [success(p, "d")]) for p, kind in enumerate([*KINDS, "mixed"])]
    want = [sample for p, kind, _ in step for sample in own_samples(RECEIVER, own_group(p, kind))]
    found = batch(submission, step)[0]
    assert len(found) == len(want), f"{len(found)} own samples, expected {len(want)}"
    for right in want:
        same = [
            s
            for s in found
            if (s.prompt_ids, s.completion_ids) == (right.prompt_ids, right.completion_ids)
        ]
        assert len(same) == 1, f"{len(same)} samples of one own completion, expected 1"
        for name in ("advantage", "behavior_logprobs", "weight", "reward", "source", "objective"):
            got, value = getattr(same[0], name), getattr(right, name)
            assert got == value or got == pytest.approx(value, abs=1e-5), (
                f"of an own completion with reward {right.reward}: {name} is {shown(got)}, "
                f"expected {shown(value)}, as mrl.modes.solo.own_samples has it"
            )


@pytest.mark.points(1)
def test_draws(submission: ModuleType, rng: random.Random) -> None:
    """which success is drawn"""
    records = [success(0, letter, "b") for letter in "cde"] + [success(0, "f", "c")]
    seeds = rng.sample(range(10**6), 400)
    drawn = []
    for seed in [*seeds, *seeds[:20]]:
        found = batch(submission, [(0, "all_fail", records)], seed)[1]
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
    """a text that cannot be retokenized"""
    refused = success(0, "\u00e9")
    step = [(0, "all_fail", [refused]), (1, "all_fail", [success(1, "d")])]
    own, found = batch(submission, step)
    assert [about(s) for s in found] == [rescued(1, step[1][2][0])], (
        f"the receiver's tokenizer cannot hold the text for one prompt of two: {len(found)} "
        "imitated, expected the other one alone"
    )
    assert len(own) == 6, f"and {len(own)} own samples, expected 6"
