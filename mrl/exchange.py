"""SEE, the Shared Experience Exchange (arXiv 2605.07244): who gets which records of whom.

A mode names the one type of record (records.py) that it consumes; `collect` hands out that type and
nothing else, so what may cross is visible in one line of a mode. Every record that is published or
refused is counted, in numbers and in bytes: the price of a mode.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TextIO

from mrl.alignment import LossyText, split_text
from mrl.records import R, Record, RewardStats, RolloutRecord, SuccessRecord
from mrl.samples import Verdict

MAX_TEXT_BYTES = 1_000_000  # a completion longer than this is a mistake or an attack
MAX_PER_PROMPT = 256  # live records of one source about one prompt; more are a flood
MAX_LIVE_BYTES = 256 * 2**20  # of one source's live records, all prompts together
MAX_LOG_BYTES = 2**32  # of exchange.jsonl; what comes later is exchanged, but not logged


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
