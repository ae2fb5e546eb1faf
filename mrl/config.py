"""All settings of a run, as two dataclasses; settings/settings.py reads and checks them."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mrl.objectives import OBJECTIVES

DATA = Path(__file__).resolve().parent.parent / "data"
WORDING = "validation_wording.jsonl"


def setting(default: Any, text: str, **rule: Any) -> Any:  # typed by the field
    """A field with its help text and what its values must be.

    rule: `least`, `above`, `most` for numbers, `choices` for texts.
    """
    metadata = {"help": text, **rule}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class PolicyConfig:
    """One policy of a run. Any of these may differ between the policies."""

    name: str
    path: str  # a `save_pretrained` directory or a hub name
    group_size: int = setting(8, "completions per prompt; an advantage compares them", least=2)
    learning_rate: float | None = setting(
        None, "of AdamW; none: from the number of parameters", above=0, most=1
    )
    updates_per_step: int | None = setting(
        None, "the most optimizer updates in a step; none: as the mode was published", least=1
    )
    objective: str = setting("grpo", "what it maximizes", choices=OBJECTIVES)
    clip_low: float | None = setting(None, "none: as the objective was published", least=0)
    clip_high: float | None = setting(None, "none: as the objective was published", least=0)
    kl_coef: float = setting(0.0, "of a k3 penalty against the frozen first weights", least=0)
    reference: str = setting("", "where those are; empty: `path`; of LoRA always its base")
    temperature: float = setting(1.0, "of sampling, and of the loss", above=0)
    max_new_tokens: int = setting(48, "longest completion", above=0)
    weight_decay: float = setting(0.0, "of AdamW", least=0)
    max_grad_norm: float = setting(1.0, "longer gradients are scaled down to it", above=0)
    max_tokens_per_forward: int = setting(2048, "tokens in one forward and backward pass", above=0)
    dtype: str = setting(
        "auto",
        "float32, or mixed: bfloat16 products, float32 weights; auto: mixed on CUDA",
        choices=("auto", "mixed", "float32"),
    )
    frozen: bool = setting(False, "never learns: a fixed teacher; its checkpoint holds no weights")
    lora_rank: int = setting(0, "of LoRA, e.g. 16; 0: all weights learn", least=0, most=1024)
    gradient_checkpointing: bool = setting(False, "compute activations again: slower, smaller")
    template: str = setting("", "with {prompt}; empty: the tokenizer's chat template")
    system_prompt: str | None = setting(
        None, "what the model reads first; none: system_prompt.txt next to `train`; empty: nothing"
    )


@dataclass
class RunConfig:
    """One run: who learns, on what, how long, and what they share."""

    policies: list[PolicyConfig]
    mode: str = setting("sgt", "what is shared, by name; or your own, file.py:Class")
    name: str = setting("", "directory under `runs`; empty: made from mode and seed")
    steps: int = setting(240, "training steps", least=1)
    seed: int = setting(0, "seed of everything random", least=0)
    prompts_per_step: int = setting(16, "prompts between two learning phases", least=1)
    train: str = setting(str(DATA / "words" / "train.jsonl"), "training problems, JSONL")
    heldout: list[str] = setting(
        lambda: [str(DATA / "words" / name) for name in ("validation.jsonl", WORDING)],
        "held-out problems, JSONL files",
    )
    eval_samples: int = setting(4, "completions a held-out problem (k of pass@k)", least=1)
    trust: str = setting(
        "verify", "judge a peer's text again; claim: take its verdict", choices=("verify", "claim")
    )
    liar: float = setting(0.0, "share of failures claimed as successes", least=0, most=1)
    judge: str = setting("", "your own: a file with judge(answer, text) -> bool")
    verify_timeout_s: float = setting(2.0, "for one verdict", above=0, most=3600)
    checkpoint_every: int = setting(60, "steps; 0: only at the end", least=0)
    threads: int = setting(1, "CPU threads; more can be slower on busy cores", least=1, most=256)
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, ...")
    placement: str = setting(
        "auto",
        "resident, swap, parallel (one process per policy) or auto",
        choices=("auto", "resident", "swap", "parallel"),
    )
    runs: str = setting("runs", "where the run's directory goes")
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the modes, by mode name
    # by path, of the files that decide the result (settings.files_of); {}: as they are at the start
    checksums: dict[str, str] = field(default_factory=dict)


HELP = {f.name: f.metadata["help"] for kind in (PolicyConfig, RunConfig) for f in fields(kind)
        if "help" in f.metadata}  # fmt: skip
