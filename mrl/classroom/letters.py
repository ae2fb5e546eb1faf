"""A world of letters for assignments that write a mode: a prompt is a number, a token a letter."""

import math
from collections.abc import Sequence
from types import ModuleType

from mrl.alignment import LossyText
from mrl.modes import Mode
from mrl.objectives import OBJECTIVES
from mrl.samples import Group, Problem, Rollout, TrainingSample, Verdict

LETTERS = "abcdef"
END = 9  # the end token of these policies


class Alphabet:
    """A codec of one letter a token, that refuses all other text."""

    def encode(self, text: str) -> list[int]:
        """A number a letter."""
        if set(text) - set(LETTERS):
            raise LossyText("not_in_vocabulary", "only a to f")
        return [LETTERS.index(letter) for letter in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens."""
        return "".join(LETTERS[token_id] for token_id in token_ids)

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """One letter each."""
        return [LETTERS[token_id].encode() for token_id in token_ids]


class Learner:
    """A policy that is a table of logits [prompts, letters], as a mode sees it: never the table."""

    codec, end_id, max_new_tokens, objective = Alphabet(), END, 8, OBJECTIVES["grpo"]

    def __init__(self, name: str, table: list[list[float]]) -> None:
        self.name = name
        # a closure: a mode that writes to what it finds here changes nothing
        self.logprobs_of = lambda prompts, completions: [
            [log_softmax(table[prompt[0]])[a] if a != END else 0.0 for a in completion]
            for prompt, completion in zip(prompts, completions, strict=True)
        ]


def log_softmax(logits: Sequence[float]) -> list[float]:
    """Log-probs of a row of the table, nats."""
    total = math.log(sum(math.exp(logit) for logit in logits))
    return [logit - total for logit in logits]


def group_of(prompt: int, answers: Sequence[tuple[str, float, bool]], name: str = "") -> Group:
    """Completions (text, log-prob of each letter, right) for one prompt; each has ended."""
    rollouts = [
        Rollout(
            [*Alphabet().encode(text), END],
            [logprob] * len(text) + [0.0],
            True,
            text,
            Verdict.CORRECT if right else Verdict.WRONG,
        )
        for text, logprob, right in answers
    ]
    return Group(Problem(name or str(prompt), "?", "?"), [prompt], rollouts)


def mode_of(submission: ModuleType) -> type[Mode]:
    """The one class of the file that is a Mode."""
    found = {
        value
        for value in vars(submission).values()
        if isinstance(value, type) and issubclass(value, Mode)
        and value.__module__ == submission.__name__ and not value.__abstractmethods__
    }  # fmt: skip
    assert len(found) == 1, f"the file has {len(found)} classes that are a Mode, expected one"
    return found.pop()


def flaw(sample: object, groups: Sequence[Group]) -> str:
    """What is wrong with a training sample, in words; empty if nothing is."""
    if not isinstance(sample, TrainingSample):
        return f"a sample is {type(sample).__name__}, not mrl.samples.TrainingSample"
    if list(sample.prompt_ids) not in [group.prompt_ids for group in groups]:
        return "a sample's prompt_ids are no prompt of this step"
    letters = [*range(len(LETTERS)), END]
    if not sample.completion_ids or any(token not in letters for token in sample.completion_ids):
        return "a sample's completion_ids are no tokens of the receiver"
    if sample.loss not in ("policy", "imitation"):
        return f"a sample's loss is {sample.loss!r}; there are 'policy' and 'imitation'"
    numbers = [sample.weight, sample.advantage, *sample.behavior_logprobs]
    if not all(math.isfinite(number) for number in numbers):
        return "a sample holds a number that is not finite"
    if sample.loss == "policy" and len(sample.behavior_logprobs) != len(sample.completion_ids):
        return "a policy sample needs a behavior log-prob for each of its tokens"
    return ""
