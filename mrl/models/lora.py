"""LoRA (arXiv 2106.09685): trains small matrices and leaves the model's own weights frozen.

For y = W x with a frozen W [out, in], two matrices A [r, in] and B [out, r] are trained:

    y = W x + 2 B (A x)

B starts at 0, so a policy starts as its base model. Only A and B are trained, saved and moved
between devices. They are in float32 and have at most a hundredth as many parameters as the model,
so their gradients and AdamW's moments need almost no memory. The base model also serves as the
reference of a KL term, without a copy.
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

SCALE = 2.0  # the factor of B A, which peft calls alpha / r
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # peft's file names
PREFIX = "base_model.model."

# Fields of peft's file that do not matter here: they concern training, or follow from the weights.
HARMLESS = {"task_type", "auto_mapping", "peft_version", "inference_mode", "target_modules"}
HARMLESS |= {"exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout"}
HARMLESS |= {"eva_config", "megatron_core", "qalora_group_size", "runtime_config"}
HARMLESS |= {"base_model_name_or_path", "r", "lora_alpha", "use_rslora"}  # these are read below
# Supported values of other fields. A field that is not listed must be empty.
UNDERSTOOD = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "orthogonal", "eva"),  # they leave the base unchanged
}


class LoraLinear(nn.Module):
    """A frozen linear layer with two trainable matrices."""

    def __init__(self, base: nn.Linear, rank: int, seed: int) -> None:
        super().__init__()
        self.base_layer = base  # [out, in], frozen by `add_adapters`
        place = {"bias": False, "device": base.weight.device}
        self.lora_A = nn.Linear(base.in_features, rank, **place)
        self.lora_B = nn.Linear(rank, base.out_features, **place)

        # A is uniform within +-1 / sqrt(in). It is drawn on the CPU, so it is equal on all devices.
        drawn = torch.rand(self.lora_A.weight.shape, generator=torch.Generator().manual_seed(seed))
        self.lora_A.weight.data.copy_((2 * drawn - 1) / math.sqrt(base.in_features))
        # B = 0 adds nothing yet. Its gradient is not 0, so learning can start.
        self.lora_B.weight.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return self.base_layer(x) + SCALE * self.lora_B(self.lora_A(x))


def add_adapters(model: PreTrainedModel, rank: int, seed: int = 0) -> None:
    """Freeze a model and add adapters to all its linear layers except the output head.

    seed: seed of the matrices A. It must differ between runs, and between policies that have the
    same base model.
    """
    model.requires_grad_(False)
    head = model.get_output_embeddings()
    # a list, because replacing layers would disturb the iteration
    layers = [
        (n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head
    ]
    if not layers:
        raise MrlError(f"{model.config.model_type} has no linear layers for LoRA; set lora_rank=0.")

    for name, layer in layers:
        model.set_submodule(name, LoraLinear(layer, rank, derive_seed(seed, "lora", name)))


def base_alone(model: PreTrainedModel) -> PreTrainedModel:
    """A second model object, which shares the first one's tensors and will get no adapters."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def base_of(path: str, first: str = "") -> tuple[str, int]:
    """The base model of saved adapters (a path or a hub name), and the rank of the adapters.

    path: what to load. If it has no adapters, the result is `path` and 0.
    first: the initial model of a resumed run, used if the saved path no longer exists.
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
    """Read peft's description of adapters; MrlError if it uses features that we do not support."""
    config = parse(read_text(file), str(file))
    types = {"base_model_name_or_path": str, "r": int, "lora_alpha": int | float}
    for name, kind in types.items():
        if not isinstance(config.get(name), kind) or config[name] in ("", 0):
            raise MrlError(
                f"{file} is incomplete: its field {name} is {config.get(name)!r}. Use a complete "
                "copy of the adapters."
            )

    for name, value in config.items():
        if name not in HARMLESS and value and value not in UNDERSTOOD.get(name, ()):
            raise MrlError(
                f"{file}: {name} is {value!r}, which this program does not support. Merge the "
                "adapters into their base model with peft, and use the merged model."
            )
    return config


def save_adapters(model: PreTrainedModel, folder: Path, rank: int) -> None:
    """Save the trained matrices, and the path or hub name of the base model."""
    trained = {n: p.detach().cpu() for n, p in model.named_parameters() if ".lora_" in n}
    save_file({PREFIX + name: tensor for name, tensor in trained.items()}, folder / WEIGHTS)

    # a path or hub name from which peft and this program can load the base model
    base = model.name_or_path or ""
    whole = str(Path(base).absolute()) if Path(base).exists() else base  # a hub name stays as it is
    targets = sorted({name.split(".")[-3] for name in trained})  # ....q_proj.lora_A.weight
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": whole}
    config |= {"r": rank, "lora_alpha": SCALE * rank, "target_modules": targets}
    (folder / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")


def load_adapters(model: PreTrainedModel, folder: str) -> None:
    """Load saved matrices into a model's adapters; MrlError if they do not fit.

    If they were saved with a scale other than `SCALE`, B is multiplied to make up for it.
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
    except (OSError, RuntimeError, SafetensorError) as error:  # a truncated file, or wrong sizes
        flaw = str(error).split("\n")[-1].strip()
    if flaw:
        raise MrlError(
            f"{folder}/{WEIGHTS} does not fit its base model ({flaw}). Use a complete copy of the "
            "adapters."
        )
