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
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mrl.config import RunConfig, config_toml
from mrl.errors import MrlError
from mrl.policy import Policy

KEEP = 2  # checkpoints
PARTIAL = ".partial-"
LOGS = ("metrics.jsonl", "samples.jsonl", "exchange.jsonl")


def save_policies(run: Path, step: int, policies: Sequence[Policy]) -> Path | None:
    """Write policies into the hidden directory of an unfinished checkpoint, and return that.

    None if this checkpoint is there already. `finish_checkpoint` makes it count.
    """
    if (run / "checkpoints" / f"step-{step:06d}").is_dir():
        return None
    partial = run / "checkpoints" / f"{PARTIAL}{step:06d}"
    for policy in policies:
        folder = partial / policy.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
        save_file(_optimizer_tensors(policy), folder / "optimizer.safetensors")
    return partial


def finish_checkpoint(run: Path, partial: Path, state: dict) -> Path:
    """Make an unfinished checkpoint count, in one rename, and drop all but the newest `KEEP`.

    state: "step", "versions" and whatever JSON the run needs beside weights and optimizers.
    """
    sizes = {name: (run / name).stat().st_size for name in LOGS if (run / name).exists()}
    document = json.dumps({**state, "logs": sizes}, indent=1)
    (partial / "state.json").write_text(document, encoding="utf-8")
    for path in partial.rglob("*"):
        _fsync(path)
    _fsync(partial)
    final = partial.with_name(f"step-{state['step']:06d}")
    partial.rename(final)
    _fsync(final.parent)
    for old in sorted(final.parent.glob("step-*"))[:-KEEP]:
        shutil.rmtree(old)
    return final


def remove_partial(run: Path) -> None:
    """Take away what a killed run left unfinished."""
    for partial in (run / "checkpoints").glob(f"{PARTIAL}*"):
        shutil.rmtree(partial, ignore_errors=True)


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
        path = checkpoint / policy.name / "optimizer.safetensors"
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise MrlError(
                f"{path}: is damaged ({error}); delete {checkpoint} to go on from the checkpoint "
                "before it."
            ) from None
        entries: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            number, name = key.split(".")
            entries.setdefault(int(number), {})[name] = value
        document = policy.optimizer.state_dict()
        document["state"] = entries
        policy.optimizer.load_state_dict(document)
        policy.version = state["versions"].get(policy.name, 0)


def cut_logs(run: Path, state: dict) -> None:
    """Cut the logs back to their sizes at the checkpoint."""
    for name in LOGS:
        path = run / name
        if path.exists():
            os.truncate(path, state["logs"].get(name, 0))


def origin(config: RunConfig) -> dict[str, Any]:
    """What a run's numbers come from beside its checkpoint: settings, lines of TOML; versions."""
    weights = ("path = ", "reference = ")  # those of a resumed run come from its checkpoint
    lines = [line for line in config_toml(config).splitlines() if not line.startswith(weights)]
    versions = {name: version(name) for name in ("torch", "transformers", "tokenizers")}
    return {"settings": lines, "versions": versions}


def changes_since(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Sentences about what is not as it was when a checkpoint was written."""
    said = []
    settings = before.get("settings", now["settings"])
    if changed := [line for line in now["settings"] if line not in settings]:
        said.append(f"config.toml has changed since the checkpoint: {'; '.join(changed)}.")
    for name, new in now["versions"].items():
        old = before.get("versions", {}).get(name, new)
        if old != new:
            said.append(
                f"This run was made with {name} {old}, here is {new}: it goes on, but maybe not "
                "to the same last bit."
            )
    return said
