"""SEE, the Shared Experience Exchange (arXiv 2605.07244): which records reach which policy.

A mode names the one type of record (records.py) that it consumes, and `collect` hands out that type
and nothing else, so what may cross is visible in one line of a mode.

Records live for one step. Each one that is published, received or refused is counted, because it is
the price of a mode. (One about a problem that is not of the step reaches no policy.)
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

from mrl.alignment import LossyText
from mrl.records import R, Record, flaw

ALWAYS_REPORTED = ("published_records", "published_bytes", "received_records", "received_bytes")


class Exchange:
    """Takes records from every policy, and gives each receiver its peers' records of one type."""

    def __init__(self) -> None:
        self.records: list[Record] = []  # of this step, as they were published
        self._traffic: dict[str, Counter[str]] = defaultdict(Counter)  # by policy: `take_traffic`

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

        self.records.append(record)
        traffic["published_records"] += 1
        traffic["published_bytes"] += len(record.line)
        return None

    def collect(
        self, record_type: type[R] | None, receiver: str, problem_ids: Iterable[str]
    ) -> dict[str, list[R]]:
        """Peers' records of one type, by problem, for each of a step's problems.

        record_type: None for a mode that consumes nothing (solo, replay), which gets empty lists.
        """
        traffic = self._traffic[receiver]
        collected: dict[str, list[R]] = {problem_id: [] for problem_id in problem_ids}

        # by the names of their sources: the order of the policies in a config file plays no part
        for record in sorted(self.records, key=lambda record: record.source):
            if record.source == receiver or type(record) is not record_type:
                continue
            if record.prompt_id not in collected:  # a peer's mistake: no problem of this step
                continue
            collected[record.prompt_id].append(record)

            # what a mode costs, beside its computations
            traffic["received_records"] += 1
            traffic["received_bytes"] += len(record.line)
        return collected

    def count_not_confirmed(self, receiver: str, count: int) -> None:
        """Count received records whose verdict the receiver's own check denied."""
        if count:
            self._traffic[receiver]["not_confirmed"] += count

    def take_traffic(self, policy: str) -> dict[str, int]:
        """What one policy published and received since the last call, as metrics of a step."""
        counted = dict.fromkeys(ALWAYS_REPORTED, 0) | self._traffic.pop(policy, {})
        return {f"exchange/{name}": counted[name] for name in sorted(counted)}
