"""Models and tokenizers from a directory or the hub, with one plain sentence where that fails."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, constants, try_to_load_from_cache
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from mrl.config import PolicyConfig
from mrl.errors import MrlError
from mrl.policy import Policy

transformers_logging.disable_progress_bar()  # it would break the live view


def load_policy(config: PolicyConfig, index: int = 0, device: str = "cpu") -> Policy:
    """A policy from its directory or hub name, and its frozen reference if it has a KL term."""
    model, tokenizer = load_model(config.path, device), load_tokenizer(config.path)
    reference = None
    if config.kl_coef > 0:
        reference = load_model(config.reference or config.path, device).eval()
        reference.requires_grad_(False)
    return Policy(config, model, tokenizer, reference, index)


def load_policies(
    configs: Iterable[PolicyConfig],
    device: str,
    threads: int = 1,
    names: Iterable[str] | None = None,
) -> list[Policy]:
    """The policies of a run (or those named), on one device; each knows its place in the run."""
    torch.set_num_threads(threads)  # said, because the same seed needs the same number
    return [
        load_policy(config, index, device)
        for index, config in enumerate(configs)
        if names is None or config.name in names
    ]


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """`AutoTokenizer` from a directory or the hub; MrlError with one sentence if there is none."""
    return _load(AutoTokenizer, path, clean_up_tokenization_spaces=False)


def load_model(path: str, device: str = "cpu") -> PreTrainedModel:
    """`AutoModelForCausalLM` in float32, from safetensors only; MrlError as for a tokenizer."""
    model = _load(AutoModelForCausalLM, path, dtype=torch.float32, use_safetensors=True)
    for parameter in model.parameters():  # out of the mapped file: where a tensor begins in memory
        parameter.data = parameter.data.clone()  # decides which kernel runs, to the last bit
    return model.to(device)


def can_load(name: str) -> bool:
    """Whether a model is in a directory or the hub's cache, or the hub answers; within seconds."""
    if Path(name).is_dir() or isinstance(try_to_load_from_cache(name, "config.json"), str):
        return True
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        HfApi().model_info(name, timeout=5)
    except Exception:  # no network, no such model, no permission: the same to whoever asks
        return False
    return True


def _load(auto_class: type, path: str, **options: object) -> Any:
    local = path.startswith((".", "/", "~")) or path.count("/") > 1
    if local and not Path(path).is_dir():
        raise MrlError(f"{path}: no such model directory; give one that save_pretrained wrote.")
    if not can_load(path):  # asked once: `from_pretrained` would try again for a minute
        raise MrlError(
            f"{path}: is neither a directory here nor a model that the hub could give; check the "
            "name and the network, or give a local directory."
        )
    try:
        return auto_class.from_pretrained(path, trust_remote_code=False, **options)
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise MrlError(
            f"{path}: is no model that transformers can load ({reason}); give a directory that "
            "save_pretrained wrote, with safetensors weights and a tokenizer."
        ) from error
