"""What `python mini_mrl.py assignment` does: write stubs, run submissions, tell what came out."""

import ast
import random
import secrets
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from shutil import copyfile
from types import ModuleType

from mrl.classroom import ASSIGNMENTS, OUT_OF, Finding
from mrl.classroom.sandbox import OUTPUT_BYTES, SUBMISSION, Gone, Raised, Server, visible
from mrl.errors import MrlError

LARGEST_FILE = 1 << 20


@dataclass
class Grade:
    """What one submission came to."""

    file: str
    assignment: str
    findings: list[Finding] = field(default_factory=list)
    trouble: str = ""  # what ended the check before its end
    output: str = ""  # what the submission printed, made visible

    @property
    def points(self) -> float:
        """Of `OUT_OF`; what was not reached counts as nothing."""
        return sum(finding.points for finding in self.findings)

    def to_dict(self) -> dict:
        """For `--json`: one line a submission."""
        return {
            "file": self.file, "assignment": self.assignment, "points": self.points,
            "out_of": OUT_OF, "findings": [finding.text for finding in self.findings],
            "trouble": self.trouble,
        }  # fmt: skip


def load_assignment(name: str) -> ModuleType:
    """The module of an assignment; MrlError if there is none of that name."""
    if name not in ASSIGNMENTS:
        raise MrlError(f"There is no assignment {name!r}; there are {', '.join(ASSIGNMENTS)}.")
    return import_module(f"mrl.classroom.{ASSIGNMENTS[name][0]}")


def write_stub(name: str, folder: Path) -> list[Path]:
    """Write what a student begins with; MrlError if it is there already. Returns the files."""
    module = load_assignment(name)
    path = folder / f"{name}.py"
    if path.exists():
        raise MrlError(f"{path}: is there already; move it away to begin anew.")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(module.STUB, encoding="utf-8")
    more = module.also_write(folder) if hasattr(module, "also_write") else []
    return [path, *more]


def submissions(paths: Iterable[Path]) -> list[Path]:
    """The files themselves and, of folders, the Python files in them; MrlError if there is none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(file for file in path.rglob("*.py") if file.is_file())
        elif path.is_file():
            found.append(path)
        else:
            raise MrlError(f"{path}: there is no such file; `assignment start NAME` writes one.")
    if not found:
        raise MrlError("There is no Python file in that folder.")
    return found


def assignment_of(path: Path) -> str:
    """Which assignment a file is about, read without running it. MrlError says what is missing."""
    if path.stat().st_size > LARGEST_FILE:
        raise MrlError(f"{path}: is larger than {LARGEST_FILE >> 20} MiB.")
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        raise MrlError(f"{where}: is no Python ({getattr(error, 'msg', error)}).") from None
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if "ASSIGNMENT" in names and node.value.value in ASSIGNMENTS:
                return node.value.value
    raise MrlError(
        f'{path}: has no line `ASSIGNMENT = "..."` with one of {", ".join(ASSIGNMENTS)}.'
    )


def grade_all(
    paths: list[Path], seed: int | None = None, say: Callable[[str], None] = lambda text: None
) -> list[Grade]:
    """Check submissions one after the other, each in a process of its own.

    seed: of the hidden cases; None draws one, the same for all.
    """
    seed = secrets.randbelow(2**31) if seed is None else seed
    servers: dict[str, Server] = {}
    grades = []
    try:
        for path in paths:
            try:
                name = assignment_of(path)
            except MrlError as error:
                grades.append(Grade(str(path), "", trouble=str(error)))
                continue
            if name not in servers:
                module = load_assignment(name)
                servers[name] = Server(ASSIGNMENTS[name][0], module.PRELOAD)
            grades.append(_grade(path, name, servers[name], seed, say))
    finally:
        for server in servers.values():
            server.close()
    return grades


def _grade(path: Path, name: str, server: Server, seed: int, say: Callable[[str], None]) -> Grade:
    module, grade = load_assignment(name), Grade(str(path), name)
    with tempfile.TemporaryDirectory(prefix="mrl-") as folder, tempfile.TemporaryFile() as output:
        copyfile(path, Path(folder) / SUBMISSION)
        session = server.open(Path(folder), output, module.LIMIT_S, module.MEMORY)
        try:
            session.call("load")
            for finding in module.check(session, random.Random(seed), say):
                grade.findings.append(finding)
        except Raised as error:
            grade.trouble = f"the file cannot be loaded: {error}"
        except Gone as error:
            grade.trouble = str(error)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            grade.trouble = f"it answered in a form that nobody can read ({type(error).__name__})"
        finally:
            session.close()
        output.seek(0)
        printed = output.read(OUTPUT_BYTES).decode("utf-8", errors="replace")
        grade.output = visible(printed, OUTPUT_BYTES) if printed.strip() else ""
    return grade
