"""SEE, the Shared Experience Exchange (arXiv 2605.07244): which records reach which policy.

A mode names the one type of record (records.py) that it consumes, and `collect` hands out that type
and nothing else, so what may cross is visible in one line of a mode.

Records live for one step. Each one that is published, received or refused is counted, because it is
the price of a mode.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from mrl.alignment import LossyText
from mrl.records import R, Record, flaw

ALWAYS_REPORTED = ("published_records", "published_bytes", "received_records", "received_bytes")


class Exchange:
    """Takes records from every policy, and gives each receiver its peers' records of one type.

    log: the file where each published record becomes a line.
    """

    def __init__(self, log: Path = Path(os.devnull)) -> None:
        self._records: dict[tuple[str, str], list[Record]] = {}  # (source, prompt id) -> records
        self._traffic: dict[str, Counter[str]] = defaultdict(Counter)  # by policy: `take_traffic`
        self._log = log.open("ab")  # a resumed run goes on with its log
        self.flush, self.close = self._log.flush, self._log.close

    def publish(self, record: Record | LossyText, source: str) -> str | None:
        """Take a record in, or refuse it and count why. Returns the reason of a refusal."""
        traffic = self._traffic[source]
        if isinstance(record, LossyText):  # `make_records` could not make one of a completion
            reason = record.reason
        elif record.source != source:  # a mode goes by what the record says of itself
            reason = "wrong_source"
        else:
            reason = flaw(record)
        if reason:
            traffic[f"refused/{reason}"] += 1
            return reason

        self._records.setdefault((source, record.prompt_id), []).append(record)
        self._log.write(record.line + b"\n")
        traffic["published_records"] += 1
        traffic["published_bytes"] += len(record.line)
        return None

    def collect(
        self, record_type: type[R] | None, receiver: str, problem_ids: Iterable[str]
    ) -> dict[str, list[R]]:
        """Peers' records of one type about the given problems, by `prompt_id`; never the own ones.

        record_type: None for a mode that consumes nothing (solo, replay), which gets empty lists.
        """
        traffic = self._traffic[receiver]
        # sorted, because the order of a set of names differs from process to process
        peers = sorted({source for source, _ in self._records} - {receiver})

        collected: dict[str, list[R]] = {}
        for problem_id in problem_ids:
            collected[problem_id] = []
            for source in peers:
                for record in self._records.get((source, problem_id), []):
                    if type(record) is not record_type:
                        continue
                    collected[problem_id].append(record)

                    # counted in all, and by type and source
                    size = len(record.line)
                    traffic["received_records"] += 1
                    traffic["received_bytes"] += size
                    traffic[f"{record.kind}/{source}/records"] += 1
                    traffic[f"{record.kind}/{source}/bytes"] += size
        return collected

    def count_not_believed(self, receiver: str, count: int) -> None:
        """Count received records whose verdict the receiver's own check denied."""
        if count:
            self._traffic[receiver]["not_believed"] += count

    def end_step(self) -> None:
        """Forget the records: those of the next step come from newer weights."""
        self._records.clear()

    def take_traffic(self, policy: str) -> dict[str, int]:
        """What one policy published and received since the last call, as metrics of a step."""
        counted = dict.fromkeys(ALWAYS_REPORTED, 0) | dict(
            sorted(self._traffic.pop(policy, {}).items())
        )
        return {f"exchange/{name}": number for name, number in counted.items()}
