"""How much code is one step? Functions entered and lines executed by one step of `sgt`.

    python tests/bench/trace_step.py

Counts distinct functions and distinct lines of this project's files that one `train_step`, and the
noting of it, run through on the tiny pair; libraries are not counted.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import mini_mrl  # noqa: E402
from mrl.run.run import Run  # noqa: E402
from mrl.run.view import View  # noqa: E402
from mrl.settings.settings import run_config  # noqa: E402


def trace(job) -> tuple[set, set]:
    """Functions and lines of this project that `job` runs through."""
    functions, lines = set(), set()
    ours = str(ROOT)

    def note(frame, event, argument):
        code = frame.f_code
        if not code.co_filename.startswith(ours) or ".venv" in code.co_filename:
            return None
        if event == "call" and not code.co_name.startswith("<"):
            functions.add((code.co_filename, code.co_qualname))
        if event == "line":
            lines.add((code.co_filename, frame.f_lineno))
        return note

    sys.settrace(note)
    try:
        job()
    finally:
        sys.settrace(None)
    return functions, lines


def main() -> None:
    """Two steps, the second one traced: by then every cache is as it stays."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"mode": "sgt", "seed": 1, "name": "trace", "placement": "resident"}
        config = run_config("tiny", None, given, [f"runs={folder}", "eval_samples=1"])
        names = [policy.name for policy in config.policies]
        view = View(Console(quiet=True), names, config.steps)
        with Run(config, view) as run:
            run.finish_step(1, mini_mrl.train_step(run.team, 1))
            results = {}
            step = trace(lambda: results.update(mini_mrl.train_step(run.team, 2)))
            noted = trace(lambda: run.finish_step(2, results))
    for what, (functions, lines) in (("train_step", step), ("run.finish_step", noted)):
        files = Counter(Path(name).relative_to(ROOT).as_posix() for name, _ in functions)
        print(f"{what}: {len(functions)} functions, {len(lines)} lines, in {len(files)} files")
    both = [first | second for first, second in zip(step, noted, strict=True)]
    print(f"together: {len(both[0])} functions, {len(both[1])} lines")


if __name__ == "__main__":
    main()
