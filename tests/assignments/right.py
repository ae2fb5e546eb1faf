"""Right solutions that are written otherwise: for each assignment some that must get full points.

For `own-mode`: ideas, and the least points of each. For `align` also a wrong one that is close.
"""

MODE = """import random
from dataclasses import dataclass, replace
from mrl.modes import Experience, Mode, Received, Receiver, TrainingBatch
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
        "a generator of lists with numpy's integers": """
import numpy as np
from itertools import accumulate
def align(source, receiver):
    if b"".join(source) != b"".join(receiver):
        raise ValueError
    ends = [dict(zip(accumulate(map(len, side)), range(1, len(side) + 1)))
            for side in (source, receiver)]
    cuts = [(0, 0)] + [(ends[0][end], ends[1][end]) for end in ends[0] if end in ends[1]]
    for (i, k), (j, n) in zip(cuts, cuts[1:]):
        yield [[np.int64(i), np.int64(j)], [np.int64(k), np.int64(n)]]
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
    },
}  # fmt: skip
IDEAS = {  # of own-mode: name -> (least points, text)
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
}  # fmt: skip
