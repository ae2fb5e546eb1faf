"""Assignment 3: Success-Gated Transfer from its equation."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from types import ModuleType
from typing import Any

import pytest
import torch

from mrl.classroom import shown
from mrl.classroom.letters import END, LETTERS, TableReceiver, group_of, mode_of, samples_of
from mrl.exchange import experience_of
from mrl.modes.own import own_samples
from mrl.records import SuccessRecord
from mrl.samples import Group, TrainingSample
from mrl.tiny.letters import CODEC

# In a mixed group only one of eight is correct, so that a gate at a larger share is noticed.
REWARDED = {"all_fail": (False,) * 8, "mixed": (True, *(False,) * 7), "all_pass": (True,) * 8}
PLACED = ("prompt_ids", "completion_ids")  # fields that say which completion has which prompt
IMITATED = ("prompt_ids", "completion_ids", "loss", "weight", "record", "reward")
OWN = (*IMITATED, "advantage")
RECEIVER = TableReceiver("a", torch.zeros(10, len(LETTERS)))
# per prompt: its number, the outcome of the receiver's group, and the peers' successes
Step = Sequence[tuple[int, str, list[SuccessRecord]]]


def own_group(prompt: int, outcome: str) -> Group:
    """A group of eight completions with different letters and log-probs."""
    answers = []
    for n, right in enumerate(REWARDED[outcome]):
        text = LETTERS[n // len(LETTERS)] + LETTERS[n % len(LETTERS)]
        answers.append((text, -1.0 - n - prompt / 8, right))

    return group_of(prompt, answers)


def success(prompt: int, text: str, source: str = "b", finished: bool = True) -> SuccessRecord:
    """A verified success of a peer whose tokens are single letters."""
    return SuccessRecord(
        prompt_id=f"p{prompt}", source=source, version=0, text=text, finished=finished,
        answer="?", token_lengths=(1,) * len(text.encode()), canonical=True, verdict="correct",
    )  # fmt: skip


def imitation_sample(prompt: int, record: SuccessRecord, weight: float = 0.1) -> TrainingSample:
    """The sample that a success must become."""
    ids = CODEC.encode(record.text) + [END] * record.finished
    return TrainingSample([prompt], ids, "imitation", weight=weight, record=record, reward=1.0)


def samples_made(
    submission: ModuleType, step: Step, seed: int = 0, **settings: Any
) -> tuple[list[TrainingSample], list[TrainingSample]]:
    """The samples that the mode makes: the receiver's own, and those that imitate a peer."""
    experiences = []
    for prompt, outcome, records in step:
        experiences.append(experience_of(RECEIVER, own_group(prompt, outcome), records))
    mode = mode_of(submission)(**settings)

    own, imitated = [], []
    for sample in samples_of(mode, RECEIVER, experiences, random.Random(seed)):
        is_own = not sample.source and sample.loss == "policy"
        (own if is_own else imitated).append(sample)
    return own, imitated


def gate(submission: ModuleType) -> str:
    """The first outcome at which the mode imitates, so that a wrong gate costs one part only."""
    for outcome in REWARDED:
        if samples_made(submission, [(0, outcome, [success(0, "d")])])[1]:
            return outcome
    return "all_fail"


def compare(samples: list, expected: list, fields: Sequence[str]) -> None:
    """Fail if the number of samples or any of their fields is wrong."""
    assert len(samples) == len(expected), (
        f"there are {len(samples)} samples, expected {len(expected)}"
    )

    order = attrgetter("prompt_ids", "completion_ids")
    for sample, right in zip(sorted(samples, key=order), sorted(expected, key=order), strict=True):
        for name in fields:
            got, want = getattr(sample, name), getattr(right, name)
            assert got == want or got == pytest.approx(want, abs=1e-5), (
                f"on prompt {right.prompt_ids}, with reward {right.reward}: {name} is "
                f"{shown(got)}, expected {shown(want)}"
            )


