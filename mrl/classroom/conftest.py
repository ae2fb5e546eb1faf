"""How pytest checks a submission: import it, limit its time, and report the points of each part.

`assignment check` sets MRL_SUBMISSION (the file), MRL_SEED (seed of the hidden cases) and
MRL_REPORT (file for the points). To see pytest's own messages, run it by hand:

    MRL_SUBMISSION=sgt.py python -m pytest -n 0 mrl/classroom/test_sgt.py
"""

import json
import os
import random
import resource
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mrl.classroom import NOT_REACHED
from mrl.parsing import run_file

SUBMISSION = os.environ.get("MRL_SUBMISSION", "")
REPORT_FILE = Path(os.environ.get("MRL_REPORT", os.devnull))
PART_S = float(os.environ.get("MRL_PART_S", "60"))
MEMORY = 4 << 30  # bytes; with this limit, a list that grows without end becomes an error
REPORT = {"parts": {}, "printed": ""}  # "parts" by test name, "printed" output
collect_ignore_glob = [] if SUBMISSION else ["test_*.py"]  # the project's own tests are in tests/


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the report with the points and the description in each test's docstring."""
    for item in session.items:
        if isinstance(item, pytest.Function):
            REPORT["parts"][item.name] = described(item.function)
    REPORT_FILE.write_text(json.dumps(REPORT), encoding="utf-8")


def described(test: Callable) -> dict[str, Any]:
    """The report's entry for a part that is not yet checked, from its test's docstring."""
    worth, _, words = (test.__doc__ or "").partition(": ")
    return {"part": words, "out_of": int(worth.split()[0]), "points": 0, "message": NOT_REACHED}


def pytest_runtest_logstart() -> None:
    """Start the time limit of a part. The first part also imports the submission."""
    signal.signal(signal.SIGPROF, stop)
    # CPU time, so that a busy machine does not cost points
    signal.setitimer(signal.ITIMER_PROF, PART_S)


def stop(*_: object) -> None:
    """End a part that computes too long, with an error at its current line."""
    raise TimeoutError(f"stopped after {PART_S:g} s; is there an endless loop?")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator:
    """Write the report after each part, so that earlier parts count even if the process dies."""
    if call.when != "setup":
        signal.setitimer(signal.ITIMER_PROF, 0)  # the part is over
    report = yield
    if report.failed or report.when == "call":
        part = REPORT["parts"][item.name]
        part.update(graded(part, call.excinfo and call.excinfo.value, item.user_properties))
        REPORT["printed"] = REPORT["printed"] or (report.capstdout + report.capstderr)[:1000]
        REPORT_FILE.write_text(json.dumps(REPORT), encoding="utf-8")
    return report


def graded(
    part: dict[str, Any],
    error: BaseException | None,
    recorded: Iterable[tuple[str, Any]],
    submission: str = SUBMISSION,
) -> dict[str, Any]:
    """The points and the message of a part.

    error: what its test raised, or None. recorded: what its test recorded. This may be "points", if
    the part can give some of its points, and "message".
    """
    if error is None:
        return {"points": part["out_of"], "message": "correct"} | dict(recorded)
    return {"points": 0} | dict(recorded) | {"message": explain(error, submission)}


def explain(error: BaseException, submission: str) -> str:
    """The message of a failed check, or an error with its line in the submission."""
    words = str(error)[:1000]
    frames = traceback.extract_tb(error.__traceback__)
    checked = isinstance(error, AssertionError | pytest.fail.Exception)
    if checked and frames[-1].filename != submission:
        return words

    lines = [frame.lineno for frame in frames if frame.filename == submission]
    where = f" (line {lines[-1]} of the file)" if lines else ""
    return f"your code raised an error: {type(error).__name__}: {words}{where}"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers for one part. They are equal for all submissions with the same MRL_SEED."""
    return random.Random(f"{os.environ.get('MRL_SEED', '0')} {request.node.name}")


@pytest.fixture(scope="module")
def submission() -> ModuleType:
    """Import the submission."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    return run_file(Path(SUBMISSION), Path(SUBMISSION).read_bytes())
