"""SEE, the Shared Experience Exchange (arXiv 2605.07244): typed records between policies.

Three record types, one a sharing level. A mode names the one type it consumes; `collect` hands
out that type and nothing else, so what may cross is visible in one line of a mode.

    data     RolloutRecord   text, token lengths, log-probs, reward
    value    RewardStats     a group's reward statistics, no text
    outcome  SuccessRecord   a verified success: text, no log-probs

Every record that is published or refused is counted, in numbers and in bytes: the price of a mode.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, TextIO, TypeVar, get_args, get_origin, get_type_hints

from mrl.alignment import ByteCodec, LossyText, split_text
from mrl.errors import MrlError
from mrl.rewards import Verdict
from mrl.samples import Group, Rollout

MAX_TEXT_BYTES = 1_000_000  # a completion longer than this is a mistake or an attack
MAX_PER_PROMPT = 256  # live records of one source about one prompt; more are a flood
MAX_LIVE_BYTES = 256 * 2**20  # of one source's live records, all prompts together
MAX_LOG_BYTES = 2**32  # of exchange.jsonl; what comes later is exchanged, but not logged


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
        return json.dumps({"kind": self.kind, **asdict(self)}, ensure_ascii=False)

    @staticmethod
    def from_json(line: str) -> "Record":
        """A line of `exchange.jsonl` as a record; ValueError if it is none, or not of its shape."""
        values = json.loads(line)
        if not isinstance(values, dict) or values.get("kind") not in RECORD_TYPES:
            raise ValueError("no record of a known kind")
        kind = RECORD_TYPES[values.pop("kind")]
        for name, hint in get_type_hints(kind).items():
            if get_origin(hint) is ClassVar:
                continue
            if get_origin(hint) is tuple and isinstance(values.get(name), list):
                values[name] = tuple(values[name])
            if name not in values or not _fits(values[name], hint):
                raise ValueError(f"`{name}` is missing or of another type")
        try:
            return kind(**values)
        except TypeError as error:
            raise ValueError(str(error)) from None


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


RECORD_TYPES = {kind.kind: kind for kind in (RolloutRecord, RewardStats, SuccessRecord)}
R = TypeVar("R", bound=Record)


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


def unpack(packed: Iterable[str | dict]) -> list[Record | LossyText]:
    """The reverse of `pack`; what is no record counts as refused, whoever sent it."""
    records: list[Record | LossyText] = []
    for entry in packed:
        try:
            lossy = isinstance(entry, dict)
            records.append(LossyText(str(entry["refused"])) if lossy else Record.from_json(entry))
        except (ValueError, TypeError, KeyError):
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


def _text_record(kind: type[R], about: dict, group: Group, rollout: Rollout, codec: ByteCodec) -> R:
    content = rollout.content_ids
    text = codec.decode(content)
    told = {
        **about,
        "text": text,
        "finished": rollout.finished,
        "token_lengths": tuple(len(piece) for piece in codec.pieces(content)),
        "canonical": codec.encode(text) == content,
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


def _traced(record: RolloutRecord) -> bool:
    """One log-prob a token, the end token's iff there is one, and none above 0."""
    logprobs = (*record.logprobs, record.end_logprob or 0.0)
    complete = len(record.logprobs) == len(record.token_lengths)
    return complete and (record.end_logprob is not None) == record.finished and max(logprobs) <= 0


def _text_refusal(record: RolloutRecord | SuccessRecord) -> str | None:
    if len(record.text) > MAX_TEXT_BYTES:
        return "too_long"
    try:
        split_text(record.text, record.token_lengths)
    except (LossyText, UnicodeEncodeError):
        return "not_round_trippable"
    return None


