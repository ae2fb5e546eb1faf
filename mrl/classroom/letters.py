"""A tiny world in which students' modes are checked: a prompt is a number, a token is a letter.

The assignment `sgt` checks the samples that a mode makes in single steps. In the assignment
`own-mode`, two policies learn side by side, and each policy is a table of logits. There, only the
*direction* of a mode's updates counts: in each step, the row of each problem is moved once, always
by the same length. So larger weights, more updates or another step size gain nothing.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from mrl.exchange import experience_of
from mrl.modes import Experience, Mode, Receiver
from mrl.modes.check import check_batch
from mrl.objectives import OBJECTIVES
from mrl.records import Record, make_records
from mrl.reward import Verdict
from mrl.samples import Group, Problem, Rollout, TrainingSample
from mrl.tiny.letters import CODEC

LETTERS = "abcdef"
END = len(LETTERS)  # the end token; its log-prob is 0, because it follows with certainty
# for `own-mode`; LENGTH is the length of each update of one problem's logits
PROBLEMS, RIGHT, GROUP, STEPS, LENGTH = 8, 2, 4, 40, 0.2


class TableReceiver:
    """What a mode sees of a policy that is a table of logits [prompts, letters].

    The mode never gets the table itself.
    """

    codec, eos_id, max_new_tokens, objective = CODEC, END, 8, OBJECTIVES["grpo"]
    vocab_size = 10  # more than the letters, because the number of a prompt is a token as well

    def __init__(self, name: str, table: Tensor) -> None:
        self.name = name
        self._logprobs = pad(table.log_softmax(1), (0, 1))  # with a column of 0 for the end token

    def logprobs_of(
        self, prompts: Sequence[list[int]], completions: Sequence[list[int]]
    ) -> list[list[float]]:
        """Log-probs of completions, as `Policy.logprobs_of`."""
        pairs = zip(prompts, completions, strict=True)
        return [self._logprobs[prompt[0], completion].tolist() for prompt, completion in pairs]


def group_of(prompt: int, answers: Sequence[tuple[str, float, bool]]) -> Group:
    """A group of finished completions of one prompt.

    answers: (text, log-prob of each letter, whether it is correct).
    """
    rollouts = []
    for text, logprob, right in answers:
        ids, logprobs = [*map(LETTERS.index, text), END], [logprob] * len(text) + [0.0]
        verdict = Verdict.CORRECT if right else Verdict.WRONG
        rollouts.append(Rollout(ids, logprobs, True, text, verdict))

    return Group(Problem(f"p{prompt}", "?", "?"), [prompt], rollouts)


def mode_of(submission: ModuleType) -> type[Mode]:
    """The subclass of Mode in the file; an AssertionError unless there is exactly one."""
    modes = set()
    for value in vars(submission).values():
        is_mode = isinstance(value, type) and issubclass(value, Mode)
        if is_mode and value.__module__ == submission.__name__:
            modes.add(value)
    assert len(modes) == 1, f"the file has {len(modes)} subclasses of Mode, expected one"

    return modes.pop()


def samples_of(
    mode: Mode, receiver: Receiver, experiences: Sequence[Experience], rng: random.Random
) -> list[TrainingSample]:
    """The samples that a mode makes in a step. Raises MrlError if a run would refuse them."""
    batch = mode.training_samples(receiver, experiences, rng)
    return check_batch(batch, mode, receiver).samples


# ------------------------------------------------------------------------------ own-mode


def draw_pair(seed: int) -> tuple[list[Tensor], list[list[int]]]:
    """Draw two policies' logits [problems, letters], and the correct letters of each problem."""
    rng = random.Random(f"pair {seed}")
    drawn = [rng.sample(range(len(LETTERS)), RIGHT + 1) for _ in range(PROBLEMS)]
    known = set(rng.sample(range(PROBLEMS), PROBLEMS // 2))

    def policy(knows: Iterable[int]) -> Tensor:
        logits = [[rng.uniform(-0.3, 0.3) for _ in LETTERS] for _ in range(PROBLEMS)]
        for problem, (*right, wrong) in enumerate(drawn):
            for letter in right:
                logits[problem][letter] += 1.0 if problem in knows else -3.0
            logits[problem][wrong] += 0.0 if problem in knows else 1.5
        return torch.tensor(logits).double()

    return [policy(known), policy(set(range(PROBLEMS)) - known)], [right for *right, _ in drawn]


def sample(table: Tensor, right: list[list[int]], rng: random.Random) -> list[Group]:
    """Sample a group of completions for each problem."""
    groups = []
    for problem, logprobs in enumerate(table.log_softmax(1).tolist()):
        drawn = rng.choices(range(len(LETTERS)), list(map(math.exp, logprobs)), k=GROUP)
        answers = [(LETTERS[a], logprobs[a], a in right[problem]) for a in drawn]
        groups.append(group_of(problem, answers))

    return groups


def update(table: Tensor, samples: Sequence[TrainingSample]) -> None:
    """Move each row by LENGTH in the ascent direction of GRPO's objective plus imitation.

    As in mrl/learning.py, the policy loss is a mean over the "policy" samples, and the imitation
    loss is a mean over the "imitation" samples.
    """
    before, counts = table.log_softmax(1).tolist(), Counter(s.loss for s in samples)
    gradient = [[0.0] * len(LETTERS) for _ in before]  # with respect to log-probs of letters
    for s in samples:
        if not s.needs_forward:
            continue
        problem, letter = s.prompt_ids[0], s.completion_ids[0]
        factor = s.weight / counts[s.loss]
        if s.loss == "policy":
            moved = before[problem][letter] - s.behavior_logprobs[0]
            ratio = math.exp(max(-20, min(moved, 20)))
            flat = ratio > 1.2 if s.advantage > 0 else ratio < 0.8  # clipped: no gradient
            factor *= 0.0 if flat else ratio * s.advantage
        gradient[problem][letter] += factor

    pull = torch.tensor(gradient, dtype=table.dtype)
    up = pull - table.softmax(1) * pull.sum(1, keepdim=True)
    table += LENGTH * normalize(up, dim=1)


def exchanged(records: list[Record], rng: random.Random) -> list[Record]:
    """Exchange the records of different problems, so that their contents are misleading."""
    ids = sorted({record.prompt_id for record in records})
    shift = rng.randrange(1, max(len(ids), 2))
    other = dict(zip(ids, ids[shift:] + ids[:shift], strict=True))
    return [replace(record, prompt_id=other[record.prompt_id]) for record in records]


def train(mode_class: type[Mode], seed: int, received: str = "records") -> float:
    """Train a pair; returns the expected reward of both policies at the end, in percent.

    received: "records" (those of the peer), "exchanged" (the peer's records of another problem), or
    "nothing".
    """
    tables, right = draw_pair(seed)
    modes = [mode_class() for _ in tables]

    for step in range(STEPS):
        chance = [random.Random(f"{seed} {step} {who}") for who in "ab"]
        groups = [sample(table, right, rng) for table, rng in zip(tables, chance, strict=True)]

        for me, table in enumerate(tables):
            peer, consumes = 1 - me, mode_class.consumes
            records: list[Record] = []
            if consumes and received != "nothing":
                made = make_records(consumes, "ab"[peer], step, groups[peer], CODEC)
                records = [record for record in made if isinstance(record, Record)]
            if received == "exchanged":
                records = exchanged(records, chance[me])

            receiver = TableReceiver("ab"[me], table)
            experiences = []
            for group in groups[me]:
                about = [record for record in records if record.prompt_id == group.problem.id]
                experiences.append(experience_of(receiver, group, about))
            update(table, samples_of(modes[me], receiver, experiences, chance[me]))

    solved = [table.softmax(1).gather(1, torch.tensor(right)).sum(1) for table in tables]
    return 100 * float(torch.cat(solved).mean())
