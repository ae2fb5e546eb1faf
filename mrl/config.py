"""All settings of a run, as two dataclasses; reading them from a file and from `--set`.

Precedence: defaults < preset of the pair < `--config` file < options of the command line.
"""

import difflib
import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from mrl.errors import MrlError
from mrl.objectives import OBJECTIVES

DATA = Path(__file__).resolve().parent.parent / "data"


def setting(default: Any, text: str, **rule: Any) -> Any:  # typed by the field
    """A field with its help text and what its values must be.

    rule: `least`, `above`, `most` for numbers, `choices` for texts, `why` for the error's sentence.
    """
    made = {"default_factory": default} if callable(default) else {"default": default}
    return field(**made, metadata={"help": text, **rule})


@dataclass
class PolicyConfig:
    """One policy of a run. Any of these may differ between the policies."""

    name: str
    path: str  # a `save_pretrained` directory or a hub name
    group_size: int = setting(
        8,
        "completions a prompt (G)",
        least=2,
        why="an advantage compares completions of one prompt",
    )
    learning_rate: float = setting(
        1e-4, "of AdamW; 1e-4 is usual for the tiny pair", above=0, most=1
    )
    objective: str = setting("grpo", "what it maximizes", choices=OBJECTIVES)
    clip_low: float | None = setting(None, "none: as the objective was published", least=0)
    clip_high: float | None = setting(None, "none: as the objective was published", least=0)
    kl_coef: float = setting(0.0, "of a k3 penalty against the frozen first weights", least=0)
    reference: str = setting("", "where those weights are; empty: `path`")
    temperature: float = setting(1.0, "of sampling, and of the loss", above=0)
    max_new_tokens: int = setting(48, "longest completion", above=0)
    weight_decay: float = setting(0.0, "of AdamW", least=0)
    max_grad_norm: float = setting(1.0, "longer gradients are scaled down to it", above=0)
    micro_batch: int = setting(2048, "tokens in one forward and backward pass", above=0)
    dtype: str = setting(
        "auto",
        "mixed (bfloat16 products, float32 weights), float32 or bfloat16; auto: mixed on CUDA",
        choices=("auto", "mixed", "float32", "bfloat16"),
    )
    checkpointing: bool = setting(False, "compute activations again: slower, smaller")
    template: str = setting("", "with {prompt}; empty: the tokenizer's chat template")
    system_prompt: str = setting("", "first message of the chat template")


