"""What `assignment start` and `check` do: write stubs, run pytest on submissions, add up points.

Each submission is checked by a pytest of its own process (conftest.py), so whatever it does it does
to its own points. This keeps mistakes apart; it is no security boundary: see TEACHING.md.
"""

import importlib.util
import json
import os
import random
import re
import secrets
import signal
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from mrl.classroom import ASSIGNMENTS, HERE, NOT_REACHED, OUT_OF, check_name
from mrl.classroom.curves import write_curves
from mrl.errors import MrlError
from mrl.runtime.view import printable

LIMIT_S = 120.0  # for a whole check; importing torch on a busy machine takes seconds of it
LARGEST_FILE = 1 << 20  # bytes
PASSED_ON = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT")  # no other variable gets in
NAMED = re.compile(r"""^ASSIGNMENT\s*(?::\s*\w+\s*)?=\s*["']([\w-]+)["']""", re.MULTILINE)
# A shell stands between a submission and this process, so that killing its parent ends nothing else
SHELL = ("sh", "-c", '"$@"; exit $?', "sh")


@dataclass
class Grade:
    """The result of one submission; with `--json` its fields are a line."""

    file: str
    assignment: str = ""
    parts: list[dict] = field(default_factory=list)  # part, out_of, points, message
    trouble: str = ""  # what ended the check before its end
    printed: str = ""  # what the submission printed
    points: int = 0  # what was not reached counts as nothing
    out_of: int = OUT_OF
    student: str = ""  # by the file's name, or its folder's
    handed_in: float = 0.0  # when the file was last changed, in seconds since 1970


def one_line(text: object, limit: int = 2000) -> str:
    """Text of a submission, safe for a terminal, on one line."""
    return printable(text, limit, keep="")


def start(name: str, folder: Path) -> list[Path]:
    """Write what a student begins with; MrlError if it is there already. Returns the files."""
    check_name(name)
    path = folder / f"{name}.py"
    if path.exists():
        raise MrlError(f"{path}: is there already; move it away to begin again.")

    folder.mkdir(parents=True, exist_ok=True)
    text = (HERE / "stubs" / f"{name}.py").read_text(encoding="utf-8")
    number = random.SystemRandom().randrange(1, 10**6)
    path.write_text(text.replace("CURVES = 0", f"CURVES = {number}"), encoding="utf-8")
    return [path, write_curves(number, folder)] if name == "bug" else [path]


def submissions(paths: Iterable[Path]) -> list[tuple[Grade, bytes]]:
    """Read the files and the Python files of the folders; MrlError if there is none.

    All are read before the first one runs, because that one could write over the others.
    """
    handed_in = []
    for path in paths:
        if not path.exists():
            raise MrlError(f"{path}: there is no such file; `assignment start NAME` writes one.")

        inside = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        handed_in += [opened(file, path) for file in inside if not file.is_dir()]

    if not handed_in:
        raise MrlError("There is no Python file in that folder.")
    return handed_in


def opened(path: Path, argument: Path) -> tuple[Grade, bytes]:
    """A submission's text, and a grade that knows whose it is, or why it cannot be read.

    argument is the path on the command line: the file, or a folder with a folder per student.
    """
    grade, text = Grade(one_line(path)), b""
    try:
        grade.handed_in = path.stat().st_mtime
        text = read(path)
        named = NAMED.search(text.decode("latin-1"))  # which accepts any bytes
        if not named or named[1] not in ASSIGNMENTS:
            names = ", ".join(ASSIGNMENTS)
            raise MrlError(f'has no line `ASSIGNMENT = "..."` with one of {names}')
        grade.assignment = named[1]
    except OSError as error:
        grade.trouble = f"cannot be read ({error.strerror})"
    except MrlError as error:
        grade.trouble = str(error)

    inner = path.relative_to(argument).parts
    name = re.sub(f"[-_ ]?{grade.assignment}$", "", path.stem) or path.stem
    grade.student = one_line(inner[0] if len(inner) > 1 else name)
    return grade, text


def read(path: Path) -> bytes:
    """A file's bytes; MrlError for what is no file, or larger than any solution."""
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
        raise MrlError("is no file")

    with path.open("rb") as file:
        text = file.read(LARGEST_FILE + 1)
    if len(text) > LARGEST_FILE:
        raise MrlError(f"is larger than {LARGEST_FILE >> 20} MiB")
    return text


