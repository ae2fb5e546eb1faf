"""A world of letters for assignments that write a mode: a prompt is a number, a token a letter."""

import random
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace

import pytest
from torch import Tensor
from torch.nn.functional import pad

from mrl.errors import MrlError
from mrl.lab.bandit import CODEC
from mrl.modes import Mode, Prompts, Receiver
from mrl.objectives import OBJECTIVES
from mrl.runtime.own_code import checked_batch
from mrl.samples import Group, Problem, Rollout, TrainingSample, Verdict

LETTERS = "abcdef"
END = len(LETTERS)  # the end token, of log-prob 0: these policies always end


def receiver(name: str, table: Tensor) -> SimpleNamespace:
    """A policy that is a table of logits [prompts, letters], as a mode sees it: never the table."""
    logprobs = pad(table.log_softmax(1), (0, 1))  # a copy; with the end token's 0
    return SimpleNamespace(
        name=name, codec=CODEC, end_id=END, max_new_tokens=8, objective=OBJECTIVES["grpo"],
        suppressed=range(10),  # one for each token: prompts are tokens, too
        logprobs_of=lambda prompts, completions: [
            logprobs[prompt[0], completion].tolist()
            for prompt, completion in zip(prompts, completions, strict=True)
        ],
    )  # fmt: skip


def group_of(prompt: int, answers: Sequence[tuple[str, float, bool]]) -> Group:
    """Completions (text, log-prob of each letter, right) for one prompt; each has ended."""
    rollouts = []
    for text, logprob, right in answers:
        ids, logprobs = [*CODEC.encode(text), END], [logprob] * len(text) + [0.0]
        verdict = Verdict.CORRECT if right else Verdict.WRONG
        rollouts.append(Rollout(ids, logprobs, True, text, verdict))

    return Group(Problem(f"p{prompt}", "?", "?"), [prompt], rollouts)


def mode_of(submission: ModuleType) -> type[Mode]:
    """The one class of the file that is a Mode; it fails here if there is another number."""
    modes = set()
    for value in vars(submission).values():
        is_mode = isinstance(value, type) and issubclass(value, Mode)
        if is_mode and value.__module__ == submission.__name__:
            modes.add(value)
    assert len(modes) == 1, f"the file has {len(modes)} classes that are a Mode, expected one"

    return modes.pop()


def samples_of(
    mode: Mode, receiver: Receiver, prompts: Prompts, rng: random.Random
) -> list[TrainingSample]:
    """The samples that a mode makes of a step; it fails here if a run would refuse them."""
    batch = mode.training_samples(receiver, prompts, rng)
    try:
        return checked_batch(batch, mode, receiver).samples
    except MrlError as flaw:
        pytest.fail(str(flaw))
