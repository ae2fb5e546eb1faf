"""The sharing modes on contextual bandits, exactly: without sampling noise (arXiv 2605.07244, 4).

A context has K actions and a set of right ones; a policy is a softmax over actions; a completion is
one action. All outcomes of the receiver's G and the peer's G samples are enumerated, and each goes
through the *program's own* mode and learning step (`Toy` stands in for a policy), so that what is
drawn here cannot drift away from what trains language models. For each context and mode:

    update      the expected ascent direction E[u] in the receiver's logits, first update of a step
    variance    trace of Cov[u]
    support     chance that u is not zero; and that it points uphill, u . g > 0. (Not the paper's
                support, which asks what the actor can reach: by that XGRPO stays on-policy.)
    bias        against g, the gradient of the receiver's expected reward: the angle, and the
                distance after the best scaling (dividing by a group's std rescales every update)
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from itertools import product
from operator import itemgetter
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
    """One context. logits: of receiver and peer, one an action; right: the right actions."""

    receiver: tuple[float, ...]
    peer: tuple[float, ...]
    right: frozenset[int]

    def logprobs(self, who: str) -> torch.Tensor:
        """Of one side's actions, [K] float64, nats."""
        return torch.log_softmax(torch.tensor(getattr(self, who), dtype=torch.float64), 0)

    def probabilities(self, who: str) -> list[float]:
        """Of one side's actions."""
        return self.logprobs(who).exp().tolist()

    def reward(self, who: str) -> float:
        """Expected reward of one side."""
        return sum(p for a, p in enumerate(self.probabilities(who)) if a in self.right)

    def gradient(self) -> torch.Tensor:
        """Of the receiver's expected reward in its logits: p_a * (r_a - expected reward)."""
        p = self.logprobs("receiver").exp()
        r = torch.tensor([float(a in self.right) for a in range(len(p))])
        return p * (r - self.reward("receiver"))


def complementary(apart: float = 1.0) -> list[Context]:
    """Two contexts: each side knows one of them. apart: 0 the peer is a copy, 1 the opposite."""
    knows, misreads = (1.5, 0.5, -1.0, -1.0), (-3.0, -3.5, 1.5, -0.5)  # 0 and 1 are right

    found = []
    for own, other in ((knows, misreads), (misreads, knows)):
        peer = tuple((1 - apart) * x + apart * y for x, y in zip(own, other, strict=True))
        found.append(Context(own, peer, frozenset({0, 1})))
    return found


class Toy:
    """A softmax over actions in the place of a policy: as a receiver, and for `learn`."""

    end_id, max_new_tokens, micro_batch, reference = 99, 1, 10**9, None
    version, sampled_version, mixed_precision = 0, -1, False  # its samples are made up

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

    def _capability(self, receiver: str, prompts: object) -> dict[str, float]:
        return self.known


def capabilities(contexts: Sequence[Context]) -> dict[str, float]:
    """P of receiver and peer as HACPO measures them: over all contexts."""
    return {who: fmean(c.reward(who) for c in contexts) for who in ("receiver", "peer")}


def bandit_modes(contexts: Sequence[Context]) -> dict[str, Mode]:
    """Every mode as it is analysed: one update, nothing to balance with, known capabilities."""
    modes = {name: kind() for name, kind in MODES.items() if name != "solo-x2"}
    modes["hacpo"] = KnownCapability(minibatches=1, known=capabilities(contexts))
    modes["graft"] = GRAFT(minibatches=1, balanced=False)
    return modes


def outcomes(probabilities: Sequence[float], size: int) -> Counter[tuple[int, ...]]:
    """Every multiset of `size` draws -> its chance."""
    found: Counter[tuple[int, ...]] = Counter()
    for drawn in product(range(len(probabilities)), repeat=size):
        found[tuple(sorted(drawn))] += math.prod(probabilities[action] for action in drawn)
    return found


def group_of(context: Context, who: str, actions: Sequence[int]) -> Group:
    """One side's completions of a context."""
    logprobs = context.logprobs(who).tolist()  # as a `Toy`'s: a copy has a ratio of exactly 1
    rollouts = []
    for a in actions:
        verdict = Verdict.CORRECT if a in context.right else Verdict.WRONG
        rollouts.append(Rollout([a], [logprobs[a]], False, verdict=verdict))
    return Group(Problem("x", "x", "a"), [0], rollouts)


