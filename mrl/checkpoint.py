"""Saving and loading a run: `save_pretrained` directories, safetensors and JSON, never a pickle.

A checkpoint is written into a hidden directory and renamed when it is complete: a killed run
leaves either a whole checkpoint or none. There is no random state to save (see
trainer.derive_seed); the sizes of the log files are saved, so that a resumed run cuts off what
was written after the checkpoint and writes it again.
"""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from mrl.errors import MrlError
from mrl.policy import Policy

KEEP = 2  # checkpoints
LOGS = ("metrics.jsonl", "samples.jsonl", "exchange.jsonl")


def save_checkpoint(run: Path, step: int, policies: Sequence[Policy], state: dict) -> Path:
    """Write `checkpoints/step-<n>` atomically and drop all but the newest `KEEP`.

    state: whatever JSON the trainer needs beside weights and optimizers.
    """
    folder = run / "checkpoints"
    final = folder / f"step-{step:06d}"
    if final.is_dir():
        return final
    partial = folder / f".partial-{step:06d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for policy in policies:
        policy.model.save_pretrained(partial / policy.name)
        policy.tokenizer.save_pretrained(partial / policy.name)
        save_file(_optimizer_tensors(policy), partial / policy.name / "optimizer.safetensors")
    document = {
        "step": step,
        "versions": {policy.name: policy.version for policy in policies},
        "logs": {name: (run / name).stat().st_size for name in LOGS if (run / name).exists()},
        **state,
    }
    (partial / "state.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    for path in partial.rglob("*"):
        _fsync(path)
    _fsync(partial)
    partial.rename(final)
    _fsync(folder)
    for old in sorted(folder.glob("step-*"))[:-KEEP]:
        shutil.rmtree(old)
    return final


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _optimizer_tensors(policy: Policy) -> dict[str, Tensor]:
    """AdamW's state as named tensors: `<parameter number>.<exp_avg | exp_avg_sq | step>`."""
    state = policy.optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value.detach().cpu().contiguous()
        for number, entry in state.items()
        for name, value in entry.items()
    }


def newest_checkpoint(run: Path) -> Path:
    """The newest complete checkpoint of a run; MrlError if there is none."""
    found = sorted((run / "checkpoints").glob("step-*/state.json"))
    if not found:
        raise MrlError(f"{run}: holds no complete checkpoint, so there is nothing to go on from.")
    return found[-1].parent


def read_state(checkpoint: Path) -> dict:
    """`state.json` of a checkpoint; MrlError if it is damaged."""
    try:
        return json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise MrlError(
            f"{checkpoint}: state.json is damaged ({error}); delete this folder to go on from the "
            "checkpoint before it."
        ) from None


def restore_optimizers(checkpoint: Path, policies: Sequence[Policy], state: dict) -> None:
    """Give policies whose weights came from the checkpoint their optimizer state and version."""
    for policy in policies:
        tensors = load_file(checkpoint / policy.name / "optimizer.safetensors")
        entries: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            number, name = key.split(".")
            entries.setdefault(int(number), {})[name] = value
        document = policy.optimizer.state_dict()
        document["state"] = entries
        policy.optimizer.load_state_dict(document)
        policy.version = state["versions"][policy.name]


def cut_logs(run: Path, state: dict) -> None:
    """Cut the logs back to their sizes at the checkpoint."""
    for name in LOGS:
        path = run / name
        if path.exists():
            os.truncate(path, state["logs"].get(name, 0))
