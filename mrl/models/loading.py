"""Loads models and tokenizers from a directory or from the Hugging Face hub.

Every failure becomes an error of one sentence.
"""

import math
import os
import re
import socket
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MethodType
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from huggingface_hub import constants
from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
from torch import Tensor
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as transformers_logging

from mrl.config import PolicyConfig, RunConfig
from mrl.errors import MrlError
from mrl.logprobs import packed_logprobs, scaled_logprobs
from mrl.models.cuda_graph import decode
from mrl.models.lora import (
    add_adapters,
    base_alone,
    base_of,
    leaves_base_alone,
    load_adapters,
    new_adapters,
    saved_adapters,
)
from mrl.policy import Policy
from mrl.prompts import embedding_rows
from mrl.rollout import sample_completions
from mrl.samples import derive_seed

TOLERANCE = 2e-2  # largest accepted error of a log-prob, in nats; TF32 alone causes about 1e-3
KNOWN_LAYERS = {"full_attention", "sliding_attention"}  # layers for which logprobs.py makes masks
LAYER = re.compile(r"(.*?)\.(\d+)\.")  # the beginning of a tensor's name in a layer
# Classes whose RMSNorm equals Llama's. Other classes add 1 to the weight, or have a gate.
SAME_RMS_NORM = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")


def claim_process() -> None:
    """Apply settings that affect the whole process, so only the command line calls this."""
    torch.backends.cuda.enable_cudnn_sdp(False)  # as `torch_settings` does
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    enable_progress_bars()  # bars of downloads stay, because they end before the live view starts


def claim_device(config: RunConfig) -> str:
    """Choose a run's device, and set this process's number of threads and its GPU memory limit."""
    torch.set_num_threads(config.threads)
    device = pick_device(config.device)
    if device.startswith("cuda"):
        # the rest is for other libraries, which report a lack of memory less clearly than torch
        torch.cuda.set_per_process_memory_fraction(0.95)
    return device


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the progress bars and warnings of transformers, and restore them afterwards."""
    level, bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    hub_is_quiet = are_progress_bars_disabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
        if not hub_is_quiet:
            enable_progress_bars()


def pick_device(wanted: str) -> str:
    """The name of the device to use. `auto` is this process's GPU, or the CPU if there is none."""
    if wanted == "auto" and torch.cuda.is_available():
        wanted = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
    elif wanted == "auto":
        wanted = "cpu"

    try:
        place = torch.ones(1, device=wanted).device  # fails here if the GPU is too old
        if place.type not in ("cpu", "cuda"):
            raise RuntimeError("this program supports only cpu and cuda")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0][:200]
        raise MrlError(
            f"device is {wanted!r}, which cannot be used on this machine ({reason}). Use cpu, or "
            "cuda on a machine with an NVIDIA GPU."
        ) from None

    if place.type == "cuda":  # pinned memory and graphs use the current device
        torch.cuda.set_device(place)
    return wanted


def load_policy(config: PolicyConfig, index: int = 0, device: str = "cpu", seed: int = 0) -> Policy:
    """Load a policy, and its frozen reference model if it has a KL term.

    index: the policy's number in the run. seed: the seed of the run.
    """
    base, adapters = base_of(config.path, config.reference), adapters_of(config)
    model, tokenizer = load_model(base, device), load_tokenizer(config.path)
    rows = embedding_rows(model)
    # Vocabularies may be padded, but never to more than twice their size. A tokenizer may have more
    # tokens than the model if no text needs them, such as Gemma 3's token for an image.
    needed = [tokenizer.vocab_size - 1, tokenizer.eos_token_id, tokenizer.pad_token_id]
    if len(tokenizer) < rows / 2 or max(filter(None, needed)) >= rows:
        raise MrlError(
            f"{config.path}: the tokenizer has {len(tokenizer)} tokens and the model {rows}, so "
            "they do not belong together. Use a complete copy of the model."
        )

    reference = None
    if config.kl_coef > 0 and not config.frozen:
        other = base if adapters else config.reference or config.path
        shares = adapters and leaves_base_alone(adapters)
        reference = base_alone(model) if shares else load_model(other, device)
        reference.eval().requires_grad_(False)

    if config.gradient_checkpointing:
        _enable_gradient_checkpointing(model)
    if adapters:
        add_adapters(model, adapters, derive_seed(seed, index))
    if base != config.path:
        load_adapters(model, config.path)
    if config.frozen:
        model.requires_grad_(False)

    problem = packing_problem(model.eval())  # in float32
    if problem:
        raise MrlError(f"{config.path} cannot be trained by this program: {problem}.")
    config = replace(config, lora_rank=adapters.r if adapters else 0)
    policy = Policy(config, model, tokenizer, reference, index)
    policy.graph_decode = decode if device.startswith("cuda") else None

    # In mixed precision, frozen weights (the base weights under LoRA, or a teacher) are kept in
    # bfloat16, which halves their memory. In float32, autocast would copy each frozen matrix for
    # every token.
    if policy.mixed_precision:
        for parameter in model.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.bfloat16()
    return policy


