"""The three types of record that policies may share (arXiv 2605.07244), by sharing level.

    data     RolloutRecord   text, token lengths, log-probs, reward
    value    RewardStats     the reward statistics of a group, no text
    outcome  SuccessRecord   a solution: its text, no log-probs

A record means the same to every receiver, because it holds no token ids: it describes the source's
tokens by their lengths in bytes. A completion whose tokens have no exact text is not shared
at all; `make_records` yields the reason instead.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, pstdev
from typing import ClassVar, NamedTuple, Self, TypeVar

from mrl.alignment import ByteCodec, LossyText
from mrl.reward import Verdict
from mrl.samples import Group, Rollout


@dataclass(frozen=True, kw_only=True)
class Record:
    """What every record says: its prompt, the policy it comes from, and that policy's version."""

    kind: ClassVar[str] = "record"  # its name in exchange.jsonl
    prompt_id: str  # `Problem.id`; token ids would mean nothing to another tokenizer
    source: str
    version: int
    index: int = 0  # number of the completion within its group

    @cached_property
    def line(self) -> bytes:
        """The record as a line of exchange.jsonl. Its length is the record's communication cost."""
        # `vars` holds only the fields here: cached_property adds `line` after this returns
        return json.dumps({"kind": self.kind, **vars(self)}, ensure_ascii=False).encode("utf-8")

    @classmethod
    def of_group(
        cls, group: Group, source: str, version: int, codec: ByteCodec
    ) -> Iterator[Self | LossyText]:
        """Yield the records of this type about a group (see `make_records`)."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class RolloutRecord(Record):
    """Data level: one completion with the log-probs of the policy that sampled it.

    If you cut `text` at the token lengths, you get the source's tokens without its tokenizer. EOS
    has no text, so the lengths and log-probs leave it out. Its log-prob is `end_logprob`, which is
    None if the completion is not finished.
    """

    kind: ClassVar[str] = "rollout"
    text: str
    finished: bool
    token_lengths: tuple[int, ...]  # bytes of each source token
    canonical: bool  # True if the source's tokenizer would split the text in the same way
    logprobs: tuple[float, ...]  # nats, one per source token
    end_logprob: float | None
    verdict: str
    reward: float

    @classmethod
    def of_group(
        cls, group: Group, source: str, version: int, codec: ByteCodec
    ) -> Iterator[Self | LossyText]:
        """Yield one record for each completion."""
        for index, rollout in enumerate(group.rollouts):
            exact = _exact_text(rollout, codec)
            if isinstance(exact, LossyText):
                yield exact
                continue
            yield cls(
                prompt_id=group.problem.id,
                source=source,
                version=version,
                index=index,
                text=exact.text,
                finished=rollout.finished,
                token_lengths=exact.token_lengths,
                canonical=exact.canonical,
                logprobs=tuple(rollout.logprobs[: len(exact.token_lengths)]),
                end_logprob=rollout.logprobs[-1] if rollout.finished else None,
                verdict=str(rollout.verdict),
                reward=rollout.reward,
            )


@dataclass(frozen=True, kw_only=True)
class RewardStats(Record):
    """Value level: the rewards of a whole group. `std` is the population standard deviation."""

    kind: ClassVar[str] = "rewards"
    count: int
    mean: float
    std: float

    @classmethod
    def of_group(
        cls, group: Group, source: str, version: int, codec: ByteCodec
    ) -> Iterator[Self | LossyText]:
        """Yield one record for the whole group."""
        rewards = group.rewards
        yield cls(
            prompt_id=group.problem.id,
            source=source,
            version=version,
            count=len(rewards),
            mean=fmean(rewards),
            std=pstdev(rewards),
        )


@dataclass(frozen=True, kw_only=True)
class SuccessRecord(Record):
    """Outcome level: a completion that the verifier accepted, with the answer that it matched.

    It has no log-probs. The receiver uses the token lengths to measure what alignment loses.
    """

    kind: ClassVar[str] = "success"
    text: str
    finished: bool
    token_lengths: tuple[int, ...]
    canonical: bool
    answer: str
    verdict: str

    @classmethod
    def of_group(
        cls, group: Group, source: str, version: int, codec: ByteCodec
    ) -> Iterator[Self | LossyText]:
        """Yield one record for each correct completion."""
        for index, rollout in enumerate(group.rollouts):
            if rollout.verdict is not Verdict.CORRECT:
                continue
            exact = _exact_text(rollout, codec)
            if isinstance(exact, LossyText):
                yield exact
                continue
            yield cls(
                prompt_id=group.problem.id,
                source=source,
                version=version,
                index=index,
                text=exact.text,
                finished=rollout.finished,
                token_lengths=exact.token_lengths,
                canonical=exact.canonical,
                answer=group.problem.answer,
                verdict=str(rollout.verdict),
            )


RECORD_TYPES = (RolloutRecord, RewardStats, SuccessRecord)
CompletionRecord = RolloutRecord | SuccessRecord  # the records that hold a text
R = TypeVar("R", bound=Record)
LEAST_LOGPROB = -1e4  # no sampler draws such an unlikely token; this keeps sums finite


def validation_error(record: Record) -> str | None:
    """Why a record must not reach a mode, as the name of a counter; None if it is valid.

    Such an error is a bug or a lie of the source. Whether the claimed verdict is *true* is another
    question, which the receiver asks its own verifier (`Team.confirms`).
    """
    if isinstance(record, RewardStats):
        in_range = 0 <= record.mean <= 1 and 0 <= record.std <= 1  # False for nan
        return None if in_range and record.count >= 1 else "bad_number"
    if not isinstance(record, CompletionRecord):
        return "unknown_type"

    # 1. A success must claim to be correct, and a rollout must have the reward of its verdict.
    correct = float(record.verdict == Verdict.CORRECT)
    claimed_reward = record.reward if isinstance(record, RolloutRecord) else 1.0
    if claimed_reward != correct:
        return "unverified"

    # 2. The token lengths must add up to the text.
    try:
        text_bytes = len(record.text.encode("utf-8"))
    except UnicodeEncodeError:  # a lone surrogate is not text
        return "wrong_trace"
    if sum(record.token_lengths) != text_bytes or min(record.token_lengths, default=0) < 0:
        return "wrong_trace"
    if isinstance(record, SuccessRecord):
        return None

    # 3. Each token must have a log-prob in range, and so must EOS if the completion finished.
    has_end_logprob = record.end_logprob is not None
    if len(record.logprobs) != len(record.token_lengths) or has_end_logprob != record.finished:
        return "wrong_trace"
    for logprob in (*record.logprobs, record.end_logprob or 0.0):
        if not LEAST_LOGPROB <= logprob <= 0:  # True for nan as well
            return "bad_number"
    return None


def make_records(
    record_type: type[R], source: str, version: int, groups: Sequence[Group], codec: ByteCodec
) -> Iterator[R | LossyText]:
    """Yield the records of one type that a policy publishes about its groups.

    For a completion whose bytes are not exactly a text, yield the `LossyText` that says why.
    """
    for group in groups:
        yield from record_type.of_group(group, source, version, codec)


class _ExactText(NamedTuple):
    """What a record says about the text of a completion."""

    text: str
    token_lengths: tuple[int, ...]
    canonical: bool


def _exact_text(rollout: Rollout, codec: ByteCodec) -> _ExactText | LossyText:
    """The text of a completion, or why its bytes are not exactly a text."""
    content = rollout.content_ids
    try:
        text = codec.decode(content)
    except LossyText as refusal:
        return refusal
    try:
        canonical = codec.encode(text) == content
    except LossyText:  # a normalizer changes it, or it spells out a special token; bytes stay exact
        canonical = False
    return _ExactText(text, tuple(map(len, codec.token_bytes(content))), canonical)
