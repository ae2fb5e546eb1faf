"""What `python mini_mrl.py assignment` does: write stubs, run pytest on submissions, add up points.

Each submission is checked by a pytest of its own process (conftest.py), so whatever it does it does
to its own points. This keeps mistakes apart; it is no security boundary: see TEACHING.md.
"""

import importlib.util
import json
import os
import random
import re
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mrl.classroom import ASSIGNMENTS, OUT_OF
from mrl.classroom.curves import write_curves
from mrl.errors import MrlError

HERE = Path(__file__).resolve().parent
LIMIT_S = 120.0  # for a whole check; importing torch on a busy machine takes seconds of it
LARGEST_FILE = 1 << 20
LARGEST_RESULT = 1 << 20
PASSED_ON = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT")  # no other variable gets in
NAMED = re.compile(r"""^ASSIGNMENT\s*(?::\s*\w+\s*)?=\s*["']([\w-]+)["']""", re.MULTILINE)


@dataclass
class Grade:
    """What one submission came to."""

    file: str
    assignment: str = ""
    parts: list[dict] = field(default_factory=list)  # part, out_of, points, message
    trouble: str = ""  # what ended the check before its end
    printed: str = ""  # what the submission printed

    @property
    def points(self) -> float:
        """Of `OUT_OF`; what was not reached counts as nothing."""
        return sum(part["points"] for part in self.parts)

    def to_dict(self) -> dict:
        """For `--json`: one line a submission."""
        return {**vars(self), "points": self.points, "out_of": OUT_OF}


def visible(text: object, limit: int = 2000) -> str:
    """Text of a submission, safe for a terminal and on one line: control characters escaped."""
    text = f"{text}"
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:limit])
    return shown + (" [...]" if len(text) > limit else "")


def start(name: str, folder: Path) -> list[Path]:
    """Write what a student begins with; MrlError if it is there already. Returns the files."""
    if name not in ASSIGNMENTS:
        raise MrlError(f"There is no assignment {name!r}; there are {', '.join(ASSIGNMENTS)}.")
    path = folder / f"{name}.py"
    if path.exists():
        raise MrlError(f"{path}: is there already; move it away to begin again.")
    folder.mkdir(parents=True, exist_ok=True)
    text = (HERE / "stubs" / f"{name}.py").read_text(encoding="utf-8")
    number = random.SystemRandom().randrange(1, 10**6)
    path.write_text(text.replace("CURVES = 0", f"CURVES = {number}"), encoding="utf-8")
    return [path, *(write_curves(number, folder) if name == "bug" else [])]


def submissions(paths: Iterable[Path]) -> list[Path]:
    """The files themselves and, of folders, what is named as Python; MrlError if there is none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(file for file in path.rglob("*.py") if not file.is_dir())
        elif path.exists():
            found.append(path)
        else:
            raise MrlError(
                f"{visible(path)}: there is no such file; `assignment start NAME` writes one."
            )
    if not found:
        raise MrlError("There is no Python file in that folder.")
    return found


def check_all(paths: Iterable[Path], seed: int | None = None) -> Iterator[Grade]:
    """Check submissions one after the other. seed: of the hidden cases, the same for all.

    MrlError if pytest is missing, which nothing else in the program needs.
    """
    if not importlib.util.find_spec("pytest"):
        raise MrlError(
            "`assignment check` needs pytest, which is not installed; "
            '`python -m pip install "pytest>=8"` installs it (the dev extra has it, too).'
        )
    seed = secrets.randbelow(2**31) if seed is None else seed
    for path in paths:
        grade = Grade(visible(path))
        try:
            text = read(path)
            named = NAMED.search(text.decode("latin-1"))  # which accepts any bytes
            if not named or named[1] not in ASSIGNMENTS:
                names = ", ".join(ASSIGNMENTS)
                raise MrlError(f'has no line `ASSIGNMENT = "..."` with one of {names}')
            grade.assignment = named[1]
            check(text, grade, seed)
        except OSError as error:
            grade.trouble = f"cannot be read ({error.strerror})"
        except MrlError as error:
            grade.trouble = str(error)
        yield grade


def read(path: Path) -> bytes:
    """A submission's bytes; MrlError for what is no file, or larger than anybody writes."""
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
        raise MrlError("is no file")
    with path.open("rb") as file:
        text = file.read(LARGEST_FILE + 1)
    if len(text) > LARGEST_FILE:
        raise MrlError(f"is larger than {LARGEST_FILE >> 20} MiB")
    return text


def check(text: bytes, grade: Grade, seed: int) -> None:
    """Run pytest on a copy of the file and take over what it writes, part by part."""
    folder = Path(tempfile.mkdtemp(prefix="mrl-"))
    try:
        (folder / "submission.py").write_bytes(text)
        (folder / "work").mkdir()
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
            "MRL_SUBMISSION": str(folder / "submission.py"),
            "MRL_POINTS": str(folder / "points"),
            "MRL_SEED": str(seed),
            "MRL_LIMIT_S": str(LIMIT_S),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "OMP_NUM_THREADS": "1",  # and each thread would take address space
        }
        status = run(grade.assignment, folder / "work", environment)
        with suppress(OSError):
            if not (folder / "points").is_symlink():
                take_over((folder / "points").read_bytes()[:LARGEST_RESULT], grade)
    finally:
        with suppress(OSError, RecursionError):  # deep folders, or such as cannot be deleted
            shutil.rmtree(folder, ignore_errors=True)
    reached = bool(grade.parts) and all("message" in part for part in grade.parts)
    for part in grade.parts:
        part.setdefault("message", "not reached")
    if status is None:
        grade.trouble = f"it was stopped after {LIMIT_S:g} s; is there a loop that never ends?"
    elif status < 0:
        grade.trouble = f"its process died ({signal.Signals(-status).name})"
    elif status not in (0, 1) or not reached:
        grade.trouble = f"its process ended before the check was over (exit status {status})"


def pytest_arguments(assignment: str) -> list[str]:
    """Without what a folder, a config or a plugin could add."""
    test = HERE / f"test_{assignment.replace('-', '_')}.py"
    return [
        str(test), "-c", os.devnull, "--rootdir", str(HERE), "-p", "no:cacheprovider",
        "-p", "no:unraisableexception", "--tb=no", "-q",
    ]  # fmt: skip


def run(assignment: str, cwd: Path, environment: dict[str, str]) -> int | None:
    """A pytest of its own session; its exit status, None if it had to be stopped."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "pytest", *pytest_arguments(assignment)],
        cwd=cwd, env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        return process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(OSError):  # its children, too, and also if it is stopped by a signal
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def take_over(lines: bytes, grade: Grade) -> None:
    """The lines that conftest.py wrote; what is none of them is left out."""
    for line in lines.decode("utf-8", errors="replace").splitlines():
        with suppress(ValueError, TypeError, KeyError, StopIteration, RecursionError):
            entry = json.loads(line)
            if "parts" in entry:
                grade.parts = [
                    {"part": visible(p["part"]), "out_of": int(p["out_of"]), "points": 0}
                    for p in entry["parts"]
                ]
                continue
            part = next(p for p in grade.parts if p["part"] == visible(entry["part"]))
            part["points"] = part["out_of"] if entry["right"] is True else 0
            part["message"] = visible(entry["message"], 600)
            if printed := visible(entry["printed"], 500):
                grade.printed = grade.printed or printed
