"""LoRA (arXiv 2106.09685): small matrices learn beside a model's weights, which stay as they are.

For y = W x with W [out, in] frozen, two matrices A [r, in] and B [out, r] are learnt:

    y = W x + 2 B (A x)

B begins at 0, so a policy begins as its base. What learns, is saved and moves between devices is A
and B alone, in float32, a hundredth of the model or less: their gradients and AdamW's moments cost
next to nothing. The base is there once more for free, as the reference of a KL term.
"""

import copy
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from mrl.errors import MrlError
from mrl.parsing import parse, read_text
from mrl.samples import derive_seed

SCALE = 2.0  # alpha / r, of B A
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # files and names are peft's
PREFIX = "base_model.model."

# fields of peft's file that change nothing here: they were for training, or the weights show them
HARMLESS = {"task_type", "auto_mapping", "peft_version", "inference_mode", "target_modules"}
HARMLESS |= {"exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout"}
HARMLESS |= {"eva_config", "megatron_core", "qalora_group_size", "runtime_config"}
HARMLESS |= {"base_model_name_or_path", "r", "lora_alpha", "use_rslora"}  # are read below
# values of others; where a field is not here, only an empty one is understood
UNDERSTOOD = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "orthogonal", "eva"),  # those that change no base
}


class LoraLinear(nn.Module):
    """A linear layer that is frozen, and the two matrices that learn beside it."""

    def __init__(self, base: nn.Linear, rank: int, seed: int) -> None:
        super().__init__()
        self.base_layer = base  # [out, in], frozen by `add_adapters`
        place = {"bias": False, "device": base.weight.device}
        self.lora_A = nn.Linear(base.in_features, rank, **place)
        self.lora_B = nn.Linear(rank, base.out_features, **place)

        # A uniform within +-1 / sqrt(in), drawn on the CPU: a seed means the same on every device
        drawn = torch.rand(self.lora_A.weight.shape, generator=torch.Generator().manual_seed(seed))
        self.lora_A.weight.data.copy_((2 * drawn - 1) / math.sqrt(base.in_features))
        # B = 0: nothing is added yet, but B's own gradient is not 0, so learning can begin
        self.lora_B.weight.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self.base_layer(x) + SCALE * self.lora_B(self.lora_A(x))


def add_adapters(model: PreTrainedModel, rank: int, seed: int = 0) -> None:
    """Freeze a model and put adapters beside all its linear layers, but not beside the head.

    seed: of every A; it should differ between runs, and between policies of one base.
    """
    model.requires_grad_(False)
    head = model.get_output_embeddings()
    # a list, because replacing a layer changes what named_modules walks over
    layers = [
        (n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head
    ]
    if not layers:
        raise MrlError(f"{model.config.model_type} has no linear layers for LoRA; use lora_rank=0.")

    for name, layer in layers:
        model.set_submodule(name, LoraLinear(layer, rank, derive_seed(seed, "lora", name)))


def base_alone(model: PreTrainedModel) -> PreTrainedModel:
    """A model of its own with the same tensors, not copies: it gets no adapters."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def base_of(path: str, first: str = "") -> tuple[str, int]:
    """Where the base of saved adapters is, and their rank; the path itself and 0 without any.

    first: the model that a resumed run began with, for the base where the place that was saved does
    not exist any more.
    """
    file = Path(path, CONFIG)
    if not file.is_file():
        return path, 0

    config = _read_config(file)
    base = config["base_model_name_or_path"]
    if first and Path(base).is_absolute() and not Path(base).exists():
        base, _ = base_of(first)
    return base, config["r"]


def _read_config(file: Path) -> dict[str, Any]:
    """peft's description of adapters; MrlError unless they are computed here as peft does."""
    config = parse(read_text(file), str(file))
    types = {"base_model_name_or_path": str, "r": int, "lora_alpha": int | float}
    for name, kind in types.items():
        if not isinstance(config.get(name), kind) or config[name] in ("", 0):
            raise MrlError(f"{file}: {name} is {config.get(name)!r}; give complete adapters.")

    for name, value in config.items():
        if name not in HARMLESS and value and value not in UNDERSTOOD.get(name, ()):
            raise MrlError(
                f"{file}: {name} is {value!r}, which this program does not compute; merge the "
                "adapters into their base with peft, and give that."
            )
    return config


def save_adapters(model: PreTrainedModel, folder: Path, rank: int) -> None:
    """Write what learns, and where the base is."""
    learnt = {n: p.detach().cpu() for n, p in model.named_parameters() if ".lora_" in n}
    save_file({PREFIX + name: tensor for name, tensor in learnt.items()}, folder / WEIGHTS)

    # where peft, and this program, find the base again
    base = model.name_or_path
    whole = str(Path(base).absolute()) if Path(base).exists() else base  # a hub name stays one
    targets = sorted({name.split(".")[-3] for name in learnt})  # ....q_proj.lora_A.weight
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": whole}
    config |= {"r": rank, "lora_alpha": SCALE * rank, "target_modules": targets}
    (folder / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")


def load_adapters(model: PreTrainedModel, folder: str) -> None:
    """Give a model's adapters the saved numbers; MrlError for any that are not an adapter's.

    Another scale than `SCALE` becomes a part of B.
    """
    config = _read_config(Path(folder, CONFIG))
    rank = config["r"]
    scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)

    flaw, state = "", {}
    try:
        for name, tensor in load_file(Path(folder, WEIGHTS)).items():
            factor = scale / SCALE if ".lora_B." in name else 1.0
            state[name.removeprefix(PREFIX)] = factor * tensor.float()
        foreign = [name for name in state if ".lora_" not in name]
        foreign += model.load_state_dict(state, strict=False).unexpected_keys
        flaw = f"{foreign[0]} is not an adapter" if foreign else ""
    except (OSError, RuntimeError, SafetensorError) as error:  # a file that is cut, other sizes
        flaw = str(error).split("\n")[-1].strip()
    if flaw:
        raise MrlError(f"{folder}/{WEIGHTS}: does not fit its base ({flaw}); give another one.")
