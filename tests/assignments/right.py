"""Right solutions that are written otherwise: for each assignment some that must get full points.

For `own-mode`: ideas, and the least points of each. For `align` also a wrong one that is close.
"""

MODE = """import random
from dataclasses import dataclass, replace
from mrl.modes import Experience, Mode, Received, Receiver, TrainingBatch
from mrl.modes.peers import peer_sample, pool_with_advantages, source_logprobs
from mrl.modes.own import own_samples, samples_with
from mrl.modes.solo import Solo
from mrl.records import RewardStats, RolloutRecord, SuccessRecord
from mrl.samples import Group, TrainingSample
"""
IMITATE = """
def imitate(group, received, weight=0.1):
    return [] if received.refusal else [TrainingSample(
        group.prompt_ids, received.token_ids, loss="imitation", weight=weight,
        record=received.record, reward=1.0)]
"""
PLAIN = """
from itertools import accumulate
def plain(source, receiver):
    if b"".join(source) != b"".join(receiver):
        raise ValueError
    ends = [dict(zip(accumulate(map(len, side)), range(1, len(side) + 1)))
            for side in (source, receiver)]
    cuts = [(0, 0)] + [(ends[0][end], ends[1][end]) for end in ends[0] if end in ends[1]]
    return [((i, k), (j, n)) for (i, j), (k, n) in zip(cuts, cuts[1:])]
"""
# with bytes, which are copied for each token of a chunk; a bytearray grows in place
BUFFERS = """
def align(source, receiver):
    chunks, i, k, j, l = [], 0, 0, 0, 0
    left, right = b"", b""
    while j < len(source) or l < len(receiver):
        if len(left) <= len(right) and j < len(source):
            left += source[j]
            j += 1
        elif l < len(receiver):
            right += receiver[l]
            l += 1
        else:
            raise ValueError("one text is longer")
        if len(left) == len(right):
            if left != right:
                raise ValueError(f"{left} is not {right}")
            chunks.append(((i, j), (k, l)))
            i, k, left, right = j, l, b"", b""
    if left or right:
        raise ValueError("one text is longer")
    return chunks
"""
RIGHT = {
    "advantages": {
        "diff": """
import torch
def advantages(rewards):
    if rewards.dim() != 2 or rewards.size(1) < 2:
        raise ValueError
    r = rewards.double()
    z = (r - r.mean(-1, True)) / (r.std(-1, False, True) + 1e-6)
    return (z * r.diff(dim=1).ne(0).any(1, keepdim=True)).to(torch.float32)
""",
        "var_mean": """
import torch
def advantages(rewards):
    if rewards.ndim != 2 or rewards.size(1) <= 1:
        raise ValueError
    var, mean = torch.var_mean(rewards.to(torch.float32), dim=-1, keepdim=True, correction=0)
    same = rewards.amax(-1, keepdim=True) == rewards.amin(-1, keepdim=True)
    return torch.where(same, 0.0, (rewards.to(torch.float32) - mean) / (var.sqrt() + 1e-6))
""",
        "numpy": """
import numpy as np
import torch
def advantages(rewards: torch.Tensor) -> torch.Tensor:
    r = rewards.numpy().astype(np.float64)
    if r.ndim != 2 or r.shape[1] < 2:
        raise ValueError(r.shape)
    a = (r - r.mean(1, keepdims=True)) / (r.std(1, keepdims=True) + 1e-6)
    a[np.ptp(r, axis=1) == 0] = 0
    return torch.from_numpy(a.astype(np.float32))
""",
        "in place on a copy": """
import torch
from torch import Tensor
def advantages(rewards: Tensor) -> Tensor:
    try:
        prompts, group = rewards.shape
    except ValueError:
        raise ValueError("two axes") from None
    if group < 2:
        raise ValueError("two or more")
    a = rewards.clone().double()
    a -= a.mean(1, keepdim=True)
    a /= rewards.double().std(1, unbiased=False, keepdim=True) + 1e-6
    for p in range(prompts):
        if (rewards[p] == rewards[p, 0]).all():
            a[p] = 0
    return a.float()
""",
    },
    "align": {
        "buffers": BUFFERS.replace('b""', "bytearray()"),
        "a numpy array": """
import numpy as np
def align(source, receiver):
    if b"".join(source) != b"".join(receiver):
        raise ValueError("texts differ")
    a = np.cumsum([len(t) for t in source], dtype=int)
    b = np.cumsum([len(t) for t in receiver], dtype=int)
    common = np.intersect1d(a, b)
    j, l = np.searchsorted(a, common) + 1, np.searchsorted(b, common) + 1
    i, k = np.concatenate([[0], j])[:-1], np.concatenate([[0], l])[:-1]
    return np.stack([np.stack([i, j], 1), np.stack([k, l], 1)], 1)
""",
        "lists": """
def align(source, receiver):
    return [[list(span) for span in chunk] for chunk in plain(source, receiver)]
""" + PLAIN,
        "numpy's integers": """
import numpy as np
def align(source, receiver):
    return [tuple((np.int64(i), np.int64(j)) for i, j in chunk)
            for chunk in plain(source, receiver)]
""" + PLAIN,
        "a generator": """
def align(source, receiver):
    yield from plain(source, receiver)
""" + PLAIN,
        "a tuple of floats": """
def align(source, receiver):
    return tuple(((float(i), j), (k, n)) for (i, j), (k, n) in plain(source, receiver))
""" + PLAIN,
        "two pointers": """
def align(source, receiver):
    if b"".join(source) != b"".join(receiver):
        raise ValueError("bytes")
    out, i, k, j, l, a, b = [], 0, 0, 0, 0, 0, 0
    while j < len(source):
        a += len(source[j]); j += 1
        while b < a:
            b += len(receiver[l]); l += 1
        if a == b:
            out.append(((i, j), (k, l)))
            i, k = j, l
    return out
""",
        "numpy": """
import numpy as np
def align(source, receiver):
    if b"".join(source) != b"".join(receiver):
        raise ValueError
    a, b = (np.cumsum([len(p) for p in side]) for side in (source, receiver))
    _, j, l = np.intersect1d(a, b, return_indices=True)
    j, l = [0, *(j + 1).tolist()], [0, *(l + 1).tolist()]
    return [((j[n], j[n + 1]), (l[n], l[n + 1])) for n in range(len(j) - 1)]
""",
    },
    "bug": {
        "nanmean": """
import torch
def policy_loss(logprobs, behavior_logprobs, rewards, mask):
    a = (rewards - rewards.mean(1, True)) / (rewards.std(1, False, True) + 1e-6)
    a[rewards.amax(1) == rewards.amin(1)] = 0
    a = a.contiguous().view(-1)[:, None].expand(logprobs.shape)
    ratio = torch.exp(logprobs.masked_fill(~mask, 0) - behavior_logprobs.masked_fill(~mask, 0))
    clipped = torch.clip(ratio, 0.8, 1.2)
    gain = torch.min(torch.stack([ratio * a, clipped * a]), dim=0).values
    return -gain.masked_fill(~mask, torch.nan).nanmean(dim=1).mean()
""",
        "a loop": """
import torch
def policy_loss(logprobs, behavior_logprobs, rewards, mask):
    losses = []
    for p, row in enumerate(rewards):
        for i, r in enumerate(row):
            a = (r - row.mean()) / (row.std(correction=0) + 1e-6)
            if len(set(row.tolist())) == 1:
                a = torch.tensor(0.0)
            n = p * len(row) + i
            on = mask[n]
            q = (logprobs[n][on] - behavior_logprobs[n][on]).exp()
            losses.append(-torch.minimum(q * a, q.clamp(0.8, 1.2) * a).mean())
    return torch.stack(losses).mean()
""",
        "float32": """
import torch
def policy_loss(logprobs, behavior_logprobs, rewards, mask):
    logprobs, old, rewards = logprobs.float(), behavior_logprobs.float(), rewards.float()
    a = rewards - rewards.mean(1, keepdim=True)
    a = a / (rewards.std(1, keepdim=True, correction=0) + 1e-6)
    a = a.masked_fill(rewards.eq(rewards[:, :1]).all(1, True), 0)
    a = a.reshape(-1, 1).expand_as(logprobs)[mask]
    q = (logprobs[mask] - old[mask]).exp()
    each = -torch.minimum(q * a, q.clamp(0.8, 1.2) * a)
    length = mask.sum(1, keepdim=True).expand_as(mask)[mask]
    return (each / length).sum() / len(mask)
""",
    },
    "liar": {
        "most repeated first": """
from collections import Counter
def honest(records, answers, verify, budget):
    known = {}
    asked = Counter((r.prompt_id, r.text, r.finished) for r in records if r.prompt_id in answers)
    for key, _ in asked.most_common(budget):
        prompt, text, finished = key
        known[key] = verify(answers[prompt], text, finished)
    return [r for r in records if known.get((r.prompt_id, r.text, r.finished)) == "correct"]
""",
        "a cache of functools": """
from functools import lru_cache
class Spent(Exception):
    pass
def honest(records, answers, verify, budget):
    left = budget
    @lru_cache(maxsize=None)
    def ask(answer, text, finished):
        nonlocal left
        if left == 0:
            raise Spent
        left -= 1
        return verify(answer=answer, text=text, finished=finished) == "correct"
    kept = []
    for record in records:
        try:
            known = record.prompt_id in answers
            if known and ask(answers[record.prompt_id], record.text, record.finished):
                kept.append(record)
        except Spent:
            pass
    return kept
""",
        "two passes": """
def honest(records, answers, verify, budget):
    known = [r for r in records if r.prompt_id in answers]
    keys = dict.fromkeys((r.prompt_id, r.text, r.finished) for r in known)
    right = {k for k in list(keys)[:budget] if verify(answers[k[0]], k[1], k[2]) == "correct"}
    return [r for r in records if (r.prompt_id, r.text, r.finished) in right]
""",
        "keywords": """
def honest(records, answers, verify, budget):
    seen, kept = {}, []
    for r in records:
        if (gold := answers.get(r.prompt_id)) is None:
            continue
        key = r.prompt_id, r.text, r.finished
        if key not in seen and len(seen) < budget:
            seen[key] = verify(answer=gold, text=r.text, finished=r.finished)
        if seen.get(key) == "correct":
            kept.append(r)
    return kept
""",
    },
    "sgt": {
        "draws again": MODE + IMITATE + """
@dataclass
class Again(Mode):
    name = "again"
    consumes = SuccessRecord
    imitation_weight: float = 0.1
    def training_samples(self, receiver, prompts, rng):
        batch = TrainingBatch()
        for experience in prompts:
            group = experience.group
            batch.samples += own_samples(receiver, group)
            left = list(experience.received) if group.outcome == "all_fail" else []
            found = []
            while left and not found:
                success = left.pop(rng.randrange(len(left)))
                found = imitate(group, success, self.imitation_weight)
            batch.samples += found
        return batch
""",
        "own samples first": MODE + IMITATE + """
@dataclass
class First(Mode):
    name = "first"
    consumes = SuccessRecord
    imitation_weight: float = 0.1
    def training_samples(self, receiver, prompts, rng):
        batch = Solo().training_samples(receiver, prompts, rng)
        for e in [e for e in prompts if e.received and not any(e.group.rewards)]:
            batch.samples += imitate(e.group, rng.sample(e.received, 1)[0],
                                     self.imitation_weight)
        return batch
""",
        "no dataclass": MODE + IMITATE + """
class Plain(Mode):
    name = "plain"
    consumes = SuccessRecord
    def __init__(self, imitation_weight=0.1):
        super().__init__()
        self.weight = imitation_weight
    def training_samples(self, receiver, prompts, rng):
        batch = TrainingBatch()
        for experience in prompts:
            group, successes = experience.group, experience.received
            batch.samples.extend(own_samples(receiver, group))
            if sum(group.rewards) == 0 and successes:
                one = successes[int(rng.random() * len(successes))]
                batch.samples.extend(imitate(group, one, self.weight))
        return batch
""",
        "a subclass of solo": MODE + IMITATE + """
@dataclass
class Sub(Solo):
    name = "sub"
    consumes = SuccessRecord
    imitation_weight: float = 0.1
    def training_samples(self, receiver, experiences, rng):
        batch = super().training_samples(receiver, experiences, rng)
        for experience in experiences:
            group, successes = experience.group, experience.received
            if successes and max(group.rewards) == 0.0:
                batch.samples += imitate(group, rng.choice(successes),
                                         weight=self.imitation_weight)
        return batch
""",
    },
}  # fmt: skip
IDEAS = {  # of own-mode: name -> (least points, text)
    "sgt": (10, RIGHT["sgt"]["own samples first"]),
    "imitates every success": (8, MODE + IMITATE + """
class All(Mode):
    name = "all"
    consumes = SuccessRecord
    def training_samples(self, receiver, prompts, rng):
        batch = Solo().training_samples(receiver, prompts, rng)
        for experience in prompts:
            for success in experience.usable:
                batch.samples += imitate(experience.group, success, 1.0)
        return batch
"""),
    "a baseline with the peer in it": (6, MODE + """
class Shared(Mode):
    name = "shared"
    consumes = RewardStats
    def training_samples(self, receiver, prompts, rng):
        batch = TrainingBatch()
        for experience in prompts:
            group, stats = experience.group, experience.records
            mean = (sum(group.rewards) + sum(s.count * s.mean for s in stats)) / (
                len(group.rewards) + sum(s.count for s in stats))
            batch.samples += samples_with([r - mean for r in group.rewards], group)
        return batch
"""),
    "right rollouts, by chance of one's own": (6, MODE + IMITATE + """
class Likely(Mode):
    name = "likely"
    consumes = RolloutRecord
    def training_samples(self, receiver, prompts, rng):
        batch = Solo().training_samples(receiver, prompts, rng)
        for experience in prompts:
            group = experience.group
            right = [r for r in experience.usable if r.record.reward == 1.0]
            if right and group.outcome != "all_pass":
                ids = [r.token_ids for r in right]
                chances = receiver.logprobs_of([group.prompt_ids] * len(ids), ids)
                best = max(range(len(ids)), key=lambda n: sum(chances[n]))
                batch.samples += imitate(group, right[best], 0.3)
        return batch
"""),
    "pools the groups": (6, MODE + """
class Pooled(Mode):
    name = "pooled"
    consumes = RolloutRecord
    def training_samples(self, receiver, prompts, rng):
        batch = TrainingBatch()
        for experience in prompts:
            group = experience.group
            foreign = [replace(peer_sample(group, r), behavior_logprobs=source_logprobs(r.record))
                       for r in experience.usable]
            batch.samples += pool_with_advantages(receiver, group, foreign)
        return batch
"""),
}  # fmt: skip
