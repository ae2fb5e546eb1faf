"""Named pairs of models, the choice of the default pair, and settings that suit each pair."""

import os
from collections import Counter
from os.path import expanduser
from pathlib import Path
from typing import Any

from mrl.config import DATA, PolicyConfig
from mrl.errors import MrlError
from mrl.modes import Mode
from mrl.parsing import split_list

TINY = tuple(str(DATA / "tiny" / name) for name in ("qwen-tiny", "llama-tiny"))
QWEN_SMOL = ("Qwen/Qwen2.5-0.5B-Instruct", "HuggingFaceTB/SmolLM2-360M-Instruct")
# their parameters, so that their settings can be chosen before they are downloaded
SIZES: dict[str, int] = dict(zip(QWEN_SMOL, (494_032_768, 361_821_120), strict=True))
# bytes; with 16,384 tokens per pass, we estimate a peak of 36 GiB for the real pair
LARGE_CARD = 40 * 2**30
PRETRAINED_FROM = 20_000_000  # parameters; each model of the tiny pair has less than a million
GSM8K = DATA / "gsm8k"
# Every fifth problem of GSM8K's test set. With so many problems, the 95% interval of pass@1 is at
# most 6 points wide on either side.
TEST_SPLIT = "test-264"
# every fifth problem of validation.jsonl
SHORT_HELDOUT = str(DATA / "words" / "validation-72.jsonl")


