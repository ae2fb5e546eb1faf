"""Everything that a run can be told, as two dataclasses; presets; reading a TOML file.

Precedence: defaults < preset of the pair < `--config` file < options of the command line.
"""

import difflib
import math
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from mrl.errors import MrlError
from mrl.objectives import OBJECTIVES

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "data"
PLACEMENTS = ("auto", "resident", "swap", "spread")
KINDS = ("rollout", "rewards", "success")  # of records, as exchange.py names them
DTYPES = ("auto", "mixed", "float32", "bfloat16")
SYSTEM_PROMPT = "Reason step by step and put the final answer into \\boxed{}."
MAX_THREADS = 256  # far beyond any use, and far below what makes torch crash


@dataclass
class PolicyConfig:
    """One policy of a run. Any of these may differ between the policies."""

    name: str
    path: str  # a `save_pretrained` directory or a hub name
    group_size: int = 8  # completions a prompt (G)
    learning_rate: float = 1e-4
    objective: str = "grpo"  # a key of objectives.OBJECTIVES
    clip_low: float | None = None  # None: as the objective was published
    clip_high: float | None = None
    kl_coef: float = 0.0  # of a k3 penalty against the frozen first weights
    reference: str = ""  # where those are; empty: `path` (a resumed run has another path)
    temperature: float = 1.0
    max_new_tokens: int = 48
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    micro_batch: int = 2048  # tokens in one forward and backward pass
    dtype: str = (
        "auto"  # mixed (bfloat16 products, float32 weights; auto on CUDA), float32, bfloat16
    )
    checkpointing: bool = False  # compute activations again in the backward pass: slower, smaller
    template: str = ""  # with {prompt}; empty: the tokenizer's chat template, else the bare prompt
    system_prompt: str = ""


