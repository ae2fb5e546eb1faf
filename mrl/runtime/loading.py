"""Models and tokenizers from a directory or the hub, with one plain sentence where that fails."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, try_to_load_from_cache
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from mrl.config import PolicyConfig
from mrl.errors import MrlError
from mrl.logprobs import packed_logprobs
from mrl.lora import add_adapters, base_alone, base_of, load_adapters
from mrl.policy import Policy
from mrl.rollout import scaled_logprobs
from mrl.runtime.cuda_graph import decode

TOLERANCE = 2e-2  # nats, between the packed and the plain computation; TF32 may cost some 1e-3

# read at the first use of a GPU: a cache that grows token by token would leave holes in its memory
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
transformers_logging.disable_progress_bar()  # it would break the live view


def pick_device(wanted: str) -> str:
    """`auto` is CUDA if it is there (under torchrun each process its own device), else the CPU."""
    if wanted == "auto" and torch.cuda.is_available():
        wanted = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
    wanted = "cpu" if wanted == "auto" else wanted
    try:
        place = torch.empty(0, device=wanted).device
        if place.type == "cuda":  # pinned memory and graphs belong to the current one
            torch.cuda.set_device(place)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise MrlError(f"device is {wanted!r}, which cannot be used here ({reason}).") from None
    return wanted


def load_policy(config: PolicyConfig, index: int = 0, device: str = "cpu") -> Policy:
    """A policy from its directory or hub name, and its frozen reference if it has a KL term."""
    base, saved_rank = base_of(config.path)
    rank = saved_rank or config.lora_rank
    model, tokenizer = load_model(base, device), load_tokenizer(config.path)
    reference = None
    if config.kl_coef > 0 and not config.frozen:
        other = config.reference or config.path
        reference = base_alone(model) if rank else load_model(other, device)
        reference.eval().requires_grad_(False)
    if config.checkpointing:
        _enable_checkpointing(model)
    if not can_pack(model.eval()):  # in float32 still
        raise MrlError(
            f"{config.path}: this architecture cannot be trained here: its attention does not "
            "follow a mask over several completions; the Llama and Qwen families can."
        )
    rate = config.learning_rate or usual_learning_rate(model.num_parameters(), lora=rank > 0)
    if rank:
        add_adapters(model, rank)
    if saved_rank:
        load_adapters(model, config.path)
    if config.frozen:
        model.requires_grad_(False)
    config = replace(config, learning_rate=rate, lora_rank=rank)
    policy = Policy(config, model, tokenizer, reference, index)
    if rank and policy.mixed_precision and device.startswith("cuda"):  # the base takes half then
        for parameter in filter(lambda parameter: not parameter.requires_grad, model.parameters()):
            parameter.data = parameter.data.bfloat16()
    policy.graph_decode = decode if device.startswith("cuda") else None
    return policy


def usual_learning_rate(parameters: int, lora: bool = False) -> float:
    """AdamW's for a model of that size, to one digit, if nobody chose one.

    3e-5 * (135 M / parameters)^2, between 1e-6 and 1e-4: a curve through three points that worked,
    the tiny pair, SmolLM2-135M and Qwen2.5-0.5B (data/results/real-pair); no law. Ten times as much
    for LoRA, as is usual.
    """
    rate = min(max(3e-5 * (135e6 / parameters) ** 2, 1e-6), 1e-4)
    return float(f"{10 * rate if lora else rate:.0e}")


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
    tokenizer = _load(AutoTokenizer, path, clean_up_tokenization_spaces=False)
    if not tokenizer.is_fast:  # ByteCodec asks its backend which bytes a token is
        raise MrlError(f"{path}: its tokenizer has no tokenizer.json; take a model that has one.")
    return tokenizer


def load_model(path: str, device: str = "cpu") -> PreTrainedModel:
    """`AutoModelForCausalLM` in float32, from safetensors only; MrlError as for a tokenizer."""
    model = _load(AutoModelForCausalLM, path, dtype=torch.float32, use_safetensors=True)
    for parameter in model.parameters():  # out of the mapped file: where a tensor begins in memory
        parameter.data = parameter.data.clone()  # decides which kernel runs, to the last bit
    return model.to(device)


def count_parameters(path: str) -> int:
    """Of a model in a directory or the hub, from its configuration alone."""
    with torch.device("meta"):  # shapes, no memory
        config = _load(AutoConfig, base_of(path)[0])
        return AutoModelForCausalLM.from_config(config).num_parameters()


def can_load(name: str) -> bool:
    """Whether a model is in a directory or the hub's cache, or the hub answers; within seconds."""
    if Path(name).is_dir() or isinstance(try_to_load_from_cache(name, "config.json"), str):
        return True
    try:
        HfApi().model_info(name, timeout=5)
    except Exception:  # offline, no such model, no permission: the same to the caller
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


@torch.no_grad()
def can_pack(model: PreTrainedModel) -> bool:
    """Whether packing gives a model's own numbers, tried on two completions of one prompt.

    False for a model that ignores the mask or the positions, or that does more to its logits than
    its output embeddings do.
    """
    vocabulary = model.get_input_embeddings().num_embeddings
    nothing = torch.zeros(vocabulary, dtype=torch.bool, device=model.device)  # is suppressed
    prompt, completions = [0, 1, 2], [[3, 4, 5], [5, 6, 7]]
    packed, _ = packed_logprobs(model, [prompt] * 2, completions, nothing, 1.0)
    token_ids = torch.tensor([[*prompt, *c] for c in completions], device=model.device)
    logits = model(input_ids=token_ids, use_cache=False).logits[:, len(prompt) - 1 : -1]
    plain = scaled_logprobs(logits, nothing, 1.0)
    plain = plain.gather(2, token_ids[:, len(prompt) :, None])[:, :, 0]
    return bool(((packed - plain).abs() < TOLERANCE).all())


def _enable_checkpointing(model: PreTrainedModel) -> None:
    """Activations are computed again, in training mode alone: so that must have no dropout."""
    older = getattr(model, "gradient_checkpointing_enable", None)  # its name before transformers 6
    getattr(model, "activation_checkpointing_enable", older)({"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