@dataclass
class RunConfig:
    """One run: who learns, on what, how long, and what they share."""

    policies: list[PolicyConfig]
    mode: str = setting("sgt", "what is shared: see `modes`; or your own, file.py:Class")
    name: str = setting("", "directory under `runs`; empty: made from mode and seed")
    steps: int = setting(240, "training steps", least=1)
    seed: int = setting(0, "seed of everything random", least=0)
    prompts_per_step: int = setting(16, "prompts between two learning phases", least=1)
    train: str = setting(str(DATA / "words" / "train.jsonl"), "training problems, JSONL")
    heldout: list[str] = setting(
        lambda: [str(DATA / "words" / f"{part}.jsonl") for part in ("heldout", "newtemplates")],
        "held-out problems, JSONL files",
    )
    eval_samples: int = setting(4, "completions a held-out problem (k of pass@k)", least=1)
    max_staleness: int = setting(1, "optimizer updates a peer's record may be behind", least=0)
    trust: str = setting(
        "verify", "check a peer's success again, or claim: believe it", choices=("verify", "claim")
    )
    peer_log: str = setting("", "exchange.jsonl of a finished run, in place of live peers")
    liar: float = setting(
        0.0, "share of failures that policies claim as successes", least=0, most=1
    )
    verify_timeout_s: float = setting(2.0, "for one verdict", above=0)
    checkpoint_every: int = setting(60, "steps; 0: only at the end", least=0)
    threads: int = setting(
        1, "CPU threads; two on busy cores can be slower than one", least=1, most=256
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, ...")
    placement: str = setting(
        "auto",
        "resident, swap, parallel (one process a policy) or auto",
        choices=("auto", "resident", "swap", "parallel"),
    )
    record: str = setting(
        "",
        "rollout, rewards or success: logged even if the mode does not consume it",
        choices=("", "rollout", "rewards", "success"),
    )
    runs: str = setting("runs", "where the run's directory goes")
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the modes, by mode name

    def to_json(self) -> str:
        """The settings as `config.json` of the run's directory, which `load_config` reads."""
        return json.dumps(asdict(self), indent=1)


HELP = {f.name: f.metadata["help"] for kind in (PolicyConfig, RunConfig) for f in fields(kind)
        if "help" in f.metadata}  # fmt: skip
RENAMED = {  # settings of earlier versions -> what to write now
    "fault": "`liar`, a rate; crash and hang are gone",
    "turn_budget_s": "nothing: no turn is given up any more",
    "gradient_every": "nothing: `python mini_mrl.py report` has no gradients any more",
    "least": "`min_compatibility`",
    "mix": "`peer_share`",
    "base": "`own_objective`",
    "released": "nothing: text and released program have the same gradient now",
}


# ------------------------------------------------------------------------------ reading


def load_config(path: Path) -> dict[str, Any]:
    """Read a run's TOML file (or a run's own config.json) into `RunConfig` fields.

    Raises MrlError with the place for a missing file, broken TOML, an unknown key (naming the
    nearest right one) or a value of the wrong type.
    """
    read = json.loads if path.suffix == ".json" else tomllib.loads
    try:
        table = read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MrlError(f"{path}: cannot be read ({error.strerror}); give a TOML file.") from None
    except ValueError as error:
        raise MrlError(f"{path}: is not {path.suffix[1:].upper()}: {error}.") from None
    policies = table.pop("policy", table.pop("policies", []))
    if not isinstance(policies, list) or not all(isinstance(entry, dict) for entry in policies):
        raise MrlError(f"{path}: policies are written as [[policy]] tables, with two brackets.")
    values = check_table(table, RunConfig, str(path))
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


def check_table(table: dict[str, Any], target: type, where: str) -> dict[str, Any]:
    """The table as keyword arguments for dataclass `target`, every key and type checked."""
    hints = get_type_hints(target)
    known = {entry.name: hints[entry.name] for entry in fields(target) if entry.init}
    known.pop("policies", None)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known and key in RENAMED:
            raise MrlError(f"{where}: there is no setting `{key}` any more; write {RENAMED[key]}.")
        if key not in known:
            also = ["policy"] if target is RunConfig else []
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


def _nearest(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    return f"; did you mean `{near[0]}`?" if near else f"; known are {', '.join(sorted(known))}."


def apply_settings(values: dict[str, Any], texts: Sequence[str], modes: Sequence[str]) -> None:
    """Put `--set` texts into `RunConfig` fields: `key=value`, values as in TOML.

    A key is a setting of the run, of every policy, of one policy (`qwen-tiny.objective`) or of a
    mode (`sgt.imitation_weight`; `modes` names them).
    """
    policies = {policy.name: policy for policy in values["policies"]}
    of_policy = {entry.name for entry in fields(PolicyConfig)} - {"name", "path"}
    settings = values["settings"] = {
        mode: dict(v) for mode, v in values.get("settings", {}).items()
    }
    for text in texts:
        key, equals, value = text.partition("=")
        where, _, name = key.rpartition(".")
        if not (equals and name):
            raise MrlError(f"--set {text}: write it as key=value, e.g. sgt.imitation_weight=0.5.")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value
        if where in policies or (not where and name in of_policy):
            chosen = [policies[where]] if where else list(policies.values())
            for policy in chosen:
                for checked, new in check_table({name: parsed}, PolicyConfig, "--set").items():
                    setattr(policy, checked, new)
        elif where in modes:
            settings.setdefault(where, {})[name] = parsed
        elif where:
            known = [*policies, *modes]
            raise MrlError(
                f"--set {text}: there is no mode or policy `{where}`{_nearest(where, known)}"
            )
        else:
            values |= check_table({name: parsed}, RunConfig, "--set")


# ------------------------------------------------------------------------------ checks


def check(config: RunConfig) -> None:
    """Raise MrlError for values that cannot work, each with what to do instead."""
    if not config.policies:
        raise MrlError("The run has no policy; give --pair or [[policy]] tables in --config.")
    names = [policy.name for policy in config.policies]
    for policy in config.policies:
        if names.count(policy.name) > 1:
            raise MrlError(f"Two policies are called {policy.name!r}; give each its own name.")
        if not _is_plain(policy.name):
            raise MrlError(f"A policy's name is {policy.name!r}; use letters, digits, '-' and '_'.")
        _check_rules(policy, f"policy {policy.name}: ")
        if policy.template and "{prompt}" not in policy.template:
            raise MrlError(
                f"policy {policy.name}: the template lacks {{prompt}}; no problem would be asked."
            )
    _check_rules(config)
    if config.name and not _is_plain(config.name):
        raise MrlError(f"--name is {config.name!r}; give a plain directory name.")
    if config.peer_log and len(config.policies) > 1:
        raise MrlError(
            "peer_log stands in for live peers, so only one policy can be trained; "
            "name it with --pair DIR."
        )


def _is_plain(name: str) -> bool:
    return bool(name) and not set(name) & set("/\\\0") and not name.startswith(".")


def _check_rules(config: object, where: str = "") -> None:
    """Hold every field against the rule that it was declared with."""
    for entry in fields(config):
        value, rule = getattr(config, entry.name), entry.metadata
        if value is None:
            continue
        if "choices" in rule and value not in rule["choices"]:
            raise MrlError(f"{where}{entry.name} is {value!r}{_nearest(value, rule['choices'])}")
        wrong = (
            f"{rule['least']} or more" if "least" in rule and not value >= rule["least"]
            else f"above {rule['above']}" if "above" in rule and not value > rule["above"]
            else f"{rule['most']} or less" if "most" in rule and not value <= rule["most"]
            else ""
        )  # fmt: skip
        if wrong:
            why = f" because {rule['why']}" if "why" in rule else ""
            raise MrlError(f"{where}{entry.name} is {value:g}, but must be {wrong}{why}.")
