"""A world of letters for assignments that write a mode: prompts are contexts, tokens are letters.

The world, its policies and their learning live in the checker's process. The submission's process
is only asked what a mode is asked: own groups and peers' records in, training samples out.
"""

import random
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from mrl.alignment import LossyText
from mrl.lab.bandit import Letters, Toy
from mrl.modes import Mode
from mrl.records import Record
from mrl.samples import Group, Problem, Rollout, TrainingSample, Verdict

ACTIONS = "abcdef"
END = 9  # the end token of these toys, the number after all letters
FIELDS = (  # of a training sample that a submission may decide
    "prompt_ids", "completion_ids", "objective", "advantage", "behavior_logprobs", "weight",
    "source", "reward",
)  # fmt: skip


class Alphabet(Letters):
    """A codec that holds the letters of `ACTIONS` and refuses all others."""

    def encode(self, text: str) -> list[int]:
        """A number a letter; LossyText for any other character."""
        if set(text) - set(ACTIONS):
            raise LossyText("not_in_vocabulary", "only a to f")
        return super().encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens."""
        return "".join(ACTIONS[token_id] for token_id in token_ids)


class Table(Toy):
    """A policy that is a table: a row of logits for each prompt, one letter a completion."""

    end_id, max_new_tokens = END, 8

    def __init__(self, name: str, logits: Sequence[Sequence[float]], rate: float = 1.0) -> None:
        super().__init__([0.0])
        self.name, self.codec, self.rate = name, Alphabet(), rate
        self.model.logits = torch.nn.Parameter(torch.tensor(logits, dtype=torch.float64))

    @torch.no_grad()
    def _keep(self) -> None:
        self.model.logits -= self.rate * self.model.logits.grad

    def completion_logprobs(
        self, prompts: Sequence[list[int]], completions: Sequence[list[int]], model: object = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs [batch, seq] of letters, 0 for the end token, and the mask."""
        table = torch.log_softmax(self.model.logits, dim=1)
        longest = max(map(len, completions))
        mask = torch.tensor([[t < len(c) for t in range(longest)] for c in completions])
        rows = [
            torch.stack([table[p[0], a] if a < table.shape[1] else table.new_zeros(()) for a in c])
            for p, c in zip(prompts, completions, strict=True)
        ]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), mask


def told(
    receiver: Table, groups: Sequence[Group], records: Sequence[Record], seed: int, **settings: Any
) -> dict:
    """What a submission is told of one step, as JSON values."""
    return {
        "name": receiver.name,
        "logits": receiver.model.logits.tolist(),
        "groups": [
            [g.problem.id, g.prompt_ids, [[r.completion_ids, r.logprobs, r.reward] for r in
             g.rollouts]] for g in groups
        ],
        "records": [record.line.decode() for record in records],
        "seed": seed,
        "settings": settings,
    }  # fmt: skip


def ask_mode(module: ModuleType, given: dict) -> dict:
    """In the submission's process: let its mode decide. One instance a receiver and settings."""
    found = _class_of(module)
    kept = module.__dict__.setdefault("_kept_modes", {})
    key = (given["name"], repr(given["settings"]))
    mode = kept.setdefault(key, None) or found(**given["settings"])
    kept[key] = mode
    groups = [
        Group(Problem(name, "?", "a"), prompt_ids, [rollout(*r) for r in rollouts])
        for name, prompt_ids, rollouts in given["groups"]
    ]
    peers: dict[str, list[Record]] = {group.problem.id: [] for group in groups}
    for line in given["records"]:
        record = Record.from_json(line)
        peers[record.prompt_id].append(record)
    receiver = Table(given["name"], given["logits"])
    batch = mode.training_samples(receiver, groups, peers, random.Random(given["seed"]))
    samples = [{name: getattr(s, name) for name in FIELDS} for s in batch.samples]
    return {"samples": samples, "minibatches": int(mode.minibatches)}


def describe(module: ModuleType) -> dict:
    """In the submission's process: what the mode consumes."""
    found = _class_of(module)
    return {"kind": found.consumes.kind if found.consumes else None, "factor": found.rollout_factor}


def _class_of(module: ModuleType) -> type[Mode]:
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Mode) and value.__module__ == "submission"
    ]
    if len(found) != 1:
        raise TypeError(f"the file has {len(found)} classes that are a Mode, not one")
    return found[0]


def rollout(completion_ids: list[int], logprobs: list[float], reward: float) -> Rollout:
    """A completion of known reward."""
    finished = completion_ids[-1] == END
    letters = "".join(ACTIONS[a] for a in completion_ids if a != END)
    verdict = Verdict.CORRECT if reward else Verdict.WRONG
    return Rollout(list(completion_ids), list(logprobs), finished, letters, verdict)


def samples_of(said: Any) -> list[TrainingSample] | str:
    """A submission's answer as training samples, or what is wrong with it."""
    try:
        samples = [TrainingSample(**entry) for entry in said["samples"]]
        for sample in samples:
            numbers = [sample.advantage, sample.weight, *sample.behavior_logprobs]
            if not all(abs(float(number)) < 1e6 for number in numbers):
                return "a training sample holds a number that is not finite"
            if sample.objective not in ("policy", "nll"):
                return f"a training sample's objective is {sample.objective!r}"
            letters = {*range(len(ACTIONS)), END}
            if not sample.completion_ids or set(sample.completion_ids) - letters:
                return "a training sample's completion_ids are no tokens of the receiver"
            missing = len(sample.completion_ids) - len(sample.behavior_logprobs)
            if sample.loss == "policy" and missing:
                return "a policy sample needs a behaviour log-prob for each of its tokens"
    except (TypeError, KeyError, ValueError, AttributeError):
        return "the training samples are not of the form of mrl.samples.TrainingSample"
    return samples
