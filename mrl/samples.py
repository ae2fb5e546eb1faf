"""The nouns of a training step: what is sampled, what is learnt from."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # without torch: the verifier's process reads this file, too
    from mrl.objectives import Objective


@dataclass(frozen=True)
class Problem:
    """One verifiable problem: a prompt for a policy, an answer for the verifier."""

    id: str
    prompt: str
    answer: str
    skill: str = "all"


class Verdict(StrEnum):
    """What the verifier says of one completion; only `CORRECT` is rewarded."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"  # ended without a box, or with one that holds nothing readable
    TRUNCATED = "truncated"  # cut by the token limit before a box was complete
    TIMEOUT = "timeout"  # judging took too long, or the child died of it


@dataclass
class Rollout:
    """One sampled completion. `completion_ids` are the sampled ids, the end token included."""

    completion_ids: list[int]
    logprobs: list[float]  # of each completion token when it was sampled, nats
    finished: bool  # an end token was sampled before the token limit
    text: str = ""  # for the verifier and for people; may hold replacement characters
    verdict: Verdict | None = None

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
    prompt_ids: list[int]
    rollouts: list[Rollout]

    @property
    def rewards(self) -> list[float]:
        """One 0.0 or 1.0 a completion."""
        return [rollout.reward for rollout in self.rollouts]

    @property
    def kind(self) -> str:
        """`all_fail`, `mixed` or `all_pass`."""
        solved = sum(self.rewards)
        if solved == 0:
            return "all_fail"
        return "all_pass" if solved == len(self.rollouts) else "mixed"


@dataclass
class TrainingSample:
    """One completion that a receiver learns from, in the receiver's own tokens.

    `loss` is "policy" (a clipped objective, with `advantage` and `behavior_logprobs`) or
    "imitation" (negative log-likelihood, which needs neither).
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    loss: str = "policy"
    advantage: float = 0.0
    behavior_logprobs: list[float] = field(default_factory=list)  # nats a token; own: of this step
    weight: float = 1.0
    objective: "Objective | None" = None  # None: the receiver's own
    chunk_of: list[int] = field(default_factory=list)  # each token's chunk, for a chunk ratio
    source: str = ""  # the peer that wrote it; empty: the receiver itself
    reward: float = 0.0

    @property
    def has_gradient(self) -> bool:
        """False if its gradient is zero under any weights; it is then not computed."""
        return self.weight != 0 and (self.loss == "imitation" or self.advantage != 0)


def ids_of(samples: Sequence[TrainingSample]) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and completions of samples, as `completion_logprobs` and its like take them."""
    return [s.prompt_ids for s in samples], [s.completion_ids for s in samples]
