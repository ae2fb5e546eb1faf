"""Held-out pass@1 and pass@k, per policy and skill."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mrl.experiment.problems import load_problems
from mrl.policy import Policy
from mrl.rewards import Verifier, verify_groups
from mrl.rollout import derive_seed
from mrl.samples import Problem

PROBLEMS_AT_ONCE = 64


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Chance that one of k samples is right, estimated without bias from `samples` of them.

    1 - C(samples - correct, k) / C(samples, k)      arXiv 2107.03374, eq. 1

    Raises ValueError unless 0 <= correct <= samples and 1 <= k <= samples.
    """
    if not (0 <= correct <= samples and 1 <= k <= samples):
        raise ValueError(f"pass@{k} of {correct} correct in {samples} samples is not defined")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


@dataclass
class Evaluation:
    """One policy on one problem set. `correct` maps problem id -> right completions."""

    policy: str
    part: str
    samples: int
    correct: dict[str, int]
    skill_of: dict[str, str]

    def score(self, k: int = 1, skill: str | None = None) -> float:
        """Mean pass@k over the problems of one skill, or over skills if None is named."""
        if skill is None:
            return sum(self.score(k, name) for name in self.skills) / len(self.skills)
        chosen = [number for key, number in self.correct.items() if self.skill_of[key] == skill]
        return sum(pass_at_k(self.samples, number, k) for number in chosen) / len(chosen)

    @property
    def skills(self) -> list[str]:
        """In the order of the problem file."""
        return list(dict.fromkeys(self.skill_of.values()))

    def to_dict(self) -> dict:
        """The scores, for `evaluation.json`."""
        ks = sorted({1, self.samples})
        return {
            "policy": self.policy,
            "part": self.part,
            "problems": len(self.correct),
            "samples": self.samples,
            **{f"pass@{k}": round(self.score(k), 4) for k in ks},
            "skills": {
                skill: {f"pass@{k}": round(self.score(k, skill), 4) for k in ks}
                for skill in self.skills
            },
        }


def evaluate_policy(
    policy: Policy,
    problems: Sequence[Problem],
    verifier: Verifier,
    samples: int,
    seed: int,
    part: str = "heldout",
    temperature: float | None = None,
) -> Evaluation:
    """Sample every problem `samples` times and count the right ones; `temperature` 0 is greedy."""
    correct: dict[str, int] = defaultdict(int)
    for start in range(0, len(problems), PROBLEMS_AT_ONCE):
        batch = problems[start : start + PROBLEMS_AT_ONCE]
        generator = torch.Generator().manual_seed(derive_seed(seed, "evaluate", part, start))
        groups = policy.rollout(batch, generator, group_size=samples, temperature=temperature)
        verify_groups(verifier, groups)
        for group in groups:
            correct[group.problem.id] = int(sum(group.rewards))
    skill_of = {problem.id: problem.skill for problem in problems}
    return Evaluation(policy.name, part, samples, dict(correct), skill_of)


def load_heldout(paths: Iterable[str], verifier: Verifier) -> dict[str, list[Problem]]:
    """Held-out parts by name (the file's stem)."""
    return {Path(path).stem: load_problems(Path(path), verifier.check_answer) for path in paths}


def evaluate_all(
    policies: Sequence[Policy],
    heldout: dict[str, list[Problem]],
    verifier: Verifier,
    samples: int,
    seed: int,
    temperature: float | None = None,
) -> list[Evaluation]:
    """Every policy on every held-out part."""
    return [
        evaluate_policy(policy, problems, verifier, samples, seed, part, temperature)
        for part, problems in heldout.items()
        for policy in policies
    ]
