"""HACPO's loss and PRP's gradient, written a second time from the equations, through `learn`."""

import random
from statistics import fmean

import pytest
import torch

from mrl.exchange import experience_of
from mrl.lab.bandit import Toy
from mrl.learning import learn
from mrl.modes.hacpo import HACPO
from mrl.modes.naive import Naive
from mrl.modes.prp import PRP
from mrl.objectives import OBJECTIVES
from mrl.records import RolloutRecord
from mrl.reward import Verdict
from mrl.samples import Group, Problem, Rollout


class Letters(Toy):
    """A softmax over a to d and the end, whatever came before; plain gradient ascent."""

    eos_id, max_new_tokens = 4, 9

    def step_optimizer(self):
        self.version += 1
        self.path = [*getattr(self, "path", []), self.model.logits.grad.clone()]
        with torch.no_grad():
            self.model.logits -= 0.4 * self.model.logits.grad

    def score(self, prompts, completions, model=None):
        logprobs = torch.log_softmax(self.model.logits, 0)
        rows = [logprobs[ids] for ids in completions]
        ones = [torch.ones(len(ids), dtype=torch.bool) for ids in completions]
        pad = torch.nn.utils.rnn.pad_sequence
        return pad(rows, batch_first=True), pad(ones, batch_first=True)

    def logprobs_of(self, prompts, completions):
        with torch.no_grad():
            logprobs, mask = self.score(prompts, completions)
        return [row[here].tolist() for row, here in zip(logprobs, mask, strict=True)]


def record(prompt, source, index, text, lengths, logprobs, end_logprob, reward):
    return RolloutRecord(
        prompt_id=prompt, source=source, version=0, index=index, text=text,
        finished=end_logprob is not None, token_lengths=tuple(lengths), canonical=True,
        logprobs=tuple(logprobs), end_logprob=end_logprob, reward=float(reward),
        verdict="correct" if reward else "wrong",
    )  # fmt: skip


def rollout_case(toy, agents, case, rng):
    """Groups of 3 of the receiver and records of its peers about 8 prompts, s about the band."""
    groups, peers = [], {}
    for prompt in map(str, range(8)):
        rollouts = []
        for agent in range(agents):
            for index in range(3):
                ids = rng.choices(range(4), k=rng.randint(2, 6)) + [4] * rng.randint(0, 1)
                finished = ids[-1] == 4
                text = "".join(chr(97 + i) for i in ids if i < 4)
                reward = rng.random() < (0.3, 0.7, 0.5)[agent]
                reward = reward and not (case == "never" and agent == 0)
                reward = True if case == "equal" and int(prompt) % 2 else reward
                (own,) = toy.logprobs_of([[0]], [ids])
                if agent == 0:
                    verdict = Verdict.CORRECT if reward else Verdict.WRONG
                    rollouts.append(Rollout(ids, own, finished, text, verdict))
                    continue
                lengths = [2, *[1] * (len(text) - 2)]  # another tokenization than the receiver's
                mean = fmean(own) + rng.uniform(-0.2, 0.4)  # so that s is from 0.67 to 1.22
                shift = [rng.uniform(-0.1, 0.1) for _ in lengths]
                logprobs = [mean + x - fmean(shift) for x in shift]
                peers.setdefault(prompt, []).append(
                    record(prompt, f"peer{agent}", index, text, lengths, logprobs,
                         mean if finished else None, reward)
                )  # fmt: skip
        groups.append(Group(Problem(prompt, prompt, "1"), [0], rollouts))
    return groups, peers


