"""SEE, the Shared Experience Exchange (arXiv 2605.07244): who gets which records of whom.

A mode names the one type of record (records.py) that it consumes; `collect` hands out that type and
nothing else, so what may cross is visible in one line of a mode. Every record that is published,
received or refused is counted, what is taken or received in bytes, too: the price of a mode.
"""

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path

from mrl.alignment import LossyText
from mrl.records import MAX_GROUP, R, Record, flaw

MAX_PROMPTS = 2**14  # with live records of one source; `flaw` bounds how many, and how large
ALWAYS = ("published_records", "published_bytes", "received_records", "received_bytes")

# prompt id -> the newest version there, and its records by (kind, index)
Book = dict[str, tuple[int, dict[tuple[str, int], Record]]]


class Exchange:
    """Takes records from every policy, and gives each receiver its peers' records of one type.

    largest_group: that any policy samples.
    """

    def __init__(self, log: Path = Path(os.devnull), largest_group: int = MAX_GROUP) -> None:
        self.largest_group = largest_group
        self.versions: dict[str, int] = {}  # of each source, by now
        self._traffic: dict[str, Counter[str]] = defaultdict(Counter)  # by policy: `take_traffic`
        self._live: dict[str, Book] = defaultdict(dict)  # by source, of this step
        self._stored: dict[str, Book] = defaultdict(dict)  # of a finished run: never stale
        self._log = log.open("ab")  # a resumed run goes on with its log
        self.flush, self.close = self._log.flush, self._log.close

    def publish(self, record: Record | LossyText, source: str) -> str | None:
        """Take a record in, or refuse it and count why. Returns the reason of a refusal."""
        traffic = self._traffic[source]
        if isinstance(record, LossyText):
            reason = record.reason
        elif record.source != source:
            reason = "foreign_source"
        elif not (reason := flaw(record, self.largest_group)):  # first: a version may be no number
            too_old = record.version < self.versions.get(source, 0)
            reason = "stale" if too_old else _add(self._live[source], record, MAX_PROMPTS)
        if reason:
            traffic[f"refused/{reason}"] += 1
            return reason
        traffic.update(published_records=1, published_bytes=len(record.line))
        self._log.write(record.line + b"\n")
        return None

    def end_step(self, versions: dict[str, int]) -> None:
        """Forget what was published: the next step's records are of newer weights.

        So nothing is left over that a checkpoint would have to keep. versions: of the sources now.
        """
        self.versions = versions
        self._live.clear()

    def store(self, records: Iterable[Record]) -> None:
        """Take in the sound records of a finished run, in place of a live peer."""
        largest = max(self.largest_group, MAX_GROUP)  # its groups may be larger than this run's
        for record in records:
            if not flaw(record, largest):
                _add(self._stored[record.source], record, sys.maxsize)

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
        books = self._stored | self._live  # a stored run has no live peers beside it
        sources = sorted(books.keys() - {receiver})  # not by arrival: a resumed run has another
        for prompt, source in product(collected, sources):
            for record in books[source].get(prompt, (0, {}))[1].values():
                if type(record) is not kind:  # all that the run logs is here, see `--set record`
                    continue
                for name in ("received_", f"{kind.kind}/{record.source}/"):
                    traffic[f"{name}records"] += 1
                    traffic[f"{name}bytes"] += len(record.line)
                if believes(record):
                    collected[prompt].append(record)
                else:  # its price was paid all the same
                    traffic["not_believed"] += 1
        return collected

    def take_traffic(self, policy: str) -> dict[str, int]:
        """What one policy published and received since the last call: metrics of a step."""
        counted = dict.fromkeys(ALWAYS, 0) | dict(sorted(self._traffic.pop(policy, {}).items()))
        return {f"exchange/{name}": number for name, number in counted.items()}


def _add(book: Book, record: Record, most: int) -> str | None:
    """Take a record in, in place of older ones, or say why not. most: prompts of the source.

    A second group of the same version is "duplicate": the same weights wrote the first.
    """
    newest, group = book.get(record.prompt_id, (-1, {}))
    place = (record.kind, record.index)
    if record.version < newest:
        return "stale"
    if record.version == newest and place in group:
        return "duplicate"
    if newest < 0 and len(book) >= most:  # prompts that are known still get newer groups
        return "flood"
    if record.version > newest:
        group = {}
        book[record.prompt_id] = record.version, group
    group[place] = record
    return None
