"""`python mini_mrl.py ask`: what the models answer to your own sentences, before and after."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from rich.table import Table

from mrl.config import DATA, RunConfig
from mrl.errors import MrlError
from mrl.models.loading import claim_device, load_policies
from mrl.policy import Policy
from mrl.run.directory import newest_checkpoint, step_of, with_checkpoint_paths
from mrl.run.problems import longest_prompt
from mrl.run.view import cell, console
from mrl.samples import Problem, derive_seed
from mrl.tiny.skills import QUESTION, SKILLS
from mrl.verifier.plain import last_box

LISTED = 3  # number of answers that a cell names
NINE_KINDS = (
    "The tiny models know only nine kinds of sentences, and this is none of them. Each kind ends "
    'with "How many?", for example "Gus has 5 figs a day for 3 days. How many?" or "Eva had 46 '
    'cups and sold 14. How many?" The table of skills in data/README.md has all of them.'
)


def newest_run(runs: Path) -> Path | None:
    """The run in a folder that was the last to save a checkpoint; None if no run has saved one."""
    written = {}
    for directory in runs.iterdir() if runs.is_dir() else ():
        checkpoint = newest_checkpoint(directory)
        if checkpoint:
            written[directory] = checkpoint.stat().st_mtime
    return max(written, key=lambda directory: written[directory], default=None)


def load_states(config: RunConfig, directory: Path | None) -> dict[str, list[Policy]]:
    """The policies to ask, by name of their state: before training and at the newest checkpoint.

    directory: the run's directory; None gives only the policies before training. Raises MrlError if
    the run has no checkpoint.
    """
    states = {"before training": config}
    if directory is not None:
        checkpoint = newest_checkpoint(directory)
        if checkpoint is None:
            raise MrlError(
                f"{directory} has no complete checkpoint yet; wait for one, or `resume` it."
            )
        after = f"after step {step_of(checkpoint)} of {directory.name}"
        states[after] = with_checkpoint_paths(config, checkpoint)
    return {name: load_policies(state, claim_device(state)) for name, state in states.items()}


def typed_questions() -> Iterator[str]:
    """The lines that a person types; an empty line, Ctrl-D or Ctrl-C ends them."""
    console.print("Type a sentence and press Enter. An empty line ends the program.")
    with suppress(EOFError, KeyboardInterrupt):
        while question := console.input("> ").strip():
            yield question


def ask(question: str, states: dict[str, list[Policy]], samples: int) -> Table:
    """Sample completions of a question from each policy, and show them in a table.

    states: from `load_states`. A cell has the most frequent boxed answers, each with the number of
    completions that gave it. Below them it shows a completion with the most frequent answer. Raises
    MrlError if the question is empty or too long for a model.
    """
    if not question.strip():
        raise MrlError("The question is empty: write a sentence.")
    problem = Problem("question", question, "")
    answers: dict[str, list[str]] = {}  # policy -> its cells, one per state
    for policies in states.values():
        for policy in policies:
            longest_prompt(policy, [problem], "Ask a shorter question.")
            answers.setdefault(policy.name, []).append(_answers(policy, problem, samples))

    table = Table("model", *states, title=cell(question), show_lines=True)
    for name, cells in answers.items():
        table.add_row(name, *map(cell, cells))
    return table


def _answers(policy: Policy, problem: Problem, samples: int) -> str:
    generator = torch.Generator().manual_seed(derive_seed(0, "ask", policy.name))
    (group,) = policy.rollout([problem], generator, samples)
    boxes = [last_box(rollout.text) for rollout in group.rollouts]

    frequent = Counter(boxes).most_common(LISTED)
    lines = []
    for box, count in frequent:
        said = "no boxed answer" if box is None else box
        lines.append(f"{said}: {count} of {samples}")
    others = samples - sum(count for _, count in frequent)
    if others:
        lines.append(f"other answers: {others} of {samples}")

    example = group.rollouts[boxes.index(frequent[0][0])]
    cut = "" if example.finished else f" [...] (cut after {policy.max_new_tokens} tokens)"
    return "\n".join([*lines, f"for example: {example.text.strip()}{cut}"])


def hint(question: str, config: RunConfig) -> str:
    """A sentence for a person who asks the tiny models something that they cannot know, or ""."""
    is_tiny = all(policy.path.startswith(str(DATA / "tiny")) for policy in config.policies)
    if not is_tiny or any(kind.fullmatch(question.strip()) for kind in _kinds()):
        return ""
    return NINE_KINDS


@cache
def _kinds() -> Sequence[re.Pattern]:
    """A pattern for every sentence of the nine skills, with any name, objects and numbers."""
    patterns = []
    for skill in SKILLS:
        for template in (*skill.templates, *skill.new_templates, *skill.third_templates):
            words = re.escape(template.format(n="NAME", o="OBJECTS", a="1", b="1", c="1"))
            words = words.replace("1", r"\d+").replace("NAME", "WORD").replace("OBJECTS", "WORD")
            patterns.append(re.compile(words.replace("WORD", r"[^\W\d]+") + re.escape(QUESTION)))
    return patterns