class Exchange:
    """Takes records from every policy, and gives each receiver its peers' records of one type."""

    def __init__(self, log: Path | None = None, max_staleness: int = 1) -> None:
        self.max_staleness = max_staleness  # in optimizer updates of the source
        self.versions: dict[str, int] = {}
        self.published: Counter[tuple[str, str]] = Counter()  # (kind, source) -> records
        self.published_bytes: Counter[tuple[str, str]] = Counter()
        self.delivered: Counter[tuple[str, str]] = Counter()  # (source, receiver) -> records
        self.delivered_bytes: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()  # (source, reason) -> records
        self._traffic: dict[str, Counter[str]] = {}  # policy -> what it sent and got, see `traffic`
        self._window: dict[Record, int] = {}  # record -> bytes, in order of arrival
        self._live_bytes: Counter[str] = Counter()  # of the window, by source
        self._live_records: Counter[tuple[str, str]] = Counter()  # by source and prompt
        # of a finished run, prompt id -> source -> its newest records: never stale
        self._stored: dict[str, dict[str, list[Record]]] = {}
        self._log: TextIO | None = log.open("a", encoding="utf-8") if log else None
        self._log_bytes = log.stat().st_size if log else 0

    def publish(self, record: Record | LossyText, source: str) -> bool:
        """Take a record in, or refuse it and count why. Returns whether it was taken."""
        reason = self._refusal(record, source)
        traffic = self._traffic_of(source)
        if reason:
            self.refused[source, reason] += 1
            traffic[f"refused/{reason}"] += 1
            return False
        line = record.to_json()
        size = self._keep(record, line)
        self.published[record.kind, source] += 1
        self.published_bytes[record.kind, source] += size
        traffic["published_records"] += 1
        traffic["published_bytes"] += size
        if self._log:
            self._log_bytes += size + 1
            if self._log_bytes <= MAX_LOG_BYTES:
                self._log.write(line + "\n")
            else:
                traffic["not_logged"] += 1
        return True

    def _keep(self, record: Record, line: str) -> int:
        """Put a record into the window; returns its size."""
        size = len(line.encode("utf-8"))
        self._window[record] = size
        self._live_bytes[record.source] += size
        self._live_records[record.source, record.prompt_id] += 1
        return size

    def _refusal(self, record: Record | LossyText, source: str) -> str | None:
        if isinstance(record, LossyText):
            return record.reason
        if record.source != source:
            return "foreign_source"
        if record in self._window:
            return "duplicate"
        if record.version < self.versions.get(source, 0) - self.max_staleness:
            return "stale"
        if (
            self._live_records[source, record.prompt_id] >= MAX_PER_PROMPT
            or self._live_bytes[source] >= MAX_LIVE_BYTES
        ):
            return "flood"
        numbers: Sequence[float] = ()
        if isinstance(record, RewardStats):
            numbers = (record.mean, record.std)
            verified = record.count > 0 and 0 <= record.mean <= 1
        elif isinstance(record, RolloutRecord):
            numbers = (*record.logprobs, record.end_logprob or 0.0, record.reward)
            verified = record.verdict in set(Verdict)
            verified &= record.reward == float(record.verdict == Verdict.CORRECT)
        else:
            verified = record.verdict == Verdict.CORRECT
        if not verified:
            return "unverified"
        if not all(math.isfinite(number) for number in numbers):
            return "not_finite"
        if isinstance(record, RewardStats):
            return None
        if isinstance(record, RolloutRecord) and not _traced(record):
            return "wrong_trace"
        return _text_refusal(record)

    def advance(self, source: str, version: int) -> None:
        """Say that a policy has made updates, and drop what is too old by now."""
        self.versions[source] = version
        oldest = {name: latest - self.max_staleness for name, latest in self.versions.items()}
        for record in list(self._window):
            if record.version < oldest.get(record.source, 0):
                self._live_bytes[record.source] -= self._window.pop(record)
                self._live_records[record.source, record.prompt_id] -= 1
        self._live_records = +self._live_records  # prompts without any are forgotten

    def store(self, records: Iterable[Record]) -> None:
        """Take in the records of a finished run, in place of a live peer (stored trajectories)."""
        for record in records:
            reason = self._refusal(record, record.source)
            if reason:
                self.refused[record.source, reason] += 1
                continue
            kept = self._stored.setdefault(record.prompt_id, {}).setdefault(record.source, [])
            if kept and kept[0].version != record.version:
                kept.clear()  # a log goes forward in time: the newest group counts
            kept.append(record)

    def collect(
        self,
        kind: type[R] | None,
        receiver: str,
        prompt_ids: Iterable[str],
        believes: Callable[[Record], bool] = lambda record: True,
    ) -> dict[str, list[R]]:
        """Peers' records of one type about the given prompts, by prompt id; never the own ones.

        believes: the receiver's own check of a record; what it denies is counted as "false_claim".
        """
        collected: dict[str, list[R]] = {prompt_id: [] for prompt_id in prompt_ids}
        traffic = self._traffic_of(receiver)
        by_source = [self._stored.get(prompt_id, {}).values() for prompt_id in collected]
        stored = [record for groups in by_source for kept in groups for record in kept]
        for record in (*self._window, *stored):
            if kind is None or type(record) is not kind or record.source == receiver:
                continue
            if record.prompt_id not in collected:
                continue
            size = self._window.get(record) or len(record.to_json().encode("utf-8"))
            self.delivered[record.source, receiver] += 1
            self.delivered_bytes[record.source, receiver] += size
            traffic["received_records"] += 1
            traffic["received_bytes"] += size
            traffic[f"{record.kind}/{record.source}/records"] += 1
            traffic[f"{record.kind}/{record.source}/bytes"] += size
            if believes(record):
                collected[record.prompt_id].append(record)
            else:
                self.refused[record.source, "false_claim"] += 1
                traffic["not_believed"] += 1
        return collected

    def _traffic_of(self, policy: str) -> Counter[str]:
        return self._traffic.setdefault(policy, Counter())

    def take_traffic(self, policy: str) -> dict[str, int]:
        """What one policy published and received since the last call: metrics of a step."""
        counted = self._traffic.pop(policy, Counter())
        always = ("published_records", "published_bytes", "received_records", "received_bytes")
        names = [*always, *sorted(counted.keys() - set(always))]
        return {f"exchange/{name}": counted[name] for name in names}

    def window(self) -> list[str]:
        """The live records as JSON lines, for a checkpoint."""
        return [record.to_json() for record in self._window]

    def restore_window(self, lines: Iterable[str]) -> None:
        """Put the records of a checkpoint back, without counting or logging them again."""
        for line in lines:
            self._keep(Record.from_json(line), line)

    def flush(self) -> None:
        """Hand the log's lines to the operating system."""
        if self._log:
            self._log.flush()

    def close(self) -> None:
        """Close the log."""
        if self._log:
            self._log.close()
            self._log = None
