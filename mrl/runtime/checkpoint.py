"""Saving and loading a run: `save_pretrained` directories, optimizer states, and a JSON state.

A checkpoint is written into a hidden directory and renamed when it is complete: a killed run
leaves either a whole checkpoint or none. There is no random state to save (see
samples.derive_seed); the sizes of the log files are saved, so that a resumed run cuts off what
was written after the checkpoint and writes it again.
"""

import errno
import json
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from mrl.config import RunConfig
from mrl.errors import MrlError
from mrl.policy import Policy
from mrl.runtime.lora import save_adapters
from mrl.runtime.reading import parse, read_text

KEEP = 2  # checkpoints
PARTIAL = ".partial-"
LOGS = ("metrics.jsonl", "samples.jsonl", "exchange.jsonl")


def save_policies(run: Path, step: int, policies: Sequence[Policy]) -> Path:
    """Write policies into the hidden directory of an unfinished checkpoint, and return that."""
    partial = run / "checkpoints" / f"{PARTIAL}{step:06d}"
    partial.mkdir(parents=True, exist_ok=True)
    for policy in policies:
        if policy.config.frozen:
            continue  # it is still what its path holds

        folder = partial / policy.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if policy.config.lora_rank:
            save_adapters(policy.model, folder, policy.config.lora_rank)
        else:
            # transformers takes a group's processes for parts of one model, which rank 0 saves
            policy.model.should_save_on_this_rank = lambda is_main_process: True
            policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)

        try:
            torch.save(policy.optimizer.state_dict(), folder / "optimizer.pt")
        except RuntimeError as error:  # torch's form of a full disk
            raise OSError(errno.EIO, "optimizer.pt could not be written whole") from error
    return partial


def finish_checkpoint(run: Path, partial: Path, state: dict) -> None:
    """Make an unfinished checkpoint count, by one rename, and delete all but the newest `KEEP`.

    state: "step", "versions" and whatever JSON the run needs beside weights and optimizers.
    """
    sizes = {name: (run / name).stat().st_size for name in LOGS if (run / name).exists()}
    document = json.dumps({**state, "logs": sizes}, indent=1)
    (partial / "state.json").write_text(document, encoding="utf-8")

    # all files are on the disk before the name that makes the checkpoint count
    paths = list(partial.rglob("*"))
    paths += [run / name for name in (*LOGS, "evaluation.json")]
    for path in paths:
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    partial.rename(partial.with_name(f"step-{state['step']:06d}"))
    for old in checkpoints(run)[:-KEEP]:
        shutil.rmtree(old)


def bytes_in_checkpoint(policy: Policy) -> int:
    """A float32 number and two moments of AdamW for each parameter that learns."""
    return 12 * sum(p.numel() for p in policy.model.parameters() if p.requires_grad)


def room_for_checkpoints(run: Path, size: int, config: RunConfig) -> int:
    """The most bytes that a run's checkpoints will take, one being written beside those kept.

    size: of one. MrlError if the disk has less, so that the run does not end in the middle.
    """
    count = math.ceil(config.steps / config.checkpoint_every) if config.checkpoint_every else 1
    needed = size * min(count, KEEP + 1)
    existing = next(folder for folder in (run, *run.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free

    # a run that goes on has old ones, perhaps a torn one, that make room
    old = len(list((run / "checkpoints").glob("*")))
    if needed - size * old > free:
        raise MrlError(
            f"{run}: its checkpoints need {needed / 1e9:.2g} GB, but {free / 1e9:.2g} GB of the "
            "disk are free; make room, or write elsewhere with --set runs=DIR."
        )
    return needed


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first; OSError if they cannot be looked at."""
    folder = run / "checkpoints"
    if not os.path.lexists(folder):
        return []
    # no glob: it finds nothing where it may not look, as if there were no checkpoint
    steps = [path for path in sorted(folder.iterdir()) if path.name.startswith("step-")]
    return [path for path in steps if "state.json" in os.listdir(path)]


def newest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint of a run, if there is one."""
    complete = checkpoints(run)
    return complete[-1] if complete else None


def read_state(checkpoint: Path | None) -> dict:
    """`state.json` of a checkpoint (None: of a beginning); MrlError if it is no JSON object."""
    if checkpoint is None:
        return {"step": 0, "versions": {}, "modes": {}, "logs": {}}

    path = checkpoint / "state.json"
    try:
        return parse(read_text(path), path.name)
    except MrlError as error:
        raise _damaged(path, error) from None


def restore_optimizers(checkpoint: Path, policies: Sequence[Policy], state: dict) -> None:
    """Give policies whose weights came from the checkpoint their optimizer state and version."""
    for policy in policies:
        if policy.config.frozen:
            continue

        path = checkpoint / policy.name / "optimizer.pt"
        try:
            document = torch.load(path, map_location="cpu", weights_only=True)
            policy.optimizer.load_state_dict(document)
            for parameter, moments in policy.optimizer.state.items():
                if moments["exp_avg"].shape != parameter.shape:
                    raise ValueError("it belongs to another model")
            policy.version = int(state["versions"][policy.name])
        except Exception as error:  # damage shows itself in pickle, torch or a dictionary
            raise _damaged(path, error) from None


def _damaged(path: Path, error: object) -> MrlError:
    """The error of a person who resumes from a damaged checkpoint."""
    reason = str(error).split("\n")[0][:200]
    return MrlError(
        f"{path}: is damaged ({reason}); delete this checkpoint's folder to go on from the one "
        "before it."
    )


def cut_back(run: Path, state: dict) -> None:
    """Delete what a killed run left unfinished, and what it logged after the checkpoint.

    MrlError, before anything is changed, if a log is shorter than it was at the checkpoint.
    """
    sizes = {name: state["logs"].get(name, 0) for name in LOGS}
    for name, size in sizes.items():
        path = run / name
        present = path.stat().st_size if path.exists() else 0
        if present < size:
            raise MrlError(
                f"{path}: holds {present} of the {size} bytes that it had at the last checkpoint; "
                "put the whole file back, or start a new run."
            )

    for partial in (run / "checkpoints").glob(f"{PARTIAL}*"):
        shutil.rmtree(partial, ignore_errors=True)

    for name, size in sizes.items():
        if (run / name).exists():
            os.truncate(run / name, size)
