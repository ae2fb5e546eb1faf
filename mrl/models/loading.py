"""Models and tokenizers from a directory or the hub; a failure is one plain sentence."""

import math
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
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
from mrl.models.lora import add_adapters, base_alone, base_of, load_adapters
from mrl.policy import Policy
from mrl.rollout import sample_completions
from mrl.samples import derive_seed

TOLERANCE = 2e-2  # nats, between two float32 computations of a log-prob; TF32 may cost some 1e-3
KNOWN_LAYERS = {"full_attention", "sliding_attention"}  # logprobs.py makes masks for these
# classes of transformers with Llama's RMSNorm; others add 1 to the weight, or have a gate
SAME_RMS_NORM = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")


def claim_process() -> None:
    """Settings of the whole process, for a program that has it to itself, as the command line does.

    Call it before the first use of a GPU. A library leaves all of this as it is.
    """
    # a cache that grows token by token would leave gaps in a GPU's memory
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the earlier name: what a person sets stays
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    torch.backends.cuda.enable_cudnn_sdp(False)  # as `torch_settings` does
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    enable_progress_bars()  # the hub's own bars stay: a download comes before the live view


def claim_device(config: RunConfig) -> str:
    """The device of a run that has the process to itself; its threads and memory are set, too."""
    torch.set_num_threads(config.threads)
    device = pick_device(config.device)
    if device.startswith("cuda"):
        # torch's own error comes first then: libraries that find no memory are less clear
        torch.cuda.set_per_process_memory_fraction(0.95)
    return device


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bar and no table of tensors before our sentence; afterwards all is as it was."""
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
    """The device to use: `auto` is a CUDA device of this process's own, without one the CPU."""
    if wanted == "auto" and torch.cuda.is_available():
        wanted = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
    elif wanted == "auto":
        wanted = "cpu"

    try:
        place = torch.ones(1, device=wanted).device  # with its number; an old card fails here
        if place.type not in ("cpu", "cuda"):
            raise RuntimeError("nothing was ever computed there")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0][:200]
        raise MrlError(
            f"device is {wanted!r}, which cannot be used here ({reason}); take cpu, or cuda on a "
            "machine with an NVIDIA GPU."
        ) from None

    if place.type == "cuda":  # pinned memory and graphs belong to the current one
        torch.cuda.set_device(place)
    return wanted


def load_policy(config: PolicyConfig, index: int = 0, device: str = "cpu", seed: int = 0) -> Policy:
    """A policy from its directory or hub name, and its frozen reference if it has a KL term.

    index: its number in the run. seed: the run's.
    """
    base, saved_rank = base_of(config.path, config.reference)
    rank = saved_rank or config.lora_rank  # 0: no LoRA
    model, tokenizer = load_model(base, device), load_tokenizer(config.path)
    rows = model.get_input_embeddings().num_embeddings
    # Vocabularies are padded, but never by so much. A tokenizer may know more tokens than the model
    # if no text needs them, as Gemma 3's one for an image.
    needed = [tokenizer.vocab_size - 1, tokenizer.eos_token_id, tokenizer.pad_token_id]
    if len(tokenizer) < rows / 2 or max(filter(None, needed)) >= rows:
        raise MrlError(
            f"{config.path}: its tokenizer knows {len(tokenizer)} tokens and its model {rows}, so "
            "they do not belong together; take a complete copy of the model."
        )

    reference = None
    if config.kl_coef > 0 and not config.frozen:
        other = config.reference or config.path
        reference = base_alone(model) if rank else load_model(other, device)
        reference.eval().requires_grad_(False)

    # checks and size are those of the base model in float32: adapters come after
    if config.gradient_checkpointing:
        _enable_gradient_checkpointing(model)
    problem = packing_problem(model.eval())
    if problem:
        raise MrlError(f"{config.path}: cannot be trained here: {problem}.")
    rate = config.learning_rate or usual_learning_rate(model.num_parameters(), lora=rank > 0)

    if rank:
        add_adapters(model, rank, derive_seed(seed, index))
    if saved_rank:
        load_adapters(model, config.path)
    if config.frozen:
        model.requires_grad_(False)

    config = replace(config, learning_rate=rate, lora_rank=rank)
    policy = Policy(config, model, tokenizer, reference, index)
    policy.graph_decode = decode if device.startswith("cuda") else None

    # In mixed precision what never learns, LoRA's base or a teacher, needs no more than bfloat16,
    # which is half the memory. In float32, autocast would copy each frozen matrix for every token.
    if policy.mixed_precision:
        for parameter in model.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.bfloat16()
    return policy


