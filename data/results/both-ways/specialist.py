"""Specialists: each policy learns right solutions of its own two operations, and nothing wrong.

This is how two owners could have made their models: one had problems of adding and subtracting, the
other of multiplying and dividing. It is a mode because a run already knows templates, updates and
checkpoints; what the policies sample meanwhile plays no part. data/results/README.md has the
command.
"""

import random
import re
from dataclasses import dataclass

from mrl.config import DATA
from mrl.modes import Mode, TrainingBatch
from mrl.modes.mode import Prompts
from mrl.policy import Policy
from mrl.runtime.problems import load_problems
from mrl.samples import Problem, TrainingSample
from mrl.tiny.skills import SKILLS, solution

OWN_SKILLS = {
    "smol": ("finds", "given", "eats", "sold"),  # sums and differences
    "gemma": ("bags", "days", "shares", "packs"),  # products and quotients
}
OPERATION = {skill.name: skill.operation for skill in SKILLS}
PROBLEMS = load_problems(DATA / "words" / "train.jsonl")
EXAMPLES = 12  # per update


@dataclass
class Specialist(Mode):
    """Imitation of right solutions of the receiver's own skills."""

    name = "specialist"
    consumes = None

    def training_samples(
        self, receiver: Policy, prompts: Prompts, rng: random.Random
    ) -> TrainingBatch:
        """One sample for each of some training problems of the receiver's own skills."""
        own = [problem for problem in PROBLEMS if problem.skill in OWN_SKILLS[receiver.name]]

        batch = TrainingBatch()
        for problem in rng.sample(own, EXAMPLES):
            sample = TrainingSample(
                prompt_ids=receiver.prompt_ids(problem.prompt),
                completion_ids=[*receiver.codec.encode(right_solution(problem)), receiver.end_id],
                loss="imitation",
                reward=1.0,
            )
            batch.samples.append(sample)
        return batch


def right_solution(problem: Problem) -> str:
    """The worked solution that the tiny pair learns from, `47-38: 17-8=9, 4-1-3=0. \\boxed{9}`.

    Column by column, because neither model subtracts numbers of two digits in its head.
    """
    numbers = tuple(map(int, re.findall(r"[0-9]+", problem.prompt)))
    return solution(OPERATION[problem.skill], numbers)