def unended(samples: list[TrainingSample]) -> list[TrainingSample]:
    """The samples without end tokens, which another part checks."""
    return [replace(s, completion_ids=[t for t in s.completion_ids if t != END]) for s in samples]


def test_consumes(submission: ModuleType) -> None:
    """1 point: the record type that it consumes"""
    consumes = mode_of(submission).consumes
    assert consumes is SuccessRecord, f"it consumes {shown(consumes)}, expected SuccessRecord"


def test_gate(submission: ModuleType) -> None:
    """2 points: when it imitates"""
    two = [success(0, "d"), success(0, "e", "c")]
    cases = ("all_fail", two, 1), ("mixed", two, 0), ("all_pass", two, 0), ("all_fail", [], 0)
    for outcome, records, want in cases:
        got = len(samples_made(submission, [(0, outcome, records)])[1])
        assert got == want, f"{outcome}, {len(records)} successes: {got} imitated, expected {want}"


def test_imitated(submission: ModuleType) -> None:
    """2 points: imitation samples of a finished and of an unfinished solution"""
    outcome = gate(submission)
    settings: dict[str, Any]
    for record in (success(2, "dc", "c"), success(2, "dc", "c", finished=False)):
        for settings in ({}, {"imitation_weight": 0.5}):
            _, rescues = samples_made(submission, [(2, outcome, [record])], **settings)
            compare(rescues, [imitation_sample(2, record, *settings.values())], IMITATED)


def test_many(submission: ModuleType, rng: random.Random) -> None:
    """2 points: imitation samples of a step with several prompts to rescue"""
    step, outcome = [], gate(submission)
    for prompt in rng.sample(range(10), 8):
        text = "".join(rng.choices(LETTERS, k=3))
        step.append((prompt, outcome, [success(prompt, text, rng.choice("bc"))]))

    want = [imitation_sample(prompt, *records) for prompt, _, records in step]
    compare(unended(samples_made(submission, step)[1]), unended(want), PLACED)


def test_own(submission: ModuleType) -> None:
    """1 point: the samples of the receiver's own completions"""
    step = [(p, outcome, [success(p, "d")]) for p, outcome in enumerate(REWARDED)]
    want = []
    for prompt, outcome, _ in step:
        want += own_samples(RECEIVER, own_group(prompt, outcome))

    compare(samples_made(submission, step)[0], want, OWN)


def test_draws(submission: ModuleType, rng: random.Random) -> None:
    """1 point: which success is drawn"""
    outcome = gate(submission)
    # length and end must not matter; a text that occurs twice counts twice
    for texts in (("c", "dd", "eee"), ("cc", "cc", "e")):
        records = [success(0, text, peer) for text, peer in zip(texts, "bbc", strict=True)]
        records[1] = replace(records[1], finished=False)
        seeds = rng.sample(range(10**6), 600)
        drawn = []
        for seed in [*seeds, *seeds[:20]]:
            _, rescues = samples_made(submission, [(0, outcome, records)], seed)
            assert len(rescues) == 1, f"{len(rescues)} of three successes were imitated, expected 1"
            drawn.append(LETTERS[rescues[0].completion_ids[0]])

        assert drawn[600:] == drawn[:20], (
            "with an rng of the same seed, it drew another success the second time; use only rng "
            "for draws"
        )

        times = Counter(drawn[:600])
        for text in texts:
            expected = 200 * texts.count(text)
            assert abs(times[text[0]] - expected) < 58, (  # 5 sigma
                f"of three successes, {', '.join(texts)} of peers b, b, c, the second not "
                f"finished, 600 draws took {text} {times[text[0]]} times, expected about {expected}"
            )


def test_refused(submission: ModuleType) -> None:
    """1 point: a success that cannot be used (its letters or its length), before a valid one"""
    right, outcome = success(1, "d"), gate(submission)
    for refused in ("\u00e9", LETTERS * 2):
        step = [(0, outcome, [success(0, refused)]), (1, outcome, [right])]
        rescues = samples_made(submission, step)[1]
        compare(unended(rescues), unended([imitation_sample(1, right)]), PLACED)
