"""A finished run's `exchange.jsonl`, to stand in for live peers."""

from collections import Counter
from pathlib import Path

from mrl.errors import MrlError
from mrl.records import Record


def read_log(path: Path) -> tuple[list[Record], Counter[str]]:
    """The records of an `exchange.jsonl`, and how many lines were left out for which reason.

    A torn last line (the run was killed while it wrote) is "torn"; any other bad one "malformed".
    Raises MrlError if the file cannot be read or holds no record.
    """
    try:
        lines = path.read_bytes().split(b"\n")  # a text may hold what `splitlines` cuts at
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
