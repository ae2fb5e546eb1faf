"""LoRA (arXiv 2106.09685), by peft: trains small matrices next to the model's own frozen weights.

For y = W x with a frozen W [out, in], two matrices A [r, in] and B [out, r] are trained:

    y = W x + 2 B (A x)

B starts at 0, so a policy starts as its base model. Only A and B are trained, saved and moved
between devices. They are in float32 and have at most a hundredth as many parameters as the model,
so their gradients and AdamW's moments need almost no memory. The base model also serves as the
reference of a KL term, without a copy.

Adapters that other people trained may be of any kind of LoRA that peft knows, such as DoRA, or may
hold trained copies of whole layers. peft adds them to the layers of a model and leaves the model's
class as it is, so the rest of the program does not see them. peft is an optional package.
"""

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from mrl.errors import MrlError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # peft's file names
PREFIX = "base_model.model."  # begins each name in peft's file of weights
# values of `init_lora_weights` with which peft leaves the base model's weights as they are
HARMLESS = (True, False, "gaussian", "orthogonal", "eva")


def _peft() -> Any:
    """The package peft; MrlError if it is not installed."""
    try:
        import peft
    except ImportError:
        raise MrlError(
            "LoRA and saved adapters need the package peft, which is not installed. Install it "
            "with: pip install peft, or from a checkout: pip install -e '.[lora]'"
        ) from None
    return peft


def saved_adapters(path: str) -> Any:
    """peft's LoraConfig of the adapters in a folder; None if the folder has none.

    Raises MrlError for adapters of another method than LoRA, or if their base is not named.
    """
    if not Path(path, CONFIG).is_file():
        return None
    peft = _peft()
    try:
        adapters = peft.PeftConfig.from_pretrained(path)
    except Exception as error:  # damaged JSON, an unknown method or field
        raise MrlError(f"{path}/{CONFIG} cannot be read by peft ({error}).") from error
    if not isinstance(adapters, peft.LoraConfig):
        raise MrlError(
            f"{path}/{CONFIG}: its peft_type is {adapters.peft_type}, but only LORA can be trained "
            "here. Merge the adapters into their base model with peft, and use the merged model."
        )
    if not adapters.base_model_name_or_path:
        raise MrlError(
            f"{path}/{CONFIG} is incomplete: its field base_model_name_or_path is empty. Use a "
            "complete copy of the adapters."
        )
    adapters.lora_dropout = 0.0  # no dropout, ever: sampling and scoring must agree
    adapters.inference_mode = False
    return adapters


def new_adapters(rank: int) -> Any:
    """peft's LoraConfig for all linear layers except the output head."""
    return _peft().LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def base_of(path: str, first: str = "") -> str:
    """The model to load for a path: the base of the adapters in this folder, or the path itself.

    first: the initial model of a resumed run, used if the saved base no longer exists.
    Raises MrlError for a folder with adapters and a full model.
    """
    adapters = saved_adapters(path)
    if not adapters:
        return path
    base = adapters.base_model_name_or_path
    if first and Path(base).is_absolute() and not Path(base).exists():
        base = base_of(first)
    for folder in (path, base):
        if Path(folder, CONFIG).is_file() and list(Path(folder).glob("model*.safetensors")):
            raise MrlError(
                f"{folder} holds a full model and also {CONFIG}, so it does not say which of the "
                f"two it is. Delete {CONFIG} and {WEIGHTS} if the full model is meant; otherwise "
                "move them to a folder of their own."
            )
    return base


def add_adapters(model: PreTrainedModel, adapters: Any, seed: int = 0) -> None:
    """Freeze a model, and add adapters that learn.

    adapters: peft's LoraConfig. seed: seed of the matrices A. It must differ between runs, and
    between policies that have the same base model.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice for people who call peft themselves
        torch.default_generator.manual_seed(seed)  # drawn on the CPU, so equal on all devices
        try:
            _peft().inject_adapter_in_model(adapters, model)
        except ValueError as error:  # for example, no layer has the name that they ask for
            raise MrlError(
                f"{model.name_or_path}: peft cannot add the adapters to this model ({error})."
            ) from error


def base_alone(model: PreTrainedModel) -> PreTrainedModel:
    """A second model object, which shares the first one's tensors and will get no adapters."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def leaves_base_alone(adapters: Any) -> bool:
    """Whether the base model's own tensors stay as they are next to these adapters."""
    return adapters.bias == "none" and adapters.init_lora_weights in HARMLESS


def save_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Save what was trained, and the path or hub name of the base model, as peft does."""
    state: dict[str, Tensor] = _peft().get_peft_model_state_dict(model, save_embedding_layers=False)
    tensors = {PREFIX + name: tensor.cpu().contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})

    adapters = copy.copy(model.peft_config["default"])
    # a path or hub name from which peft and this program can load the base model
    base = model.name_or_path or ""
    whole = str(Path(base).absolute()) if Path(base).exists() else base  # a hub name stays as it is
    adapters.base_model_name_or_path = whole
    adapters.save_pretrained(folder)


def load_adapters(model: PreTrainedModel, folder: str) -> None:
    """Load saved tensors into a model's adapters; MrlError if one is missing or does not fit."""
    learnt = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    flaw = ""
    try:
        named = load_file(Path(folder, WEIGHTS))
        state = {name.removeprefix(PREFIX): tensor for name, tensor in named.items()}
        loaded = _peft().set_peft_model_state_dict(model, state)
        wrong = sorted(learnt & {*loaded.missing_keys}) + loaded.unexpected_keys
        if wrong:
            flaw = f"{len(wrong)} tensors are missing or unexpected, such as {wrong[0]}"
    except KeyError as error:
        flaw = f"{error.args[0]} is missing"
    except (OSError, RuntimeError, SafetensorError) as error:  # a cut file, or wrong sizes
        flaw = str(error).split("\n")[-1].strip()
    if flaw:
        raise MrlError(
            f"{folder}/{WEIGHTS} does not fit {CONFIG} and the base model ({flaw}). Use a complete "
            "copy of the adapters."
        )
