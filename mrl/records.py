"""The three types of record that may cross between policies (arXiv 2605.07244), by sharing level.

    data     RolloutRecord   text, token lengths, log-probs, reward
    value    RewardStats     the reward statistics of a group, no text
    outcome  SuccessRecord   a verified success: text, no log-probs

A record means the same to every receiver, because it holds no token ids: the source's tokens cross
as byte lengths. A text that is not exact does not cross at all; `make_records` yields the reason.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import fmean, pstdev
from typing import ClassVar, TypeVar

from mrl.alignment import ByteCodec, LossyText
from mrl.samples import Group, Problem, Rollout, Verdict


@dataclass(frozen=True, kw_only=True)
class Record:
    """What every record says: about which prompt, from which policy, after how many updates."""

    kind: ClassVar[str] = "record"  # its name in exchange.jsonl
    prompt_id: str  # `Problem.id`: no token ids, which mean nothing to another tokenizer
    source: str
    version: int
    index: int = 0  # which completion of the group

    @cached_property
    def line(self) -> bytes:
        """The record's line in exchange.jsonl; its length is what the record costs."""
        # `vars` holds the fields alone now: cached_property adds `line` to it after this returns
        return json.dumps({"kind": self.kind, **vars(self)}, ensure_ascii=False).encode("utf-8")


@dataclass(frozen=True, kw_only=True)
class RolloutRecord(Record):
    """Data level: one completion with the log-probs of the policy that sampled it.

    Cut `text` at the token lengths and the source's tokens are back, without its tokenizer. The end
    token is no text; its log-prob is `end_logprob` if the completion finished, else None.
    """

    kind: ClassVar[str] = "rollout"
    text: str
    finished: bool
    token_lengths: tuple[int, ...]  # bytes of each source token
    canonical: bool  # the source's tokenizer would have cut the text in just this way
    logprobs: tuple[float, ...]  # nats, one for each source token
    end_logprob: float | None
    verdict: str
    reward: float


@dataclass(frozen=True, kw_only=True)
class RewardStats(Record):
    """Value level: how a whole group did. `std` is the population standard deviation."""

    kind: ClassVar[str] = "rewards"
    count: int
    mean: float
    std: float


@dataclass(frozen=True, kw_only=True)
class SuccessRecord(Record):
    """Outcome level: a completion that the verifier accepted, and the answer that it matched.

    There are no log-probs. The token lengths let the receiver measure what alignment costs.
    """

    kind: ClassVar[str] = "success"
    text: str
    finished: bool
    token_lengths: tuple[int, ...]
    canonical: bool
    answer: str
    verdict: str


RECORD_TYPES = (RolloutRecord, RewardStats, SuccessRecord)
R = TypeVar("R", bound=Record)
LEAST_LOGPROB = -1e4  # far below what a sampler draws; sums over a text stay finite


def flaw(record: Record) -> str | None:
    """Why a record must not reach a mode, as a word to count by; None if it is sound.

    A flaw here is a bug or a lie of the source. Whether the claimed verdict is *true* is another
    question, which the receiver asks its own verifier (`Team.confirms`).
    """
    if isinstance(record, RewardStats):
        in_range = 0 <= record.mean <= 1 and 0 <= record.std <= 1  # nan is in no range
        return None if in_range and record.count >= 1 else "bad_number"

    # 1. verified: a success says that it is right, a rollout has the reward of its verdict
    right = float(record.verdict == Verdict.CORRECT)
    claimed_reward = record.reward if isinstance(record, RolloutRecord) else 1.0
    if claimed_reward != right:
        return "unverified"

    # 2. the tokens make up the text
    try:
        text_bytes = len(record.text.encode("utf-8"))
    except UnicodeEncodeError:  # a lone surrogate is no text
        return "wrong_trace"
    if sum(record.token_lengths) != text_bytes or min(record.token_lengths, default=0) < 0:
        return "wrong_trace"
    if isinstance(record, SuccessRecord):
        return None

    # 3. each token has its log-prob, the end token, too; and it is one
    has_end_logprob = record.end_logprob is not None
    if len(record.logprobs) != len(record.token_lengths) or has_end_logprob != record.finished:
        return "wrong_trace"
    for logprob in (*record.logprobs, record.end_logprob or 0.0):
        if not LEAST_LOGPROB <= logprob <= 0:  # nor is nan in this range
            return "bad_number"
    return None


def make_records(
    record_type: type[R], source: str, version: int, groups: Sequence[Group], codec: ByteCodec
) -> Iterator[R | LossyText]:
    """The records of one type that a policy publishes about its groups.

    A completion whose text does not survive as bytes is yielded as the `LossyText` that says why.
    """
    for group in groups:
        origin = {"prompt_id": group.problem.id, "source": source, "version": version}

        if record_type is RewardStats:
            rewards = group.rewards
            mean, std = fmean(rewards), pstdev(rewards)
            yield RewardStats(**origin, count=len(rewards), mean=mean, std=std)
            continue

        for index, rollout in enumerate(group.rollouts):
            if record_type is SuccessRecord and rollout.verdict is not Verdict.CORRECT:
                continue
            try:
                facts = origin | {"index": index} | _facts(group.problem, rollout, codec)
            except LossyText as refusal:
                yield refusal
                continue
            # the type decides which of the facts cross
            yield record_type(**{field.name: facts[field.name] for field in fields(record_type)})


def _facts(problem: Problem, rollout: Rollout, codec: ByteCodec) -> dict[str, object]:
    """All that a record may say of a completion. Raises LossyText if its text is not exact."""
    content = rollout.content_ids
    text = codec.decode(content)
    try:
        canonical = codec.encode(text) == content
    except LossyText:  # a normaliser changes it, or it spells a special token: still exact as ids
        canonical = False

    return {
        "text": text,
        "finished": rollout.finished,
        "token_lengths": tuple(map(len, codec.token_bytes(content))),
        "canonical": canonical,
        "logprobs": tuple(rollout.logprobs[: len(content)]),
        "end_logprob": rollout.logprobs[-1] if rollout.finished else None,
        "verdict": str(rollout.verdict),
        "reward": rollout.reward,
        "answer": problem.answer,
    }
