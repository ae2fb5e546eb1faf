"""The sharing modes on a contextual bandit, computed exactly (arXiv 2605.07244, section 4).

A context has K actions, some of which are correct. A policy is a softmax over actions, and a
completion is a single action. We enumerate all outcomes of the receiver's G and the peer's G
samples, so there is no sampling noise. Each outcome goes through the *program's own* mode and
learning step, with a `Toy` as the policy. So this analysis always describes the code that trains
language models. For a context and a mode, let u be the ascent direction of a step's first update
with respect to the receiver's logits:

    support     update rate: the probability that u is not zero. (In the paper, "support" means the
                actions that a policy can reach; in that sense XGRPO stays on-policy.)
    angle       bias: the angle between E[u] and the gradient of the receiver's expected reward
    length      signal: |E[u]|, the length of the mean update
    spread      noise: the standard deviation of u, which is the root of the trace of Cov[u]
    groups      (spread / length)^2: the number of groups needed for a signal-to-noise ratio of 1,
                at which the mean update is as long as its standard error

A mode may need many groups because its updates scatter, or because their mean is short. The columns
`length` and `spread` tell these cases apart.

The updates of `replay` depend on earlier steps. In the table its buffer holds solutions of the
receiver; a line below the table says how long the buffer stays empty.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean

import torch
from rich.table import Table
from transformers import PreTrainedModel

from mrl.config import PolicyConfig
from mrl.exchange import experience_of
from mrl.learning import learn
from mrl.modes import MODES, Experience, Mode
from mrl.modes.graft import GRAFT
from mrl.modes.hacpo import HACPO
from mrl.modes.replay import NO_SKILL, Replay
from mrl.objectives import OBJECTIVES
from mrl.records import Record, RolloutRecord, SuccessRecord, make_records
from mrl.reward import Verdict
from mrl.samples import Group, Problem, Rollout
from mrl.tiny.letters import CODEC

GROUP = 3


@dataclass(frozen=True)
class Context:
    """One context: the logits of receiver and peer, one per action, and the correct actions."""

    receiver: tuple[float, ...]
    peer: tuple[float, ...]
    right: frozenset[int]

    def logprobs(self, side: str) -> torch.Tensor:
        """Log-probs of one side's actions, [K] float64, nats. side: "receiver" or "peer"."""
        return torch.log_softmax(torch.tensor(getattr(self, side), dtype=torch.float64), 0)

    def probabilities(self, side: str) -> list[float]:
        """Probabilities of one side's actions, [K]."""
        return self.logprobs(side).exp().tolist()

    def reward(self, side: str) -> float:
        """The expected reward of one side."""
        return float(self.logprobs(side).exp()[list(self.right)].sum())

    def gradient(self) -> torch.Tensor:
        """d R / d logits for the receiver's expected reward R: entry a is p_a * (r_a - R)."""
        p = self.logprobs("receiver").exp()
        r = torch.zeros_like(p)
        r[list(self.right)] = 1.0
        return p * (r - self.reward("receiver"))


def complementary(apart: float = 1.0) -> list[Context]:
    """Two contexts: the receiver knows the first one, and the second one is its blind spot.

    apart: 0 makes the peer a copy; 1 makes it know exactly what the receiver does not.
    """
    knows, misreads = (1.5, 0.5, -1.0, -1.0), (-3.0, -3.5, 1.5, -0.5)  # actions 0 and 1 are correct

    contexts = []
    for own, other in ((knows, misreads), (misreads, knows)):
        peer = tuple((1 - apart) * x + apart * y for x, y in zip(own, other, strict=True))
        contexts.append(Context(own, peer, frozenset({0, 1})))
    return contexts


class Logits(torch.nn.Module):
    """A model without inputs: one logit per action."""

    def __init__(self, logits: Sequence[float]) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor(logits, dtype=torch.float64))


