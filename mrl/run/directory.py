"""The directory of a run: its settings, logs and checkpoints, which `resume` reads again.

- A checkpoint is written into a hidden directory and renamed when it is complete. So a killed run
  leaves either a complete checkpoint or none.
- A checkpoint has no random state, because seeds are derived anew in each step
  (samples.derive_seed).
- It stores the sizes of the log files. A resumed run cuts the logs back to these sizes and repeats
  the steps after the checkpoint.
- Checksums reveal damage, such as a flipped bit, a power cut during writing, or a lost file.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from mrl.config import RunConfig
from mrl.errors import MrlError
from mrl.parsing import parse, read_json_lines, read_text
from mrl.settings.read import (
    DATA_HERE,
    OWN_DATA,
    complete,
    load_config,
    mode_class,
    models_of,
)

if TYPE_CHECKING:  # torch is imported only where it saves or loads: commands also read runs
    from transformers import PreTrainedTokenizerFast

    from mrl.policy import Policy

KEEP = 2  # number of checkpoints that are kept
PARTIAL = ".partial-"
CHECKPOINT = re.compile("step-[0-9]{6,}")  # for example step-000060
LOGS = ("metrics.jsonl", "samples.jsonl", "exchange.jsonl")
CHECKSUMS = "SHA256SUMS"  # a file that `sha256sum --check` can read


def new_directory(config: RunConfig) -> Path:
    """The directory of a new run: the given name, or `<mode>-s<seed>` with a number if it exists.

    Raises MrlError if the given name is taken.
    """
    stem = config.name or f"{mode_class(config.mode).name}-s{config.seed}"
    directory = Path(config.runs, stem)
    number = 2
    while directory.exists():
        if config.name:
            raise MrlError(
                f"{directory} already exists; choose another --name, or `resume` that run."
            )
        directory = directory.with_name(f"{stem}-{number}")
        number += 1
    return directory


def lock(log: TextIO) -> bool:
    """Lock a run by its open `metrics.jsonl`; False if another process has locked it.

    The lock ends with the process. Raises OSError on a file system without such locks.
    """
    for _ in range(10):
        with suppress(BlockingIOError):
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.05)  # `is_locked` holds a lock for a moment
    return False


def is_locked(directory: Path) -> bool:
    """Whether a process is writing this run, as far as the file system knows."""
    with suppress(OSError), (directory / "metrics.jsonl").open() as log:
        try:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def write_run_config(directory: Path, config: RunConfig) -> None:
    """Write the settings as `config.json`, which `load_config` reads.

    Paths are written as given, except paths into the program's own data (see settings.OWN_DATA).
    """
    text = json.dumps(asdict(config), indent=1).replace(DATA_HERE, OWN_DATA)
    partial = directory / f"config.{os.getpid()}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.rename(directory / "config.json")  # so that a killed program leaves all of it or none


def read_run_config(directory: Path) -> RunConfig:
    """The settings that a run was started with."""
    if not directory.exists():
        raise MrlError(f"{directory} does not exist. Name the directory of a run.")
    path = directory / "config.json"
    settings = load_config(path) if path.is_file() else {}
    if "policies" not in settings:
        why = "it has no config.json with policies."
        within = sorted(directory.glob("*/metrics.jsonl"), key=lambda log: -log.stat().st_mtime)
        if within:  # a folder of runs
            newest = ", ".join(str(log.parent) for log in within[:5])
            why = f"it holds runs. Name one of them; the newest are: {newest}."
        raise MrlError(f"{directory} is not a run directory: {why}")
    return complete(settings)


def continued_config(directory: Path) -> RunConfig:
    """The settings of an interrupted run.

    Raises MrlError if the run is finished or if files are missing.
    """
    config = read_run_config(directory)
    checkpoint = newest_checkpoint(directory)
    if checkpoint is None:
        logged = max((line["step"] for line in read_metrics(directory)), default=0)
        # `<`, because a run can be killed between logging a step and completing its checkpoint
        if 0 < config.checkpoint_every < logged:
            raise MrlError(f"{directory}/checkpoints is missing; restore it, or start a new run.")
    elif step_of(checkpoint) >= config.steps and "after" in read_evaluations(directory):
        raise MrlError(f"{directory} is finished; `evaluate` and `report` show its results.")
    else:  # the folders from which weights were first loaded may have changed since
        first = {path for policy in config.policies for path in models_of(policy)}
        still = {path for policy in config.policies for path in models_of(policy, trained=True)}
        for path in first - still:
            config.checksums.pop(path, None)
    return config


def read_evaluations(directory: Path) -> dict[str, list[dict]]:
    """The scores that a run has saved so far: "before" and "after" training, or {}."""
    path = directory / "evaluation.json"
    return parse(read_text(path), str(path)) if path.is_file() else {}


def read_start(directory: Path) -> dict[str, Any]:
    """What each policy wrote before training, or {}, as in a run of an older version."""
    path = directory / "start.json"
    return parse(read_text(path), str(path)) if path.is_file() else {}


def write_json(path: Path, value: object, indent: int | None = None) -> None:
    """Write a file of a run. If the program is killed, the file is as before or complete."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=indent), encoding="utf-8")
    partial.replace(path)


def read_metrics(directory: Path, last: int | None = None) -> list[dict]:
    """All lines of a run's `metrics.jsonl`, or those in its last `last` bytes."""
    return read_json_lines(directory / "metrics.jsonl", last)


def read_samples(directory: Path) -> list[dict]:
    """All lines of a run's `samples.jsonl`: completions, rescues and warnings."""
    return read_json_lines(directory / "samples.jsonl")


