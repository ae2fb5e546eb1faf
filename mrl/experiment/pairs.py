"""Pairs of models by name, and which one is the default."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mrl.config import DATA, PolicyConfig
from mrl.experiment.loading import can_load

SYSTEM_PROMPT = "Reason step by step and put the final answer into \\boxed{}."


def tiny_pair() -> list[PolicyConfig]:
    """The embedded pair, warm-started; see tiny/pair.py."""
    names = ("qwen-tiny", "llama-tiny")  # on a GPU, too, in the numbers of every table here
    return [PolicyConfig(name, str(DATA / "tiny" / name), dtype="float32") for name in names]


def qwen_smol_pair() -> list[PolicyConfig]:
    """The real pair, from the hub."""
    names = ("Qwen/Qwen2.5-0.5B-Instruct", "HuggingFaceTB/SmolLM2-360M-Instruct")
    return [
        PolicyConfig(
            Path(name).name.split("-")[0].lower(),
            name,
            learning_rate=1e-6,
            max_new_tokens=400,
            micro_batch=4096,
            weight_decay=0.01,
            system_prompt=SYSTEM_PROMPT,
        )
        for name in names
    ]


# pair -> its policies, and what a run with it changes of RunConfig's defaults
PAIRS: dict[str, tuple[Callable[[], list[PolicyConfig]], dict[str, Any]]] = {
    "tiny": (tiny_pair, {}),
    "qwen-smol": (
        qwen_smol_pair,
        {
            "train": str(DATA / "gsm8k" / "train.jsonl"),
            "heldout": [str(DATA / "gsm8k" / "test.jsonl")],
            "eval_samples": 1,
        },
    ),
}


def pair_settings(pair: str) -> dict[str, Any]:
    """`RunConfig` fields for a pair's name, or for directories and hub names with commas."""
    if pair in PAIRS:
        policies, preset = PAIRS[pair]
        return {"policies": policies(), **preset}
    made: list[PolicyConfig] = []
    seen: Counter[str] = Counter()
    for path in pair.split(","):  # named after the last part of the path, made unique
        name = Path(path).name
        seen[name] += 1
        made.append(PolicyConfig(f"{name}-{seen[name]}" if seen[name] > 1 else name, path))
    return {"policies": made}


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