def usual_learning_rate(parameters: int, lora: bool = False) -> float:
    """The learning rate for a model of that size, to one digit, where the settings name none.

    It is 3e-5 * (135 M / parameters)^2, between 1e-6 and 1e-4. The curve goes through three points
    that worked, the tiny pair, SmolLM2-135M and Qwen2.5-0.5B (data/results/real-pair); it is no
    law. LoRA gets ten times as much, as is usual.
    """
    rate = min(max(3e-5 * (135e6 / parameters) ** 2, 1e-6), 1e-4)
    return float(f"{10 * rate if lora else rate:.0e}")


def load_policies(
    config: RunConfig, device: str, names: Iterable[str] | None = None
) -> list[Policy]:
    """Load the policies of a run, or those named, on one device; each knows its index there."""
    policies = []
    for index, policy in enumerate(config.policies):
        if names is None or policy.name in names:
            policies.append(load_policy(policy, index, device, config.seed))
    return policies


def load_tokenizer(path: str) -> PreTrainedTokenizerFast:
    """The tokenizer.json of a directory or the hub, as it stands; MrlError if there is none.

    `AutoTokenizer` would put a class's own splitting rules in the place of the file's.
    """
    load = PreTrainedTokenizerFast.from_pretrained
    return _load(load, path, "tokenizer", clean_up_tokenization_spaces=False)


def load_model(path: str, device: str = "cpu") -> PreTrainedModel:
    """`AutoModelForCausalLM` in float32, from safetensors only; MrlError if it is not whole."""
    _read_config(path)
    options = {"use_safetensors": True, "output_loading_info": True, "dtype": torch.float32}
    options["ignore_mismatched_sizes"] = True  # they are refused below
    model, loaded = _load(AutoModelForCausalLM.from_pretrained, path, "weights", **options)

    wrong = sorted(loaded["missing_keys"])
    wrong += sorted(entry[0] for entry in loaded["mismatched_keys"])
    # a tensor that is left over is wrong in a layer that the model has; others are of parts that it
    # leaves out, such as a vision tower
    modules = dict(model.named_modules())
    for name in sorted(loaded["unexpected_keys"]):
        layer = re.match(r".*?\.\d+(?=\.)", name)
        if layer and layer[0] in modules:
            wrong.append(name)
    if wrong:
        raise MrlError(
            f"{path}: its weights do not fit its config.json: {len(wrong)} tensors are missing, "
            f"left over or of another size ({wrong[0]} is one); take a complete copy of the model."
        )

    # copied out of the mapped file: where a tensor begins in memory decides which kernel runs, and
    # the kernels differ in the last bit
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    _use_one_kernel_per_norm(model)
    return model.to(device)


def _use_one_kernel_per_norm(model: PreTrainedModel) -> None:
    """Compute every RMSNorm in one kernel instead of six; on a CPU the bits are the same."""
    for module in model.modules():
        if type(module).__name__ in SAME_RMS_NORM:
            module.forward = MethodType(_rms_norm, module)  # bound, so a deep copy binds its own


def _rms_norm(module: torch.nn.Module, hidden: Tensor) -> Tensor:
    """[..., hidden] -> [..., hidden]: hidden / sqrt(mean of its squares + epsilon) * weight."""
    weight = module.weight
    return torch.nn.functional.rms_norm(hidden, weight.shape, weight, module.variance_epsilon)


