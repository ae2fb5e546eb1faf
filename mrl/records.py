"""The three types of record that may cross between policies (arXiv 2605.07244), by sharing level.

    data     RolloutRecord   text, token lengths, log-probs, reward
    value    RewardStats     a group's reward statistics, no text
    outcome  SuccessRecord   a verified success: text, no log-probs

A record is written by its source and read by everybody: byte lengths instead of token ids, and a
refusal (`LossyText`) in place of a text that is not exact. Nobody has to trust it: `flaws` is all
that is checked before a record may reach a mode.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar, TypeVar, get_args, get_origin, get_type_hints

from mrl.alignment import ByteCodec, LossyText
from mrl.errors import MrlError
from mrl.samples import Group, Rollout, Verdict

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

    def to_json(self) -> str:
        """One line of `exchange.jsonl`; its length in bytes is the record's price."""
        return json.dumps({"kind": self.kind, **vars(self)}, ensure_ascii=False)

    @staticmethod
    def from_json(line: str) -> "Record":
        """A line of `exchange.jsonl` as a record; ValueError if it is none, or not of its shape."""
        try:
            values = json.loads(line)
            kind = RECORD_TYPES[values.pop("kind")]
            lists = {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
            record = kind(**{**values, **lists})
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
    token_lengths: tuple[int, ...]  # bytes of each source token
    canonical: bool  # the source's tokenizer would have cut the text in just this way
    answer: str
    verdict: str


REASON = re.compile("[a-z0-9_]{1,30}")  # it becomes the name of a metric
RECORD_TYPES = {kind.kind: kind for kind in (RolloutRecord, RewardStats, SuccessRecord)}
R = TypeVar("R", bound=Record)


def flaws(record: Record, largest_group: int = MAX_GROUP) -> Iterator[str]:
    """Why a record must not reach a mode, in words to count by, the gravest first; none if sound.

    A number that is not finite is in no range; a later check may rely on those before it.
    """
    if not _well_typed(record):
        yield "malformed"
    of_group = {"count": (1, largest_group), "index": (0, largest_group - 1)}
    if isinstance(record, RewardStats):
        of_group["index"] = (0, 0)  # one a group
    if not all(
        low <= number <= high
        for name, (low, high) in (RANGES | of_group).items()
        for number in _numbers(getattr(record, name, None))
    ):
        yield "out_of_range"
    try:
        if len(record.to_json().encode("utf-8")) > MAX_RECORD_BYTES:
            yield "too_long"
    except UnicodeEncodeError:  # a lone objective, in whichever field
        yield "not_utf8"
    if isinstance(record, RewardStats):
        # rewards from 0 to 1 spread widest if all of them are 0 or 1
        if record.std**2 > record.mean * (1 - record.mean) + 1e-9:
            yield "out_of_range"
        return
    right = record.verdict == Verdict.CORRECT
    if record.verdict not in set(Verdict) or getattr(record, "reward", 1.0) != float(right):
        yield "unverified"
    if isinstance(record, RolloutRecord) and (
        len(record.logprobs) != len(record.token_lengths)
        or (record.end_logprob is not None) != record.finished
    ):
        yield "wrong_trace"
    if sum(record.token_lengths) != len(record.text.encode("utf-8")):
        yield "not_round_trippable"


def _numbers(value: object) -> tuple:
    return value if isinstance(value, tuple) else () if value is None else (value,)


@cache
def _hints(kind: type[Record]) -> dict[str, object]:
    hints = get_type_hints(kind).items()
    return {name: hint for name, hint in hints if get_origin(hint) is not ClassVar}


def _well_typed(record: Record) -> bool:
    return all(_fits(getattr(record, name), hint) for name, hint in _hints(type(record)).items())


def _fits(value: object, hint: object) -> bool:
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(v, get_args(hint)[0]) for v in value)
    if hint == float | None:
        return value is None or _fits(value, float)
    return type(value) in ((int, float) if hint is float else (hint,))


def read_log(path: Path) -> tuple[list[Record], Counter[str]]:
    """The records of an `exchange.jsonl`, and how many lines were left out for which reason.

    A torn last line (the run was killed while it wrote) is "torn"; any other bad one "malformed".
    Raises MrlError if the file cannot be read or holds no record.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise MrlError(f"{path}: cannot be read ({error.strerror}); give a run's log.") from None
    records: list[Record] = []
    left_out: Counter[str] = Counter()
    for number, line in enumerate(lines, start=1):
        try:
            if line:
                records.append(Record.from_json(line))
        except ValueError:
            left_out["torn" if number == len(lines) else "malformed"] += 1
    if not records:
        raise MrlError(f"{path}: holds no record; give the exchange.jsonl of a run that shared.")
    return records, left_out


def pack(records: Iterable[Record | LossyText]) -> list[str | dict]:
    """Records, and the reasons of those that there are none of, as JSON values."""
    return [r.to_json() if isinstance(r, Record) else {"refused": r.reason} for r in records]


def unpack(packed: object) -> list[Record | LossyText]:
    """The reverse of `pack`; what is no record counts as refused, whoever sent it."""
    records: list[Record | LossyText] = []
    for entry in packed if isinstance(packed, list) else [None]:
        reason = entry.get("refused") if isinstance(entry, dict) else None
        try:
            if isinstance(reason, str) and REASON.fullmatch(reason):
                records.append(LossyText(reason))
            else:
                records.append(Record.from_json(entry))
        except ValueError:
            records.append(LossyText("malformed"))
    return records


def make_records(
    kind: type[R], source: str, version: int, groups: Sequence[Group], codec: ByteCodec
) -> Iterable[R | LossyText]:
    """The records of one type that a policy has to tell about its groups.

    A completion whose text does not survive as bytes is yielded as the `LossyText` that says why.
    """
    for group in groups:
        about = {"prompt_id": group.problem.id, "source": source, "version": version}
        if kind is RewardStats:
            rewards = group.rewards
            mean = sum(rewards) / len(rewards)
            variance = sum((reward - mean) ** 2 for reward in rewards) / len(rewards)
            yield RewardStats(**about, count=len(rewards), mean=mean, std=math.sqrt(variance))
            continue
        for index, rollout in enumerate(group.rollouts):
            if kind is SuccessRecord and rollout.verdict is not Verdict.CORRECT:
                continue
            try:
                yield _text_record(kind, {**about, "index": index}, group, rollout, codec)
            except LossyText as loss:
                yield loss


def _is_canonical(codec: ByteCodec, text: str, token_ids: Sequence[int]) -> bool:
    """Whether the tokenizer itself cuts `text` so; a text that it cannot write it never would."""
    try:
        return codec.encode(text) == token_ids
    except LossyText:  # a normaliser changes it, or it spells a special token: still exact as ids
        return False


def _text_record(kind: type[R], about: dict, group: Group, rollout: Rollout, codec: ByteCodec) -> R:
    content = rollout.content_ids
    text = codec.decode(content)
    told = {
        **about,
        "text": text,
        "finished": rollout.finished,
        "token_lengths": tuple(len(piece) for piece in codec.token_bytes(content)),
        "canonical": _is_canonical(codec, text, content),
        "verdict": str(rollout.verdict),
    }
    if kind is SuccessRecord:
        return SuccessRecord(**told, answer=group.problem.answer)
    return RolloutRecord(
        **told,
        logprobs=tuple(rollout.logprobs[: len(content)]),
        end_logprob=rollout.logprobs[len(content)] if rollout.finished else None,
        reward=rollout.reward,
    )
