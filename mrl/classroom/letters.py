"""A world of letters for assignments that write a mode: a prompt is a number, a token a letter.

`sgt` is asked for the samples of single steps. For `own-mode` two tables of logits learn side by
side. Of a mode only the *direction* of its updates counts there: each problem's row is moved once a
step and always by the same length, so larger weights, more updates and another step size gain
nothing.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from mrl.lab.bandit import CODEC
from mrl.modes import GroupsAndRecords, Mode, Receiver
from mrl.modes.check import check_batch
from mrl.objectives import OBJECTIVES
from mrl.records import Record, make_records
from mrl.samples import Group, Problem, Rollout, TrainingSample, Verdict

LETTERS = "abcdef"
END = len(LETTERS)  # the end token, of log-prob 0: these policies always end
# of `own-mode`; LENGTH: of an update of one problem's logits
PROBLEMS, RIGHT, GROUP, STEPS, LENGTH = 8, 2, 4, 40, 0.2


def receiver(name: str, table: Tensor) -> SimpleNamespace:
    """A policy that is a table of logits [prompts, letters], as a mode sees it: never the table."""
    logprobs = pad(table.log_softmax(1), (0, 1))  # a copy; with the end token's 0
    return SimpleNamespace(
        name=name, codec=CODEC, eos_id=END, max_new_tokens=8, objective=OBJECTIVES["grpo"],
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
    mode: Mode, receiver: Receiver, groups_and_records: GroupsAndRecords, rng: random.Random
) -> list[TrainingSample]:
    """The samples that a mode makes of a step; MrlError if a run would refuse them."""
    batch = mode.training_samples(receiver, groups_and_records, rng)
    return check_batch(batch, mode, receiver).samples


# ------------------------------------------------------------------------------ own-mode


def draw_pair(seed: int) -> tuple[list[Tensor], list[list[int]]]:
    """Two policies' logits, [problems, letters], and the right letters of each problem, drawn."""
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
    """Move each row by LENGTH along the ascent direction of GRPO's objective and of imitation.

    As in mrl/learning.py: a mean over the policy samples and one over those that are imitated.
    """
    before, counts = table.log_softmax(1).tolist(), Counter(s.loss for s in samples)
    pull = torch.zeros_like(table)  # gradient in the log-probs of letters
    for s in samples:
        problem, letter = s.prompt_ids[0], s.completion_ids[0]
        factor = s.weight / counts[s.loss]
        if s.loss == "policy":
            ratio = 1.0  # of what was sampled now
            if s.behavior_logprobs is not None:
                moved = before[problem][letter] - s.behavior_logprobs[0]
                ratio = math.exp(max(-20, min(moved, 20)))
            flat = ratio > 1.2 if s.advantage > 0 else ratio < 0.8  # clipped: no gradient
            factor *= 0.0 if flat else ratio * s.advantage
        pull[problem, letter] += factor

    up = pull - table.softmax(1) * pull.sum(1, keepdim=True)
    table += LENGTH * normalize(up, dim=1)


def exchanged(records: list[Record], rng: random.Random) -> list[Record]:
    """Exchange records between the problems that have some, so that only what they say is wrong."""
    ids = sorted({record.prompt_id for record in records})
    shift = rng.randrange(1, max(len(ids), 2))
    other = dict(zip(ids, ids[shift:] + ids[:shift], strict=True))
    return [replace(record, prompt_id=other[record.prompt_id]) for record in records]


def train(mode_class: type[Mode], seed: int, received: str = "records") -> float:
    """Train a pair; return the expected reward of both policies at the end, in points.

    received: the peer's "records", those of another problem ("exchanged"), or "nothing".
    """
    tables, right = draw_pair(seed)
    modes = [mode_class() for _ in tables]

    for step in range(STEPS):
        chance = [random.Random(f"{seed} {step} {who}") for who in "ab"]
        groups = [sample(table, right, rng) for table, rng in zip(tables, chance, strict=True)]

        for me, table in enumerate(tables):
            peer, consumes, records = 1 - me, mode_class.consumes, []
            if consumes and received != "nothing":
                records = [*make_records(consumes, "ab"[peer], step, groups[peer], CODEC)]
            if received == "exchanged":
                records = exchanged(records, chance[me])

            prompts = [(g, [r for r in records if r.prompt_id == g.problem.id]) for g in groups[me]]
            update(table, samples_of(modes[me], receiver("ab"[me], table), prompts, chance[me]))

    solved = [table.softmax(1).gather(1, torch.tensor(right)).sum(1) for table in tables]
    return 100 * float(torch.cat(solved).mean())
