"""Assignments that check themselves: `python mini_mrl.py assignment list | start | check`.

An assignment is a module of this folder with

    STUB            the file that `start` writes; its docstring is the contract
    PRELOAD         modules that are imported once for all submissions, before they start
    BLOCKED         modules that hold the answer: importing them fails in a submission
    LIMIT_S         seconds that a submission may take, all requests together
    MEMORY          bytes of address space that it may take beyond what is imported
    perform(module, do, given, ask)  in the submission's process: call it, return JSON values
    check(session, rng, say)         in the checker's process: yield `Finding`s, ten points in all
    also_write(folder)               optional: writes further files for `start`, returns their paths

What is expected is computed in `check` and never sent to the submission.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mrl.classroom.sandbox import Raised

OUT_OF = 10
ASSIGNMENTS = {  # in the order of difficulty: name -> (module, what it is)
    "advantages": ("advantages", "score completions against their own group"),
    "align": ("align", "cut two tokenizations at every byte boundary that they share"),
    "bug": ("bug", "find a silent bug from two learning curves"),
    "liar": ("liar", "believe a peer's records only as far as they hold"),
    "sgt": ("sgt", "write Success-Gated Transfer from its equation"),
    "own-mode": ("own_mode", "a sharing mode of your own that beats solo"),
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: what it gained, of how much, and in words what came out."""

    points: float
    out_of: float
    text: str


def examine(out_of: float, what: str, look: Callable[[], str | None]) -> Finding:
    """All points if `look` finds nothing to say, none if it does or the submission raises."""
    try:
        trouble = look()
    except Raised as error:
        trouble = f"your code raised an error: {error}"
    if trouble is None:
        return Finding(out_of, out_of, f"{what}: right.")
    return Finding(0, out_of, f"{what}: {trouble}")


def shown(value: Any, limit: int = 160) -> str:
    """A value of a submission for a remark: short, floats with four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        text = "[" + ", ".join(shown(entry, limit) for entry in value[:20]) + "]"
    else:
        text = repr(value)
    return text if len(text) <= limit else text[:limit] + " [...]"
