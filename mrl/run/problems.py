"""Reads and writes problem files in JSONL. Every line with a fault gets one sentence."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mrl.errors import MrlError
from mrl.parsing import control_character, parse, read_text
from mrl.samples import NO_SKILL, Problem

if TYPE_CHECKING:
    from mrl.policy import Policy

MAX_FAULTS = 20  # more lines with faults are counted, but not shown
ANSWERS = (
    "An answer must be an integer, a decimal, a fraction, a word or a LaTeX formula, without a "
    "unit. Letters that are multiplied need a sign or a space between them (`3a \\cdot b`). In "
    "JSON, a backslash is written twice (`\\\\theta`). For other answers, use your own judge: "
    "--set judge=FILE."
)


def load_problems(path: Path, accepts: Callable[[str], object] | None = None) -> list[Problem]:
    """Read a JSONL file of problems.

    accepts: the verifier's `check_answer`. If its reply counts as False, the line is refused, with
    the `reason` of the reply if it has one.
    Raises MrlError that names each line with a fault: an invalid line, a missing or wrong field, an
    answer that the verifier cannot judge, or a repeated id. Also raises it for an empty file.
    Raises OSError if there is no file.
    """
    accepts = cache(accepts) if accepts else None  # many answers of a file are equal
    problems: dict[str, Problem] = {}
    faults = []
    advice = ""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            fields = parse(line, where)
        except MrlError as error:
            faults.append(str(error))
            continue
        try:
            problem = _problem(fields, str(number))
            if problem.id in problems:
                raise ValueError(
                    f"the id {problem.id!r} is used twice; each problem needs its own id"
                )
        except ValueError as error:
            faults.append(f"{where}: {error}.")
            continue

        problems[problem.id] = problem
        if accepts and not (reply := accepts(problem.answer)):
            reason = getattr(reply, "reason", "")
            sentence = f"{where}: the verifier cannot judge the answer {problem.answer!r}"
            faults.append(f"{sentence}: {reason}." if reason else f"{sentence}.")
            advice = f"\n{ANSWERS}"

    if faults:
        more = len(faults) - MAX_FAULTS
        last = (
            f"\n{path}: {more} more lines have a fault, {len(faults)} in all." if more > 0 else ""
        )
        raise MrlError("\n".join(faults[:MAX_FAULTS]) + last + advice)
    if not problems:
        raise MrlError(f"{path} contains no problems; write one JSON object per line.")
    skills = {problem.skill for problem in problems.values()}
    if NO_SKILL in skills and len(skills) > 1:
        raise MrlError(
            f"{path}: some problems have no `skill`, or {NO_SKILL!r}, which is the name of the "
            "mean over all skills. Give each problem a skill of another name, or give none to any."
        )
    return list(problems.values())


def _problem(fields: dict, number: str) -> Problem:
    """Make a problem. Raises ValueError if a field is wrong.

    number: the line's number, which becomes the id if the line has none.
    """
    if type(fields.get("answer")) is int:  # a bool would also pass `isinstance`
        fields["answer"] = str(fields["answer"])
    defaults = {"id": number, "skill": NO_SKILL}
    fields = defaults | {name: value for name, value in fields.items() if value != ""}

    for name in ("prompt", "answer", "id", "skill"):
        if name not in fields:
            raise ValueError(f"there is no `{name}`, or it is empty; found: {', '.join(fields)}")
        text = fields[name]
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"`{name}` is {text!r}, but must be a non-empty text")
        # a prompt, or an answer for the user's own judge, may have several lines
        if control := control_character(text, allowed="\t\n\r"):
            raise ValueError(
                f"`{name}` contains the control character {control}. In JSON, a backslash is "
                "written twice (`\\\\frac`)"
            )
        text.encode()  # ValueError for half of an emoji ("\\ud83d")
    skill = " ".join(fields["skill"].split())  # the name of a metric, so it has no line breaks
    return Problem(fields["id"], fields["prompt"], fields["answer"], skill)


def save_problems(path: Path, problems: list[Problem]) -> None:
    """Write problems as JSONL, one object per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(asdict(problem), ensure_ascii=False) + "\n" for problem in problems]
    path.write_text("".join(lines), encoding="utf-8")


def check_prompts(policy: "Policy", problems: Sequence[Problem]) -> None:
    """Raise MrlError if a prompt leaves no room for a completion, or needs a token without weights.

    Thousands of prompts take seconds to tokenize. A token is at least one byte of the text, so if
    even the bytes of the longest prompt fit, only this prompt is tokenized, and those that spell
    out a token without weights.
    """
    longest = max(problems, key=lambda problem: len(problem.prompt.encode()))
    # tokens that are not in the text, such as a leading space
    added = len(policy.prompts.begin_ids) + 8
    size = len(policy.prompt_text(longest.prompt).encode()) + added
    if size + policy.max_new_tokens > _context(policy):
        longest_prompt(policy, problems)
        return
    rowless = policy.prompts.tokens_without_row
    spelled = [p for p in problems if any(token in p.prompt for token in rowless)]
    longest_prompt(policy, [longest, *spelled])


def _context(policy: "Policy") -> float:
    """The largest number of tokens that a policy's model can read; infinite if it has no limit."""
    config = policy.model.config.get_text_config()
    context = getattr(config, "max_position_embeddings", None) or math.inf
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":  # longer contexts change the angles of cached keys
        context = min(context, rope["original_max_position_embeddings"])
    return context


def longest_prompt(
    policy: "Policy",
    problems: Sequence[Problem],
    remedy: str = "Shorten the problem, or lower max_new_tokens.",
) -> int:
    """The number of tokens of the longest prompt. remedy: what a person can do if it is too long.

    Raises MrlError if that leaves no room for a completion, or if `prompt_ids` fails.
    """
    context = _context(policy)
    lengths = [len(policy.prompt_ids(problem.prompt)) for problem in problems]
    longest = max(lengths)
    if longest + policy.max_new_tokens > context:
        problem = problems[lengths.index(longest)]
        raise MrlError(
            f"Problem {problem.id} ({problem.prompt[:40]!r}...) has {longest} tokens, which leave "
            f"no room for {policy.max_new_tokens} new ones in the context of {policy.name} "
            f"({context} tokens). {remedy}"
        )
    return longest
