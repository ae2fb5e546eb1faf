"""Problem files: JSONL, read with one plain sentence for whatever is wrong in them."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from mrl.errors import MrlError
from mrl.policy import Policy
from mrl.samples import Problem


def load_problems(path: Path, accepts: Callable[[str], bool] | None = None) -> list[Problem]:
    """Read a JSONL file of problems; `accepts(answer)` says whether the verifier can judge it.

    Raises MrlError with file and line for a missing file, a broken line, a missing or wrong field,
    an answer that the verifier does not accept, a repeated id, or an empty file.
    """
    if not path.is_file():
        remedy = "a problem file is JSONL, see data/README.md"
        if path.parent.name == "gsm8k":
            remedy = "`python mini_mrl.py data gsm8k` fetches it"
        raise MrlError(f"{path}: no such file; {remedy}.")
    problems: dict[str, Problem] = {}
    number = 0
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            if not line.strip():
                continue
            problem = _parse_problem(line, str(number))
            if problem.id in problems:
                raise ValueError(f"the id {problem.id!r} was used before; ids are unique")
            if accepts is not None and not accepts(problem.answer):
                raise ValueError(
                    f"the verifier cannot judge the answer {problem.answer!r}; give a number or "
                    "a LaTeX expression with one value"
                )
            problems[problem.id] = problem
    except UnicodeDecodeError as error:
        raise MrlError(f"{path}: is not UTF-8 text ({error.reason}); convert it first.") from None
    except ValueError as error:
        raise MrlError(f"{path}:{number}: {error}.") from None
    if not problems:
        raise MrlError(f"{path}: holds no problem; it needs at least one JSON line.")
    return list(problems.values())


def _parse_problem(line: str, number: str) -> Problem:
    """Raises ValueError with what is wrong. number: of the line, the id of a problem without."""
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error.msg}, column {error.colno})") from None
    if not isinstance(fields, dict):
        raise ValueError("is not a JSON object with `prompt` and `answer`")
    if type(fields.get("answer")) is int:  # a bool is not
        fields["answer"] = str(fields["answer"])
    defaults = {"id": number, "skill": "all"}
    fields = defaults | {name: value for name, value in fields.items() if value != ""}
    for name in ("prompt", "answer", "id", "skill"):
        if not isinstance(fields.get(name), str) or not fields[name].strip():
            raise ValueError(f"`{name}` is missing or is not a text; it must be one")
        fields[name].encode()  # half of an emoji ("\\ud83d") is no text, either: a ValueError
    return Problem(fields["id"], fields["prompt"], fields["answer"], fields["skill"])


def system_prompt_of(path: Path) -> str:
    """What `system_prompt.txt` beside a problem file says to every model; "" if there is none."""
    try:
        return path.with_name("system_prompt.txt").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def save_problems(path: Path, problems: list[Problem]) -> None:
    """Write problems as JSONL, one object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(problem), ensure_ascii=False) + "\n" for problem in problems]
    path.write_text("".join(lines), encoding="utf-8")


def longest_prompt(policy: Policy, problems: Sequence[Problem]) -> int:
    """Tokens of the longest prompt; MrlError if one leaves no room for a completion."""
    config = policy.model.config.get_text_config()
    context = getattr(config, "max_position_embeddings", None) or math.inf
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":  # beyond it, keys in the cache would be of other angles
        context = min(context, rope["original_max_position_embeddings"])
    longest, problem_id = max((len(policy.prompt_ids(p.prompt)), p.id) for p in problems)
    if (needed := longest + policy.max_new_tokens) > context:
        raise MrlError(
            f"Problem {problem_id}: its prompt and {policy.max_new_tokens} new tokens make "
            f"{needed} tokens, but {policy.name} has a context of {context}; shorten the problem "
            "or lower max_new_tokens."
        )
    return longest
