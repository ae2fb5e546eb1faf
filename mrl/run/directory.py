"""The directory of a run: its settings, its logs, and its checkpoints, read again by `resume`.

A checkpoint is written into a hidden directory and renamed when it is complete: a killed run leaves
either a whole checkpoint or none. There is no random state to save (see samples.derive_seed); the
sizes of the log files are saved, so that a resumed run cuts off what was written after the
checkpoint and writes it again. What happens to a checkpoint later (a flipped bit, a power cut while
it was on its way to the disk, a lost file) shows in its checksums.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from mrl.config import RunConfig
from mrl.errors import MrlError
from mrl.models.lora import save_adapters
from mrl.parsing import parse, read_json_lines, read_text
from mrl.policy import Policy
from mrl.settings.settings import DATA_HERE, OWN_DATA, load_config, mode_class

KEEP = 2  # checkpoints
PARTIAL = ".partial-"
CHECKPOINT = re.compile("step-[0-9]{6,}")  # step-000060
LOGS = ("metrics.jsonl", "samples.jsonl", "exchange.jsonl")
CHECKSUMS = "SHA256SUMS"  # of a checkpoint's files, as `sha256sum` writes and checks them


def new_directory(config: RunConfig) -> Path:
    """The directory for a new run: its name, or `<mode>-s<seed>` with a number if that exists.

    MrlError if the name that a person gave is taken.
    """
    stem = config.name or f"{mode_class(config.mode).name}-s{config.seed}"
    directory = Path(config.runs, stem)
    number = 2
    while directory.exists():
        if config.name:
            raise MrlError(f"{directory}: exists already; give another --name, or resume it.")
        directory = directory.with_name(f"{stem}-{number}")
        number += 1
    return directory


def write_run_config(directory: Path, config: RunConfig) -> None:
    """Write the settings as `config.json`, which `load_config` reads.

    Paths stay as they were given, except those into the program's own data.
    """
    text = json.dumps(asdict(config), indent=1).replace(DATA_HERE, OWN_DATA)
    (directory / "config.json").write_text(text, encoding="utf-8")


def read_run_config(directory: Path) -> RunConfig:
    """The settings that a run was started with."""
    path = directory / "config.json"
    settings = load_config(path) if path.is_file() else {}
    if "policies" not in settings:
        raise MrlError(f"{directory}: is no run directory (no config.json in it names policies).")
    return RunConfig(**settings)


def continued_config(directory: Path) -> RunConfig:
    """The settings of a stopped run; MrlError if it is finished or is not whole any more."""
    config = read_run_config(directory)
    checkpoint = newest_checkpoint(directory)
    if checkpoint is None:
        logged = max((line["step"] for line in read_metrics(directory)), default=0)
        # that step itself may be logged: a kill can meet the first checkpoint half-made
        if 0 < config.checkpoint_every < logged:
            raise MrlError(f"{directory}/checkpoints: is lost; put it back, or start a new run.")
    elif step_of(checkpoint) >= config.steps and "after" in read_evaluations(directory):
        raise MrlError(f"{directory}: is finished; `evaluate` and `report` show what came of it.")
    return config


def read_evaluations(directory: Path) -> dict[str, list[dict]]:
    """Read the scores that a run has written so far; {} if there are none."""
    path = directory / "evaluation.json"
    return parse(read_text(path), str(path)) if path.is_file() else {}


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


# ------------------------------------------------------------------------------ writing checkpoints


def save_policies(run: Path, step: int, policies: Sequence[Policy]) -> Path:
    """Write policies into the hidden directory of an unfinished checkpoint, and return that."""
    partial = run / "checkpoints" / f"{PARTIAL}{step:06d}"
    partial.mkdir(parents=True, exist_ok=True)
    for policy in policies:
        if policy.config.frozen:
            continue  # it is still what its path holds

        folder = partial / policy.name
        folder.mkdir()
        if policy.config.lora_rank:
            save_adapters(policy.model, folder, policy.config.lora_rank)
        else:
            # transformers takes a group's processes for parts of one model, which rank 0 saves
            policy.model.should_save_on_this_rank = lambda is_main_process: True
            policy.model.save_pretrained(folder)
        save_tokenizer(policy.tokenizer, folder)

        try:
            torch.save(policy.optimizer.state_dict(), folder / "optimizer.pt")
        except RuntimeError as error:  # torch's form of a full disk
            raise OSError("optimizer.pt could not be written whole") from error
    return partial


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save a tokenizer so that transformers 4, and what is built on it, can also load it."""
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    config = parse(read_text(file), str(file))
    if config.get("tokenizer_class") == "TokenizersBackend":  # the name since transformers 5
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(config.get("extra_special_tokens"), list):  # there it has names
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    file.write_text(json.dumps(config, indent=1, ensure_ascii=False), encoding="utf-8")


