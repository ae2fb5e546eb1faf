"""What `assignment start` and `check` do: write stubs, run pytest on submissions, add up points.

Each submission is checked by a pytest of its own process (conftest.py), which reports what each
part gained. This keeps mistakes apart; it is no security boundary: see TEACHING.md.
"""

import ast
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from mrl.classroom import ASSIGNMENTS, HERE, OUT_OF, ROOT, check_name
from mrl.classroom.curves import write_curves
from mrl.errors import MrlError
from mrl.runtime.view import printable

PART_S = 30.0  # of computing, for a part
LIMIT_S = 300.0  # on the clock, for a whole check: for what waits, or goes on behind its part's end
NOT_REACHED = "not reached, or not ended"
NAMED = re.compile(r"""^ASSIGNMENT\s*(?::\s*\w+\s*)?=\s*["']([\w-]+)["']""", re.MULTILINE)


@dataclass
class Grade:
    """The result of one submission; with `--json` its fields are a line."""

    file: str
    assignment: str = ""
    # by the name of its test, each with "part", "out_of", "points" and "message"
    parts: dict[str, dict] = field(default_factory=dict)
    trouble: str = ""  # what ended the check before its end
    printed: str = ""  # what the submission printed
    points: int = 0  # what was not reached counts as nothing
    out_of: int = OUT_OF
    student: str = ""  # by the file's name, or its folder's
    handed_in: float = 0.0  # when the file was last changed, in seconds since 1970


@dataclass
class Submission:
    """A file as it was when the check of its class began."""

    path: Path
    text: bytes
    grade: Grade


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


def checks_of(assignment: str) -> Path:
    """The file of an assignment's checks."""
    return HERE / f"test_{assignment.replace('-', '_')}.py"