def hacpo_by_hand(logits, groups, peers, alpha):
    """Gradients of four updates, and how often peers' s fell where: one minibatch is 2 prompts."""
    rewards = {"": [r.reward for g in groups for r in g.rollouts]}
    for record in (record for records in peers.values() for record in records):
        rewards.setdefault(record.source, []).append(record.reward)
    p = {agent: sum(values) / len(values) for agent, values in rewards.items()}

    def w(k, j):
        if p[j] == 0:
            return 1.0 if p[k] == 0 else 10.0
        return min(max(p[k] / p[j], 0.1), 10.0)

    theta = torch.tensor(logits, dtype=torch.float64)
    gradients, seen = [], set()
    for u in range(4):
        theta.requires_grad_()
        objective, count = 0.0, 0
        for group in groups[2 * u : 2 * u + 2]:
            rows = [("", r.completion_ids, r.logprobs, r.reward) for r in group.rollouts]
            for record in peers[group.problem.id]:
                ids = [ord(c) - 97 for c in record.text] + [4] * record.finished
                old = [*record.logprobs, *([record.end_logprob] if record.finished else [])]
                rows.append((record.source, ids, old, record.reward))
            mu = sum(w("", j) * r for j, _, _, r in rows) / len(rows)
            sigma = torch.tensor([r for *_, r in rows]).double().std(correction=0).item()
            for source, ids, old, r in rows:
                count += 1
                a = (r - mu) / (sigma + 1e-6) if sigma else 0.0
                s = torch.exp(theta.log_softmax(0)[ids].mean() - sum(old) / len(old))
                value = float(s.detach())
                if not source:
                    band = min(max(value, 1 - 3e-4), 1 + 4e-4)
                    objective = objective + (s * a if value * a <= band * a else band * a)
                    continue
                low = 1 - 0.2 + u * 0.025
                place = "below" if value < low else "above" if value > 1 else "inside"
                seen |= {(place, a > 0)} if a else set()
                if place == "inside":  # outside there is no gradient, for either sign of A
                    objective = objective + s * value**alpha * w(source, "") * a
        gradients.append(torch.autograd.grad(-objective / count, theta)[0])
        theta = (theta - 0.4 * gradients[-1]).detach()
    return gradients, seen


@pytest.mark.parametrize("alpha", [1.0, 3.0])
@pytest.mark.parametrize("case", ["any", "never", "equal"])
@pytest.mark.parametrize("agents", [2, 3])
def test_hacpo_over_four_updates(agents, case, alpha):
    logits = [0.3, -0.2, 0.5, 0.0, 0.1]
    toy = Letters(logits, "gspo")
    groups, peers = rollout_case(toy, agents, case, random.Random(agents))
    mode = HACPO(alpha=alpha)
    experiences = [experience_of(toy, g, peers.get(g.problem.id, [])) for g in groups]
    batch = mode.training_samples(toy, experiences, random.Random(0))
    learn(toy, batch.samples, mode.published_updates)
    gradients, seen = hacpo_by_hand(logits, groups, peers, alpha)
    assert seen == {(place, up) for place in ("below", "inside", "above") for up in (True, False)}
    assert len(toy.path) == 4
    for got, want in zip(toy.path, gradients, strict=True):
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-4)


class Cut(Letters):
    """Tokens of `size` bytes; a byte has log-prob -0.7 in any cut; a parameter a token."""

    eos_id, max_new_tokens = 0, 13

    def __init__(self, size, objective):
        super().__init__([0.0] * 40, objective)
        self.codec, self.size, self.known = self, size, [b""]  # it is its own codec

    def encode(self, text):
        data = text.encode()
        cut = [data[i : i + self.size] for i in range(0, len(data), self.size)]
        self.known += [piece for piece in cut if piece not in self.known]
        return [self.known.index(piece) for piece in cut]

    def token_bytes(self, ids):
        return [self.known[i] for i in ids]

    def score(self, prompts, completions, model=None):
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad([torch.tensor(c) for c in completions], batch_first=True)
        mask = pad([torch.ones(len(c), dtype=torch.bool) for c in completions], batch_first=True)
        sizes = torch.tensor([len(piece) for piece in self.known], dtype=torch.float64)[ids]
        return (self.model.logits[ids] - 0.7 * sizes) * mask, mask


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("level", ["token", "chunk", "sequence"])
def test_prp_with_a_peer_of_the_same_distribution_has_naives_gradient(level, objective):
    texts = ("abcdefghijkl", "mnopqrstu", "vwxyz")
    for size in range(1, 7):
        for theirs in range(1, 7):
            updates = []
            for mode in (Naive(), PRP(ratio_level=level)):
                toy = Cut(size, objective)
                ids = [*toy.encode("own"), 0]
                (logprobs,) = toy.logprobs_of([[0]], [ids])
                own = [Rollout(ids, logprobs, True, "own", Verdict.WRONG)] * 2
                records = []
                for index, text in enumerate(texts):
                    cut = [min(theirs, len(text) - i) for i in range(0, len(text), theirs)]
                    lps = [-0.7 * n for n in cut]
                    records.append(record("x", "b", index, text, cut, lps, 0.0, index == 0))
                group = Group(Problem("x", "x", "1"), [0], own)
                experience = experience_of(toy, group, records)
                batch = mode.training_samples(toy, [experience], random.Random(0))
                learn(toy, batch.samples)
                updates.append(toy.path[0])
            assert float(updates[0].norm()) > 0.01
            torch.testing.assert_close(*updates, atol=1e-6, rtol=1e-4)
