"""SEE, the Shared Experience Exchange (arXiv 2605.07244): who gets which records of whom.

A mode names the one type of record (records.py) that it consumes; `collect` hands out that type and
nothing else, so what may cross is visible in one line of a mode. Every record that is published,
received or refused is counted, in numbers and in bytes: the price of a mode.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

from mrl.alignment import LossyText
from mrl.records import MAX_GROUP, R, Record, flaws

MAX_LIVE_BYTES = 256 * 2**20  # of one source's live records; how many one prompt has is in `flaws`
MAX_LOG_BYTES = 2**32  # of exchange.jsonl; what comes later is exchanged, but not logged

Group = dict[tuple[str, int], tuple[Record, int]]  # (kind, index) -> a record and its bytes


class _Book:
    """Of each prompt and source the newest version's records, and none that is older."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, Group]] = {}  # prompt id -> source -> its group
        self.bytes: Counter[str] = Counter()  # by source

    def add(self, record: Record, size: int) -> str | None:
        """Take a record in, in place of older ones, or say why not.

        A second group of the same version is "duplicate": the same weights wrote the first.
        """
        group = self._groups.setdefault(record.prompt_id, {}).setdefault(record.source, {})
        version = next((kept.version for kept, _ in group.values()), record.version)
        place = (record.kind, record.index)
        if record.version < version:
            return "stale"
        if record.version == version and place in group:
            return "duplicate"
        if record.version > version:
            self._empty(record.source, group)
        group[place] = record, size
        self.bytes[record.source] += size
        return None

    def about(self, prompt_id: str) -> dict[str, Group]:
        """The groups about one prompt, by source."""
        return self._groups.get(prompt_id, {})

    def records(self) -> list[Record]:
        """All of them."""
        groups = [group for by_source in self._groups.values() for group in by_source.values()]
        return [record for group in groups for record, _ in group.values()]

    def drop(self, source: str, oldest: int) -> None:
        """Forget a source's records of versions before `oldest`, and prompts without any."""
        for prompt_id, by_source in list(self._groups.items()):
            group = by_source.get(source, {})
            if next((record.version for record, _ in group.values()), oldest) < oldest:
                self._empty(source, by_source.pop(source))
            if not by_source:
                del self._groups[prompt_id]

    def _empty(self, source: str, group: Group) -> None:
        self.bytes[source] -= sum(size for _, size in group.values())
        group.clear()


class Exchange:
    """Takes records from every policy, and gives each receiver its peers' records of one type."""

    def __init__(
        self, log: Path | None = None, max_staleness: int = 1, largest_group: int = MAX_GROUP
    ) -> None:
        self.max_staleness = max_staleness  # in optimizer updates of the source
        self.largest_group = largest_group  # that any policy of the run samples
        self.versions: dict[str, int] = {}
        self.refused: Counter[tuple[str, str]] = Counter()  # (source, reason) -> records
        self._traffic: dict[str, Counter[str]] = {}  # policy -> what it sent and got, see `traffic`
        self._live = _Book()
        self._stored = _Book()  # of a finished run: never stale
        self._log: TextIO | None = log.open("a", encoding="utf-8") if log else None
        self._log_bytes = log.stat().st_size if log else 0

    def publish(self, record: Record | LossyText, source: str) -> bool:
        """Take a record in, or refuse it and count why. Returns whether it was taken."""
        traffic = self._traffic_of(source)
        if reason := self._admit(record, source):
            self.refused[source, reason] += 1
            traffic[f"refused/{reason}"] += 1
            return False
        line = record.to_json()
        size = _size(record)
        traffic["published_records"] += 1
        traffic["published_bytes"] += size
        if self._log:
            self._log_bytes += size + 1
            if self._log_bytes <= MAX_LOG_BYTES:
                self._log.write(line + "\n")
            else:
                traffic["not_logged"] += 1
        return True

    def _admit(self, record: Record | LossyText, source: str) -> str | None:
        """Put a record into the live book, or say why not."""
        if isinstance(record, LossyText):
            return record.reason
        if record.source != source:
            return "foreign_source"
        if flaw := next(flaws(record, self.largest_group), None):
            return flaw
        if record.version < self.versions.get(source, 0) - self.max_staleness:
            return "stale"
        if self._live.bytes[source] >= MAX_LIVE_BYTES:
            return "flood"
        return self._live.add(record, _size(record))

    def advance(self, source: str, version: int) -> None:
        """Say that a policy has made updates, and drop what is too old by now."""
        self.versions[source] = version
        self._live.drop(source, version - self.max_staleness)

    def store(self, records: Iterable[Record]) -> None:
        """Take in the records of a finished run, in place of a live peer (stored trajectories).

        Its groups may be larger than those of this run.
        """
        for record in records:
            largest = max(self.largest_group, MAX_GROUP)
            reason = next(flaws(record, largest), None) or self._stored.add(record, _size(record))
            if reason:
                self.refused[record.source, reason] += 1

    def collect(
        self,
        kind: type[R] | None,
        receiver: str,
        prompt_ids: Iterable[str],
        believes: Callable[[Record], bool] = lambda record: True,
    ) -> dict[str, list[R]]:
        """Peers' records of one type about the given prompts, by prompt id; never the own ones.

        One version a source and prompt: the newest. believes: the receiver's own check of a record;
        what it denies is counted as "false_claim".
        """
        collected: dict[str, list[R]] = {prompt_id: [] for prompt_id in prompt_ids}
        traffic = self._traffic_of(receiver)
        for prompt_id, found in collected.items():
            live, stored = self._live.about(prompt_id), self._stored.about(prompt_id)
            groups = (
                live | stored | live
            ).values()  # in this order; a live source is no stored one
            for record, size in (kept for group in groups for kept in group.values()):
                if kind is None or type(record) is not kind or record.source == receiver:
                    continue
                traffic["received_records"] += 1
                traffic["received_bytes"] += size
                traffic[f"{record.kind}/{record.source}/records"] += 1
                traffic[f"{record.kind}/{record.source}/bytes"] += size
                if believes(record):
                    found.append(record)
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
        return [record.to_json() for record in self._live.records()]

    def restore_window(self, lines: Iterable[str]) -> None:
        """Put the records of a checkpoint back, without counting or logging them again."""
        for record in map(Record.from_json, lines):
            self._live.add(record, _size(record))

    def flush(self) -> None:
        """Hand the log's lines to the operating system."""
        if self._log:
            self._log.flush()

    def close(self) -> None:
        """Close the log."""
        if self._log:
            self._log.close()
            self._log = None


def _size(record: Record) -> int:
    return len(record.to_json().encode("utf-8"))
