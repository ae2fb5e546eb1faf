"""Programming assignments that check themselves: `python mini_mrl.py assignment list`.

An assignment has a stub (stubs/<name>.py), whose docstring says what to write, and tests for pytest
(test_<name>.py). Each test is one part of the assignment. The test's docstring says how many points
this part gives and what it checks ("2 points: when it imitates"). conftest.py passes the submission
to the tests.
"""

from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUT_OF = 10
NOT_REACHED = "not reached, or not finished"
ASSIGNMENTS = {  # name -> task, in the order of their numbers
    "advantages": "score each completion relative to its own group",
    "bug": "find a silent bug, and recognize five bugs by their learning curves",
    "sgt": "write Success-Gated Transfer from its equation",
    "align": "cut two tokenizations at every byte boundary that they share",
    "liar": "trust a peer's records only as far as you can check them",
    "own-mode": "design your own sharing mode that beats its controls",
}


def shown(value: Any, limit: int = 160) -> str:
    """A value of a submission as a short text for a message; floats have four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"

    text = f"[{', '.join(map(shown, value[:20]))}]" if isinstance(value, list) else repr(value)
    return text if len(text) <= limit else text[:limit] + " [...]"
