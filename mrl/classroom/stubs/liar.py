"""A peer may lie: it may publish "verified successes" that are not real. Keep the honest records.

Every record has the fields `prompt_id`, `source`, `index`, `text`, `finished`, `answer` and
`verdict`, like mrl.records.SuccessRecord. The peer wrote all of them, so none of them proves
anything. A liar writes the verdict "correct" next to an incorrect text, and an `answer` that agrees
with that text. You can only rely on the problems' own answers and on your own verifier.

Contract of `honest(records, answers, verify, budget)`:
- `records` is a list of records. `answers` maps each prompt id to the problem's own answer. Do not
  change either of them.
- `verify(answer, text, finished)` judges a text. It returns "correct", "wrong", "unparsed",
  "truncated" or "timeout"; only "correct" is a success. A text may be correct for one problem and
  wrong for another, and `finished` may change the verdict.
- `budget` is the number of times that you may call verify. Peers repeat themselves, so the budget
  usually suffices for one call per distinct (prompt, text, finished). If it does not, use all of
  it, in any order. Drop every record that you could not check. Keep a record that repeats a text
  which you found correct.
- It returns the list of all records that are real successes, in their order, even if several have
  the same prompt. One lie does not make the other records of its source lies.
- Drop a record whose prompt is not in `answers`, without calling verify.

Check it with:  python mini_mrl.py assignment check liar.py
"""

from collections.abc import Callable

ASSIGNMENT = "liar"


def honest(records: list, answers: dict, verify: Callable[..., str], budget: int) -> list:
    """Return the records that are real successes."""
    raise NotImplementedError("your turn")
