"""Assignment 3: a peer that lies."""

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from mrl.classroom import Finding, examine, shown
from mrl.classroom.sandbox import Session
from mrl.rewards import Verifier
from mrl.samples import Verdict

PRELOAD = ()
BLOCKED = ("mrl.rewards", "mrl.trainer")
LIMIT_S = 10.0
MEMORY = 1 << 29
MOST_CALLS = 1_000  # of one request; whoever calls more often is told that the budget is used up
STUB = '''"""A peer may lie: it tells of "verified successes" that are none. Keep honest records.

Every record has the fields `prompt_id`, `source`, `index`, `text`, `finished`, `answer` and
`verdict`, as mrl.records.SuccessRecord has. All of them were written by the peer, so none of them
proves anything: a liar writes verdict "correct" beside a wrong text, and an `answer` that agrees
with its text. What you know yourself are the problems' own answers, and your own verifier.

Contract of `honest(records, answers, verify, budget)`:
- records: a list of records; answers: prompt id -> the problem's own answer
- verify(answer, text, finished): judges a text, returns "correct", "wrong", "unparsed",
  "truncated" or "timeout"; only "correct" is a success, and it need not say the same of a text
  beside another problem's answer
- budget: how often verify may be called. It suffices for one call a different text of a prompt
  (peers repeat themselves); if it does not, what was not checked is not believed
- returns the list of those records that are successes in truth, in their order. One lie does not
  make all other records of its source lies
- a record about a prompt that is not in `answers` is not kept, and costs no call

Check it with:  python mini_mrl.py assignment check liar.py
"""

from collections.abc import Callable

ASSIGNMENT = "liar"


def honest(records: list, answers: dict, verify: Callable[..., str], budget: int) -> list:
    """The records that hold when one looks."""
    raise NotImplementedError("your turn")
'''


@dataclass(frozen=True)
class Told:
    """A peer's record, with the fields of mrl.records.SuccessRecord that matter here."""

    prompt_id: str
    source: str
    text: str
    answer: str
    verdict: str = "correct"
    finished: bool = True
    index: int = 0


def perform(module: ModuleType, do: str, given: Any, ask: Callable[[Any], Any]) -> Any:
    """Call the submission's `honest` once; its `verify` asks the checker."""
    records = [Told(**fields) for fields in given["records"]]
    places = {id(record): place for place, record in enumerate(records)}

    def verify(answer: str, text: str, finished: bool = True) -> str:
        verdict = ask([str(answer), str(text), bool(finished)])
        if verdict is None:
            raise RuntimeError("verify was called more often than the budget allows")
        return verdict

    kept = module.honest(list(records), dict(given["answers"]), verify, given["budget"])
    return [places.get(id(record), -1) for record in kept]


def draw_case(rng: random.Random, prompts: int, liars: tuple[str, ...]) -> tuple[list[Told], dict]:
    """Records of three peers about some prompts; liars tell wrong completions as successes."""
    answers = {f"p{n}": str(rng.randint(10, 99)) for n in range(prompts)}
    records = []
    for prompt_id, answer in answers.items():
        for index, source in enumerate(("a", "b", "c", *rng.choices("abc", k=2))):
            lie = source in liars and rng.random() < 0.5
            other = str(int(answer) + rng.choice((-10, -1, 1, 100)))
            value = rng.choice((other, "1" + answer)) if lie else answer
            text = rng.choice(("So it is {}.", "{}", "I get {}")).format(f"\\boxed{{{value}}}")
            claim = value if lie and rng.random() < 0.7 else answer
            records.append(Told(prompt_id, source, text, claim, index=index))
    rng.shuffle(records)
    return records, answers


