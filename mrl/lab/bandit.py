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
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import combinations_with_replacement
from operator import itemgetter
from statistics import fmean
from types import SimpleNamespace

import torch

from mrl.learning import learn
from mrl.modes import Mode
from mrl.modes.graft import GRAFT
from mrl.modes.hacpo import HACPO
from mrl.modes.naive import Naive
from mrl.modes.prp import PRP
from mrl.modes.sgt import SGT
from mrl.modes.solo import Solo
from mrl.modes.xgrpo import XGRPO
from mrl.objectives import OBJECTIVES
from mrl.records import Record, SuccessRecord, make_records
from mrl.samples import Group, Problem, Rollout, Verdict

GROUP = 3


@dataclass(frozen=True)
class Context:
    """One context. logits: of receiver and peer, one an action; right: the right actions."""

    receiver: tuple[float, ...]
    peer: tuple[float, ...]
    right: frozenset[int]

    def probabilities(self, who: str) -> list[float]:
        """Softmax of one side's logits."""
        return torch.softmax(torch.tensor(getattr(self, who), dtype=torch.float64), 0).tolist()

    def reward(self, who: str) -> float:
        """Expected reward of one side."""
        return sum(p for a, p in enumerate(self.probabilities(who)) if a in self.right)

    def gradient(self) -> torch.Tensor:
        """Of the receiver's expected reward in its logits: p_a * (r_a - expected reward)."""
        p = torch.tensor(self.probabilities("receiver"), dtype=torch.float64)
        r = torch.tensor([float(a in self.right) for a in range(len(p))], dtype=torch.float64)
        return p * (r - (p * r).sum())