def read_rescues(directory: Path) -> list[dict]:
    """All rescues in a run's `samples.jsonl`, each with its step."""
    lines = [line for line in read_samples(directory) if "rescue" in line]
    return [{"step": line["step"], **line["rescue"]} for line in lines]


# ------------------------------------------------------------------------------ writing checkpoints


def save_policies(run: Path, step: int, policies: Sequence["Policy"]) -> Path:
    """Write policies into the hidden directory of an unfinished checkpoint; returns its path."""
    import torch

    from mrl.models.lora import save_adapters

    partial = run / "checkpoints" / f"{PARTIAL}{step:06d}"
    partial.mkdir(parents=True, exist_ok=True)
    for policy in policies:
        if policy.config.frozen:
            continue  # its weights never change, so `path` still has them

        folder = partial / policy.name
        folder.mkdir()
        if policy.config.lora_rank:
            save_adapters(policy.model, folder)
        else:
            # without this, transformers would save on rank 0 only, as if all ranks held one model
            policy.model.should_save_on_this_rank = lambda is_main_process: True
            policy.model.save_pretrained(folder)
        save_tokenizer(policy.tokenizer, folder)

        try:
            torch.save(policy.optimizer.state_dict(), folder / "optimizer.pt")
        except RuntimeError as error:  # what torch raises if the disk is full
            raise OSError("optimizer.pt could not be written completely") from error
    return partial


def save_tokenizer(tokenizer: "PreTrainedTokenizerFast", folder: Path) -> None:
    """Save a tokenizer in a form that transformers 4 can also load."""
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    config = parse(read_text(file), str(file))
    if config.get("tokenizer_class") == "TokenizersBackend":  # its name in transformers 5
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    # in transformers 4, `extra_special_tokens` is a dict
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    file.write_text(json.dumps(config, indent=1, ensure_ascii=False), encoding="utf-8")


def finish_checkpoint(run: Path, partial: Path, state: dict) -> None:
    """Complete a checkpoint by renaming it, and delete all but the newest `KEEP` checkpoints.

    state: what the run needs besides weights and optimizers, as JSON: "step" and "policies".
    """
    sizes = {name: (run / name).stat().st_size for name in LOGS if (run / name).exists()}
    document = json.dumps(state | {"logs": sizes}, indent=1)
    (partial / "state.json").write_text(document, encoding="utf-8")
    (partial / CHECKSUMS).write_text("\n".join(_checksums(partial)), encoding="utf-8")

    partial.rename(partial.with_name(f"step-{state['step']:06d}"))
    for old in checkpoints(run)[:-KEEP]:
        shutil.rmtree(old)


def _checksums(checkpoint: Path) -> list[str]:
    """One line per file: its checksum, two spaces, and its path in the checkpoint."""
    lines = []
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.name != CHECKSUMS:
            with path.open("rb") as file:
                checksum = hashlib.file_digest(file, "sha256").hexdigest()
            lines.append(f"{checksum}  {path.relative_to(checkpoint)}")
    return lines


# ------------------------------------------------------------------------------ reading checkpoints


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first. Folders with other names are ignored."""
    folders = (run / "checkpoints").glob("step-*")
    found = [folder for folder in folders if CHECKPOINT.fullmatch(folder.name)]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(checkpoint.name.removeprefix("step-"))


def newest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint of a run, or None."""
    return max(checkpoints(run), default=None, key=step_of)


def with_checkpoint_paths(config: RunConfig, checkpoint: Path) -> RunConfig:
    """The settings, but with each policy's path in a checkpoint. References do not change.

    Raises MrlError if a file of the checkpoint has changed since it was written.
    """
    _check_files(checkpoint)
    policies = []
    for policy in config.policies:
        if not policy.frozen:  # a checkpoint has no weights of a frozen policy
            first = policy.reference or policy.path
            policy = replace(policy, path=str(checkpoint / policy.name), reference=first)
        policies.append(policy)
    return replace(config, policies=policies)


def _check_files(checkpoint: Path) -> None:
    present = _checksums(checkpoint)
    for line in read_text(checkpoint / CHECKSUMS).split("\n"):
        if line not in present:
            raise MrlError(
                f"{checkpoint / line.partition('  ')[2]} is missing, or damaged so that its "
                f"checksum is wrong. Delete {checkpoint} to continue from the checkpoint before it."
            )


def read_state(checkpoint: Path) -> dict:
    """The content of a checkpoint's `state.json`."""
    path = checkpoint / "state.json"
    return parse(read_text(path), str(path))


def restore_optimizers(checkpoint: Path, policies: Sequence["Policy"], state: dict) -> None:
    """Restore the optimizer and the version of policies whose weights came from the checkpoint."""
    import torch

    for policy in policies:
        if not policy.config.frozen:
            path = checkpoint / policy.name / "optimizer.pt"
            document = torch.load(path, map_location="cpu", weights_only=True)
            policy.optimizer.load_state_dict(document)
            policy.version = state["policies"][policy.name]["version"]


def cut_back(run: Path, state: dict) -> None:
    """Delete a killed run's unfinished checkpoints, and the log lines after its last checkpoint.

    Raises MrlError before any change if a log is shorter than it was at the checkpoint.
    """
    for name, size in state["logs"].items():
        if (run / name).stat().st_size < size:
            raise MrlError(
                f"{run / name} is truncated. Restore the complete file, or start a new run."
            )

    for partial in (run / "checkpoints").glob(f"{PARTIAL}*"):
        shutil.rmtree(partial)
    for name in LOGS:
        if (run / name).exists():
            os.truncate(run / name, state["logs"].get(name, 0))
