"""The sharing modes on contextual bandits, exactly: without sampling noise (arXiv 2605.07244, 4).

A context has K actions and a set of right ones; a policy is a softmax over actions; a completion is
one action. All outcomes of the receiver's G and the peer's G samples are enumerated, and each goes
through the *program's own* mode and learning step (`Toy` stands in for a policy), so that what is
drawn here cannot drift away from what trains language models. For a context and a mode, with u the
ascent direction in the receiver's logits of a step's first update:

    support     chance that u is not zero. (Not the paper's support, which asks what the actor can
                reach: by that XGRPO stays on-policy.)
    angle       bias: between E[u] and the gradient of the receiver's expected reward
    groups      trace of Cov[u] over |E[u]|^2: the number of groups until their mean update is as
                long as its own standard error, so that it stands out from the noise

`replay` is left out, because what it does depends on the steps before; one line under the table
says how long its memory stays empty.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from types import SimpleNamespace

import torch
from rich.table import Table
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from mrl.alignment import ByteCodec
from mrl.learning import learn
from mrl.modes import MODES, Mode
from mrl.modes.graft import GRAFT
from mrl.modes.hacpo import HACPO
from mrl.objectives import OBJECTIVES
from mrl.records import Record, SuccessRecord, make_records
from mrl.samples import Group, Problem, Rollout, Verdict

GROUP = 3
# a tokenizer of one letter a token: action 0 is a
LETTERS = Tokenizer(models.BPE({chr(97 + action): action for action in range(26)}, []))
LETTERS.decoder = decoders.Fuse()
CODEC = ByteCodec(PreTrainedTokenizerFast(tokenizer_object=LETTERS))


@dataclass(frozen=True)
class Context:
    """One context. logits: of receiver and peer, one per action; right: the right actions."""

    receiver: tuple[float, ...]
    peer: tuple[float, ...]
    right: frozenset[int]

    def logprobs(self, side: str) -> torch.Tensor:
        """Log-probs of the actions of one side, "receiver" or "peer", [K] float64, nats."""
        return torch.log_softmax(torch.tensor(getattr(self, side), dtype=torch.float64), 0)

    def probabilities(self, side: str) -> list[float]:
        """Probabilities of the actions of one side."""
        return self.logprobs(side).exp().tolist()

    def reward(self, side: str) -> float:
        """Expected reward of one side."""
        return float(self.logprobs(side).exp()[list(self.right)].sum())

    def gradient(self) -> torch.Tensor:
        """Gradient of the receiver's expected reward in its logits: p_a * (r_a - that reward)."""
        p = self.logprobs("receiver").exp()
        r = torch.zeros_like(p)
        r[list(self.right)] = 1.0
        return p * (r - self.reward("receiver"))


def complementary(apart: float = 1.0) -> list[Context]:
    """Two contexts: the receiver knows the first one, the second is its blind spot.

    apart: 0 if the peer is a copy, 1 if it knows just what the receiver does not.
    """
    knows, misreads = (1.5, 0.5, -1.0, -1.0), (-3.0, -3.5, 1.5, -0.5)  # 0 and 1 are right

    contexts = []
    for own, other in ((knows, misreads), (misreads, knows)):
        peer = tuple((1 - apart) * x + apart * y for x, y in zip(own, other, strict=True))
        contexts.append(Context(own, peer, frozenset({0, 1})))
    return contexts


