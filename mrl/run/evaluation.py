"""pass@1 and pass@k on held-out problems, per policy and skill."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean

import torch

from mrl.errors import MrlError, is_out_of_memory
from mrl.models.memory import problems_at_once
from mrl.policy import Policy
from mrl.run.problems import load_problems
from mrl.samples import Problem, derive_seed
from mrl.team import Verifier
from mrl.tiny.skills import SEED_LABELS

Progress = Callable[[str, int, int], None]  # (what is scored, problems done, of how many)


def of_first_split(entries: Sequence[dict]) -> list[dict]:
    """Those entries of `evaluation.json` that are about the first held-out part, one a policy."""
    return [entry for entry in entries if entry["split"] == entries[0]["split"]]


def problems_of(scores: dict, skill: str) -> float:
    """How many problems of a skill an entry has; an older run's skills count as equally large."""
    return scores["skills"][skill].get("problems", scores["problems"] / len(scores["skills"]))


def half_width(scores: dict, skill: str = "", z: float = 1.96) -> float:
    """Half the width of an interval around an entry's pass@1: the problems are a sample.

    For each skill it is Wilson's interval, measured to its farther end: eight solved of eight mean
    at least 68 %, not certainty. For the mean over skills it is sqrt(sum of squares) / skills. One
    completion per problem is assumed; with several the true interval is narrower.
    skill: one of them alone; empty: the mean over all. z: the normal quantile, by default of 95 %.
    """
    widths = []
    for name in [skill] if skill else scores["skills"]:
        p = scores["skills"][name]["pass@1"]
        spread = z**2 / problems_of(scores, name)
        half = math.sqrt(spread * p * (1 - p) + spread**2 / 4)
        shift = spread * abs(1 / 2 - p)
        widths.append((half + shift) / (1 + spread))

    return math.hypot(*widths) / len(widths)


def count_solved(
    policy: Policy,
    heldout: dict[str, list[Problem]],
    verifier: Verifier,
    samples: int,
    seed: int,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, list[int]]:
    """How many of `samples` completions of each problem are right, by part, in their order."""
    solved: dict[str, list[int]] = {split: [] for split in heldout}
    at_once = problems_at_once(policy.model.device, samples)
    for split, problems in heldout.items():
        start = 0
        while start < len(problems):
            progress(f"{policy.name} on {split}", start, len(problems))

            # the seed depends on the batch alone, so no earlier batch changes this one
            batch = problems[start : start + at_once]
            generator = torch.Generator().manual_seed(
                derive_seed(seed, "evaluate", SEED_LABELS.get(split, split), start)
            )
            try:
                groups = policy.rollout(batch, generator, samples)
            except (RuntimeError, MemoryError) as error:
                if at_once == 1 or not is_out_of_memory(error):
                    raise  # a single problem does not fit, or it is a bug
                at_once //= 2
                continue

            start += len(batch)
            verifier.verify_groups(groups)
            solved[split] += [int(sum(group.rewards)) for group in groups]
    return solved


def score_entries(
    policy: str, heldout: dict[str, list[Problem]], solved: dict[str, list[int]], samples: int
) -> list[dict]:
    """One policy's entry of `evaluation.json` for each part; solved: from `count_solved`.

    It holds pass@1 and pass@samples of each skill and, as the mean over skills, of all. pass@k is
    the chance that at least one of k completions is right.
    """
    entries = []
    for split, problems in heldout.items():
        by_skill: dict[str, list[int]] = {}  # in the order of the problem file
        for problem, count in zip(problems, solved[split], strict=True):
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


def load_heldout(paths: Iterable[str], verifier: Verifier) -> dict[str, list[Problem]]:
    """Held-out parts by name (the file's stem). MrlError for two files of one name.

    A verifier that has no `check_answer` takes every answer.
    """
    accepts = getattr(verifier, "check_answer", None)
    splits = {}
    for path in (Path(path).expanduser() for path in paths):
        if path.stem in splits:
            raise MrlError(f"{path}: another held-out file is called {path.stem}; rename one.")
        splits[path.stem] = load_problems(path, accepts)
    return splits
