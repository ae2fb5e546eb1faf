r"""The verifier's child process: math-verify on one pair of LaTeX answers after the other.

`python -m mrl.judge TIMEOUT_S MEMORY_BYTES` reads JSON lines and writes a word for each. rewards.py
starts it, waits, and kills it where it must; it says "ready" once it has passed its own test.

What cannot be guarded simply: math-verify takes `50\%` for 0.5 and for 50, the last side of
`8=7` for 7, and rounds decimals to six places; inside sets, matrices and equations numbers that
differ by less than 1e-15 are equal to it.
"""

import json
import os
import sys
from typing import Any

from mrl.rewards import START_LIMIT_S
from mrl.samples import Verdict


def _read(text: str, limit_s: int) -> list[Any]:
    """What math-verify reads in a box: a list of one expression, or an empty one."""
    from math_verify import LatexExtractionConfig, parse

    return parse(
        f"\\boxed{{{text}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=limit_s,
    )


def judge(answer: str, box: str, limit_s: int) -> Verdict:
    """math-verify's verdict on two LaTeX expressions, the gold one first."""
    from math_verify import verify

    gold, given = _read(answer, limit_s), _read(box, limit_s)
    if not given:
        return Verdict.UNPARSED
    equal = verify(gold, given, timeout_seconds=limit_s)
    return Verdict.CORRECT if equal and not _differ(gold[0], given[0]) else Verdict.WRONG


def _differ(gold: Any, given: Any) -> bool:
    """Whether two numbers differ that math-verify calls equal, as it does 2^-99 and 2^-98.

    It looks at the absolute difference, so that all small numbers are one. Here: exact numbers are
    equal to 20 digits (rational ones to the last), decimals to one part in a hundred.
    """
    from sympy import Expr, Float, UnevaluatedExpr

    numbers = all(isinstance(side, Expr) and side.is_number for side in (gold, given))
    if not numbers or gold == given or gold.has(UnevaluatedExpr) or given.has(UnevaluatedExpr):
        return False  # an UnevaluatedExpr is a percentage, which math-verify reads in two ways
    gold, given = gold.doit(), given.doit()
    if gold.is_Rational and given.is_Rational:
        return gold != given
    tolerance = 1e-2 if gold.has(Float) or given.has(Float) else 1e-20
    gold, given = gold.evalf(30), given.evalf(30)
    difference, size = abs(gold - given), max(abs(gold), abs(given))
    return bool(difference > tolerance * size + 1e-60)  # 1e-60: an exact zero, evaluated


def serve(timeout_s: float, memory_limit_bytes: int) -> None:
    """Judge one JSON line after the other until the parent closes the pipe."""
    import faulthandler
    import logging
    import warnings

    replies = os.fdopen(os.dup(1), "w", encoding="ascii", errors="replace")
    os.dup2(2, 1)  # whatever a library prints must not look like a verdict
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    try:
        known = [judge("1/2", box, START_LIMIT_S) for box in ("0.5", "0.6", "}{")]
    except ImportError as error:
        known = [str(error).replace("\n", " ")]
    if known != [Verdict.CORRECT, Verdict.WRONG, Verdict.UNPARSED]:
        print("its own test ended with", ", ".join(known), file=replies, flush=True)
        return
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))
    except (ImportError, ValueError, OSError):
        pass  # a platform without address-space limits keeps the time limit
    print("ready", file=replies, flush=True)
    for line in sys.stdin.buffer:
        # Ends this process whatever it does, should the parent be gone by then.
        faulthandler.dump_traceback_later(2 * timeout_s, exit=True)
        try:  # math-verify's own limit is above the parent's: a timeout never looks like a verdict
            verdict = judge(**json.loads(line), limit_s=int(timeout_s) + 1)
        except Exception:  # what cannot be compared is not equal
            verdict = Verdict.WRONG
        faulthandler.cancel_dump_traceback_later()
        print(verdict, file=replies, flush=True)


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