def check_all(
    handed_in: Iterable[tuple[Grade, bytes]], seed: int | None = None, jobs: int = 1
) -> Iterator[Grade]:
    """Check submissions, `jobs` at a time, in their order; all get the hidden cases of one seed.

    MrlError if pytest is missing, which nothing else in the program needs.
    """
    if not importlib.util.find_spec("pytest"):
        raise MrlError('`assignment check` needs pytest: `python -m pip install "pytest>=8"`.')

    seed = secrets.randbelow(2**31) if seed is None else seed

    def checked(entry: tuple[Grade, bytes]) -> Grade:
        grade, text = entry
        if not grade.trouble:
            check(text, grade, seed)
        return grade

    if jobs == 1:  # without threads, Ctrl-C ends the check that runs
        yield from map(checked, handed_in)
    else:
        with ThreadPoolExecutor(jobs) as threads:  # each waits for the process of its check
            yield from threads.map(checked, handed_in)


def check(text: bytes, grade: Grade, seed: int) -> None:
    """Run pytest on a copy of the file, and put what is known of each part into the grade."""
    folder = Path(mkdtemp(prefix="mrl-"))
    (folder / "submission.py").write_bytes(text)
    (folder / "work").mkdir()

    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
        "MRL_SUBMISSION": str(folder / "submission.py"),
        "MRL_POINTS": str(folder / "points"),
        "MRL_SEED": str(seed),
        "MRL_LIMIT_S": str(LIMIT_S),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "OMP_NUM_THREADS": "1",  # each thread would take memory
    }
    try:
        status = run(grade.assignment, folder / "work", environment)
        with suppress(Exception):  # a submission may have written there whatever it likes
            take_over(read(folder / "points"), grade)
    finally:
        end_processes(folder)
        # shutil's way fails where folders lie too deep in folders
        subprocess.run(["rm", "-rf", folder], stderr=subprocess.DEVNULL)

    if status is None:
        grade.trouble = f"it was stopped after {LIMIT_S:g} s; is there a loop that never ends?"
    elif status not in (0, 1) or not grade.parts or grade.parts[-1]["message"] == NOT_REACHED:
        grade.trouble = f"its process ended before the check was over (exit status {status})"


def end_processes(folder: Path) -> None:
    """End what a check has left in a session of its own; its environment names the check's folder.

    This needs Linux's /proc. On macOS such a process goes on.
    """
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is not ours
            if str(folder).encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)


def pytest_arguments(assignment: str) -> list[str]:
    """Arguments that shut out what a folder, a config or a plugin could add."""
    test = HERE / f"test_{assignment.replace('-', '_')}.py"
    return [
        str(test), "-c", os.devnull, "--rootdir", str(HERE), "-p", "no:cacheprovider",
        "-p", "no:unraisableexception", "--assert=plain", "--tb=no", "-q",
    ]  # fmt: skip


def run(assignment: str, cwd: Path, environment: dict[str, str]) -> int | None:
    """Run pytest in a session of its own; return its exit status, None if it was stopped."""
    silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    command = [*SHELL, sys.executable, "-P", "-m", "pytest", *pytest_arguments(assignment)]
    with subprocess.Popen(
        command, cwd=cwd, env=environment, start_new_session=True, **silent
    ) as process:
        try:
            return process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(OSError):  # its children, too, and also if it is stopped by a signal
                os.killpg(process.pid, signal.SIGKILL)


def take_over(lines: bytes, grade: Grade) -> None:
    """Put the last whole line that conftest.py wrote into the grade, if all of it is in order."""
    for line in lines.decode("utf-8", errors="replace").splitlines():
        with suppress(ValueError):  # a line that was cut when the process died
            entry = json.loads(line)

    parts = [
        {
            "part": one_line(part["part"]),
            "out_of": int(part["out_of"]),
            "points": int(part["points"]),
            "message": one_line(part["message"], 1000),
        }
        for part in entry["parts"].values()
    ]
    grade.printed = one_line(entry["printed"], 500)
    grade.parts, grade.points = parts, sum(part["points"] for part in parts)
