"""pytest's side of the classroom: the submission, its limits, and points as lines of JSON.

`assignment check` sets MRL_SUBMISSION (the file), MRL_SEED (of the hidden cases) and MRL_POINTS
(where a line goes after every part: all that is known then). By hand, with pytest's messages:

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
from types import ModuleType

import pytest

from mrl.classroom import NOT_REACHED

SUBMISSION = os.environ.pop("MRL_SUBMISSION", "")
POINTS = os.environ.pop("MRL_POINTS", os.devnull)
SEED = os.environ.pop("MRL_SEED", "") or str(random.SystemRandom().randrange(2**31))
LIMIT_S = math.ceil(float(os.environ.pop("MRL_LIMIT_S", "120")))
LIMITS = {  # of the process
    resource.RLIMIT_DATA: 4 << 30,  # bytes of memory
    resource.RLIMIT_FSIZE: 16 << 20,  # bytes of any file that it writes
    resource.RLIMIT_CPU: LIMIT_S,  # seconds; a child on macOS, too, that would go on for ever
}
KNOWN = {"parts": {}, "printed": ""}  # parts: by pytest's name; printed: by the submission
collect_ignore_glob = [] if SUBMISSION else ["test_*.py"]  # the project's own tests are in tests/


def write_known() -> None:
    """Append a line with all that is known, so that nothing is lost if this process dies."""
    with open(POINTS, "a", encoding="utf-8") as file:
        file.write(json.dumps(KNOWN) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write which parts there are, so that those that are never reached cost their points."""
    for item in session.items:
        worth, _, words = item.function.__doc__.partition(": ")  # "2 points: when it imitates"
        KNOWN["parts"][item.nodeid] = {
            "part": words,
            "out_of": int(worth.split()[0]),
            "points": 0,
            "message": NOT_REACHED,
        }
    write_known()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator:
    """Note after each part how many points it gained, and why not more."""
    report = yield
    if report.failed or report.when == "call":
        part = KNOWN["parts"][item.nodeid]
        noted = dict(item.user_properties)  # "message", and "points" where a part gives some of its
        if call.excinfo:
            part["points"] = noted.get("points", 0)
            part["message"] = explain(call.excinfo.value)
        else:
            part["points"] = part["out_of"]
            part["message"] = noted.get("message", "right")

        KNOWN["printed"] = KNOWN["printed"] or (report.capstdout + report.capstderr)[:1000]
        write_known()
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """End now, because Python would wait for threads that a submission has left."""
    if os.devnull != POINTS:
        os._exit(exitstatus)


def explain(error: BaseException) -> str:
    """The message of a check that failed; or the error, and where in the submission it arose."""
    words = str(error)[:1000]
    frames = traceback.extract_tb(error.__traceback__)
    checked = isinstance(error, AssertionError | pytest.fail.Exception)
    if checked and frames[-1].filename != SUBMISSION:
        return words

    if isinstance(error, ImportError) and f"{error.name}".startswith(("mrl.", "tests")):
        words += "; what holds an assignment's answer cannot be imported"

    lines = [frame.lineno for frame in frames if frame.filename == SUBMISSION]
    where = f" (line {lines[-1]} of the file)" if lines else ""
    notes = "".join(getattr(error, "__notes__", []))
    return f"your code raised an error: {type(error).__name__}: {words}{where}{notes}"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """This part's random numbers, the same for all submissions of one check."""
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture(scope="module")
def submission(request: pytest.FixtureRequest) -> ModuleType:
    """Import the file as a module, under limits, without the modules that hold the answer."""
    hide((*request.module.HIDDEN, request.module.__name__, "tests"))  # it has solutions
    for resource_name, most in LIMITS.items():
        resource.setrlimit(resource_name, (most, most))

    spec = spec_from_file_location("submission", SUBMISSION)
    module = module_from_spec(spec)
    sys.modules["submission"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def hide(names: tuple[str, ...]) -> None:
    """Make importing these modules, and what is theirs, fail from now on."""
    for name in names:
        parent, _, last = name.rpartition(".")
        package = vars(sys.modules.get(parent) or ModuleType(parent))
        for key, value in list(package.items()):
            if key in (last, "MODES") or getattr(value, "__module__", None) == name:
                del package[key]

        inner = [loaded for loaded in sys.modules if loaded.startswith(f"{name}.")]
        for module in (name, *inner):
            sys.modules[module] = None
