"""Saving and loading a run: `save_pretrained` directories, optimizer states, and a JSON state.

A checkpoint is written into a hidden directory and renamed when it is complete: a killed run
leaves either a whole checkpoint or none. There is no random state to save (see
rollout.derive_seed); the sizes of the log files are saved, so that a resumed run cuts off what
was written after the checkpoint and writes it again.
"""

import errno
import json
import os
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from mrl.errors import MrlError
from mrl.lora import save_adapters
from mrl.policy import Policy

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
        except RuntimeError as error:  # what torch makes of a full disk
            raise OSError(errno.EIO, "optimizer.pt could not be written whole") from error
    return partial


def finish_checkpoint(run: Path, partial: Path, state: dict) -> None:
    """Make an unfinished checkpoint count, in one rename, and drop all but the newest `KEEP`.

    state: "step", "versions" and whatever JSON the run needs beside weights and optimizers.
    """
    sizes = {name: (run / name).stat().st_size for name in LOGS if (run / name).exists()}
    document = json.dumps({**state, "logs": sizes}, indent=1)
    (partial / "state.json").write_text(document, encoding="utf-8")
    for path in filter(Path.is_file, (*partial.rglob("*"), *map(run.joinpath, LOGS))):
        with path.open("rb") as file:  # on the disk before the name that makes it count
            os.fsync(file.fileno())
    partial.rename(partial.with_name(f"step-{state['step']:06d}"))
    for old in checkpoints(run)[:-KEEP]:
        shutil.rmtree(old)


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    return [path.parent for path in sorted((run / "checkpoints").glob("step-*/state.json"))]


def newest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint of a run, if there is one."""
    return (checkpoints(run) or [None])[-1]


def read_state(checkpoint: Path | None) -> dict:
    """`state.json` of a checkpoint (None: of a run's beginning); MrlError if it is damaged."""
    if checkpoint is None:
        return {"step": 0, "logs": {}, "made_with": {}, "versions": {}}
    try:
        return json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(checkpoint / "state.json", error) from None


def restore_optimizers(checkpoint: Path, policies: Sequence[Policy], state: dict) -> None:
    """Give policies whose weights came from the checkpoint their optimizer state and version."""
    for policy in policies:
        if policy.config.frozen:
            continue
        path = checkpoint / policy.name / "optimizer.pt"
        try:
            document = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise _damaged(path, error) from None
        policy.optimizer.load_state_dict(document)
        policy.version = state["versions"][policy.name]


def _damaged(path: Path, error: Exception) -> MrlError:
    reason = str(error).split("\n")[0][:200]
    return MrlError(
        f"{path}: is damaged ({reason}); delete this checkpoint's folder to go on from the one "
        "before it."
    )


def cut_back(run: Path, state: dict) -> None:
    """Take away what a killed run left unfinished, and what it logged after the checkpoint."""
    for partial in (run / "checkpoints").glob(f"{PARTIAL}*"):
        shutil.rmtree(partial, ignore_errors=True)
    for path in filter(Path.exists, map(run.joinpath, LOGS)):
        os.truncate(path, state["logs"].get(path.name, 0))
