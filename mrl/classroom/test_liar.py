"""Assignment 5: a peer that lies."""

import random
import re
from dataclasses import dataclass, replace
from types import ModuleType

from mrl.classroom import shown

RIGHT, LIE = "\\boxed{12}", "\\boxed{13}"


@dataclass(frozen=True)
class Claim:
    """A peer's record, with those fields of mrl.records.SuccessRecord that matter here."""

    prompt_id: str
    source: str
    text: str
    answer: str = "12"
    verdict: str = "correct"
    finished: bool = True
    index: int = 0


def judge(answer: str | None, text: str, finished: bool = True) -> str:
    """The verifier of these tests: the last box counts."""
    boxes = re.findall(r"\\boxed\{(\d+)\}", text)
    if "slow" in text:
        return "timeout"
    if not finished and "..." in text:  # the text continues after its box
        return "truncated"
    return "correct" if boxes[-1:] == [answer] else "wrong"


def compare(
    submission: ModuleType, records: list, answers: dict, budget: int = 1000, strict: bool = False
) -> None:
    """Fail if a record is wrongly kept or dropped, or if the budget is exceeded.

    The default budget is ample. strict: fail also if arguments or the order were changed.
    """
    calls = []

    def verify(answer: str, text: str, finished: bool = True) -> str:
        if text not in texts and not strict:  # swapped arguments cost points in the first part only
            answer, text = text, answer
        assert text in texts, (
            "verify was called without a record's text; call verify(answer, text, finished)"
        )
        calls.append((answer, text, finished))
        return judge(answer, text, finished)

    own, texts = (list(records), dict(answers)), [record.text for record in records]
    kept = submission.honest(*own, verify, budget)

    distinct = {(r.prompt_id, r.text, r.finished) for r in records if r.prompt_id in answers}
    suffices = len(distinct) <= budget
    assert len(calls) <= budget and (suffices or len(calls) == budget), (
        f"verify was called {len(calls)} times for {len(distinct)} different triples (prompt, "
        f"text, finished), and the budget is {budget}; store each verdict, and use the whole budget"
    )

    right = []
    for record in records:
        question = answers.get(record.prompt_id), record.text, record.finished
        if judge(*question) == "correct" and (suffices or question in calls):
            right.append(record)
    for record in kept:
        assert record in right, (
            f"it kept a record that is not a success, or was never checked: {shown(record)}"
        )
    for record in right:
        assert record in kept, f"it dropped what verify finds correct: {shown(record)}"

    if strict:
        assert own == (records, answers), "`records` or `answers` were changed in place"
        assert kept == right, (
            f"expected the same records as a list, in order and with repetitions; got {shown(kept)}"
        )


def draw(rng: random.Random, prompts: int, liars: str) -> tuple[list[Claim], dict[str, str]]:
    """Records of three peers about some prompts. Those in `liars` lie half of the time."""
    values = rng.sample(range(10, 100, 3), prompts)  # so that a lie is wrong for every prompt
    answers = {f"p{n}": str(value) for n, value in enumerate(values)}
    records = []
    for prompt_id, answer in answers.items():
        for index, source in enumerate(("a", "b", "c", *rng.choices("abc", k=2))):
            lie = source in liars and rng.random() < 0.5
            value = rng.choice((f"{int(answer) + 1}", f"1{answer}")) if lie else answer
            text = rng.choice(("So it is {}.", "{}", "I get {}")).format(f"\\boxed{{{value}}}")
            claimed = rng.choice((value, answer))
            records.append(Claim(prompt_id, source, text, claimed, index=index))

    rng.shuffle(records)
    return records, answers


# Only the first two parts contain lies. In the other parts, all claims are true, and a peer with an
# incorrect text has no other text. So trusting all claims, or distrusting whole sources, costs the
# points of two parts only.
# The first two parts and the two about budgets have several successes for one prompt.


def test_by_hand(submission: ModuleType) -> None:
    """2 points: six records in order, unchanged arguments, and successes claimed as failures"""
    records = [Claim("x", "a", RIGHT), Claim("x", "b", LIE), Claim("x", "b", LIE, "13")]
    records.append(Claim("x", "b", "It is " + RIGHT))
    records.append(Claim("x", "a", "So " + RIGHT, "13", "wrong"))
    records.append(records[0])  # two identical records still count as two
    compare(submission, records, {"x": "12"}, strict=True)


def test_liars(submission: ModuleType, rng: random.Random) -> None:
    """2 points: three peers, of which one lies, none lies, or all lie"""
    for prompts, liars in ((3, "b"), (6, ""), (8, "abc"), (12, "b")):
        compare(submission, *draw(rng, prompts, liars))


def test_verdicts(submission: ModuleType) -> None:
    """2 points: no box, a timeout, a text that was cut, and the same text finished"""
    cut = "so it is \\boxed{1"
    records = [Claim("x", "b", "just 12", verdict="unparsed")]
    records.append(Claim("x", "c", cut, verdict="truncated", finished=False))
    records += [Claim("x", "d", "slow " + RIGHT, verdict="timeout"), Claim("x", "a", RIGHT)]
    records.append(Claim("y", "a", "cut after its box: " + RIGHT, finished=False))
    compare(submission, records, {"x": "12", "y": "12"})

    ended, went_on = Claim("x", "a", f"{RIGHT} ..."), Claim("x", "b", f"{RIGHT} ...")
    compare(submission, [ended, replace(went_on, finished=False, verdict="truncated")], {"x": "12"})


def test_two_problems(submission: ModuleType) -> None:
    """2 points: one text for two problems, and a prompt that is not in `answers`"""
    records = [Claim("x", "a", RIGHT), Claim("y", "b", RIGHT, "13", "wrong")]
    records.append(Claim("y", "c", LIE, "13"))
    compare(submission, records, {"x": "12", "y": "13"})
    compare(submission, [Claim("z", "b", RIGHT), Claim("x", "a", RIGHT)], {"x": "12"})


def test_budget(submission: ModuleType, rng: random.Random) -> None:
    """1 point: one call for each distinct (prompt, text, finished), repeated by several peers"""
    records, answers = draw(rng, 12, "")
    texts = {(record.prompt_id, record.text, record.finished) for record in records}
    compare(submission, records, answers, len(texts))


def test_short_budget(submission: ModuleType) -> None:
    """1 point: a budget that is too small to check every record"""
    records = []
    for n in range(10):
        text, verdict = (RIGHT, "correct") if n % 3 else (LIE, "wrong")
        records.append(Claim("x", f"peer {n}", f"{n} {text}", verdict=verdict))

    again = [replace(record, source=f"{record.source}'s") for record in records]
    for budget in (0, 1, 4):  # checked texts occur again after the budget is spent
        compare(submission, [*records, *again], {"x": "12"}, budget)