class Toy:
    """A softmax over actions that replaces a policy, both as a `Receiver` and as a `Learner`."""

    eos_id, max_new_tokens, max_tokens_per_forward, vocab_size = 99, 1, 10**9, 100
    mixed_precision = sampler_is_wrong = False
    version = 0
    reference: PreTrainedModel | None = None

    def __init__(self, logits: Sequence[float], objective: str = "grpo") -> None:
        self.name, self.codec, self.objective = "receiver", CODEC, OBJECTIVES[objective]
        self.config = PolicyConfig(self.name, "", max_grad_norm=math.inf)
        self.model = Logits(logits)
        self.update = torch.zeros(len(logits), dtype=torch.float64)

    def zero_grad(self) -> None:
        """Forget the current gradient."""
        self.model.zero_grad()

    def step_optimizer(self) -> None:
        """Store the ascent direction, without changing the logits."""
        descent = self.model.logits.grad
        if descent is not None:
            self.update = -descent

    def score(
        self,
        prompts: Sequence[list[int]],
        completions: Sequence[list[int]],
        model: PreTrainedModel | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs [batch, 1] of the actions, and a mask without padding."""
        actions = torch.tensor(completions)
        logprobs = torch.log_softmax(self.model.logits, 0)[actions]
        return logprobs, torch.ones_like(actions, dtype=torch.bool)

    @torch.no_grad()
    def logprobs_of(
        self, prompts: Sequence[list[int]], completions: Sequence[list[int]]
    ) -> list[list[float]]:
        """Log-probs of completions, as `Policy.logprobs_of`."""
        return self.score(prompts, completions)[0].tolist() if completions else []


@dataclass
class KnownCapability(HACPO):
    """HACPO whose capability windows have converged. known: P of receiver and peer."""

    known: dict[str, float] = field(default_factory=dict)

    def _update_capability(
        self, receiver: str, experiences: Sequence[Experience[RolloutRecord]]
    ) -> dict[str, float]:
        return self.known


def capabilities(contexts: Sequence[Context]) -> dict[str, float]:
    """HACPO's capability P of receiver and peer: the mean reward over all contexts."""
    return {side: fmean(c.reward(side) for c in contexts) for side in ("receiver", "peer")}


# The modes that pages and pictures show. The command `bandit` also shows modes that you added.
PUBLISHED = (
    "solo", "replay", "sft", "rft", "naive", "prp", "xgrpo", "sgt", "hacpo", "graft",
)  # fmt: skip


def bandit_modes(contexts: Sequence[Context]) -> dict[str, Mode]:
    """The modes to analyze. HACPO knows P, and GRAFT does not balance.

    `hint` is left out: a completion is a single action here, and that has no beginning. `solo-x2`
    is `solo` with twice the group.
    """
    left_out = ("solo-x2", "hint")
    modes = {name: mode() for name, mode in MODES.items() if name not in left_out}
    modes["hacpo"] = KnownCapability(known=capabilities(contexts))
    modes["graft"] = GRAFT(balanced=False)
    return modes


def group_of(context: Context, side: str, actions: Sequence[int]) -> Group:
    """A group of one side's completions of a context."""
    # computed as in `Toy`, so that the ratio to a copy of the receiver is exactly 1
    logprobs = context.logprobs(side).tolist()
    rollouts = []
    for a in actions:
        verdict = Verdict.CORRECT if a in context.right else Verdict.WRONG
        rollouts.append(Rollout([a], [logprobs[a]], False, verdict=verdict))
    return Group(Problem("x", "x", "a"), [0], rollouts)


def records_of(mode: Mode, context: Context, actions: Sequence[int]) -> tuple[Record, ...]:
    """The records that the mode receives from a peer that took these actions."""
    if mode.consumes is None:
        return ()
    group = group_of(context, "peer", actions)
    made = make_records(mode.consumes, "peer", 0, [group], CODEC)
    return tuple(record for record in made if isinstance(record, Record))


def outcomes(
    probabilities: Sequence[float], size: int, in_order: bool = False
) -> dict[tuple[int, ...], float]:
    """The probability of every multiset of `size` draws, or, if `in_order`, of every sequence."""
    chances: dict[tuple[int, ...], float] = defaultdict(float)
    for actions in product(range(len(probabilities)), repeat=size):
        key = actions if in_order else tuple(sorted(actions))
        chances[key] += math.prod(probabilities[action] for action in actions)
    return chances


def crossings(mode: Mode, context: Context, size: int) -> dict[tuple[Record, ...], float]:
    """The probability of each set of records that the mode may receive from a peer.

    Outcomes with equal records are combined. Successes keep their order of sampling. This order is
    random, so `update_of` may use the same seed every time a mode draws one of the successes.
    """
    received: dict[tuple[Record, ...], float] = defaultdict(float)
    in_order = mode.consumes is SuccessRecord
    for actions, chance in outcomes(context.probabilities("peer"), size, in_order).items():
        received[records_of(mode, context, actions)] += chance
    return received


def update_of(
    mode: Mode, context: Context, own: Sequence[int], records: Sequence[Record]
) -> torch.Tensor:
    """The update [K] that the mode and `learn` make from the receiver's actions and the records."""
    toy = Toy(context.receiver)
    experience = experience_of(toy, group_of(context, "receiver", own), records)
    batch = mode.training_samples(toy, [experience], random.Random(0))
    learn(toy, batch.samples)
    return toy.update


def attempts(context: Context, size: int) -> dict[tuple[int, ...], float]:
    """The probability of each outcome of the receiver's group.

    Correct actions come first and keep their order of sampling, because a mode may draw one of
    them (see `crossings`).
    """
    chances: dict[tuple[int, ...], float] = defaultdict(float)
    for actions, chance in outcomes(context.probabilities("receiver"), size, True).items():
        correct = [action for action in actions if action in context.right]
        wrong = sorted(action for action in actions if action not in context.right)
        chances[*correct, *wrong] += chance
    return chances


def states(mode: Mode, context: Context) -> list[tuple[dict, float]]:
    """The states that a mode may be in before a step, with their probabilities.

    Only `replay` has more than one. It draws from a buffer of the receiver's earlier solutions, so
    what it draws is a correct action, as often as the receiver takes it.
    """
    if not isinstance(mode, Replay):
        return [(mode.state(), 1.0)]
    chances, total = context.probabilities("receiver"), context.reward("receiver")
    return [({NO_SKILL: [([0], [a])]}, chances[a] / total) for a in sorted(context.right)]


def updates(mode: Mode, context: Context, group: int) -> Iterator[tuple[torch.Tensor, float]]:
    """The update [K] for every outcome of a context, with the probability of that outcome."""
    own = attempts(context, group)
    received = crossings(mode, context, group)
    before = states(mode, context)
    for actions, records, (state, chance) in product(own, received, before):
        mode.restore(state)
        yield update_of(mode, context, actions, records), own[actions] * received[records] * chance


def moments(mode: Mode, context: Context, group: int = GROUP) -> tuple[torch.Tensor, float, float]:
    """(E[u], E[u.u], P(u != 0)) for one context, over all outcomes."""
    mean = torch.zeros(len(context.receiver), dtype=torch.float64)
    square = support = 0.0
    for update, chance in updates(mode, context, group):
        mean += chance * update
        square += chance * float(update @ update)
        if update.abs().max() > 1e-12:
            support += chance
    return mean, square, support


@dataclass(frozen=True)
class Figures:
    """The numbers that the module's docstring defines, for one mode in one context."""

    support: float
    angle: float  # degrees
    length: float  # of the mean update, in logits
    spread: float  # standard deviation of an update, in logits

    @property
    def groups(self) -> float:
        """The number of groups needed for a signal-to-noise ratio of 1."""
        return (self.spread / self.length) ** 2


def analyze(mode: Mode, context: Context, group: int = GROUP) -> Figures:
    """Compute the numbers of a mode in a context exactly."""
    mean, square, support = moments(mode, context, group)
    cosine = torch.cosine_similarity(mean, context.gradient(), dim=0).clamp(-1, 1)
    length = float(mean.norm())
    spread = math.sqrt(max(square - length**2, 0.0))
    return Figures(support, float(cosine.acos().rad2deg()), length, spread)


def bandit_table(known: bool = False, group: int = GROUP) -> Table:
    """A table of the modes in the receiver's blind spot, or, if `known`, in the other context."""
    contexts = complementary()
    place = "in what only the receiver knows" if known else "in the receiver's blind spot"
    table = Table("mode", title=f"{place}, G = {group}, exact")
    for column in ("support", "angle", "length", "spread", "groups needed"):
        table.add_column(column, justify="right")

    for name, mode in bandit_modes(contexts).items():
        figures = analyze(mode, contexts[0 if known else 1], group)
        groups = f"{figures.groups:.0f}" if figures.groups >= 10 else f"{figures.groups:.2g}"
        table.add_row(
            name, f"{figures.support:.0%}", f"{figures.angle:.0f}°",
            f"{figures.length:.3f}", f"{figures.spread:.3f}", groups,
        )  # fmt: skip
    return table


def replay_sentence(group: int = GROUP) -> str:
    """A sentence on how long the buffer of `replay` stays empty in the blind spot."""
    fails = 1 - complementary()[1].reward("receiver")
    chances = [f"{1 - fails ** (n * group):.0%} after {n}" for n in (1, 10, 100)]
    return (
        "replay: after n visits its buffer contains a success with probability 1 - (1 - p)^(nG): "
        f"{', '.join(chances)}. A peer has one at once."
    )
