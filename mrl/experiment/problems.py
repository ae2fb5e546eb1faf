"""Problem files: JSONL, read with one plain sentence for whatever is wrong in them."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from mrl.errors import MrlError
from mrl.rollout import derive_seed
from mrl.samples import Problem


def load_problems(path: Path, accepts: Callable[[str], bool] | None = None) -> list[Problem]:
    """Read a JSONL file of problems; `accepts(answer)` says whether the verifier can judge it.

    Raises MrlError with file and line for a missing file, a broken line, a missing or wrong field,
    an answer that the verifier does not accept, a repeated id, or an empty file.
    """
    if not path.is_file():
        if path.parent.name == "gsm8k":
            raise MrlError(f"{path}: no such file; `python mini_mrl.py data gsm8k` fetches it.")
        raise MrlError(f"{path}: no such file; a problem file is JSONL, see data/README.md.")
    problems: dict[str, Problem] = {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise MrlError(f"{path}: is not UTF-8 text ({error.reason}); convert it first.") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        problem = _parse_problem(line, f"{path}:{number}")
        if problem.id in problems:
            raise MrlError(
                f"{path}:{number}: the id {problem.id!r} was used before; ids are unique."
            )
        if accepts is not None and not accepts(problem.answer):
            raise MrlError(
                f"{path}:{number}: the verifier cannot judge the answer {problem.answer!r}; "
                "give a number or a LaTeX expression with one value."
            )
        problems[problem.id] = problem
    if not problems:
        raise MrlError(f"{path}: holds no problem; it needs at least one JSON line.")
    return list(problems.values())


def _parse_problem(line: str, where: str) -> Problem:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise MrlError(f"{where}: is not JSON ({error.msg}, column {error.colno}).") from None
    if not isinstance(fields, dict):
        raise MrlError(f"{where}: is not a JSON object with `prompt` and `answer`.")
    if isinstance(fields.get("answer"), int) and not isinstance(fields["answer"], bool):
        fields["answer"] = str(fields["answer"])
    for name in ("prompt", "answer"):
        if not isinstance(fields.get(name), str) or not fields[name].strip():
            raise MrlError(f"{where}: `{name}` is missing or is not a text; it must be one.")
    for name in ("id", "skill"):
        if not isinstance(fields.get(name, ""), str):
            raise MrlError(f"{where}: `{name}` is not a text; it must be one.")
    return Problem(
        id=fields.get("id") or where.rsplit(":", 1)[1],
        prompt=fields["prompt"],
        answer=fields["answer"],
        skill=fields.get("skill") or "all",
    )


def save_problems(path: Path, problems: list[Problem]) -> None:
    """Write problems as JSONL, one object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(problem), ensure_ascii=False) for problem in problems]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def problems_of_step(
    problems: Sequence[Problem], step: int, count: int, seed: int
) -> list[Problem]:
    """The step's problems: each epoch is a new shuffle, a remainder smaller than `count` is left.

    step counts from 1. Raises ValueError if there are fewer problems than `count`.
    """
    if count > len(problems):
        raise ValueError(f"{count} prompts a step, but only {len(problems)} problems")
    steps_per_epoch = len(problems) // count
    epoch, place = divmod(step - 1, steps_per_epoch)
    order = list(problems)
    random.Random(derive_seed(seed, "epoch", epoch)).shuffle(order)
    return order[place * count : (place + 1) * count]
