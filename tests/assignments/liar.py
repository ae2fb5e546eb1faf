"""Reference solution; `assignment start liar` has the contract."""

from collections.abc import Callable

ASSIGNMENT = "liar"


def honest(records: list, answers: dict, verify: Callable[..., str], budget: int) -> list:
    """The records that hold when one looks."""
    known, kept, calls = {}, [], 0
    for record in records:
        if record.prompt_id not in answers:
            continue
        key = (record.prompt_id, record.text, record.finished)
        if key not in known:
            if calls >= budget:
                continue
            calls += 1
            known[key] = verify(answers[record.prompt_id], record.text, record.finished)
        if known[key] == "correct":
            kept.append(record)
    return kept
