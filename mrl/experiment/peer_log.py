"""A finished run's `exchange.jsonl`, to stand in for live peers."""

from pathlib import Path

from mrl.errors import MrlError
from mrl.records import Record


def read_log(path: Path) -> tuple[list[Record], int]:
    """The records of an `exchange.jsonl`, and how many of its lines are none.

    The last one may be torn, if the run was killed while it wrote.
    Raises MrlError if the file cannot be read or holds no record.
    """
    try:
        lines = path.read_bytes().split(b"\n")  # a text may hold what `splitlines` cuts at
    except OSError as error:
        raise MrlError(f"{path}: cannot be read ({error.strerror}); give a run's log.") from None
    records: list[Record] = []
    broken = 0
    for line in filter(None, lines):
        try:
            records.append(Record.from_json(line))
        except ValueError:
            broken += 1
    if not records:
        raise MrlError(f"{path}: holds no record; give the exchange.jsonl of a run that shared.")
    return records, broken
