"""SEE, the Shared Experience Exchange (arXiv 2605.07244): who gets which records of whom.

A mode names the one type of record (records.py) that it consumes; `collect` hands out that type and
nothing else, so what may cross is visible in one line of a mode. Every record that is published,
received or refused is counted, in numbers and in bytes: the price of a mode.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from mrl.alignment import LossyText
from mrl.records import MAX_GROUP, R, Record, flaw

MAX_PROMPTS = 2**14  # with live records of one source; `flaw` bounds how many and how large
ALWAYS = ("published_records", "published_bytes", "received_records", "received_bytes")

# prompt id -> the newest version there, and its records by (kind, index)
Book = dict[str, tuple[int, dict[tuple[str, int], Record]]]


class Exchange:
    """Takes records from every policy, and gives each receiver its peers' records of one type.

    max_staleness: in optimizer updates of the source. largest_group: that any policy samples.
    """

    def __init__(
        self, log: Path = Path(os.devnull), max_staleness: int = 1, largest_group: int = MAX_GROUP
    ) -> None:
        self.max_staleness = max_staleness
        self.largest_group = largest_group
        self.versions: dict[str, int] = {}
        self._traffic: dict[str, Counter[str]] = defaultdict(Counter)  # by policy: `take_traffic`
        self._live: dict[str, Book] = defaultdict(dict)  # by source
        self._stored: dict[str, Book] = defaultdict(dict)  # of a finished run: never stale
        self._log = log.open("ab")
        self.flush, self.close = self._log.flush, self._log.close

    def publish(self, record: Record | LossyText, source: str) -> str | None:
        """Take a record in, or refuse it and count why. Returns the reason of a refusal."""
        traffic = self._traffic[source]
        if reason := self._admit(record, source):
            traffic[f"refused/{reason}"] += 1
            return reason
        traffic.update(published_records=1, published_bytes=len(record.line))
        self._log.write(record.line + b"\n")
        return None

    def _admit(self, record: Record | LossyText, source: str) -> str | None:
        """Put a record into the source's book, or say why not."""
        if isinstance(record, LossyText):
            return record.reason
        if record.source != source:
            return "foreign_source"
        if reason := flaw(record, self.largest_group):
            return reason
        if record.version < self.versions.get(source, 0) - self.max_staleness:
            return "stale"
        return _add(self._live[source], record)

    def advance(self, source: str, version: int) -> None:
        """Note that a policy has made updates, and drop what is too old by now."""
        self.versions[source] = version
        oldest, book = version - self.max_staleness, self._live[source]
        self._live[source] = {prompt: kept for prompt, kept in book.items() if kept[0] >= oldest}

    def store(self, records: Iterable[Record]) -> Counter[str]:
        """Take in the records of a finished run, in place of a live peer (stored trajectories).

        Its groups may be larger than those of this run. Returns how many were refused, by reason.
        """
        largest = max(self.largest_group, MAX_GROUP)
        reasons = (flaw(r, largest) or _add(self._stored[r.source], r) for r in records)
        return Counter(filter(None, reasons))

    def collect(
        self,
        kind: type[R] | None,
        receiver: str,
        prompt_ids: Iterable[str],
        believes: Callable[[Record], bool] = lambda record: True,
    ) -> dict[str, list[R]]:
        """Peers' records of one type about the given prompts, by prompt id; never the own ones.

        One version a source and prompt: the newest. believes: the receiver's own check of a record;
        what it denies is counted as "not_believed".
        """
        traffic = self._traffic[receiver]
        collected: dict[str, list[R]] = {prompt_id: [] for prompt_id in prompt_ids}
        live, stored = self._live, self._stored
        sources = sorted({*live, *stored} - {receiver})  # the order of arrival is lost by a resume
        for prompt, found in collected.items():
            # a live source stands in front of its stored self
            kept = [live[s].get(prompt) or stored[s].get(prompt, (0, {})) for s in sources]
            for record in (record for _, group in kept for record in group.values()):
                if type(record) is not kind:
                    continue
                for name in ("received_", f"{kind.kind}/{record.source}/"):
                    traffic[f"{name}records"] += 1
                    traffic[f"{name}bytes"] += len(record.line)
                if believes(record):
                    found.append(record)
                else:  # its price was paid all the same
                    traffic["not_believed"] += 1
        return collected

    def take_traffic(self, policy: str) -> dict[str, int]:
        """What one policy published and received since the last call: metrics of a step."""
        counted = dict.fromkeys(ALWAYS, 0) | dict(sorted(self._traffic.pop(policy, {}).items()))
        return {f"exchange/{name}": number for name, number in counted.items()}

    def window(self) -> list[str]:
        """The live records as JSON lines, for a checkpoint."""
        groups = [group for book in self._live.values() for _, group in book.values()]
        return [record.line.decode() for group in groups for record in group.values()]

    def restore_window(self, lines: Iterable[str]) -> None:
        """Put the records of a checkpoint back, without counting or logging them again."""
        for record in map(Record.from_json, lines):
            _add(self._live[record.source], record)


def _add(book: Book, record: Record) -> str | None:
    """Take a record in, in place of older ones, or say why not.

    A second group of the same version is "duplicate": the same weights wrote the first.
    """
    newest, group = book.get(record.prompt_id, (-1, {}))
    place = (record.kind, record.index)
    if record.version < newest:
        return "stale"
    if record.version == newest and place in group:
        return "duplicate"
    if newest < 0 and len(book) >= MAX_PROMPTS:
        return "flood"
    if record.version > newest:
        group = {}
        book[record.prompt_id] = record.version, group
    group[place] = record
    return None
