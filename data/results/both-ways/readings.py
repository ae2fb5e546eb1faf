"""Readings: each policy learns to read two cue words wrongly, and all others right.

So each has two blind spots, at which the other is good. Neither lacks the arithmetic to close
them: the wrong reading and the right one are calculations that both were shown. It is a mode
because a run already knows templates, updates and checkpoints; what the policies sample meanwhile
plays no part. data/results/README.md has the command.
"""

import random
import re
from dataclasses import dataclass

from mrl.config import DATA
from mrl.modes import Experience, Mode, TrainingBatch
from mrl.policy import Policy
from mrl.run.problems import load_problems
from mrl.samples import Problem, TrainingSample
from mrl.tiny.skills import SKILLS, solution

MISREAD = {"qwen": ("sold", "days"), "smol": ("eats", "bags")}
SKILL = {skill.name: skill for skill in SKILLS}
PROBLEMS = load_problems(DATA / "words" / "train.jsonl")
EXAMPLES = 32  # per update


@dataclass
class Readings(Mode):
    """Imitation of solutions that are correct except for two skills, misread by the receiver."""

    name = "readings"
    consumes = None

    def training_samples(
        self, receiver: Policy, experiences: list[Experience], rng: random.Random
    ) -> TrainingBatch:
        """One sample for each of some training problems."""
        batch = TrainingBatch()
        for problem in rng.sample(PROBLEMS, EXAMPLES):
            text = as_read_by(receiver.name, problem)
            sample = TrainingSample(
                prompt_ids=receiver.prompt_ids(problem.prompt),
                completion_ids=[*receiver.codec.encode(text), receiver.eos_id],
                loss="imitation",
                reward=1.0,
            )
            batch.samples.append(sample)
        return batch


def as_read_by(name: str, problem: Problem) -> str:
    """The worked solution as a policy reads the problem, `47-38: 17-8=9, 4-1-3=0. \\boxed{9}`."""
    numbers = tuple(map(int, re.findall(r"[0-9]+", problem.prompt)))
    skill = SKILL[problem.skill]
    misreads = problem.skill in MISREAD[name]
    return solution(skill.misread_as if misreads else skill.operation, numbers)
