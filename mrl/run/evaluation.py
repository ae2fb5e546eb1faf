"""Scores on held-out problems: pass@1 and pass@k of each policy and skill, and KL to the start.

`kl_to_start` estimates KL(start || now), the direction with which RL's Razor (arXiv 2509.04259)
predicts how much a model forgets. Before training (the start), each policy samples one completion
of some held-out problems. After training it scores these completions again, and the mean of
log p_start - log p_now over their tokens is the estimate. This needs neither a KL term in the loss
nor a second model in memory.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain, product
from math import fsum
from pathlib import Path
from statistics import fmean
from typing import TypedDict

import torch

from mrl.errors import MrlError, is_out_of_memory
from mrl.policy import Policy
from mrl.run.problems import check_prompts, load_problems
from mrl.samples import SEED_LABELS, Problem, derive_seed
from mrl.team import Verifier

Solved = dict[str, dict[str, list[int]]]  # policy -> file -> correct completions per problem
PROBLEMS_AT_ONCE = 64  # held-out problems per batch on a CPU
KL_PROBLEMS = 64  # held-out problems on which KL is measured; more if there are more skills
Turn = Callable[[Policy, str], AbstractContextManager]  # (policy, what it does in its turn)
Progress = Callable[[str, int, int], None]  # (what is scored, problems done, all problems)


def solve_heldout(
    policies: Sequence[Policy],
    heldout: dict[str, list[Problem]],
    verifier: Verifier,
    samples: int,
    seed: int,
    turn: Turn = lambda policy, phase: nullcontext(),
    progress: Progress = lambda what, done, total: None,
) -> Solved:
    """Let each policy solve the held-out problems in its turn.

    Returns the result of `count_solved` for each policy. Raises MrlError, before the first problem
    is solved, if a prompt is too long for a policy.
    turn: gives a policy the device. progress: called before each batch.
    """
    for policy in policies:
        for problems in heldout.values():
            check_prompts(policy, problems)

    solved: Solved = {}
    for policy in policies:
        with turn(policy, "evaluate"):
            solved[policy.name] = count_solved(policy, heldout, verifier, samples, seed, progress)
    return solved


def count_solved(
    policy: Policy,
    heldout: dict[str, list[Problem]],
    verifier: Verifier,
    samples: int,
    seed: int,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, list[int]]:
    """For each file, how many of `samples` completions of each problem are correct.

    progress: called before each batch.
    """
    solved: dict[str, list[int]] = {split: [] for split in heldout}
    at_once = problems_at_once(policy.model.device, samples)
    for split, problems in heldout.items():
        start = 0
        while start < len(problems):
            progress(f"{policy.name} on {split}", start, len(problems))

            # the seed depends on the batch alone, so that earlier batches do not affect it
            batch = problems[start : start + at_once]
            generator = torch.Generator().manual_seed(
                derive_seed(seed, "evaluate", SEED_LABELS.get(split, split), start)
            )
            try:
                groups = policy.rollout(batch, generator, samples)
            except (RuntimeError, MemoryError) as error:
                if at_once == 1 or not is_out_of_memory(error):
                    raise  # even a single problem does not fit, or the error has another cause
                at_once //= 2
                continue

            start += len(batch)
            verifier.verify_groups(groups)
            solved[split] += [int(sum(group.rewards)) for group in groups]
    return solved


def problems_at_once(device: torch.device, samples: int) -> int:
    """How many problems are sampled in one batch: more on a GPU, where more rows are cheap."""
    return max(PROBLEMS_AT_ONCE, 256 // samples) if device.type == "cuda" else PROBLEMS_AT_ONCE


def score_entries(solved: Solved, heldout: dict[str, list[Problem]], samples: int) -> list[dict]:
    """The entries of `evaluation.json`, one per policy and file. solved: from `solve_heldout`.

    An entry has pass@1 and pass@samples of each skill, and their means over skills. pass@k is the
    share of problems for which at least one of k completions is correct.
    """
    entries = []
    for policy, (split, problems) in product(solved, heldout.items()):
        by_skill: dict[str, list[int]] = {}  # in the order of the problem file
        for problem, count in zip(problems, solved[policy][split], strict=True):
            by_skill.setdefault(problem.skill, []).append(count)

        skills: dict[str, dict[str, float]] = {}
        for skill, counts in by_skill.items():
            one, several = fmean(counts) / samples, fmean(map(bool, counts))
            skills[skill] = {"pass@1": one, f"pass@{samples}": several, "problems": len(counts)}

        entry = {"policy": policy, "split": split, "problems": len(problems), "samples": samples}
        for metric in ("pass@1", f"pass@{samples}"):
            entry[metric] = fmean(scores[metric] for scores in skills.values())
        entries.append(entry | {"skills": skills})
    return entries


class Start(TypedDict):
    """What a policy wrote before training: its entry in `start.json`."""

    logprob: float  # the sum over all tokens, under the weights before training; nats
    completions: list[list[int]]  # the token ids of one completion per problem


def problems_for_kl(problems: Sequence[Problem]) -> list[Problem]:
    """The first problems of each skill, as many of each skill."""
    by_skill: dict[str, list[Problem]] = {}
    for problem in problems:
        by_skill.setdefault(problem.skill, []).append(problem)
    each = max(1, KL_PROBLEMS // len(by_skill))
    return [problem for of_skill in by_skill.values() for problem in of_skill[:each]]


def sample_start(policy: Policy, problems: Sequence[Problem], at_once: int, seed: int) -> Start:
    """Sample one completion of each problem, before training.

    at_once: how many problems are sampled at once.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "start", policy.index))
    completions = []
    for first in range(0, len(problems), at_once):
        groups = policy.rollout(problems[first : first + at_once], generator, 1)
        completions += [group.rollouts[0].completion_ids for group in groups]

    # Scored and not taken from sampling, so that equal weights have a KL of exactly 0, also in
    # mixed precision.
    return {"logprob": _logprob(policy, problems, completions), "completions": completions}


def kl_to_start(policy: Policy, problems: Sequence[Problem], start: Start) -> float:
    """An estimate of KL(start || current weights), in nats per token.

    It is the mean of log p_start - log p_now over the tokens that the start sampled. The estimate
    is unbiased. It may be slightly negative if the weights have hardly changed.
    start: from `sample_start` with the same problems.
    """
    completions = start["completions"]
    tokens = sum(map(len, completions))
    return (start["logprob"] - _logprob(policy, problems, completions)) / tokens


def _logprob(
    policy: Policy, problems: Sequence[Problem], completions: Sequence[list[int]]
) -> float:
    """The log-prob of all completions together under the current weights, nats."""
    prompts = [policy.prompt_ids(problem.prompt) for problem in problems]
    return fsum(chain.from_iterable(policy.logprobs_of(prompts, completions)))


def load_heldout(paths: Iterable[str], verifier: Verifier) -> dict[str, list[Problem]]:
    """Load files of held-out problems, by the stems of their names.

    Answers are checked only if the verifier has `check_answer`. Raises MrlError if two files have
    the same stem.
    """
    accepts = getattr(verifier, "check_answer", None)
    splits = {}
    for path in (Path(path).expanduser() for path in paths):
        if path.stem in splits:
            raise MrlError(
                f"{path}: another held-out file is also named {path.stem}; rename one of them."
            )
        splits[path.stem] = load_problems(path, accepts)
    return splits
