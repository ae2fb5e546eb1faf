"""What a run leaves in its directory, read again."""

import json
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from mrl.config import RunConfig
from mrl.errors import MrlError
from mrl.records import Record
from mrl.runtime.checkpoint import newest_checkpoint, read_state
from mrl.runtime.settings import OWN_MODE, load_config, mode_class


def new_directory(config: RunConfig) -> Path:
    """Where a new run will write: its name, or `<mode>-s<seed>` with a number if that exists.

    MrlError if the name that a person gave is taken.
    """
    stem = config.name or f"{mode_class(config.mode).name}-s{config.seed}"
    directory, number = Path(config.runs, stem), 2
    while directory.exists():
        if config.name:
            raise MrlError(
                f"{directory}: exists already; give another --name, or go on with "
                f"`python mini_mrl.py resume {directory}`."
            )
        directory, number = directory.with_name(f"{stem}-{number}"), number + 1
    return directory


def write_run_config(directory: Path, config: RunConfig) -> None:
    """The settings as `config.json`, which `load_config` reads.

    Files have their whole paths there: a run may be resumed from anywhere.
    """

    def whole(path: str) -> str:  # a hub name stays one
        return str(Path(path).absolute()) if path and Path(path).exists() else path

    table = asdict(config) | {"heldout": list(map(whole, config.heldout))}
    if own := OWN_MODE.fullmatch(config.mode):
        table["mode"] = f"{whole(own[1])}:{own[2]}"
    for part in (table, *table["policies"]):
        for key in part.keys() & {"train", "judge", "peer_log", "path", "reference"}:
            part[key] = whole(part[key])
    (directory / "config.json").write_text(json.dumps(table, indent=1), encoding="utf-8")


def read_run_config(directory: Path) -> RunConfig:
    """The settings that a run was started with."""
    if not (directory / "config.json").is_file():
        raise MrlError(f"{directory}: is no run directory (it has no config.json).")
    settings = load_config(directory / "config.json")
    if not settings.get("policies"):
        raise MrlError(f"{directory}: is no run directory (its config.json names no policy).")
    return RunConfig(**settings)


def continued_config(directory: Path) -> RunConfig:
    """The settings of a stopped run; MrlError if it is finished."""
    config = read_run_config(directory)
    step = read_state(newest_checkpoint(directory))["step"]
    if step >= config.steps and "after" in read_evaluations(directory):
        raise MrlError(
            f"{directory}: is finished ({config.steps} steps); "
            f"`python mini_mrl.py evaluate {directory}` shows its result."
        )
    return config


def with_weights_of(config: RunConfig, checkpoint: Path) -> RunConfig:
    """The same run with its policies loaded from a checkpoint; their references stay the first."""
    policies = []
    for policy in config.policies:
        if not policy.frozen:  # a frozen one has no weights there: they are still the first
            first = policy.reference or policy.path
            policy = replace(policy, path=str(checkpoint / policy.name), reference=first)
        policies.append(policy)
    return replace(config, policies=policies)


def read_evaluations(directory: Path) -> dict[str, list[dict]]:
    """The scores that a run has written so far; {} if there are none or the file is torn."""
    with suppress(OSError, ValueError):
        return json.loads((directory / "evaluation.json").read_text(encoding="utf-8"))
    return {}


def read_metrics(directory: Path) -> list[dict]:
    """All lines of a run's `metrics.jsonl`."""
    return read_json_lines(directory / "metrics.jsonl")


def read_rescues(directory: Path) -> list[dict]:
    """All rescues in a run's `samples.jsonl`, with their steps."""
    lines = read_json_lines(directory / "samples.jsonl")
    return [{"step": line["step"], **line["rescue"]} for line in lines if "rescue" in line]


def read_json_lines(path: Path) -> list[dict]:
    """A log's objects; lines that are none (a killed run tears its last) are left out.

    Only the newline byte ends a line: what models write may hold other line breaks.
    """
    found = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        with suppress(ValueError, RecursionError):
            entry = json.loads(line.decode("utf-8"))
            found += [entry] if isinstance(entry, dict) else []
    return found


def read_records(path: Path) -> list[Record]:
    """What a finished run exchanged, to stand in for live peers; lines that are none are left out.

    MrlError if there is no record.
    """
    records = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        with suppress(ValueError):
            records.append(Record.from_json(line))
    if not records:
        raise MrlError(
            f"{path}: is not there or holds no record; give a sharing run's exchange.jsonl."
        )
    return records
