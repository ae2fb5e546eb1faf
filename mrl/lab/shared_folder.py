"""`python mini_mrl.py exchange RUN DIR`: the records of a finished run, for a folder between runs.

A run logs the records of steps 1 to 5 and of every 20th step in its exchange.jsonl. So this makes a
teacher that takes no memory out of a run that ended long ago. A run with `--set exchange=DIR`
writes all its records into the folder by itself.
"""

import json
from collections import defaultdict
from pathlib import Path

from mrl.errors import MrlError
from mrl.exchange_folder import FORMAT, KINDS, question_hash
from mrl.parsing import read_json_lines
from mrl.run.directory import read_run_config
from mrl.run.problems import load_problems


def convert(run: Path, folder: Path) -> dict[Path, int]:
    """Write one file per policy of the run; returns their paths and numbers of records.

    Raises MrlError if the run has no records of completions, or if one of the files exists.
    """
    questions = {
        problem.id: question_hash(problem.prompt)
        for problem in load_problems(Path(read_run_config(run).train))
    }
    lines: dict[str, list[str]] = defaultdict(list)  # by policy
    for entry in read_json_lines(run / "exchange.jsonl"):
        if entry.get("kind") in KINDS and entry.get("prompt_id") in questions:
            line = {"format": FORMAT, "question": questions[entry.pop("prompt_id")], **entry}
            lines[entry["source"]].append(json.dumps(line) + "\n")
    if not lines:
        raise MrlError(
            f"{run}/exchange.jsonl holds no completions: the mode of this run shares none. Name a "
            "run of sgt, or of another mode that shares solutions or completions."
        )

    paths = {folder / f"{source}.jsonl": own for source, own in lines.items()}
    for path in paths:
        if path.exists():
            raise MrlError(f"{path} exists already; move it, or choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for path, own in paths.items():
        path.write_text("".join(own), encoding="utf-8")
    return {path: len(own) for path, own in paths.items()}
