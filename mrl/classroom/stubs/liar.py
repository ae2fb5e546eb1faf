"""A peer may lie: it publishes "verified successes" that are none. Keep honest records.

Every record has the fields `prompt_id`, `source`, `index`, `text`, `finished`, `answer` and
`verdict`, as mrl.records.SuccessRecord has. All of them were written by the peer, so none of them
proves anything: a liar writes verdict "correct" beside a wrong text, and an `answer` that agrees
with its text. What you know yourself are the problems' own answers, and your own verifier.

Contract of `honest(records, answers, verify, budget)`:
- records: a list of records; answers: prompt id -> the problem's own answer; both stay as they are
- verify(answer, text, finished): judges a text, returns "correct", "wrong", "unparsed",
  "truncated" or "timeout"; only "correct" is a success. A text may be right beside one problem's
  answer and wrong beside another's, and `finished` may change the verdict
- budget: how often verify may be called. Peers repeat themselves, so it is usually enough for one
  call for each distinct (prompt, text, finished). If it is not, use all of it, in any order: what
  could not be checked is not believed, what was found right still is, wherever it is repeated
- returns the list of all records that are successes in truth, in their order, also where several
  are about one prompt. One lie does not make all other records of its source lies
- a record about a prompt that is not in `answers` is not kept, and costs no call

Check it with:  python mini_mrl.py assignment check liar.py
"""

from collections.abc import Callable

ASSIGNMENT = "liar"


def honest(records: list, answers: dict, verify: Callable[..., str], budget: int) -> list:
    """The records that hold when one looks."""
    raise NotImplementedError("your turn")
