"""The directory of a run: where it writes, and its files read again."""

import json
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from mrl.config import RunConfig
from mrl.errors import MrlError
from mrl.runtime.checkpoint import newest_checkpoint, read_state
from mrl.runtime.reading import parse, read_json_lines, read_text
from mrl.runtime.settings import OWN_MODE, load_config, mode_class


def new_directory(config: RunConfig) -> Path:
    """The directory for a new run: its name, or `<mode>-s<seed>` with a number if that exists.

    MrlError if the name that a person gave is taken.
    """
    stem = config.name or f"{mode_class(config.mode).name}-s{config.seed}"
    directory = Path(config.runs, stem)
    number = 2
    while directory.exists():
        if config.name:
            raise MrlError(
                f"{directory}: exists already; give another --name, or go on with "
                f"`python mini_mrl.py resume {directory}`."
            )
        directory = directory.with_name(f"{stem}-{number}")
        number += 1
    return directory


def write_run_config(directory: Path, config: RunConfig) -> None:
    """Write the settings as `config.json`, which `load_config` reads.

    Files have their whole paths in it, so that a run can be resumed from anywhere.
    """

    def whole(path: str) -> str:  # a hub name stays one
        return str(Path(path).absolute()) if path and Path(path).exists() else path

    table = asdict(config) | {"heldout": list(map(whole, config.heldout))}
    own_mode = OWN_MODE.fullmatch(config.mode)
    if own_mode:
        file, class_name = own_mode.groups()
        table["mode"] = f"{whole(file)}:{class_name}"

    for part in (table, *table["policies"]):
        for key in part.keys() & {"train", "judge", "path", "reference"}:
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
    """The settings of a stopped run; MrlError if it is finished or is not whole any more."""
    config = read_run_config(directory)
    checkpoint = newest_checkpoint(directory)
    evaluations = read_evaluations(directory)

    if checkpoint is None:
        logged = max((line["step"] for line in read_metrics(directory)), default=0)
        # that step itself may be logged: a kill can meet the first checkpoint half-made
        if 0 < config.checkpoint_every < logged:
            raise MrlError(
                f"{directory}/checkpoints: holds no complete checkpoint, but {logged} steps are "
                "logged; make the folder readable again, or start a new run."
            )
    elif "before" not in evaluations:
        raise MrlError(
            f"{directory}/evaluation.json: is lost or cannot be read, and the scores from before "
            "training with it; put the file back, or start a new run."
        )
    elif read_state(checkpoint)["step"] >= config.steps and "after" in evaluations:
        raise MrlError(
            f"{directory}: is finished ({config.steps} steps); "
            f"`python mini_mrl.py evaluate {directory}` shows its result."
        )
    return config


def with_checkpoint_paths(config: RunConfig, checkpoint: Path) -> RunConfig:
    """The same run with its policies loaded from a checkpoint; their references stay the first."""
    policies = []
    for policy in config.policies:
        if not policy.frozen:  # a frozen one has no weights there, because they never change
            first = policy.reference or policy.path
            policy = replace(policy, path=str(checkpoint / policy.name), reference=first)
        policies.append(policy)
    return replace(config, policies=policies)


def read_evaluations(directory: Path) -> dict[str, list[dict]]:
    """Read the scores that a run has written so far; {} if there are none or the file is torn."""
    path = directory / "evaluation.json"
    with suppress(MrlError, OSError):
        return parse(read_text(path), str(path))
    return {}


def read_metrics(directory: Path) -> list[dict]:
    """Read all lines of a run's `metrics.jsonl`."""
    return read_json_lines(directory / "metrics.jsonl")


def read_samples(directory: Path) -> list[dict]:
    """Read all lines of a run's `samples.jsonl`: completions, rescues, what went wrong."""
    return read_json_lines(directory / "samples.jsonl")


def read_rescues(directory: Path) -> list[dict]:
    """Read all rescues in a run's `samples.jsonl`, with their steps."""
    lines = [line for line in read_samples(directory) if "rescue" in line]
    return [{"step": line["step"], **line["rescue"]} for line in lines]