@dataclass
class RunConfig:
    """One run: who learns, on what, how long, and what they share."""

    policies: list[PolicyConfig]
    mode: str = "sgt"
    name: str = ""  # of the directory under `runs`; empty: made from mode and seed
    steps: int = 240
    seed: int = 0
    prompts_per_step: int = 16
    train: str = str(DATA / "words" / "train.jsonl")
    heldout: list[str] = field(
        default_factory=lambda: [
            str(DATA / "words" / f"{part}.jsonl") for part in ("heldout", "newtemplates")
        ]
    )
    eval_samples: int = 4  # completions a held-out problem: pass@1 and pass@k up to this k
    max_staleness: int = 1  # optimizer updates that a peer's record may be behind
    trust: str = "verify"  # "claim" takes a peer's word for a success; "verify" checks it again
    peer_log: str = ""  # an exchange.jsonl of a finished run, in place of live peers
    fault: str = ""  # planted on purpose, see faults.py
    verify_timeout_s: float = 2.0
    checkpoint_every: int = 60
    threads: int = 1  # of the CPU; two on busy cores can be several times slower than one
    device: str = "auto"
    placement: str = "auto"  # resident, swap or spread; see allocation.py
    turn_budget_s: float = 0.0  # a turn that takes longer is given up; 0: from the turns so far
    gradient_every: int = 20  # steps between two measurements of own and peers' gradients; 0: never
    record: str = ""  # rollout, rewards or success: logged even if the mode does not consume it
    runs: str = "runs"
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the modes, by mode name

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries, for writing."""
        return asdict(self)


def tiny_pair() -> list[PolicyConfig]:
    """The embedded pair, warm-started; see tiny.py."""
    return [PolicyConfig(name, str(DATA / "tiny" / name)) for name in ("qwen-tiny", "llama-tiny")]


def qwen_smol_pair() -> list[PolicyConfig]:
    """The real pair, from the hub."""
    names = ("Qwen/Qwen2.5-0.5B-Instruct", "HuggingFaceTB/SmolLM2-360M-Instruct")
    return [
        PolicyConfig(
            Path(name).name.split("-")[0].lower(),
            name,
            learning_rate=1e-6,
            max_new_tokens=400,
            micro_batch=8192,
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


def policies_from_paths(paths: list[str]) -> list[PolicyConfig]:
    """Policies for `--pair DIR_A,DIR_B`: named after the last part of the path, made unique."""
    policies: list[PolicyConfig] = []
    seen: Counter[str] = Counter()
    for path in paths:
        name = Path(path).name
        seen[name] += 1
        policies.append(PolicyConfig(f"{name}-{seen[name]}" if seen[name] > 1 else name, path))
    return policies


# ------------------------------------------------------------------------------ TOML


def load_config(path: Path) -> dict[str, Any]:
    """Read a run's TOML file into `RunConfig` fields; `[[policy]]` tables become policies.

    Raises MrlError with the place for a missing file, broken TOML, an unknown key (naming the
    nearest right one) or a value of the wrong type.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MrlError(f"{path}: cannot be read ({error.strerror}); give a TOML file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MrlError(f"{path}: is not TOML: {error}.") from None
    policies = table.pop("policy", [])
    if not isinstance(policies, list) or not all(isinstance(entry, dict) for entry in policies):
        raise MrlError(f"{path}: policies are written as [[policy]] tables, with two brackets.")
    values = check_table(table, RunConfig, str(path), also=("policy",))
    if policies:
        values["policies"] = [
            _policy_from_table(entry, f"{path}, [[policy]] number {number}")
            for number, entry in enumerate(policies, start=1)
        ]
    return values


def _policy_from_table(table: dict[str, Any], where: str) -> PolicyConfig:
    values = check_table(table, PolicyConfig, where)
    if "path" not in values:
        raise MrlError(f"{where}: `path` is missing; give a model directory or a hub name.")
    values.setdefault("name", Path(values["path"]).name)
    return PolicyConfig(**values)


def check_table(
    table: dict[str, Any], target: type, where: str, also: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The table as keyword arguments for dataclass `target`, every key and type checked."""
    hints = get_type_hints(target)
    known = {entry.name: hints[entry.name] for entry in fields(target) if entry.init}
    known.pop("policies", None)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise MrlError(f"{where}: there is no setting `{key}`{_nearest(key, [*known, *also])}")
        if known[key] in (float, float | None) and type(value) is int:
            value = float(value)
        if type(value) is float and not math.isfinite(value):
            raise MrlError(f"{where}: {key} is {value}, but must be a finite number.")
        if not _fits(value, known[key]):
            wanted = getattr(known[key], "__name__", str(known[key]))
            raise MrlError(f"{where}: {key} is {value!r}, but must be of type {wanted}.")
        values[key] = value
    return values


def _fits(value: Any, hint: Any) -> bool:
    if hint in (int, float, str, bool):
        return type(value) is hint
    if hint == list[str]:
        return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    if hint == float | None:
        return value is None or type(value) is float
    return isinstance(value, dict)


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    return f"; did you mean `{near[0]}`?" if near else f"; known are {', '.join(sorted(known))}."


def parse_settings(
    texts: list[str], settings: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Add `mode.setting=value` texts (`--set`) to the settings of modes; values as in TOML."""
    merged = {mode: dict(values) for mode, values in settings.items()}
    for text in texts:
        key, equals, value = text.partition("=")
        mode, dot, name = key.partition(".")
        if not (equals and dot and mode and name):
            raise MrlError(f"--set {text}: write it as mode.setting=value, e.g. graft.least=0.5.")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value
        merged.setdefault(mode, {})[name] = parsed
    return merged


# ------------------------------------------------------------------------------ checks


def check(config: RunConfig) -> None:
    """Raise MrlError for values that cannot work, each with what to do instead."""
    if not config.policies:
        raise MrlError("The run has no policy; give --pair or [[policy]] tables in --config.")
    names = [policy.name for policy in config.policies]
    for policy in config.policies:
        if names.count(policy.name) > 1:
            raise MrlError(f"Two policies are called {policy.name!r}; give each its own name.")
        if not policy.name or set(policy.name) & set("/\\\0") or policy.name.startswith("."):
            raise MrlError(f"A policy's name is {policy.name!r}; use letters, digits, '-' and '_'.")
        _check_policy(policy)
    for name, least in (("steps", 1), ("prompts_per_step", 1), ("eval_samples", 1), ("threads", 1)):
        if getattr(config, name) < least:
            raise MrlError(f"{name} is {getattr(config, name)}, but must be {least} or more.")
    if config.threads > MAX_THREADS:
        raise MrlError(f"threads is {config.threads}, but must be {MAX_THREADS} or less.")
    if config.seed < 0:
        raise MrlError(f"seed is {config.seed}, but must be 0 or more.")
    if config.max_staleness < 0 or config.checkpoint_every < 0:
        raise MrlError("max_staleness and checkpoint_every must be 0 or more.")
    if config.peer_log and len(config.policies) > 1:
        raise MrlError(
            "--peer-log stands in for live peers, so only one policy can be trained; "
            "name it with --pair DIR."
        )
    if config.placement not in PLACEMENTS:
        raise MrlError(
            f"placement is {config.placement!r}{_nearest(config.placement, list(PLACEMENTS))}"
        )
    if config.record not in ("", *KINDS):
        raise MrlError(f"record is {config.record!r}{_nearest(config.record, list(KINDS))}")
    if config.turn_budget_s < 0 or config.gradient_every < 0:
        raise MrlError("turn_budget_s and gradient_every must be 0 or more.")
    if config.trust not in ("verify", "claim"):
        raise MrlError(f"trust is {config.trust!r}, but must be verify or claim.")
    if config.verify_timeout_s <= 0:
        raise MrlError("verify_timeout_s must be above 0 seconds.")


def _check_policy(policy: PolicyConfig) -> None:
    where = f"policy {policy.name}"
    if policy.group_size < 2:
        raise MrlError(
            f"{where}: group_size is {policy.group_size}, but an advantage compares completions "
            "of one prompt; use 2 or more."
        )
    if policy.objective not in OBJECTIVES:
        raise MrlError(
            f"{where}: there is no objective {policy.objective!r}"
            f"{_nearest(policy.objective, list(OBJECTIVES))}"
        )
    for name in ("learning_rate", "temperature", "max_new_tokens", "micro_batch", "max_grad_norm"):
        value = getattr(policy, name)
        if not 0 < value < math.inf:  # false for nan, too
            raise MrlError(f"{where}: {name} is {value}, but must be a number above 0.")
    if policy.learning_rate > 1:
        raise MrlError(f"{where}: learning_rate is {policy.learning_rate:g}; 1e-4 is usual here.")
    for name in ("clip_low", "clip_high"):
        value = getattr(policy, name)
        if value is not None and value < 0:
            raise MrlError(f"{where}: {name} is {value}, but must be 0 or more.")
    if policy.dtype not in DTYPES:
        raise MrlError(f"{where}: dtype is {policy.dtype!r}{_nearest(policy.dtype, list(DTYPES))}")
    if policy.kl_coef < 0:
        raise MrlError(f"{where}: kl_coef is {policy.kl_coef}, but must be 0 or more.")
    if policy.weight_decay < 0:
        raise MrlError(f"{where}: weight_decay is {policy.weight_decay}, but must be 0 or more.")
    if policy.template and "{prompt}" not in policy.template:
        raise MrlError(f"{where}: the template lacks {{prompt}}, so no problem would be asked.")


def config_toml(config: RunConfig) -> str:
    """The run's settings as a TOML text that `load_config` reads back."""
    table = {key: value for key, value in config.to_dict().items() if value is not None}
    policies = table.pop("policies")
    settings = table.pop("settings")
    lines = [f"{key} = {_toml_value(value)}" for key, value in table.items()]
    for mode, values in settings.items():
        lines += ["", f"[settings.{_toml_value(mode)}]"]
        lines += [f"{key} = {_toml_value(value)}" for key, value in values.items()]
    for policy in policies:
        lines += ["", "[[policy]]"]
        lines += [
            f"{key} = {_toml_value(value)}" for key, value in policy.items() if value is not None
        ]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(entry) for entry in value) + "]"
    return repr(value)