def records_of(mode: Mode, context: Context, actions: Sequence[int]) -> tuple[Record, ...]:
    """What the mode is given of a peer that took these actions."""
    if mode.consumes is None:
        return ()
    group = group_of(context, "peer", actions)
    return tuple(make_records(mode.consumes, "peer", 0, [group], CODEC))


def crossings(mode: Mode, context: Context, size: int) -> Counter[tuple[tuple[Record, ...], int]]:
    """(What the mode is given, which success is drawn of it) -> chance; what looks alike is one."""
    found: Counter[tuple[tuple[Record, ...], int]] = Counter()
    for actions, chance in outcomes(context.probabilities("peer"), size).items():
        records = records_of(mode, context, actions)
        texts = [r.text for r in records] if mode.consumes is SuccessRecord else []
        picks = [texts.index(text) for text in texts] or [0]
        for pick in picks:
            found[records, pick] += chance / len(picks)
    return found


def update_of(
    mode: Mode, context: Context, own: Sequence[int], records: Sequence[Record], pick: int
) -> torch.Tensor:
    """The mode, then the program's learning step."""
    toy, rng = Toy(context.receiver), SimpleNamespace(choice=itemgetter(pick))
    batch = mode.training_samples(toy, [(group_of(context, "receiver", own), records)], rng)
    learn(toy, batch.samples, score=Toy.score)
    return toy.update


@dataclass(frozen=True)
class Figures:
    """Of one mode, in one context or averaged over several."""

    variance: float
    support: float
    uphill: float  # chance that an update points uphill
    angle: float  # degrees between expected update and gradient; nan if there is no update
    distance: float  # |E[u] scaled - g| / |g|: the sine of that angle, 1 where there is no update
    strength: float  # |E[u]|

    @property
    def noise(self) -> float:
        """Standard deviation of an update over its mean's length.

        Its square is the number of groups until that mean is as long as its own standard error.
        """
        return self.variance**0.5 / self.strength if self.strength else math.inf


def average(found: Sequence[Figures]) -> Figures:
    """Over contexts; a context without an update has no angle to average."""
    rows = torch.tensor([astuple(each) for each in found], dtype=torch.float64)
    return Figures(*rows.nanmean(0).tolist())


def analyse(mode: Mode, contexts: Sequence[Context], group: int = GROUP) -> Figures:
    """The exact figures of a mode, averaged over contexts."""
    rows = []
    for context in contexts:
        mean, square, support, uphill = moments(mode, context, group)
        gradient, strength = context.gradient(), float(mean.norm())
        norms = strength * float(gradient.norm())
        cosine = max(-1.0, min(1.0, float(mean @ gradient) / norms)) if norms > 1e-12 else math.nan
        angle = math.degrees(math.acos(cosine))
        distance = math.sqrt(1 - cosine**2) if cosine > 0 else 1.0
        rows.append(Figures(square - strength**2, support, uphill, angle, distance, strength))
    return average(rows)


def moments(
    mode: Mode, context: Context, group: int = GROUP
) -> tuple[torch.Tensor, float, float, float]:
    """(E[u], E[u.u], P(u != 0), P(u.g > 0)) of one context, over every outcome."""
    own = outcomes(context.probabilities("receiver"), group)
    given = crossings(mode, context, group)
    pairs = list(product(own, given))
    chances = torch.tensor([own[a] * given[b] for a, b in pairs], dtype=torch.float64)
    updates = torch.stack([update_of(mode, context, a, *b) for a, b in pairs])  # [outcomes, K]
    squares, up = updates.square().sum(1), updates @ context.gradient()
    facts = (squares, updates.abs().amax(1) > 1e-12, up > 1e-12)
    return chances @ updates, *(float(chances @ fact.double()) for fact in facts)


def bandit_table(group: int = GROUP) -> Table:
    """Every mode where the peer knows what the receiver does not."""
    contexts = complementary()
    table = Table("mode", title=f"complementary pair, G = {group}, exact")
    for column in ("support", "uphill", "variance", "noise", "angle", "distance", "blind spot"):
        table.add_column(column, justify="right")
    for name, mode in bandit_modes(contexts).items():
        each = [analyse(mode, [context], group) for context in contexts]
        mean = average(each)
        table.add_row(
            name, f"{mean.support:.0%}", f"{mean.uphill:.0%}", f"{mean.variance:.3f}",
            f"{mean.noise:.2f}", f"{mean.angle:.1f}°", f"{mean.distance:.2f}",
            f"{each[1].noise ** 2:.2g}",
        )  # fmt: skip
    return table
