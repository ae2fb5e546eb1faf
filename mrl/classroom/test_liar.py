"""Assignment 4: a peer that lies."""

import random
import re
from dataclasses import dataclass, replace
from types import ModuleType

import pytest

from mrl.classroom import shown

HIDDEN = ("mrl.rewards", "mrl.exchange", "mrl.lab")
RIGHT, LIE = "\\boxed{12}", "\\boxed{13}"


@dataclass(frozen=True)
class Claim:
    """A peer's record, with the fields of mrl.records.SuccessRecord that matter here."""

    prompt_id: str
    source: str
    text: str
    answer: str = "12"
    verdict: str = "correct"
    finished: bool = True
    index: int = 0


def judge(answer: str, text: str, finished: bool) -> str:
    """What the verifier says of the numbers that occur here: the last box counts."""
    boxes = re.findall(r"\\boxed\{(\d+)\}", text)
    if "slow" in text:
        return "timeout"
    if not boxes:
        return "unparsed" if finished else "truncated"
    if not finished and "..." in text:  # it went on behind its box
        return "truncated"
    return "correct" if boxes[-1] == answer else "wrong"


def compare(
    submission: ModuleType, records: list[Claim], answers: dict[str, str], budget: int | None = None
) -> None:
    """Fail with the first record that is wrongly kept or dropped, or what was called too often.

    budget: None for one that just suffices.
    """
    records = [replace(record, index=place) for place, record in enumerate(records)]
    different = {(r.prompt_id, r.text, r.finished) for r in records if r.prompt_id in answers}
    budget = len(different) if budget is None else budget
    asked: list[tuple[str, str, bool]] = []

    def verify(answer: str, text: str, finished: bool = True) -> str:
        asked.append((answer, text, finished))
        assert len(asked) <= budget, (
            f"verify was called more often than the budget of {budget} allows; remember what it "
            "found of a text, and count"
        )
        return judge(answer, text, finished)

    given, known = list(records), dict(answers)
    kept = submission.honest(given, known, verify, budget)
    assert len(asked) <= budget, f"verify was called {len(asked)} times, the budget is {budget}"
    assert given == records and known == answers, "`records` or `answers` were changed in place"
    assert isinstance(kept, list), f"it returned {shown(kept)}, expected a list of records"
    foreign = [record for record in kept if record not in records]
    assert not foreign, f"it returned {shown(foreign[:1])}, expected records that it was given"
    true = [
        r for r in records
        if r.prompt_id in answers and judge(answers[r.prompt_id], r.text, r.finished) == "correct"
    ]  # fmt: skip
    if budget < len(different):
        assert len(asked) == budget, (
            f"{len(different)} different texts and a budget of {budget}: verify was called "
            f"{len(asked)} times; what is left of the budget could still find a success"
        )
        true = [r for r in true if (answers[r.prompt_id], r.text, r.finished) in asked]
    for wrong, words in (
        ([r for r in kept if r not in true], "kept what is no success, or was never checked"),
        ([r for r in true if r not in kept], "dropped what verify found, or would find, correct"),
    ):
        assert not wrong, (
            f"it {words}, {len(wrong)} of {len(records)} records: {shown(wrong[0].text)}, finished "
            f"{wrong[0].finished}, with answer {wrong[0].answer!r} and verdict "
            f"{wrong[0].verdict!r} about a problem whose own answer is "
            f"{answers.get(wrong[0].prompt_id)!r}"
        )
    assert kept == true, "the records are right, but not in their order, or some are there twice"


def draw(rng: random.Random, prompts: int, liars: str) -> tuple[list[Claim], dict[str, str]]:
    """Records of three peers about some prompts; liars lie half of the time."""
    answers = {f"p{n}": str(rng.randint(10, 99)) for n in range(prompts)}
    records = []
    for prompt_id, answer in answers.items():
        for source in ("a", "b", "c", *rng.choices("abc", k=2)):
            lie = source in liars and rng.random() < 0.5
            value = rng.choice((str(int(answer) + rng.choice((-1, 1, 100))), "1" + answer))
            value = value if lie else answer
            text = rng.choice(("So it is {}.", "{}", "I get {}")).format(f"\\boxed{{{value}}}")
            claim = value if lie and rng.random() < 0.7 else answer
            records.append(Claim(prompt_id, source, text, claim))
    rng.shuffle(records)
    return records, answers


@pytest.mark.points(2)
def test_by_hand(submission: ModuleType) -> None:
    """four records by hand, and an honest one that claims another answer and verdict"""
    records = [Claim("x", "a", RIGHT), Claim("x", "b", LIE), Claim("x", "b", LIE, "13")]
    records.append(Claim("x", "b", "It is " + RIGHT))
    compare(submission, records, {"x": "12"})
    compare(submission, [Claim("x", "a", RIGHT, "13", "wrong")], {"x": "12"})


@pytest.mark.points(2)
def test_liars(submission: ModuleType, rng: random.Random) -> None:
    """three peers: one lies, all lie, nobody lies"""
    for prompts, liars in ((12, "b"), (8, "abc"), (6, "")):
        compare(submission, *draw(rng, prompts, liars))


@pytest.mark.points(1)
def test_verdicts(submission: ModuleType) -> None:
    """no box, a cut text, a verdict of timeout"""
    records = [Claim("x", "b", "12"), Claim("x", "b", "so it is \\boxed{1", finished=False)]
    records += [Claim("x", "a", "slow " + RIGHT), Claim("x", "a", RIGHT)]
    records.append(Claim("x", "c", "cut behind its box: " + RIGHT, finished=False))
    compare(submission, records, {"x": "12"})


@pytest.mark.points(1)
def test_unfinished(submission: ModuleType) -> None:
    """one text, finished and cut"""
    text = f"{RIGHT} ..."
    records = [Claim("x", "a", text, finished=done) for done in (True, False, True, False)]
    compare(submission, records, {"x": "12"})
    compare(submission, records[::-1], {"x": "12"})


@pytest.mark.points(1)
def test_two_problems(submission: ModuleType) -> None:
    """one text about two problems, and a prompt that nobody asked about"""
    records = [Claim("x", "a", RIGHT), Claim("y", "a", RIGHT), Claim("y", "b", LIE, "13")]
    compare(submission, records, {"x": "12", "y": "13"})
    compare(submission, [Claim("z", "b", RIGHT), Claim("x", "a", RIGHT)], {"x": "12"})
    compare(submission, [Claim("z", "b", RIGHT)], {})


@pytest.mark.points(1)
def test_copies(submission: ModuleType) -> None:
    """sixty records, two texts, two calls"""
    records = [Claim("x", f"s{n % 3}", (RIGHT, LIE)[n % 2]) for n in range(60)]
    compare(submission, records, {"x": "12"})


@pytest.mark.points(2)
def test_short_budget(submission: ModuleType, rng: random.Random) -> None:
    """a budget that does not suffice"""
    texts = [f"{n} {RIGHT if n % 3 else LIE}" for n in range(10)]
    for budget in (0, 1, 4):
        records = [Claim("x", "a", text) for text in texts * 2]
        compare(submission, records, {"x": "12"}, budget)
        rng.shuffle(records)
        compare(submission, records, {"x": "12"}, budget)