def cores() -> int:
    """The number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pair_settings(pair: str) -> dict[str, Any]:
    """`RunConfig` fields for a named pair, or for directories and hub names separated by commas.

    Each policy is a table of settings, which `resolved` completes.
    """
    named = {"tiny": TINY, "qwen-smol": QWEN_SMOL}.get(pair)
    paths = named or tuple(model_path(path) for path in split_list(pair))

    if not all(paths):
        raise MrlError(f"--pair {pair!r}: a name between the commas is empty; write DIR_A,DIR_B.")

    # a policy is named after the last part of its path; a repeated name gets a number
    of_policy, of_run = _recipe(paths)
    policies: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    for path in paths:
        name = Path(path).name
        if pair == "qwen-smol":
            name = name.split("-")[0].lower()
        seen[name] += 1
        if seen[name] > 1:
            name = f"{name}-{seen[name]}"
        policies.append({"name": name, "path": path, **of_policy})
    return {"policies": policies, **of_run}


def model_path(path: str) -> str:
    """The directory or the hub name that a user means by `path`.

    `~` is the home directory. The name of a tiny model, such as qwen-tiny, is its directory in
    data/tiny, unless there is a directory of that name here. Raises MrlError for a path that can
    only be a directory, if there is none.
    """
    own = DATA / "tiny" / path
    is_tiny = path.endswith("-tiny") and "/" not in path and not Path(path).exists()
    if is_tiny and own.is_dir():
        return str(own)

    path = expanduser(path)
    # a name on the hub has at most one slash; this answer needs no transformers
    if (path.startswith(("/", ".")) or path.count("/") > 1) and not Path(path).is_dir():
        raise MrlError(
            f"{path}: this directory does not exist. Name a model on the hub, or a directory with "
            "config.json, tokenizer.json and weights as safetensors (not GGUF)."
        )
    return path


def usual_learning_rate(parameters: int, lora: bool = False) -> float:
    """The default learning rate for a model of this size, rounded to one digit.

    It is 3e-5 * (135 M / parameters)^2, but at least 1e-6 and at most 1e-4. This is not a law: the
    curve was drawn through three rates that worked, for the tiny pair, SmolLM2-135M and
    Qwen2.5-0.5B (data/results/real-pair). LoRA gets ten times as much, as is usual.
    """
    rate = min(max(3e-5 * (135e6 / parameters) ** 2, 1e-6), 1e-4)
    return float(f"{10 * rate if lora else rate:.0e}")


def resolved(table: dict[str, Any], mode: type[Mode], system_prompt: str = "") -> PolicyConfig:
    """A policy with all its settings: those in the table, and for the others what suits it.

    The learning rate and the number of updates follow from the size of the model and from the mode.
    For models of the tiny pair's size they are the defaults in config.py.

    system_prompt: that of the training problems. Raises MrlError if the model cannot be read.
    """
    settings: dict[str, Any] = {"system_prompt": system_prompt, **table}
    policy = PolicyConfig(**settings)
    policy.path, policy.reference = model_path(policy.path), model_path(policy.reference)
    chosen = {"learning_rate", "updates_per_step"} - set(table)
    if policy.frozen or not chosen or policy.path in TINY:
        return policy

    from mrl.models.loading import shape_of  # here, because the tiny pair does not need it
    from mrl.models.lora import base_of

    base = base_of(policy.path, policy.reference)
    parameters = SIZES.get(base) or shape_of(PolicyConfig("", base)).num_parameters()
    if parameters >= PRETRAINED_FROM and "learning_rate" in chosen:
        lora = policy.lora_rank > 0 or base != policy.path
        policy.learning_rate = usual_learning_rate(parameters, lora)
    if parameters >= PRETRAINED_FROM and "updates_per_step" in chosen:
        policy.updates_per_step = mode.published_updates
    return policy


def _recipe(paths: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings that suit these models: those of each policy, and those of the run."""
    if paths == TINY:
        # float32 even on a GPU, because all published results are in float32
        return {"dtype": "float32"}, {}
    if paths != QWEN_SMOL:
        from mrl.models.loading import shape_of  # here, because the tiny pair needs neither

        largest = max(shape_of(PolicyConfig("", path)).num_parameters() for path in paths)
        if largest < PRETRAINED_FROM:
            return {}, {}

    # On a large GPU, many tokens per pass are faster: with few, starting the kernels takes longer
    # than running them. A policy that runs out of memory halves this limit.
    import torch

    on_gpu = torch.cuda.is_available()
    on_large_card = on_gpu and torch.cuda.get_device_properties(0).total_memory > LARGE_CARD

    # On a GPU a pretrained pair trains on GSM8K.
    if on_gpu and (GSM8K / "train.jsonl").is_file():
        train, test = str(GSM8K / "train.jsonl"), str(GSM8K / f"{TEST_SPLIT}.jsonl")
        of_policy = {"max_new_tokens": 400, "weight_decay": 0.01}
        of_policy["max_tokens_per_forward"] = 16384 if on_large_card else 4096
        return of_policy, {"train": train, "heldout": [test], "eval_samples": 1}

    # Otherwise it trains on short problems, with settings that a CPU can finish.
    # data/results/real-pair was made with nearly the same settings. 1024 tokens need half of the
    # default's memory for activations.
    of_policy = {"max_new_tokens": 40, "dtype": "mixed"}
    of_policy["max_tokens_per_forward"] = 16384 if on_large_card else 1024
    of_run: dict[str, Any] = {
        "steps": 60,
        "prompts_per_step": 8,
        "checkpoint_every": 10,
        "eval_samples": 1,
    }
    of_run["heldout"] = [SHORT_HELDOUT]
    if not on_gpu:
        # One process per policy would leave cores waiting for the largest model. The setting
        # `threads` is at most 256.
        of_run |= {"placement": "resident", "threads": min(cores(), 256)}
    return of_policy, of_run


def _real_pair_can_train() -> bool:
    """Whether there is a GPU, and both pretrained models were downloaded."""
    import torch
    from huggingface_hub import try_to_load_from_cache

    # `try_to_load_from_cache` returns a string only if the file is in the cache
    found = [try_to_load_from_cache(path, "model.safetensors") for path in QWEN_SMOL]
    return torch.cuda.is_available() and all(isinstance(path, str) for path in found)


def choose_pair() -> tuple[str, str]:
    """Choose a pair for a user who named none; returns its name and a sentence about the choice.

    It is qwen-smol if there is a GPU and both models and GSM8K were downloaded. Otherwise it is the
    tiny pair. The sentence says how to get the other pair.
    """
    if (GSM8K / "train.jsonl").is_file() and _real_pair_can_train():
        return (
            "qwen-smol",
            "Its models and GSM8K are on this machine; --pair tiny trains the tiny pair instead.",
        )
    return "tiny", "Other models: --pair qwen-smol (pretrained), or --pair DIR_A,DIR_B (your own)."