def finish_checkpoint(run: Path, partial: Path, state: dict) -> None:
    """Make an unfinished checkpoint count, by one rename, and delete all but the newest `KEEP`.

    state: "step", "policies" and whatever JSON the run needs beside weights and optimizers.
    """
    sizes = {name: (run / name).stat().st_size for name in LOGS if (run / name).exists()}
    document = json.dumps(state | {"logs": sizes}, indent=1)
    (partial / "state.json").write_text(document, encoding="utf-8")
    (partial / CHECKSUMS).write_text("\n".join(_checksums(partial)), encoding="utf-8")

    partial.rename(partial.with_name(f"step-{state['step']:06d}"))
    for old in checkpoints(run)[:-KEEP]:
        shutil.rmtree(old)


def _checksums(checkpoint: Path) -> list[str]:
    """A line for each file: its checksum, two spaces, and its place in the checkpoint."""
    lines = []
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and path.name != CHECKSUMS:
            with path.open("rb") as file:
                checksum = hashlib.file_digest(file, "sha256").hexdigest()
            lines.append(f"{checksum}  {path.relative_to(checkpoint)}")
    return lines


# ------------------------------------------------------------------------------ going on from them


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first; a person's copies are left out."""
    folders = (run / "checkpoints").glob("step-*")
    found = [folder for folder in folders if CHECKPOINT.fullmatch(folder.name)]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was written."""
    return int(checkpoint.name.removeprefix("step-"))


def newest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint of a run, if there is one."""
    return max(checkpoints(run), default=None, key=step_of)


def with_checkpoint_paths(config: RunConfig, checkpoint: Path) -> RunConfig:
    """The same run with its policies loaded from a checkpoint; their references stay the first.

    MrlError if a file of the checkpoint is not as it was written.
    """
    _check_files(checkpoint)
    policies = []
    for policy in config.policies:
        if not policy.frozen:  # a frozen one has no weights there, because they never change
            first = policy.reference or policy.path
            policy = replace(policy, path=str(checkpoint / policy.name), reference=first)
        policies.append(policy)
    return replace(config, policies=policies)


def _check_files(checkpoint: Path) -> None:
    present = _checksums(checkpoint)
    for line in read_text(checkpoint / CHECKSUMS).split("\n"):
        if line not in present:
            raise MrlError(
                f"{checkpoint / line.partition('  ')[2]}: is damaged or lost, by its checksum; "
                "delete this checkpoint's folder to go on from the one before it."
            )


def read_state(checkpoint: Path) -> dict:
    """`state.json` of a checkpoint."""
    path = checkpoint / "state.json"
    return parse(read_text(path), str(path))


def restore_optimizers(checkpoint: Path, policies: Sequence[Policy], state: dict) -> None:
    """Give policies whose weights came from the checkpoint their optimizer state and version."""
    for policy in policies:
        if not policy.config.frozen:
            path = checkpoint / policy.name / "optimizer.pt"
            document = torch.load(path, map_location="cpu", weights_only=True)
            policy.optimizer.load_state_dict(document)
            policy.version = state["policies"][policy.name]["version"]


def cut_back(run: Path, state: dict) -> None:
    """Delete what a killed run left unfinished, and what it logged after the checkpoint.

    MrlError, before anything is changed, if a log is shorter than it was at the checkpoint.
    """
    for name, size in state["logs"].items():
        if (run / name).stat().st_size < size:
            raise MrlError(f"{run / name}: lacks its end; put it back whole, or start a new run.")

    for partial in (run / "checkpoints").glob(f"{PARTIAL}*"):
        shutil.rmtree(partial)
    for name in LOGS:
        if (run / name).exists():
            os.truncate(run / name, state["logs"].get(name, 0))
