"""`python mini_mrl.py ask "..."`: what the models answer to your own sentence, before and after."""

from collections import Counter
from pathlib import Path

import torch
from rich.table import Table

from mrl.config import RunConfig
from mrl.errors import MrlError
from mrl.models.loading import claim_device, load_policies
from mrl.policy import Policy
from mrl.run.directory import newest_checkpoint, step_of, with_checkpoint_paths
from mrl.run.problems import longest_prompt
from mrl.run.view import cell
from mrl.samples import Problem, derive_seed
from mrl.verifier.plain import last_box


def newest_run(runs: Path) -> Path | None:
    """The run in a folder that was the last to save a checkpoint; None if no run has saved one."""
    written = {}
    for directory in runs.iterdir() if runs.is_dir() else ():
        checkpoint = newest_checkpoint(directory)
        if checkpoint:
            written[directory] = checkpoint.stat().st_mtime
    return max(written, key=lambda directory: written[directory], default=None)


def states_of(config: RunConfig, directory: Path | None) -> dict[str, RunConfig]:
    """The weights to ask, by name: those before training and those of the newest checkpoint.

    directory: the run's directory; None gives only the weights before training. Raises MrlError if
    the run has no checkpoint.
    """
    if directory is None:
        return {"before training": config}
    checkpoint = newest_checkpoint(directory)
    if checkpoint is None:
        raise MrlError(f"{directory} has no complete checkpoint yet; wait for one, or `resume` it.")
    after = f"after step {step_of(checkpoint)} of {directory.name}"
    return {"before training": config, after: with_checkpoint_paths(config, checkpoint)}


def ask(question: str, states: dict[str, RunConfig], samples: int) -> Table:
    """Sample completions of a question from each policy, and show them in a table.

    A cell has the most frequent boxed answers, each with the number of completions that gave it.
    Below them it shows a completion with the most frequent answer. Raises MrlError if the question
    is empty or too long for a model.
    """
    if not question.strip():
        raise MrlError("The question is empty: write a sentence in quotes.")
    problem = Problem("question", question, "")
    answers: dict[str, list[str]] = {}  # policy -> its cells, one per state
    for state in states.values():
        for policy in load_policies(state, claim_device(state)):
            longest_prompt(policy, [problem])
            answers.setdefault(policy.name, []).append(_answers(policy, problem, samples))

    table = Table("model", *states, title=cell(question), show_lines=True)
    for name, cells in answers.items():
        table.add_row(name, *map(cell, cells))
    return table


def _answers(policy: Policy, problem: Problem, samples: int) -> str:
    generator = torch.Generator().manual_seed(derive_seed(0, "ask", policy.name))
    (group,) = policy.rollout([problem], generator, samples)
    texts = [rollout.text for rollout in group.rollouts]
    boxes = [last_box(text) for text in texts]

    lines = []
    for box, count in Counter(boxes).most_common(3):
        said = "no boxed answer" if box is None else box
        lines.append(f"{said}: {count} of {samples}")
    most_frequent = Counter(boxes).most_common(1)[0][0]
    example = texts[boxes.index(most_frequent)].strip()
    return "\n".join([*lines, f"for example: {example}"])
