"""The nouns of a training step: what is sampled, what is learnt from."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # not at run time: the verifier's process reads this file and needs no torch
    from mrl.objectives import Objective


@dataclass(frozen=True)
class Problem:
    """One verifiable problem: a prompt for a policy, an answer for the verifier."""

    id: str
    prompt: str
    answer: str
    skill: str = "all"


class Verdict(StrEnum):
    """The verifier's judgement of one completion; only `CORRECT` is rewarded."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"  # ended without a box, or with one that holds nothing readable
    TRUNCATED = "truncated"  # cut by the token limit before a box was complete
    TIMEOUT = "timeout"  # judging took too long, or the process that judges died of it


@dataclass
class Rollout:
    """One sampled completion. `completion_ids` are the sampled ids, the end token included."""

    completion_ids: list[int]
    logprobs: list[float]  # of each completion token when it was sampled, nats
    finished: bool  # it ends in an end token, so the token limit did not cut it
    text: str = ""  # for the verifier and for people; may hold replacement characters
    verdict: Verdict | None = None
    version: int | None = None  # of the policy that wrote it: its optimizer updates until then

    @property
    def content_ids(self) -> list[int]:
        """The sampled ids without the end token, which stands for no text."""
        return self.completion_ids[:-1] if self.finished else self.completion_ids

    @property
    def reward(self) -> float:
        """1.0 for a verified right answer, else 0.0."""
        return float(self.verdict is Verdict.CORRECT)


@dataclass
class Group:
    """The completions of one policy for one problem."""

    problem: Problem
    prompt_ids: list[int]  # its tokens
    rollouts: list[Rollout]

    @property
    def rewards(self) -> list[float]:
        """0.0 or 1.0 for each completion."""
        return [rollout.reward for rollout in self.rollouts]

    @property
    def outcome(self) -> str:
        """`all_fail`, `mixed` or `all_pass`."""
        solved = sum(self.rewards)
        if solved == 0:
            return "all_fail"
        if solved == len(self.rollouts):
            return "all_pass"
        return "mixed"


@dataclass
class TrainingSample:
    """One completion that a policy learns from, in its own tokens.

    `loss` is "policy" (a clipped objective, with `advantage` and log-probs for its ratio) or
    "imitation" (negative log-likelihood, which needs neither).
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    loss: str = "policy"
    advantage: float = 0.0
    # The ratio's denominator, nats, one per token. An own text has the log-probs with which it was
    # sampled, and `behavior_logprobs` is None; any other text has those that its mode gives (at
    # ratio level "text" one per token of the source). In mixed precision learning.py replaces those
    # of sampling by scored ones.
    behavior_logprobs: list[float] | None = None
    sampled_logprobs: list[float] = field(default_factory=list)
    # Version of the policy that sampled an own text. While the policy still has this version, the
    # ratio is 1 by definition. None: not known, so the ratio is always computed.
    sampled_version: int | None = None
    weight: float = 1.0
    objective: "Objective | None" = None  # None: the receiver's own
    chunk_of: list[int] = field(default_factory=list)  # each token's chunk, for a chunk ratio
    source: str = ""  # the peer that wrote it; empty: the receiver itself
    reward: float = 0.0

    @property
    def needs_forward(self) -> bool:
        """Whether learning computes it at all: not at weight 0, nor a "policy" one of advantage 0.

        Only the forward pass tells whether the sample is clipped, so not each that is computed has
        a gradient. A sample that is not computed has no KL term either.
        """
        return self.weight != 0 and (self.loss == "imitation" or self.advantage != 0)


def prompt_and_completion_ids(
    samples: Sequence[TrainingSample],
) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and completions of samples, the way `Policy.score` takes them."""
    prompts = [sample.prompt_ids for sample in samples]
    completions = [sample.completion_ids for sample in samples]
    return prompts, completions


def derive_seed(*parts: object) -> int:
    """A seed that depends on every part.

    All chance in a run comes from such seeds, made of the run's seed and the place in the run, so
    that a checkpoint has no random state to save and to lose.
    """
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())


def problems_of_step(
    problems: Sequence[Problem], step: int, count: int, seed: int
) -> list[Problem]:
    """The `count` problems of a step, which counts from 1.

    Each epoch is a new shuffle. Where the number of problems is no multiple of `count`, the last
    ones of the shuffle are left out. There are at least `count` problems, as a run checks first.
    """
    steps_per_epoch = len(problems) // count
    epoch, step_of_epoch = divmod(step - 1, steps_per_epoch)

    order = list(problems)
    random.Random(derive_seed(seed, "epoch", epoch)).shuffle(order)
    start = step_of_epoch * count
    return order[start : start + count]
