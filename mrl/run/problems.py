"""Problem files in JSONL; every fault in one is a plain sentence."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from mrl.errors import MrlError
from mrl.parsing import parse, read_text
from mrl.policy import Policy
from mrl.samples import Problem


def load_problems(path: Path, accepts: Callable[[str], bool] | None = None) -> list[Problem]:
    """Read a JSONL file of problems; `accepts(answer)` says whether the verifier can judge it.

    Raises MrlError with file and line for a broken line, a missing or wrong field, an answer that
    the verifier does not accept, a repeated id, or an empty file; OSError if there is no file.
    """
    problems: dict[str, Problem] = {}
    number = 0
    try:
        for number, line in enumerate(read_text(path).split("\n"), start=1):
            if not line.strip():
                continue

            problem = _problem(parse(line, f"{path}:{number}"), str(number))
            if problem.id in problems:
                raise ValueError(f"the id {problem.id!r} was used before; ids are unique")
            if accepts is not None and not accepts(problem.answer):
                raise ValueError(
                    f"the verifier cannot judge the answer {problem.answer!r}; give an integer, a "
                    "decimal, a fraction, a word or a LaTeX formula, without a unit and with a "
                    "sign or a space between letters (`3a \\cdot b`), or give a judge with "
                    "--set judge=FILE"
                )
            problems[problem.id] = problem
    except ValueError as error:
        raise MrlError(f"{path}:{number}: {error}.") from None

    if not problems:
        raise MrlError(f"{path}: holds no problem; it needs at least one JSON line.")
    return list(problems.values())


def _problem(fields: dict, number: str) -> Problem:
    """Make a problem; ValueError if a field is wrong. number: of the line, in place of no id."""
    if type(fields.get("answer")) is int:  # a bool is not
        fields["answer"] = str(fields["answer"])
    defaults = {"id": number, "skill": "all"}
    fields = defaults | {name: value for name, value in fields.items() if value != ""}

    for name in ("prompt", "answer", "id", "skill"):
        text = fields.get(name, "")
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"`{name}` is {text!r}, but must be a text that is not empty")
        text.encode()  # ValueError for half of an emoji ("\\ud83d")
    return Problem(fields["id"], fields["prompt"], fields["answer"], fields["skill"])


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
    if rope.get("rope_type") == "longrope":  # beyond it the angles of keys in the cache change
        context = min(context, rope["original_max_position_embeddings"])

    try:
        lengths = [len(policy.prompt_ids(problem.prompt)) for problem in problems]
        if not min(lengths):
            raise ValueError("it writes an empty prompt")
    except Exception as error:  # a template is a program that came with the model
        raise MrlError(
            f"{policy.config.path}: its chat template fails ({error}); write another with "
            "{prompt} in it, as `template` of the policy."
        ) from error
    longest = max(lengths)
    if longest + policy.max_new_tokens > context:
        problem = problems[lengths.index(longest)]
        raise MrlError(
            f"Problem {problem.id} ({problem.prompt[:40]!r}...): {longest} tokens leave no room "
            f"for {policy.max_new_tokens} new ones, as {policy.name} has a context of {context}; "
            "shorten the problem or lower max_new_tokens."
        )
    return longest
