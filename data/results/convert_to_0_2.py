"""Gives the kept results of version 0.1 the names of version 0.2.

    python data/results/convert_to_0_2.py        # changes the files below data/results in place

Version 0.2 has other names for the sets of held-out problems, for some keys and for some settings.
This script was run once, and it changes no number. It does not convert run directories of 0.1 that
are not kept here.
"""

import csv
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
SETS = {
    "heldout": "validation",
    "newtemplates": "validation_wording",
    "thirdset": "test",
    "heldout-72": "validation-72",
    "heldout-90": "validation-90",
}
KEYS = {
    "part": "split",
    "micro_batch": "max_tokens_per_forward",
    "checkpointing": "gradient_checkpointing",
    "exchange/not_believed": "exchange/not_confirmed",
}
METRICS = {"opened at step": "closed at step"}


def renamed_path(path: str) -> str:
    """A path of a problem file, with the new name of its set."""
    name = Path(path)
    return str(name.with_stem(SETS.get(name.stem, name.stem)))


def convert(value: object, key: str = "") -> object:
    """Convert a value of a JSON file. key: the key under which the value was found."""
    if isinstance(value, dict):
        return {KEYS.get(name, name): convert(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [convert(inner, key) for inner in value]
    if isinstance(value, str) and key == "part":
        return SETS.get(value, value)
    if isinstance(value, str) and key == "heldout":
        return renamed_path(value)
    return value


def convert_csv(path: Path) -> None:
    """Convert a table of scores: its column `part`, the sets in this column, and one metric."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    if "part" not in rows[0]:
        return
    column, metric = rows[0].index("part"), rows[0].index("metric")
    rows[0][column] = KEYS["part"]
    for row in rows[1:]:
        row[column] = SETS.get(row[column], row[column])
        row[metric] = METRICS.get(row[metric], row[metric])
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def main() -> None:
    """Convert every kept file."""
    for path in sorted(HERE.rglob("*.csv")):
        convert_csv(path)
    for path in sorted(HERE.rglob("*.json")):
        if path.name != "gpu.json":  # measurements on a GPU stay as they were
            text = json.dumps(convert(json.loads(path.read_text("utf-8"))), indent=1)
            path.write_text(text + "\n", encoding="utf-8")
    for path in sorted(HERE.rglob("metrics.jsonl")):
        lines = [json.dumps(convert(json.loads(line))) for line in path.open(encoding="utf-8")]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
