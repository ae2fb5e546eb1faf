"""Assignments that check themselves: `python mini_mrl.py assignment list`.

An assignment is a stub (stubs/<name>.py; its docstring is the contract) and a file of tests for
pytest, test_<name>.py, in which a test is a part. Its docstring says what that is worth and what
was looked at ("2 points: when it imitates"); conftest.py hands it the submission.
"""

from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT_OF = 10
NOT_REACHED = "not reached, or not ended"
ASSIGNMENTS = {  # in the order of their numbers: name -> what it is
    "advantages": "score completions against their own group",
    "bug": "find a silent bug, and tell five bugs by their learning curves",
    "sgt": "write Success-Gated Transfer from its equation",
    "align": "cut two tokenizations at every byte boundary that they have in common",
    "liar": "believe a peer's records only as far as they hold",
    "own-mode": "a sharing mode of your own that beats solo by its idea",
}


def shown(value: Any, limit: int = 160) -> str:
    """Write a value of a submission for a message: short, floats with four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"

    text = f"[{', '.join(map(shown, value[:20]))}]" if isinstance(value, list) else repr(value)
    return text if len(text) <= limit else text[:limit] + " [...]"