def adapters_of(config: PolicyConfig) -> Any:
    """The adapters of a policy as peft's LoraConfig, saved or new; None without LoRA."""
    adapters = saved_adapters(config.path)
    return adapters or (new_adapters(config.lora_rank) if config.lora_rank else None)


def load_policies(
    config: RunConfig, device: str, names: Iterable[str] | None = None
) -> list[Policy]:
    """Load the policies of a run, or only those in `names`, on one device."""
    policies = []
    for index, policy in enumerate(config.policies):
        if names is None or policy.name in names:
            policies.append(load_policy(policy, index, device, config.seed))
    return policies


def load_tokenizer(path: str) -> PreTrainedTokenizerFast:
    """Load tokenizer.json, unchanged, from a directory or the hub. MrlError if there is none.

    `AutoTokenizer` would replace the file's splitting rules with those of a Python class.
    """
    load = PreTrainedTokenizerFast.from_pretrained
    return _load(load, path, "tokenizer", clean_up_tokenization_spaces=False)


def load_model(path: str, device: str = "cpu") -> PreTrainedModel:
    """Load a causal language model in float32, from safetensors only.

    Raises MrlError if the model is incomplete.
    """
    _read_config(path)
    options = {"use_safetensors": True, "output_loading_info": True, "dtype": torch.float32}
    options["ignore_mismatched_sizes"] = True  # the check below refuses them
    model, loaded = _load(AutoModelForCausalLM.from_pretrained, path, "weights", **options)

    wrong = sorted(loaded["missing_keys"])
    wrong += sorted(entry[0] for entry in loaded["mismatched_keys"])
    wrong += _left_over(model, loaded["unexpected_keys"])
    if wrong:
        raise MrlError(
            f"{path}: the weights do not match config.json: {len(wrong)} tensors are missing, "
            f"unexpected or of another size, such as {wrong[0]}. Use a complete copy of the model."
        )

    # Copy the tensors out of the mapped file. Their alignment in memory decides which kernels run,
    # and kernels differ in the last bit.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    _use_one_kernel_per_norm(model)
    return model.to(device)


def _left_over(model: PreTrainedModel, unexpected: list[str]) -> list[str]:
    """Those of the unexpected tensors that lie in a layer of the model, or in a missing layer.

    Others belong to parts that are left out on purpose, such as a vision tower, or layers that
    predict further tokens.
    """
    held = list(model.state_dict())
    layers = {match[0] for name in held if (match := LAYER.match(name))}
    kinds = {LAYER.sub(r"\1.*.", name, count=1) for name in held}  # without the layer's number
    config = model.config.get_text_config()
    last = getattr(config, "num_hidden_layers", 0)
    last += getattr(config, "num_nextn_predict_layers", None) or 0

    wrong = []
    for name in sorted(unexpected):
        layer = LAYER.match(name)
        if not layer:
            continue
        kind = LAYER.sub(r"\1.*.", name, count=1)
        # if another layer has such a tensor, config.json names too few layers
        if layer[0] in layers or (int(layer[2]) >= last and kind in kinds):
            wrong.append(name)
    return wrong


def _use_one_kernel_per_norm(model: PreTrainedModel) -> None:
    """Compute every RMSNorm in one kernel instead of six. On a CPU no bit of the result changes."""
    for module in model.modules():
        if type(module).__name__ in SAME_RMS_NORM:
            # a bound method, so that a deep copy of the model uses its own weights
            module.forward = MethodType(_rms_norm, module)


def _rms_norm(module: Any, hidden: Tensor) -> Tensor:
    """[..., hidden] -> [..., hidden]: hidden / sqrt(mean of its squares + epsilon) * weight."""
    weight = module.weight
    return torch.nn.functional.rms_norm(hidden, weight.shape, weight, module.variance_epsilon)


def shape_of(config: PolicyConfig) -> PreTrainedModel:
    """A policy's model with adapters but without weights, made from its configuration alone."""
    base, adapters = base_of(config.path, config.reference), adapters_of(config)
    shape = _read_config(base)
    with torch.device("meta"):  # a device that allocates no memory
        make = lambda path, **_: AutoModelForCausalLM.from_config(shape)  # noqa: E731
        model = _load(make, base, "config.json")  # fails if its numbers do not make a model
        if adapters:
            add_adapters(model, adapters)
    return model.requires_grad_(False) if config.frozen else model