class Toy:
    """A softmax over actions in the place of a policy: as a receiver, and for `learn`."""

    eos_id, max_new_tokens, max_tokens_per_forward, reference = 99, 1, 10**9, None
    mixed_precision = False
    version = 0

    def __init__(self, logits: Sequence[float], objective: str = "grpo") -> None:
        self.name, self.codec, self.objective = "receiver", CODEC, OBJECTIVES[objective]
        self.config = SimpleNamespace(max_grad_norm=math.inf, kl_coef=0.0)
        self.model = torch.nn.Module()
        self.model.logits = torch.nn.Parameter(torch.tensor(logits, dtype=torch.float64))
        self.update = torch.zeros(len(logits), dtype=torch.float64)
        self.optimizer = SimpleNamespace(zero_grad=self.model.zero_grad)

    def step_optimizer(self) -> None:
        """Keep the direction of ascent; the logits stay."""
        self.update = -self.model.logits.grad

    def score(
        self, prompts: Sequence[list[int]], completions: Sequence[list[int]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs [batch, 1] of actions and a full mask."""
        actions = torch.tensor(completions)
        logprobs = torch.log_softmax(self.model.logits, 0)[actions]
        return logprobs, torch.ones_like(actions, dtype=torch.bool)

    @torch.no_grad()
    def logprobs_of(
        self, prompts: Sequence[list[int]], completions: Sequence[list[int]]
    ) -> list[list[float]]:
        """As a policy's."""
        return self.score(prompts, completions)[0].tolist() if completions else []


@dataclass
class KnownCapability(HACPO):
    """HACPO whose capability windows have converged. known: P of receiver and peer."""

    known: dict[str, float] = field(default_factory=dict)

    def _update_capability(self, receiver: str, prompts: object) -> dict[str, float]:
        return self.known


def capabilities(contexts: Sequence[Context]) -> dict[str, float]:
    """P of receiver and peer as HACPO measures them: over all contexts."""
    return {side: fmean(c.reward(side) for c in contexts) for side in ("receiver", "peer")}


# What pages and pictures show; the command `bandit` shows every mode, also one that you added.
PUBLISHED = ("solo", "naive", "prp", "xgrpo", "sgt", "hacpo", "graft")


def bandit_modes(contexts: Sequence[Context]) -> dict[str, Mode]:
    """Every mode as it is analysed: nothing to balance with, known capabilities, no controls."""
    controls = ("solo-x2", "replay", "sft")
    modes = {name: mode() for name, mode in MODES.items() if name not in controls}
    modes["hacpo"] = KnownCapability(known=capabilities(contexts))
    modes["graft"] = GRAFT(balanced=False)
    return modes


def group_of(context: Context, side: str, actions: Sequence[int]) -> Group:
    """Completions of a context by one side."""
    logprobs = context.logprobs(side).tolist()  # as a `Toy`'s: a copy has a ratio of exactly 1
    rollouts = []
    for a in actions:
        verdict = Verdict.CORRECT if a in context.right else Verdict.WRONG
        rollouts.append(Rollout([a], [logprobs[a]], False, verdict=verdict))
    return Group(Problem("x", "x", "a"), [0], rollouts)


def records_of(mode: Mode, context: Context, actions: Sequence[int]) -> tuple[Record, ...]:
    """What the mode receives of a peer that took these actions."""
    if mode.consumes is None:
        return ()
    group = group_of(context, "peer", actions)
    return tuple(make_records(mode.consumes, "peer", 0, [group], CODEC))


def outcomes(
    probabilities: Sequence[float], size: int, in_order: bool = False
) -> Counter[tuple[int, ...]]:
    """Every multiset of `size` draws -> its chance; in_order: every sequence."""
    chances: Counter[tuple[int, ...]] = Counter()
    for actions in product(range(len(probabilities)), repeat=size):
        key = actions if in_order else tuple(sorted(actions))
        chances[key] += math.prod(probabilities[action] for action in actions)
    return chances


def crossings(mode: Mode, context: Context, size: int) -> Counter[tuple[Record, ...]]:
    """What the mode receives of a peer -> its chance; what looks alike to it is summed up.

    Successes keep the order of their sampling, because a mode draws one of them: in a random order
    any fixed place is as good as a random one, so `update_of` may always draw by the same seed.
    """
    received: Counter[tuple[Record, ...]] = Counter()
    in_order = mode.consumes is SuccessRecord
    for actions, chance in outcomes(context.probabilities("peer"), size, in_order).items():
        received[records_of(mode, context, actions)] += chance
    return received


def update_of(
    mode: Mode, context: Context, own: Sequence[int], records: Sequence[Record]
) -> torch.Tensor:
    """The update [K] after these own actions and peer's records: the mode, then `learn`."""
    toy = Toy(context.receiver)
    prompts = [(group_of(context, "receiver", own), records)]
    batch = mode.training_samples(toy, prompts, random.Random(0))
    learn(toy, batch.samples)
    return toy.update


def updates(mode: Mode, context: Context, group: int) -> Iterator[tuple[torch.Tensor, float]]:
    """The update [K] after every outcome of a context, with the chance of that outcome."""
    own = outcomes(context.probabilities("receiver"), group)
    received = crossings(mode, context, group)
    for actions, records in product(own, received):
        yield update_of(mode, context, actions, records), own[actions] * received[records]


def moments(mode: Mode, context: Context, group: int = GROUP) -> tuple[torch.Tensor, float, float]:
    """(E[u], E[u.u], P(u != 0)) of one context, over every outcome."""
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
    """What the module's docstring defines, of one mode in one context."""

    support: float
    angle: float  # degrees
    groups: float


def analyse(mode: Mode, context: Context, group: int = GROUP) -> Figures:
    """The exact figures of a mode in a context."""
    mean, square, support = moments(mode, context, group)
    cosine = torch.cosine_similarity(mean, context.gradient(), dim=0).clamp(-1, 1)
    return Figures(support, float(cosine.acos().rad2deg()), square / float(mean @ mean) - 1)


def bandit_table(group: int = GROUP) -> Table:
    """Every mode where the peer knows what the receiver does not."""
    contexts = complementary()
    table = Table("mode", title=f"in the receiver's blind spot, G = {group}, exact")
    for column in ("support", "angle", "groups needed"):
        table.add_column(column, justify="right")

    for name, mode in bandit_modes(contexts).items():
        figures = analyse(mode, contexts[1], group)
        row = (f"{figures.support:.0%}", f"{figures.angle:.0f}°", f"{figures.groups:.2g}")
        table.add_row(name, *row)
    return table


def replay_sentence(group: int = GROUP) -> str:
    """How long the memory of `replay` stays empty in the blind spot."""
    fails = 1 - complementary()[1].reward("receiver")
    chances = [f"{1 - fails ** (n * group):.0%} after {n}" for n in (1, 10, 100)]
    return (
        "replay: after n visits its memory holds a success with a chance of 1 - (1 - p)^(nG): "
        f"{', '.join(chances)}. A peer's success is there at once."
    )