def shape_of(config: PolicyConfig) -> PreTrainedModel:
    """A policy's model with its adapters but without weights, from its configuration alone."""
    base, saved_rank = base_of(config.path, config.reference)
    rank = saved_rank or config.lora_rank
    shape = _read_config(base)
    with torch.device("meta"):  # shapes, no memory
        make = lambda path, **_: AutoModelForCausalLM.from_config(shape)  # noqa: E731
        model = _load(make, base, "config.json")  # whose numbers may fit no model
        if rank:
            add_adapters(model, rank)
    return model.requires_grad_(False) if config.frozen else model


def _read_config(path: str) -> PreTrainedConfig:
    """A model's configuration; MrlError for an architecture that cannot be trained here."""
    config = _load(AutoConfig.from_pretrained, path, "config.json")

    problem = ""
    writes = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    text = config.get_text_config()
    unknown = set(getattr(text, "layer_types", None) or ()) - KNOWN_LAYERS
    if config.is_encoder_decoder or type(config) in MODEL_FOR_MASKED_LM_MAPPING or not writes:
        problem = "it is an encoder, has one, or writes no text"
    elif unknown:
        problem = f"it has recurrent layers, or others that are not known here ({min(unknown)})"
    elif "local" in getattr(text, "attention_layers", ()):
        problem = "its local attention counts places in a row, not positions in a completion"
    if problem:
        raise MrlError(f"{path}: {config.model_type} cannot be trained here: {problem}.")
    return config


def _load(load: Callable[..., Any], path: str, part: str, **options: object) -> Any:
    """Call a `from_pretrained`; whatever goes wrong is one sentence. part: what it reads."""
    try:
        with quiet_transformers():
            return load(path, trust_remote_code=False, **options)
    except Exception as error:
        reason = textwrap.shorten(str(error) or repr(error), 300)
        raise MrlError(
            f"{path}: its {part} cannot be loaded ({reason}); give a name on the hub, or a "
            "directory with config.json, tokenizer.json and weights as safetensors (no GGUF)."
        ) from error


@torch.no_grad()
def packing_problem(model: PreTrainedModel) -> str:
    """The reason why sampling and packing do not give a model's own numbers; empty if they do.

    Both are tried on completions of two prompts. (With weights near 0, as before any training, all
    tokens get the same attention, whatever the mask and the positions are, so nothing is found.)
    """
    if getattr(model, "_is_stateful", False):
        return "it has recurrent layers, whose state cannot keep packed completions apart"

    vocabulary = model.get_input_embeddings().num_embeddings
    suppressed = torch.zeros(vocabulary, dtype=torch.bool, device=model.device)  # no token is
    scaling = {"suppressed": suppressed, "temperature": 1.0}
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
    except Exception as error:  # from a model's own code, which was written for other calls
        reason = str(error).strip().split("\n")[0][:200]
        return f"its code cannot score several completions behind one prompt ({reason})"

    gap = float((torch.stack([packed, sampled.logprobs]) - torch.stack(plain)).abs().max())
    if gap < TOLERANCE:
        return ""
    if not math.isfinite(gap):
        return "its log-probs are not finite, so its weights are damaged"
    return (
        "scored several at a time, completions get other log-probs than each alone "
        f"({gap:.2g} nats off), so its attention or its head is none that is known here"
    )


def plain_logprobs(
    model: PreTrainedModel, prompt: list[int], completion: list[int], **scaling: Any
) -> Tensor:
    """Log-probs of one completion, [seq] nats, from the model's own forward pass of it alone."""
    token_ids = torch.tensor([prompt + completion], device=model.device)
    logits = model(input_ids=token_ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    logprobs = scaled_logprobs(logits, **scaling)
    return logprobs.gather(1, token_ids[0, len(prompt) :, None])[:, 0]


def _enable_gradient_checkpointing(model: PreTrainedModel) -> None:
    """Compute activations again in the backward pass.

    transformers does so only in training mode, which would turn dropout on, so dropout becomes 0.
    """
    model.activation_checkpointing_enable({"use_reentrant": False})

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.0
