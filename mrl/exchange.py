"""SEE, the Shared Experience Exchange (arXiv 2605.07244): which policy receives which records.

A mode names the one type of record (records.py) that it consumes, and `collect` hands out only that
type. So one line of a mode shows what may be shared. `receive` then puts a record's text into the
receiver's tokens.

Records are kept for one step. Every published, received or refused record is counted, because this
traffic is the communication cost of a mode. A record about a problem that is not part of the step
reaches no policy.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import cast

from mrl.alignment import LossyText, retokenize
from mrl.modes.mode import Experience, Received, Receiver
from mrl.records import CompletionRecord, R, Record, validation_error
from mrl.samples import Group

ALWAYS_REPORTED = ("published_records", "published_bytes", "received_records", "received_bytes")


class Exchange:
    """Takes records from every policy, and gives each receiver its peers' records of one type."""

    def __init__(self) -> None:
        self.records: list[Record] = []  # this step's records, in order of publication
        self._traffic: dict[str, Counter[str]] = defaultdict(Counter)  # by policy name

    def publish(self, record: Record | LossyText, source: str) -> str | None:
        """Accept or refuse a record, and count it. Returns the reason for a refusal, or None."""
        traffic = self._traffic[source]
        if isinstance(record, LossyText):  # `make_records` could not make a record
            traffic[f"refused/{record.reason}"] += 1
            return record.reason
        # modes rely on the source that the record names
        reason = "wrong_source" if record.source != source else validation_error(record)
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
        """The peers' records of one type, for each of a step's problems, by problem id.

        record_type: None for a mode that consumes nothing (solo, replay); then all lists are empty.
        """
        traffic = self._traffic[receiver]
        collected: dict[str, list[R]] = {problem_id: [] for problem_id in problem_ids}

        # sorted by source name, so that the order of policies in the config does not matter
        for record in sorted(self.records, key=lambda record: record.source):
            # exactly this type: a subclass may hold more than the mode may see
            if record.source == receiver or type(record) is not record_type:
                continue
            if record.prompt_id not in collected:  # the peer made a mistake
                continue
            collected[record.prompt_id].append(cast(R, record))

            # this traffic is the communication cost of the mode
            traffic["received_records"] += 1
            traffic["received_bytes"] += len(record.line)
        return collected

    def count_not_confirmed(self, receiver: str, count: int) -> None:
        """Count received records whose verdict the receiver's own verifier did not confirm."""
        if count:
            self._traffic[receiver]["not_confirmed"] += count

    def take_traffic(self, policy: str) -> dict[str, int]:
        """What a policy published and received since the last call, as metrics of a step."""
        counts = dict.fromkeys(ALWAYS_REPORTED, 0) | self._traffic.pop(policy, {})
        return {f"exchange/{name}": counts[name] for name in sorted(counts)}


def receive(receiver: Receiver, record: R) -> Received[R]:
    """A record with its text in the receiver's tokens, or with the reason to refuse the text."""
    if not isinstance(record, CompletionRecord):  # statistics have no text
        return Received(record, [])
    # the peer's EOS becomes the receiver's; without it, the receiver would not learn to stop
    eos_id = receiver.eos_id if record.finished else None
    token_ids, refusal = retokenize(receiver.codec, record.text, eos_id, receiver.max_new_tokens)
    return Received(record, token_ids, refusal)


def experience_of(receiver: Receiver, group: Group, records: Iterable[R]) -> Experience[R]:
    """What the receiver's mode gets for the prompt of a group."""
    return Experience(group, [receive(receiver, record) for record in records])
