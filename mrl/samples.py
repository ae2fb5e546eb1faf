"""The nouns of a training step: problems, judged completions, and training samples."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mrl.reward import Verdict

# Only for a type hint: the verifier's child process loads this file, and must not load torch.
if TYPE_CHECKING:
    from mrl.objectives import Objective
    from mrl.records import CompletionRecord

# The problem sets had these names when the published results were made. Seeds are still derived
# from these names, so that the same problems are drawn and the same completions are sampled.
SEED_LABELS = {
    "validation": "heldout",
    "validation_wording": "newtemplates",
    "test": "thirdset",
    "validation-72": "heldout-72",
}
NO_SKILL = "all"  # the skill of every problem in a file that names no skills


@dataclass(frozen=True)
class Problem:
    """One verifiable problem: a prompt for the policies and an answer for the verifier."""

    id: str
    prompt: str
    answer: str
    skill: str = NO_SKILL


@dataclass
class Rollout:
    """One sampled completion. `completion_ids` are the sampled tokens, EOS included."""

    completion_ids: list[int]
    logprobs: list[float]  # one per completion token, computed when it was sampled; nats
    finished: bool  # True if it ends in EOS, False if the token limit cut it short
    text: str = ""  # for the verifier and for people; may hold replacement characters
    verdict: Verdict | None = None
    version: int | None = None  # number of updates of its policy when this was sampled

    @property
    def content_ids(self) -> list[int]:
        """The sampled tokens without EOS, which stands for no text."""
        return self.completion_ids[:-1] if self.finished else self.completion_ids

    @property
    def reward(self) -> float:
        """The reward of its verdict; 0.0 before it is judged."""
        return self.verdict.reward if self.verdict else 0.0


@dataclass
class SecondAttempt(Rollout):
    """A completion that continues a beginning, which the policy did not sample.

    `completion_ids` and `text` include the beginning. `logprobs` are those of the sampled tokens
    alone.
    """

    given: int = 0  # number of tokens of the beginning
    record: "CompletionRecord | None" = None  # the peer's record that the beginning is from


@dataclass
class Group:
    """The completions of one policy for one problem."""

    problem: Problem
    prompt_ids: list[int]  # the prompt in this policy's template and tokens
    rollouts: list[Rollout]

    @property
    def rewards(self) -> list[float]:
        """The reward of each completion, 0.0 or 1.0."""
        return [rollout.reward for rollout in self.rollouts]

    @property
    def outcome(self) -> str:
        """How the group did: `all_fail`, `mixed` or `all_pass`."""
        solved = sum(self.rewards)
        if solved == 0:
            return "all_fail"
        if solved == len(self.rollouts):
            return "all_pass"
        return "mixed"


@dataclass
class TrainingSample:
    """One completion that a policy learns from, in the policy's own tokens.

    `loss` is "policy" or "imitation". The policy loss is a clipped objective; it needs `advantage`
    and the log-probs for a ratio. The imitation loss is the negative log-likelihood and needs
    neither.

    A sample points at what it was made from: `record` is the peer's record, and `rollout` is the
    policy's own completion of this step. A sample with both is a second attempt, which continues
    the beginning of the peer's text. The metrics of a step are counted from these pointers.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    loss: str = "policy"
    advantage: float = 0.0
    # The ratio's denominator, in nats, one value per token. For the policy's own completion: its
    # log-probs when it was sampled. For a peer's: what the mode puts there.
    behavior_logprobs: list[float] = field(default_factory=list)
    # For the policy's own completion: the version of the policy that sampled it. While the policy
    # still has this version, the ratio is 1 by definition. None means unknown, or that a peer wrote
    # the completion: the ratio is always computed. A mode that changes `behavior_logprobs` of an
    # own completion sets it to None.
    sampled_version: int | None = None
    weight: float = 1.0
    objective: "Objective | None" = None  # None: the receiver's own objective
    chunk_of: list[int] = field(default_factory=list)  # each token's chunk, for chunk ratios
    record: "CompletionRecord | None" = None  # the peer's record that it came from
    rollout: Rollout | None = None  # the policy's own completion that it is
    reward: float = 0.0

    @property
    def source(self) -> str:
        """The name of the peer whose record it came from; empty if it came from no peer."""
        return self.record.source if self.record else ""

    @property
    def imitates(self) -> str:
        """Which kind of text is imitated, as the name of a metric; "" if none is."""
        if self.loss != "imitation" or not self.weight:
            return ""
        if self.record is None:
            return "replayed"  # a success of the policy itself
        return "hinted" if self.rollout else "imitated"

    @property
    def needs_forward(self) -> bool:
        """Whether this sample needs a forward pass.

        False if its weight is 0, or if it is a "policy" sample with advantage 0. Such a sample has
        no KL term either. True does not guarantee a gradient: only the forward pass tells whether
        the sample is clipped.
        """
        return self.weight != 0 and (self.loss == "imitation" or self.advantage != 0)


def prompt_and_completion_ids(
    samples: Sequence[TrainingSample],
) -> tuple[list[list[int]], list[list[int]]]:
    """The prompts and the completions of samples, in the form that `Policy.score` takes."""
    prompts = [sample.prompt_ids for sample in samples]
    completions = [sample.completion_ids for sample in samples]
    return prompts, completions


def derive_seed(*parts: object) -> int:
    """A seed that depends on every part.

    All randomness of a run comes from such seeds. Each is made from the run's seed and a point in
    the run, for example a step and a policy, so a checkpoint has no random state to save.
    """
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())


def problems_of_step(
    problems: Sequence[Problem], step: int, count: int, seed: int
) -> list[Problem]:
    """The `count` problems of a step. Steps are numbered from 1.

    Each epoch is a new shuffle. If the number of problems is not a multiple of `count`, the last
    problems of the shuffle are left out. There must be at least `count` problems; a run checks
    this before it starts.
    """
    steps_per_epoch = len(problems) // count
    epoch, step_of_epoch = divmod(step - 1, steps_per_epoch)

    order = list(problems)
    random.Random(derive_seed(seed, "epoch", epoch)).shuffle(order)
    start = step_of_epoch * count
    return order[start : start + count]
