"""All settings of a run as two dataclasses, with the values that the tiny pair uses.

settings/read.py reads and checks settings. Larger models get other values for some of them,
which settings/pairs.py chooses (`resolved`, `pair_settings`) unless the user names a value.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mrl.objectives import OBJECTIVES

DATA = Path(__file__).resolve().parent.parent / "data"
WORDING = "validation_wording.jsonl"


def setting(default: Any, text: str, **rule: Any) -> Any:  # Any, as each field declares its type
    """A dataclass field with a help text and a rule for its values.

    rule: `least`, `above` or `most` for a number, `choices` for a text.
    """
    metadata = {"help": text, **rule}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class PolicyConfig:
    """The settings of one policy. Each policy of a run may have different ones."""

    name: str
    path: str  # a `save_pretrained` directory or a hub name
    group_size: int = setting(
        8, "completions per prompt; advantages compare rewards within such a group", least=2
    )
    learning_rate: float = setting(
        3e-5,
        "learning rate of AdamW; for pretrained models it follows from their size",
        above=0,
        most=1,
    )
    updates_per_step: int = setting(
        4,
        "most optimizer updates per step; for pretrained models the number in the mode's paper",
        least=1,
    )
    objective: str = setting("grpo", "objective that training maximizes", choices=OBJECTIVES)
    kl_coef: float = setting(
        0.0, "coefficient of the KL penalty to the initial weights (k3 estimator)", least=0
    )
    reference: str = setting(
        "",
        "model that the KL penalty refers to (default: `path`; with LoRA, always the base model)",
    )
    temperature: float = setting(1.0, "sampling temperature, also used in the loss", above=0)
    max_new_tokens: int = setting(48, "token limit of a completion", above=0)
    weight_decay: float = setting(0.0, "weight decay of AdamW", least=0)
    max_grad_norm: float = setting(
        1.0, "largest gradient norm; longer gradients are scaled down to it", above=0
    )
    max_tokens_per_forward: int = setting(
        2048, "token limit of one forward and backward pass; lower it to save memory", above=0
    )
    dtype: str = setting(
        "auto",
        "number format: float32, mixed (bfloat16 products, float32 weights), or auto (mixed on a "
        "GPU that supports bfloat16, else float32)",
        choices=("auto", "mixed", "float32"),
    )
    frozen: bool = setting(
        False, "do not train this policy: a fixed teacher (its weights are not checkpointed)"
    )
    lora_rank: int = setting(
        0, "rank of LoRA's matrices, for example 16 (0: train all weights)", least=0, most=1024
    )
    gradient_checkpointing: bool = setting(False, "gradient checkpointing: less memory, slower")
    template: str = setting(
        "", "prompt template that contains {prompt} (default: the tokenizer's chat template)"
    )
    system_prompt: str = setting(
        "",
        "system prompt (default: the text of system_prompt.txt next to `train`, if there is one)",
    )


@dataclass
class RunConfig:
    """The settings of a run: who learns, on which problems, for how long, and what is shared."""

    policies: list[PolicyConfig]
    mode: str = setting("sgt", "sharing mode: a name, or FILE.py:Class for your own")
    name: str = setting("", "name of the run's directory (default: made from mode and seed)")
    steps: int = setting(240, "number of training steps", least=1)
    seed: int = setting(0, "seed of all random numbers in the run", least=0)
    prompts_per_step: int = setting(16, "prompts per step", least=1)
    train: str = setting(str(DATA / "words" / "train.jsonl"), "file of training problems, JSONL")
    heldout: list[str] = setting(
        lambda: [str(DATA / "words" / name) for name in ("validation.jsonl", WORDING)],
        "files of held-out problems, JSONL",
    )
    eval_samples: int = setting(4, "completions per held-out problem (the k of pass@k)", least=1)
    trust: str = setting(
        "verify",
        "check of a peer's completions: verify (judge them again) or claim (accept its verdict)",
        choices=("verify", "claim"),
    )
    liar: float = setting(
        0.0,
        "fraction of failures that policies falsely claim as successes (for lessons)",
        least=0,
        most=1,
    )
    exchange: str = setting(
        "", "folder in which policies of other programs share records (default: none)"
    )
    exchange_wait_s: float = setting(
        0.0, "longest wait in a step for peers in the folder, in seconds", least=0, most=86400
    )
    exchange_newest: int = setting(
        8, "records of each peer in the folder that are used per problem: the newest", least=1
    )
    judge: str = setting(
        "", "file with your own judge(answer, text) -> bool (default: the built-in verifier)"
    )
    verify_timeout_s: float = setting(2.0, "time limit per verdict, in seconds", above=0, most=3600)
    checkpoint_every: int = setting(60, "steps between checkpoints (0: only at the end)", least=0)
    threads: int = setting(
        1, "number of CPU threads; more can be slower if the cores are busy", least=1, most=256
    )
    device: str = setting("auto", "device: cpu, cuda, cuda:1, ..., or auto (a GPU if there is one)")
    placement: str = setting(
        "auto",
        "placement of the policies: resident (all on the device), swap (the waiting ones in host "
        "memory), parallel (one process each) or auto",
        choices=("auto", "resident", "swap", "parallel"),
    )
    runs: str = setting("runs", "parent directory of the run's directory")
    # mode name -> settings of that mode
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    # path -> checksum, for each file that affects the results (read.py, `files_of`). They are
    # computed when the run starts.
    checksums: dict[str, str] = field(default_factory=dict)


HELP = {f.name: f.metadata["help"] for kind in (PolicyConfig, RunConfig) for f in fields(kind)
        if "help" in f.metadata}  # fmt: skip
