"""The three types of record that may cross between policies (arXiv 2605.07244), by sharing level.

    data     RolloutRecord   text, token lengths, log-probs, reward
    value    RewardStats     a group's reward statistics, no text
    outcome  SuccessRecord   a verified success: text, no log-probs

A record is written by its source and read by everybody: byte lengths instead of token ids, and a
refusal (`LossyText`) in place of a text that is not exact. Nobody has to trust it: `flaw` checks a
record by itself, the exchange whose it is and how new, the receiver a success again.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import fmean, pstdev
from typing import ClassVar, TypeVar, get_args, get_origin

from mrl.alignment import ByteCodec, LossyText
from mrl.samples import Group, Problem, Rollout, Verdict

MAX_RECORD_BYTES = 2**22  # of a record's JSON: some 100,000 tokens with their log-probs
MAX_GROUP = 1024  # completions of a group, where no config says how large groups are
# A float64 holds nothing between 0 and e^-745, so no sampler draws a token of a log-prob below that
# at temperature 1. The rest is room for other temperatures, and no sum over a text overflows.
LEAST_LOGPROB = -1e4
RANGES: dict[str, tuple[float, float]] = {  # what a record's numbers may be, both ends included
    "version": (0, 2**53),
    "token_lengths": (0, MAX_RECORD_BYTES),
    "logprobs": (LEAST_LOGPROB, 0),
    "end_logprob": (LEAST_LOGPROB, 0),
    "reward": (0, 1),
    "mean": (0, 1),
    "std": (0, 1),
}


@dataclass(frozen=True, kw_only=True)
class Record:
    """What every record says: about which prompt, by whom, at which optimizer-update count."""

    kind: ClassVar[str] = "record"
    prompt_id: str
    source: str
    version: int
    index: int = 0  # which completion of the group

    @cached_property
    def line(self) -> bytes:
        """Its line of `exchange.jsonl`; the length is the record's price.

        UnicodeEncodeError for a lone surrogate, in whichever field.
        """
        # `vars` are the fields alone: this property is kept among them only from now on
        return json.dumps({"kind": self.kind, **vars(self)}, ensure_ascii=False).encode("utf-8")

    @staticmethod
    def from_json(line: str | bytes) -> "Record":
        """A record from its line; ValueError if it is none, or not of its shape."""
        try:
            values = json.loads(line)
            kind = RECORD_TYPES[values.pop("kind")]
            record = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"no record of a known kind ({error})") from None
        if not _well_typed(record):
            raise ValueError("a field is of another type")
        return record


@dataclass(frozen=True, kw_only=True)
class RolloutRecord(Record):
    """Data level: one completion with the log-probs of the policy that sampled it.

    Source tokens cross as byte lengths: cut `text` there and they are back, without the source's
    tokenizer. The end token is no text; its log-prob is `end_logprob` if the completion finished.
    """

    kind: ClassVar[str] = "rollout"
    text: str
    finished: bool
    token_lengths: tuple[int, ...]  # bytes of each source token
    canonical: bool  # the source's tokenizer would have cut the text in just this way
    logprobs: tuple[float, ...]  # nats, one a source token
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
    """Outcome level: a completion that the verifier accepted, and the answer it matched.

    The token lengths let the receiver measure what alignment costs; there are no log-probs.
    """

    kind: ClassVar[str] = "success"
    text: str
    finished: bool
    token_lengths: tuple[int, ...]
    canonical: bool
    answer: str
    verdict: str


RECORD_TYPES = {kind.kind: kind for kind in (RolloutRecord, RewardStats, SuccessRecord)}
R = TypeVar("R", bound=Record)


def flaw(record: Record, largest_group: int = MAX_GROUP) -> str | None:
    """Why a record must not reach a mode, as a word to count by; None if it is sound."""
    if not _well_typed(record):
        return "malformed"
    last = 0 if isinstance(record, RewardStats) else largest_group - 1  # statistics: one a group
    for name, (low, high) in (RANGES | {"count": (1, largest_group), "index": (0, last)}).items():
        value = getattr(record, name, None)  # None: no number, or of another type of record
        numbers = value if isinstance(value, tuple) else (value,)
        # a number that is not finite is in no range
        if not all(number is None or low <= number <= high for number in numbers):
            return "out_of_range"
    try:
        if len(record.line) > MAX_RECORD_BYTES:
            return "too_long"
    except UnicodeEncodeError:
        return "not_utf8"
    if isinstance(record, RewardStats):
        # rewards from 0 to 1 spread widest if all of them are 0 or 1
        too_wide = record.std**2 > record.mean * (1 - record.mean) + 1e-9
        return "out_of_range" if too_wide else None
    right = float(record.verdict == Verdict.CORRECT)  # a success has no reward, but claims 1
    if record.verdict not in set(Verdict) or getattr(record, "reward", 1.0) != right:
        return "unverified"
    if isinstance(record, RolloutRecord) and (
        len(record.logprobs) != len(record.token_lengths)
        or (record.end_logprob is not None) != record.finished
    ):
        return "wrong_trace"
    if sum(record.token_lengths) != len(record.text.encode("utf-8")):
        return "not_round_trippable"
    return None


def _well_typed(record: Record) -> bool:
    for field in fields(record):
        value, allowed = getattr(record, field.name), get_args(field.type) or (field.type,)
        if float in allowed:
            allowed += (int,)  # JSON may write 1.0 as 1
        if get_origin(field.type) is not tuple:
            value = (value,)
        # `type`, as a bool is an instance of int; a list could be changed after the check
        if type(value) is not tuple or not set(map(type, value)) <= set(allowed):
            return False
    return True


def make_records(
    kind: type[R], source: str, version: int, groups: Sequence[Group], codec: ByteCodec
) -> Iterable[R | LossyText]:
    """The records of one type that a policy publishes about its groups.

    A completion whose text does not survive as bytes is yielded as the `LossyText` that says why.
    """
    for group in groups:
        about = {"prompt_id": group.problem.id, "source": source, "version": version}
        if kind is RewardStats:
            mean, std = fmean(group.rewards), pstdev(group.rewards)
            yield RewardStats(**about, count=len(group.rewards), mean=mean, std=std)
            continue
        for index, rollout in enumerate(group.rollouts):
            if kind is SuccessRecord and rollout.verdict is not Verdict.CORRECT:
                continue
            try:
                facts = {**about, "index": index, **_facts(group.problem, rollout, codec)}
                # the type decides what crosses
                yield kind(**{field.name: facts[field.name] for field in fields(kind)})
            except LossyText as refusal:
                yield refusal


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