def complementary(apart: float = 1.0) -> list[Context]:
    """Two contexts: each side knows one of them. apart: 0 the peer is a copy, 1 the opposite."""
    knows, misreads = (1.5, 0.5, -1.0, -1.0), (-3.0, -3.5, 1.5, -0.5)  # 0 and 1 are right

    def between(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
        return tuple((1 - apart) * x + apart * y for x, y in zip(a, b, strict=True))

    right = frozenset({0, 1})
    return [
        Context(knows, between(knows, misreads), right),
        Context(misreads, between(misreads, knows), right),
    ]


class Letters:
    """A tokenizer of one letter a token, as a codec."""

    def encode(self, text: str) -> list[int]:
        """Action numbers."""
        return [ord(letter) - 97 for letter in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Letters."""
        return "".join(chr(97 + token_id) for token_id in token_ids)

    def token_bytes(self, token_ids: Sequence[int]) -> list[bytes]:
        """One letter each."""
        return [bytes([97 + token_id]) for token_id in token_ids]


class Toy:
    """A softmax over actions in the place of a policy: as a receiver, and for `learn`."""

    end_id, max_new_tokens, micro_batch, reference = 99, 1, 10**9, None
    version, sampled_version = 0, -1  # its samples are made up

    def __init__(self, logits: Sequence[float], objective: str = "grpo") -> None:
        self.name, self.codec, self.objective = "receiver", Letters(), OBJECTIVES[objective]
        self.config = SimpleNamespace(max_new_tokens=1, max_grad_norm=math.inf, kl_coef=0.0)
        self.model = torch.nn.Module()
        self.model.logits = torch.nn.Parameter(torch.tensor(logits, dtype=torch.float64))
        self.update = torch.zeros(len(logits), dtype=torch.float64)
        self.optimizer = SimpleNamespace(step=self._keep, zero_grad=self._clear)

    def _keep(self) -> None:
        self.update = -self.model.logits.grad.clone()

    def _clear(self, set_to_none: bool = True) -> None:
        self.model.logits.grad = None

    def completion_logprobs(
        self, prompts: Sequence[list[int]], completions: Sequence[list[int]], model: object = None
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
        return self.completion_logprobs(prompts, completions)[0].tolist() if completions else []


@dataclass
class KnownCapability(HACPO):
    """HACPO whose capability windows have converged. known: P of receiver and peer."""

    known: tuple[float, float] = (1.0, 1.0)

    def _capability(self, receiver: str, prompts: object) -> dict[str, float]:
        return {receiver: self.known[0], "peer": self.known[1]}


def capabilities(contexts: Sequence[Context]) -> tuple[float, float]:
    """P of receiver and peer as HACPO measures them: over all contexts."""
    own, peer = (fmean(c.reward(who) for c in contexts) for who in ("receiver", "peer"))
    return own, peer


def bandit_modes(contexts: Sequence[Context]) -> dict[str, Mode]:
    """Every mode as it is analysed: one update, nothing to balance with, known capabilities."""
    return {
        "solo": Solo(), "naive": Naive(), "prp": PRP(), "xgrpo": XGRPO(), "sgt": SGT(),
        "hacpo": KnownCapability(minibatches=1, known=capabilities(contexts)),
        "graft": GRAFT(minibatches=1, balanced=False),
    }  # fmt: skip


def outcomes(probabilities: Sequence[float], size: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every multiset of `size` draws and its chance."""
    possible = [a for a, p in enumerate(probabilities) if p > 0]
    for drawn in combinations_with_replacement(possible, size):
        ways = math.factorial(size)
        for count in Counter(drawn).values():
            ways //= math.factorial(count)
        yield drawn, ways * math.prod(probabilities[a] for a in drawn)


def group_of(context: Context, who: str, actions: Sequence[int]) -> Group:
    """One side's completions of a context."""
    # as the receiver computes its own: a copy has a ratio of exactly 1
    logprobs = torch.log_softmax(torch.tensor(getattr(context, who), dtype=torch.float64), 0)
    rollouts = []
    for a in actions:
        verdict = Verdict.CORRECT if a in context.right else Verdict.WRONG
        rollouts.append(Rollout([a], [float(logprobs[a])], False, chr(97 + a), verdict))
    return Group(Problem("x", "x", "a"), [0], rollouts)


def records_of(mode: Mode, context: Context, actions: Sequence[int]) -> tuple[Record, ...]:
    """What the mode is given of a peer that took these actions."""
    if mode.consumes is None or not actions:
        return ()
    group = group_of(context, "peer", actions)
    return tuple(make_records(mode.consumes, "peer", 0, [group], Letters()))


def crossings(mode: Mode, context: Context, size: int) -> Counter[tuple[tuple[Record, ...], int]]:
    """(What the mode is given, which success is drawn of it) -> chance; what looks alike is one."""
    found: Counter[tuple[tuple[Record, ...], int]] = Counter()
    for actions, chance in outcomes(context.probabilities("peer"), size):
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
    learn(toy, batch.samples)
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
    columns = zip(*map(astuple, found), strict=True)
    known = [[value for value in column if not math.isnan(value)] for column in columns]
    return Figures(*(fmean(column) if column else math.nan for column in known))


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
    gradient = context.gradient()
    mean = torch.zeros(len(context.receiver), dtype=torch.float64)
    square = support = uphill = 0.0
    given = crossings(mode, context, group)
    for own, chance in outcomes(context.probabilities("receiver"), group):
        for (records, pick), other in given.items():
            update, weight = update_of(mode, context, own, records, pick), chance * other
            mean += weight * update
            square += weight * float(update @ update)
            support += weight * (float(update.abs().max()) > 1e-12)
            uphill += weight * (float(update @ gradient) > 1e-12)
    return mean, square, support, uphill


def baseline_bias(context: Context, ratio: float) -> float:
    """E[mu_k] - P_k(x) of HACPO's mixed baseline, for w(k, j) = ratio; exact.

    The paper's theorem: no bias if w is the true ratio. It is a ratio of means over prompts, so on
    one prompt it is the true one only if the ratio is the same on every prompt.
    """
    own, peer = context.reward("receiver"), context.reward("peer")
    return (own + ratio * peer) / 2 - own


def peer_alignment(context: Context, capability: tuple[float, float], group: int = GROUP) -> float:
    """Cosine between the gradient of the expected reward and what the peer's samples add, expected.

    The paper's theorem: positive, if the peer's confidence goes with its quality. 0 if all of them
    fall outside the band.
    """
    # with a band of width 0 no peer's sample teaches (unless s is exactly 1), but all stay in mu
    with_peer, without = (
        moments(KnownCapability(minibatches=1, own_objective="grpo", delta=delta, known=capability),
                context, group)[0]
        for delta in (HACPO.delta, 0.0)
    )  # fmt: skip
    added, gradient = with_peer - without, context.gradient()
    return float(added @ gradient / (added.norm() * gradient.norm()).clamp(min=1e-12))
