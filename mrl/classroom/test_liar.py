"""Assignment 5: a peer that lies."""

import random
import re
from dataclasses import dataclass
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


def judge(answer: str, text: str, finished: bool = True) -> str:
    """What the verifier says of the numbers that occur here: the last box counts."""
    boxes = re.findall(r"\\boxed\{(\d+)\}", text)
    if "slow" in text:
        return "timeout"
    if not finished and ("..." in text or not boxes):  # it went on behind its box
        return "truncated"
    if not boxes:
        return "unparsed"
    return "correct" if boxes[-1] == answer else "wrong"


def compare(
    submission: ModuleType, records: list[Claim], answers: dict[str, str], budget: int | None = None
) -> None:
    """Fail with the first record that is wrongly kept or dropped, or what was called too often.

    budget: None for one that just suffices.
    """
    known = [record for record in records if record.prompt_id in answers]
    texts = {(record.prompt_id, record.text, record.finished) for record in known}
    budget = len(texts) if budget is None else budget
    asked = []

    def verify(answer: str, text: str, finished: bool = True) -> str:
        asked.append((answer, text, finished))
        return judge(*asked[-1])

    given = list(records), dict(answers)
    kept = submission.honest(*given, verify, budget)
    assert given == (records, answers), "`records` or `answers` were changed in place"
    said = f"verify was called {len(asked)} times, for {len(texts)} different texts"
    assert len(asked) <= budget, (
        f"{said}; the budget is {budget}: remember what it found of a text, and count"
    )
    assert len(asked) == budget or len(texts) <= budget, (
        f"{said}; the budget is {budget}: what is left of it could still find a success"
    )
    assert isinstance(kept, list) and all(record in records for record in kept), (
        f"it returned {shown(kept)}, expected a list of records that it was given"
    )
    true = []
    for record in known:
        question = answers[record.prompt_id], record.text, record.finished
        if judge(*question) == "correct" and (question in asked or len(texts) <= budget):
            true.append(record)
    for record in records:
        said = f"{shown(record)}; the problem's own answer is {answers.get(record.prompt_id)!r}"
        did = "kept what is no success, or was never checked"
        if record not in kept:
            did = "dropped what verify found, or would find, correct"
        assert (record in kept) == (record in true), f"it {did}: {said}"
    assert kept == true, "the records are right, but not in their order, or not as often as given"


def draw(rng: random.Random, prompts: int, liars: str) -> tuple[list[Claim], dict[str, str]]:
    """Records of three peers about some prompts; liars lie half of the time."""
    answers = {f"p{n}": str(rng.randint(10, 99)) for n in range(prompts)}
    records = []
    for prompt_id, answer in answers.items():
        for source in ("a", "b", "c", *rng.choices("abc", k=2)):
            lie = source in liars and rng.random() < 0.5
            value = rng.choice((f"{int(answer) + 1}", f"1{answer}")) if lie else answer
            text = rng.choice(("So it is {}.", "{}", "I get {}")).format(f"\\boxed{{{value}}}")
            records.append(Claim(prompt_id, source, text, rng.choice((value, answer))))
    rng.shuffle(records)
    return records, answers


@pytest.mark.points(2)
def test_by_hand(submission: ModuleType) -> None:
    """four records by hand, and an honest one that claims another answer and verdict"""
    records = [Claim("x", "a", RIGHT), Claim("x", "b", LIE), Claim("x", "b", LIE, "13")]
    compare(submission, [*records, Claim("x", "b", "It is " + RIGHT)], {"x": "12"})
    compare(submission, [Claim("x", "a", RIGHT, "13", "wrong")], {"x": "12"})


@pytest.mark.points(2)
def test_liars(submission: ModuleType, rng: random.Random) -> None:
    """three peers: one lies, all lie, nobody lies"""
    for prompts, liars in ((12, "b"), (8, "abc"), (6, "")):
        compare(submission, *draw(rng, prompts, liars))


@pytest.mark.points(2)
def test_verdicts(submission: ModuleType) -> None:
    """no box, a verdict of timeout, a text that was cut, and the same finished"""
    records = [Claim("x", "b", "12"), Claim("x", "b", "so it is \\boxed{1", finished=False)]
    records += [Claim("x", "a", "slow " + RIGHT), Claim("x", "a", RIGHT)]
    records.append(Claim("x", "c", "cut behind its box: " + RIGHT, finished=False))
    compare(submission, records, {"x": "12"})
    records = [Claim("x", "a", f"{RIGHT} ...", finished=done) for done in (True, False) * 2]
    compare(submission, records, {"x": "12"})
    compare(submission, records[::-1], {"x": "12"})


@pytest.mark.points(2)
def test_two_problems(submission: ModuleType) -> None:
    """one text about two problems, and a prompt that nobody asked about"""
    records = [Claim("x", "a", RIGHT), Claim("y", "a", RIGHT), Claim("y", "b", LIE, "13")]
    compare(submission, records, {"x": "12", "y": "13"})
    compare(submission, [Claim("z", "b", RIGHT), Claim("x", "a", RIGHT)], {"x": "12"})
    compare(submission, [Claim("z", "b", RIGHT)], {})


@pytest.mark.points(2)
def test_short_budget(submission: ModuleType, rng: random.Random) -> None:
    """a budget that does not suffice"""
    records = [Claim("x", "a", f"{n} {RIGHT if n % 3 else LIE}") for n in range(10)] * 2
    for budget in (0, 1, 4):
        compare(submission, records, {"x": "12"}, budget)
        compare(submission, rng.sample(records, k=20), {"x": "12"}, budget)