def _read_config(path: str) -> PreTrainedConfig:
    """Read a model's configuration; MrlError for an architecture that cannot be trained here."""
    config = _load(AutoConfig.from_pretrained, path, "config.json")

    problem = ""
    writes = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    text = config.get_text_config()
    unknown = set(getattr(text, "layer_types", None) or ()) - KNOWN_LAYERS
    if config.is_encoder_decoder or type(config) in MODEL_FOR_MASKED_LM_MAPPING or not writes:
        problem = "it is not a decoder-only language model"
    elif unknown:
        problem = f"it has recurrent or other unsupported layers ({min(unknown)})"
    elif "local" in getattr(text, "attention_layers", ()):
        problem = "its local attention would mix completions that are packed into one row"
    if problem:
        raise MrlError(f"{path}: {config.model_type} cannot be trained by this program: {problem}.")
    return config


def _load(load: Callable[..., Any], path: str, part: str, **options: object) -> Any:
    """Call a `from_pretrained` method; any error becomes an MrlError.

    part: what the method loads, in words.
    """
    # without a network, the hub's library would try for half a minute
    alone = not Path(path).is_dir() and not hub_answers()
    try:
        with quiet_transformers():
            return load(path, trust_remote_code=False, local_files_only=alone, **options)
    except Exception as error:
        reason = textwrap.shorten(str(error) or repr(error), 300)
        if alone and isinstance(error, OSError):
            reason = "not a directory, not downloaded before, and the hub cannot be reached"
        raise MrlError(
            f"{path}: its {part} cannot be loaded ({reason}). Name a model on the hub, or a "
            "directory with config.json, tokenizer.json and weights as safetensors (not GGUF)."
        ) from error


@cache
def hub_answers() -> bool:
    """Whether this machine can reach the hub. Behind a proxy, we take this for granted."""
    hub = urlsplit(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE or not hub.hostname:
        return False
    if getproxies():
        return True
    try:
        with socket.create_connection((hub.hostname, hub.port or 443), timeout=5):
            return True
    except OSError:
        return False


@torch.no_grad()
def packing_problem(model: PreTrainedModel) -> str:
    """Check that sampling and packing give the log-probs of a plain forward pass.

    Returns the flaw, or "". Both are checked on completions of two prompts. The check cannot notice
    a wrong attention mask if the weights are near 0, as before any training, because all tokens
    then get the same attention.
    """
    if getattr(model, "_is_stateful", False):
        return "it has recurrent layers, whose state cannot keep packed completions apart"

    vocabulary = embedding_rows(model)
    # this check suppresses no token
    suppressed = torch.zeros(vocabulary, dtype=torch.bool, device=model.device)
    scaling: Any = {"suppressed": suppressed, "temperature": 1.0}
    no_eos = torch.tensor([], dtype=torch.int64, device=model.device)
    chance = torch.Generator().manual_seed(0)
    prompts = [[1, 2, 3, 4], [1, 2, 3, 4], [5, 6], [5, 6]]

    try:
        sampled = sample_completions(
            model, prompts[::2], 2, max_new_tokens=4, eos_ids=no_eos, generator=chance, **scaling
        )
        completions = sampled.token_ids.tolist()
        packed, _ = packed_logprobs(model, prompts, completions, **scaling)
        plain = []
        for prompt, completion in zip(prompts, completions, strict=True):
            plain.append(plain_logprobs(model, prompt, completion, **scaling))
    except Exception as error:  # the model's own code may raise anything
        reason = str(error).strip().split("\n")[0][:200]
        return f"its code cannot score several completions after one prompt ({reason})"

    gap = float((torch.stack([packed, sampled.logprobs]) - torch.stack(plain)).abs().max())
    if gap < TOLERANCE:
        return ""
    if not math.isfinite(gap):
        return "its log-probs are not finite, so its weights are damaged"
    return (
        f"log-probs of packed completions differ from those of single ones by {gap:.2g} nats, so "
        "this model's attention or output head is not supported"
    )


def plain_logprobs(
    model: PreTrainedModel,
    prompt: list[int],
    completion: list[int],
    suppressed: Tensor,
    temperature: float,
) -> Tensor:
    """Log-probs of one completion, [seq] nats, from a plain forward pass of the model.

    suppressed: [vocab] bool, the tokens that must never be sampled.
    """
    token_ids = torch.tensor([prompt + completion], device=model.device)
    logits = model(input_ids=token_ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    logprobs = scaled_logprobs(logits, suppressed.nonzero().squeeze(1), temperature)
    return logprobs.gather(1, token_ids[0, len(prompt) :, None])[:, 0]


def _enable_gradient_checkpointing(model: PreTrainedModel) -> None:
    """Recompute activations in the backward pass, which saves memory.

    transformers does this only in training mode, where dropout is active, so we set dropout to 0.
    """
    model.activation_checkpointing_enable({"use_reentrant": False})

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            # torch's type hints allow only tensors and modules as attributes
            module.attention_dropout = 0.0  # pyright: ignore[reportArgumentType]
