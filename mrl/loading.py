"""Models and tokenizers from a directory or the hub, with one plain sentence where that fails."""

import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from huggingface_hub import constants, try_to_load_from_cache
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from mrl.config import PAIRS
from mrl.errors import MrlError

transformers_logging.disable_progress_bar()  # it would break the live view


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """`AutoTokenizer` from a directory or the hub; MrlError with one sentence if there is none."""
    return _load(AutoTokenizer, path, clean_up_tokenization_spaces=False)


def load_model(path: str, device: str = "cpu") -> PreTrainedModel:
    """`AutoModelForCausalLM` in float32, from safetensors only; MrlError as for a tokenizer."""
    model = _load(AutoModelForCausalLM, path, dtype=torch.float32, use_safetensors=True)
    for parameter in model.parameters():  # out of the mapped file: where a tensor begins in memory
        parameter.data = parameter.data.clone()  # decides which kernel runs, to the last bit
    return model.to(device)


def _load(auto_class: type, path: str, **options: object) -> Any:
    if (path.startswith((".", "/", "~")) or path.count("/") > 1) and not Path(path).is_dir():
        raise MrlError(f"{path}: no such model directory; give one that save_pretrained wrote.")
    try:
        _check_hub(path)
        return auto_class.from_pretrained(path, trust_remote_code=False, **options)
    except Exception as error:
        if Path(path).is_dir():
            reason = str(error).strip().split("\n")[0][:200]
            raise MrlError(
                f"{path}: is no directory that transformers can load ({reason}); give one that "
                "save_pretrained wrote, with safetensors weights and a tokenizer."
            ) from error
        raise MrlError(
            f"{path}: is neither a directory here nor a model that the hub could give; check the "
            "name and the network, or give a local directory."
        ) from error


def _check_hub(name: str) -> None:
    """Fail at once if a hub name is neither in the cache nor to be had: retries take minutes."""
    if Path(name).is_dir() or constants.HF_HUB_OFFLINE:
        return
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    address = urlsplit(constants.ENDPOINT)
    proxied = any(os.environ.get(key) for key in ("https_proxy", "HTTPS_PROXY", "ALL_PROXY"))
    if not proxied:
        socket.create_connection((address.hostname, address.port or 443), timeout=5).close()


def can_load(name: str) -> bool:
    """Whether a model is in a directory or the cache, or the hub answers; within seconds."""
    try:
        _check_hub(name)
    except OSError:
        return False
    offline = constants.HF_HUB_OFFLINE and not Path(name).is_dir()
    return not offline or isinstance(try_to_load_from_cache(name, "config.json"), str)


def choose_pair() -> tuple[str, str]:
    """The pair for somebody who names none, and why: the real one where it can be trained."""
    policies, preset = PAIRS["qwen-smol"]
    force = "; --pair qwen-smol tries all the same, --pair DIR_A,DIR_B takes other models"
    if not torch.cuda.is_available():
        return "tiny", f" (there is no CUDA device{force})"
    missing = [policy.path for policy in policies() if not can_load(policy.path)]
    if missing:
        return "tiny", f" ({missing[0]} is not in the cache and the hub does not answer{force})"
    if not Path(preset["train"]).is_file():
        return "tiny", " (the real pair needs its problems first: python mini_mrl.py data gsm8k)"
    return "qwen-smol", " (--pair tiny takes the embedded pair)"
