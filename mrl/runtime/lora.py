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

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from mrl.errors import MrlError
from mrl.samples import derive_seed

SCALE = 2.0  # alpha / r, of B A
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # files and names are peft's
PREFIX = "base_model.model."


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


def base_of(path: str) -> tuple[str, int]:
    """Where the base of saved adapters is, and their rank; the path itself and 0 without any."""
    file = Path(path, CONFIG)
    if not file.is_file():
        return path, 0

    config = json.loads(file.read_text(encoding="utf-8"))
    rank = config["r"]
    if config["lora_alpha"] != SCALE * rank:
        raise MrlError(f"{file}: was not written by this program; give a whole model.")
    return config["base_model_name_or_path"], rank


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
    """Give a model's adapters the saved numbers; MrlError for numbers without an adapter."""
    saved = load_file(Path(folder, WEIGHTS))
    state = {name.removeprefix(PREFIX): tensor for name, tensor in saved.items()}
    if model.load_state_dict(state, strict=False).unexpected_keys:
        raise MrlError(f"{folder}/{WEIGHTS}: does not fit its base; give another one.")
