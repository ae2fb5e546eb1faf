"""A world of letters for assignments that write a mode: a prompt is a number, a token a letter."""

import random
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace

from torch import Tensor
from torch.nn.functional import pad

from mrl.alignment import LossyText
from mrl.classroom import shown
from mrl.modes import Mode, Prompts, Receiver, TrainingBatch
from mrl.objectives import OBJECTIVES
from mrl.samples import Group, Problem, Rollout, TrainingSample, Verdict

LETTERS = "abcdef"
END = len(LETTERS)  # the end token, of log-prob 0: these policies always end


class Alphabet:
    """A codec with one token for each letter; it refuses all other text."""

    def encode(self, text: str) -> list[int]:
        """The number of each letter; LossyText for other text."""
        if set(text) - set(LETTERS):
            raise LossyText("not_in_vocabulary", "only a to f")
        return [LETTERS.index(letter) for letter in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens."""
        return "".join(LETTERS[token_id] for token_id in token_ids)

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """The bytes of each token, which is one letter."""
        return [LETTERS[token_id].encode() for token_id in token_ids]


def receiver(name: str, table: Tensor) -> SimpleNamespace:
    """A policy that is a table of logits [prompts, letters], as a mode sees it: never the table."""
    logprobs = pad(table.log_softmax(1), (0, 1))  # a copy; with the end token's 0
    return SimpleNamespace(
        name=name, codec=Alphabet(), end_id=END, max_new_tokens=8, objective=OBJECTIVES["grpo"],
        logprobs_of=lambda prompts, completions: [
            logprobs[prompt[0], completion].tolist()
            for prompt, completion in zip(prompts, completions, strict=True)
        ],
    )  # fmt: skip


def group_of(prompt: int, answers: Sequence[tuple[str, float, bool]]) -> Group:
    """Completions (text, log-prob of each letter, right) for one prompt; each has ended."""
    rollouts = []
    for text, logprob, right in answers:
        ids, logprobs = [*Alphabet().encode(text), END], [logprob] * len(text) + [0.0]
        verdict = Verdict.CORRECT if right else Verdict.WRONG
        rollouts.append(Rollout(ids, logprobs, True, text, verdict))

    return Group(Problem(f"p{prompt}", "?", "?"), [prompt], rollouts)


def mode_of(submission: ModuleType) -> type[Mode]:
    """The one class of the file that is a Mode; it fails here if there is another number."""
    modes = set()
    for value in vars(submission).values():
        is_mode = isinstance(value, type) and issubclass(value, Mode)
        if is_mode and value.__module__ == submission.__name__ and not value.__abstractmethods__:
            modes.add(value)
    assert len(modes) == 1, f"the file has {len(modes)} classes that are a Mode, expected one"

    return modes.pop()


def samples_of(
    mode: Mode, receiver: Receiver, prompts: Prompts, rng: random.Random
) -> list[TrainingSample]:
    """The samples that a mode makes of a step; it fails here if none can learn from them."""
    batch = mode.training_samples(receiver, prompts, rng)
    assert isinstance(batch, TrainingBatch), f"it returned {shown(batch)}, expected a TrainingBatch"
    samples = list(batch.samples)

    for sample in samples:
        words = f"a sample is {shown(sample)}, "
        assert isinstance(sample, TrainingSample), f"{words}expected mrl.samples.TrainingSample"
        assert sample.loss in ("policy", "imitation"), f"{words}but there is no such loss"

        ids, logprobs = sample.completion_ids, sample.behavior_logprobs
        assert ids and set(ids) <= {*range(END + 1)}, f"{words}but the receiver has no such tokens"

        # as in a run: where nothing is learnt, and of "as sampled now", no log-probs are looked at
        has_ratio = sample.loss == "policy" and sample.advantage != 0 and sample.weight != 0
        assert not has_ratio or logprobs is None or len(logprobs) == len(ids), (
            f"{words}which needs a behavior log-prob for each of its tokens"
        )
    return samples
