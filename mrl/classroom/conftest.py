"""pytest's side of the classroom: the submission, its limits, and points as lines of JSON.

`assignment check` sets MRL_SUBMISSION (the file), MRL_SEED (of the hidden cases) and MRL_POINTS
(where a line goes for every part, as soon as it is known). By hand, with the messages of pytest:

    MRL_SUBMISSION=sgt.py python -m pytest -n 0 mrl/classroom/test_sgt.py
"""

import json
import math
import os
import random
import resource
import sys
import traceback
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

SUBMISSION = os.environ.pop("MRL_SUBMISSION", "")
POINTS = os.environ.pop("MRL_POINTS", os.devnull)
SEED = os.environ.pop("MRL_SEED", "")
LIMIT_S = os.environ.pop("MRL_LIMIT_S", "120")
MEMORY = 1 << 30  # bytes of address space beyond what is imported
FILE_BYTES = 16 << 20  # of any file that a submission writes
SHOWN = 500  # characters of what it prints in a part
collect_ignore_glob = [] if SUBMISSION else ["test_*.py"]  # the project's own tests are in tests/


def write(line: dict) -> None:
    """Append to what the checker reads; one line a call, so that nothing is lost if this dies."""
    with open(POINTS, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "points(n): what a part is worth")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Say which parts there are: those that are never reached cost their points."""
    write({"parts": [describe(item) for item in session.items]})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator:
    """After each part: what it gained, and why not more."""
    report = yield
    if report.failed or report.when == "call":
        noted = ", ".join(f"{value}" for _, value in item.user_properties)
        message = explain(call.excinfo) if call.excinfo else noted
        printed = (report.capstdout + report.capstderr)[:SHOWN]
        write(describe(item) | {"right": report.passed, "message": message, "printed": printed})
    return report


def describe(item: pytest.Item) -> dict:
    """What a test looks at, and its points."""
    variant = f", {item.callspec.id}" if hasattr(item, "callspec") else ""
    return {
        "part": f"{item.function.__doc__}{variant}",
        "out_of": item.get_closest_marker("points").args[0],
    }


def explain(found: pytest.ExceptionInfo) -> str:
    """The message of a check that failed; or the error, and where in the submission it arose."""
    error = found.value
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == SUBMISSION]
    if isinstance(error, SyntaxError) and error.filename == SUBMISSION:
        lines = [error.lineno]
    try:
        words = str(error)
    except Exception:
        words = "its message cannot be read"
    checked = isinstance(error, AssertionError | pytest.fail.Exception)
    if checked and frames[-1].filename != SUBMISSION:
        return words.split("\nassert ")[0]
    if isinstance(error, MemoryError):
        words = "it needs more memory than it is given"
    elif isinstance(error, ImportError) and f"{error.name}".startswith("mrl."):
        words += "; what holds an assignment's answer cannot be imported"
    where = f" (line {lines[-1]} of the file)" if lines else ""
    return f"your code raised an error: {type(error).__name__}: {words}{where}"


@pytest.fixture(scope="session")
def seed() -> str:
    """Of the hidden cases."""
    return SEED or str(random.SystemRandom().randrange(2**31))


@pytest.fixture
def rng(seed: str, request: pytest.FixtureRequest) -> random.Random:
    """Chance of this part: the same for all submissions of one check."""
    return random.Random(f"{seed} {request.node.name}")


@pytest.fixture(scope="module")
def submission(request: pytest.FixtureRequest) -> ModuleType:
    """The file as a module, with what holds the answer out of its reach and with limits."""
    hide((*request.module.HIDDEN, request.module.__name__))
    limit()
    spec = spec_from_file_location("submission", SUBMISSION)
    module = module_from_spec(spec)
    sys.modules["submission"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def hide(names: tuple[str, ...]) -> None:
    """Make importing these modules, and what is theirs, fail from now on."""
    for name in names:
        parent, _, last = name.rpartition(".")
        package = vars(sys.modules[parent]) if sys.modules.get(parent) else {}
        for table in (package, package.get("MODES", {})):
            for key, value in list(table.items()):
                if key == last or getattr(value, "__module__", None) == name:
                    del table[key]
        for loaded in [name, *(each for each in sys.modules if each.startswith(f"{name}."))]:
            sys.modules[loaded] = None


def limit() -> None:
    """Of this process: address space beyond what is taken, sizes of files, no dumps, seconds.

    The seconds of the processor end a child, too, that has left the session and would go on.
    """
    statm = Path("/proc/self/statm")
    if statm.exists():
        room = int(statm.read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = math.ceil(float(LIMIT_S))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