def check(session: Session, rng: random.Random, say: Callable[[str], None]) -> Iterator[Finding]:
    """By hand, many honest and lying records, what verify says, the budget."""
    verifier = Verifier()  # integers are compared in this process: it never starts its child

    def judge(records: list[Told], answers: dict, budget: int, timeouts: tuple = ()) -> str | None:
        calls = 0

        def reply(question: Any) -> str | None:
            nonlocal calls
            calls += 1
            if calls > budget or not isinstance(question, list) or len(question) != 3:
                return None
            answer, text, finished = question
            if text in timeouts:
                return str(Verdict.TIMEOUT)
            return str(verifier.verify(str(answer), str(text), bool(finished)))

        given = {"records": [asdict(r) for r in records], "answers": answers, "budget": budget}
        kept = session.call("call", given, reply)
        if calls > budget:
            return f"verify was called more than {budget} times; remember what it said of a text"
        if not isinstance(kept, list) or any(type(k) is not int or k < 0 for k in kept):
            return "it returned something that is not one of the records"
        true = [
            place
            for place, r in enumerate(records)
            if r.prompt_id in answers
            and r.text not in timeouts
            and verifier.verify(answers[r.prompt_id], r.text, r.finished) is Verdict.CORRECT
        ]
        if kept == true:
            return None
        lies, missed = sorted(set(kept) - set(true)), sorted(set(true) - set(kept))
        for places, words in ((lies, "kept a lie"), (missed, "dropped an honest record")):
            if places:
                told = records[places[0]]
                return (
                    f"it {words}, {len(places)} of {len(records)} records: {shown(told.text)} told "
                    f"with answer {told.answer!r} and verdict {told.verdict!r} about a problem "
                    f"whose own answer is {answers.get(told.prompt_id)!r}"
                )
        return "the records are right, but not in their order, or some stand there twice"

    def budget_of(records: list[Told], answers: dict) -> int:
        return len({(r.prompt_id, r.text, r.finished) for r in records if r.prompt_id in answers})

    def case(prompts: int, liars: tuple[str, ...]) -> str | None:
        records, answers = draw_case(rng, prompts, liars)
        return judge(records, answers, budget_of(records, answers))

    box, lie = "\\boxed{12}", "\\boxed{13}"
    hand = [Told("x", "a", box, "12"), Told("x", "b", lie, "12"), Told("x", "b", lie, "13")]
    hand.append(Told("x", "b", "It is " + box, "12"))
    yield examine(2, "four records by hand", lambda: judge(hand, {"x": "12"}, 3))
    yield examine(2, "three peers, one of them lies half of the time", lambda: case(12, ("b",)))
    yield examine(1, "nobody lies", lambda: case(6, ()))
    odd = [Told("x", "b", "12", "12"), Told("x", "b", "so it is \\boxed{1", "12", finished=False)]
    odd += [Told("x", "a", "slow " + box, "12"), Told("x", "a", box, "12")]
    yield examine(
        1,
        "no box, a cut text, a verdict of timeout",
        lambda: judge(odd, {"x": "12"}, 4, timeouts=("slow " + box,)),
    )
    same = [Told("x", "a", box, "12"), Told("y", "a", box, "12"), Told("y", "b", lie, "13")]
    yield examine(1, "one text about two problems", lambda: judge(same, {"x": "12", "y": "13"}, 3))
    foreign = [Told("z", "b", box, "12"), Told("x", "a", box, "12")]
    yield examine(1, "a prompt that nobody asked about", lambda: judge(foreign, {"x": "12"}, 1))
    copies = [Told("x", f"s{n % 3}", (box, lie)[n % 2], "12", index=n) for n in range(60)]
    yield examine(1, "sixty records, two texts, two calls", lambda: judge(copies, {"x": "12"}, 2))

    def short() -> str | None:
        records = [Told("x", "a", f"{n} {box}", "12", index=n) for n in range(10)]
        given = {"records": [asdict(r) for r in records], "answers": {"x": "12"}, "budget": 4}
        calls = 0

        def reply(_: Any) -> str | None:
            nonlocal calls
            calls += 1
            return str(Verdict.CORRECT) if calls <= 4 else None

        kept = session.call("call", given, reply)
        if calls > 4:
            return "ten different texts and a budget of 4: verify was called a fifth time"
        if not isinstance(kept, list) or len(kept) != 4:
            return (
                f"ten different right texts and a budget of 4: expected 4 kept, got {shown(kept)}"
            )
        return None

    yield examine(1, "a budget that does not suffice", short)