def parts_of(assignment: str) -> dict[str, dict]:
    """An assignment's parts, by the names of their tests, with no points yet.

    They are read from the docstrings of its checks ("2 points: when it imitates") and not from a
    report that a submission could have written.
    """
    parts = {}
    for node in ast.parse(checks_of(assignment).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            worth, _, words = str(ast.get_docstring(node)).partition(": ")
            part = {"part": words, "out_of": int(worth.split()[0])}
            parts[node.name] = part | {"points": 0, "message": NOT_REACHED}
    return parts


def submissions(paths: Iterable[Path]) -> list[Submission]:
    """Read the files and the Python files of the folders; MrlError if there is none.

    All are read before the first one runs, because that one could write over the others.
    """
    handed_in = []
    for path in paths:
        if not path.exists():
            raise MrlError(f"{path}: there is no such file; `assignment start NAME` writes one.")

        inside = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for file in inside:
            if file.is_file():  # a pipe could be read for ever
                handed_in.append(opened(file, path))

    if not handed_in:
        raise MrlError("There is no Python file in that folder.")
    return handed_in


def opened(path: Path, argument: Path) -> Submission:
    """A submission's text, and a grade that knows whose it is.

    argument is the path on the command line: the file, or a folder with a folder per student.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise MrlError(f"{path}: cannot be read ({error.strerror}).") from None

    grade = Grade(one_line(path), handed_in=path.stat().st_mtime)
    named = NAMED.search(text.decode("latin-1"))  # which accepts any bytes
    if named and named[1] in ASSIGNMENTS:
        grade.assignment = named[1]
        grade.parts = parts_of(named[1])
    else:
        names = ", ".join(ASSIGNMENTS)
        grade.trouble = f'has no line `ASSIGNMENT = "..."` with one of {names}'

    inner = path.relative_to(argument).parts
    name = re.sub(f"[-_ ]?{grade.assignment}$", "", path.stem) or path.stem
    grade.student = one_line(inner[0] if len(inner) > 1 else name)
    return Submission(path, text, grade)


def read_by_checks(handed_in: Iterable[Submission]) -> dict[Path, bytes]:
    """What checks depend on: each file of the program, of its checks and of the class."""
    paths = list(ROOT.glob("*.py"))
    paths += ROOT.glob("mrl/**/*.py")
    paths += [submission.path for submission in handed_in]
    return {path: path.read_bytes() for path in paths if path.is_file()}


def check_all(handed_in: list[Submission], seed: int = 0) -> Iterator[Grade]:
    """Check submissions in their order; all get the hidden cases of one seed.

    MrlError if pytest is missing, which nothing else in the program needs, or if a submission
    changed a file that another check reads.
    """
    if not importlib.util.find_spec("pytest"):
        raise MrlError('`assignment check` needs pytest: `python -m pip install "pytest>=8"`.')

    before = read_by_checks(handed_in)
    for submission in handed_in:
        grade = submission.grade
        if grade.assignment:
            check(submission, seed)

        after = read_by_checks(handed_in)
        for path in before | after:
            # a student's editor may save the file that is checked
            if before.get(path) != after.get(path) and path != submission.path:
                raise MrlError(
                    f"{one_line(path)} changed while {grade.file} was checked, so neither this "
                    "file nor one behind it has points: read it, put the changed file back, and "
                    "check the class in containers (mrl/classroom/TEACHING.md)."
                )
        yield grade


def check(submission: Submission, seed: int) -> None:
    """Run pytest on a copy of the file, and put the points of each part into the grade."""
    grade = submission.grade
    with TemporaryDirectory(prefix="mrl-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "submission.py").write_bytes(submission.text)
        (folder / "work").mkdir()

        environment = os.environ | {
            "MRL_SUBMISSION": str(folder / "submission.py"),
            "MRL_REPORT": str(folder / "report.json"),
            "MRL_SEED": str(seed),
            "MRL_PART_S": str(PART_S),
            "PYTEST_ADDOPTS": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "OMP_NUM_THREADS": "1",  # each thread would take memory
        }
        status = run(grade.assignment, folder / "work", environment)
        if (folder / "report.json").exists():
            take_over(folder / "report.json", grade)

    if status is None:
        grade.trouble = f"it was stopped after {LIMIT_S:g} s; is there a loop that never ends?"
    elif not grade.trouble and any(p["message"] == NOT_REACHED for p in grade.parts.values()):
        grade.trouble = f"its process ended before the check was over (exit status {status})"


def pytest_arguments(assignment: str) -> list[str]:
    """Arguments that shut out what a folder, a config or a plugin could add."""
    return [
        str(checks_of(assignment)), "-c", os.devnull, "--rootdir", str(HERE),
        "-p", "no:cacheprovider", "-p", "no:unraisableexception", "--assert=plain", "--tb=no", "-q",
    ]  # fmt: skip


def run(assignment: str, cwd: Path, environment: dict[str, str]) -> int | None:
    """Run pytest in a process of its own; return its exit status, None if it was stopped."""
    silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    command = [sys.executable, "-P", "-m", "pytest", *pytest_arguments(assignment)]
    try:
        process = subprocess.run(command, cwd=cwd, env=environment, timeout=LIMIT_S, **silent)
        return process.returncode
    except subprocess.TimeoutExpired:
        return None


def take_over(path: Path, grade: Grade) -> None:
    """Put the points of a report into the grade, if they can be those of its assignment."""
    parts = parts_of(grade.assignment)
    try:
        report = json.loads(path.read_bytes())
        for name, gained in report["parts"].items():
            part, points = parts[name], gained["points"]
            if type(points) is not int or not 0 <= points <= part["out_of"]:
                raise ValueError(f"{points} points of {name}")
            part.update(points=points, message=one_line(gained["message"], 1000))
        grade.printed = one_line(report["printed"], 500)
    except Exception:  # a submission may have written there whatever it likes
        grade.trouble = "its report is not the one that the checker writes, so it has no points"
        return

    grade.parts, grade.points = parts, sum(part["points"] for part in parts.values())
