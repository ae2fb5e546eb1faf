"""Combines and checks the settings of a run. Every mistake in them becomes one sentence.

To add a setting, add a field to a dataclass: mrl/config.py has those of runs and policies, and each
mode has its own (mrl/modes). Nothing has to be added here.

Precedence: defaults < preset of the pair < `--config` file < options of the command line.
"""

import hashlib
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import Field, fields
from functools import cache
from os.path import expanduser, isfile
from pathlib import Path
from typing import Any

from mrl.config import DATA, PolicyConfig, RunConfig
from mrl.errors import MrlError, place_of
from mrl.modes import MODES, Mode
from mrl.parsing import check_rules, check_table, nearest, parse, read_text, run_file
from mrl.records import RECORD_TYPES
from mrl.settings.pairs import pair_settings, resolved

NAME = re.compile(r"[^./\\][^/\\]{0,63}")  # names of policies and runs, also used for directories
OWN_MODE = re.compile(r"(.+\.py):(\w+)")  # file.py:Class
# In config.json a path into the program's own `data` begins with "{data}/", so that a run can be
# resumed in another checkout. DATA_HERE is what "{data}/" stands for in this checkout.
OWN_DATA, DATA_HERE = '"{data}/', json.dumps(f"{DATA}/")[:-1]


def run_config(
    pair: str | None,
    file: Path | None,
    options: dict[str, Any],
    settings: Sequence[str] | dict[str, Any],
    compared: Sequence[str] = (),
) -> RunConfig:
    """Combine and check the settings of a new run. Raises MrlError for any mistake in them.

    pair: None uses the file's policies, or the tiny pair if the file has none.
    options: values of the command line's options; None for an option that was not given.
    settings: texts of --set, or Python values by name.
    compared: all modes of a comparison; `file` and `settings` may have settings for each of them.
    """
    from_file = load_config(file.expanduser()) if file else {}
    if pair is not None:
        from_file.pop("policies", None)
    preset = {} if "policies" in from_file else pair_settings("tiny" if pair is None else pair)
    values = preset | from_file
    values |= {key: value for key, value in options.items() if value is not None}

    apply_settings(values, settings, compared)
    tables = values.pop("policies")
    config = RunConfig([], **values)
    _expand_paths(config)
    _look_for_data(config, [table["path"] for table in tables])

    # the mode is looked up only now, because --set may have changed it
    mode = mode_class(config.mode)
    known = [*MODES, mode.name]
    for name in compared:
        if name != mode.name:
            config.settings.pop(name, None)
    for name in _tables(config.settings):
        if name not in known:
            raise MrlError(f"[settings.{name}]: there is no mode `{name}`{nearest(name, known)}")

    # stored in config.json, so that a resumed run uses the same system prompt and the same files
    system_prompt = system_prompt_of(Path(config.train))
    config.policies = [resolved(table, mode, system_prompt) for table in tables]
    check(config)
    for path in files_of(config):
        if path not in config.checksums:
            config.checksums[path] = checksum(path)
    return config


def _expand_paths(config: RunConfig) -> None:
    """Replace the `~` in every path of a run."""
    for name in ("train", "judge", "runs"):
        setattr(config, name, expanduser(getattr(config, name)))
    if isinstance(config.mode, str):  # from Python it may be a class or an object
        config.mode = expanduser(config.mode)
    config.heldout = [expanduser(path) for path in config.heldout]


def complete(values: dict[str, Any]) -> RunConfig:
    """Settings whose policies are tables, as `load_config` and `pair_settings` return them.

    A setting that a table lacks gets the default in config.py, whatever the model's size.
    """
    whole = dict(values)
    whole["policies"] = [PolicyConfig(**table) for table in values["policies"]]
    return RunConfig(**whole)


def load_config(path: Path) -> dict[str, Any]:
    """Read a TOML file with settings, or a run's config.json, into `RunConfig` fields.

    Each policy is a table of settings.
    Raises MrlError for invalid TOML, for an unknown key (and suggests the most similar one) and for
    a value of the wrong type; it names the place. Raises OSError if there is no file.
    """
    text = read_text(path).replace(OWN_DATA, DATA_HERE)
    table = parse(text, str(path), "JSON" if path.suffix == ".json" else "TOML")
    lists_policies = "policy" in table or "policies" in table
    policies = table.pop("policy", table.pop("policies", []))
    if not isinstance(policies, list) or not all(isinstance(entry, dict) for entry in policies):
        raise MrlError(f"{path}: write each policy as a [[policy]] table, with two brackets.")
    if lists_policies and not policies:
        raise MrlError(
            f"{path}: the list of policies is empty; add a [[policy]] table, or leave it out."
        )

    of_run = [entry.name for entry in fields(RunConfig)]
    for entry in fields(PolicyConfig):
        if entry.name in table and entry.name not in of_run:
            remedy = (
                f"write it in each [[policy]] table, or set it for all: --set {entry.name}=VALUE"
            )
            raise MrlError(f"{path}: `{entry.name}` is a setting of a policy; {remedy}.")

    values = check_table(table, RunConfig, str(path))
    for number, entry in enumerate(policies, start=1):
        where = f"{path}, [[policy]] number {number}"
        policy = check_table(entry, PolicyConfig, where)
        if "path" not in policy:
            raise MrlError(f"{where}: `path` is missing; it names a model's directory or hub name.")
        policy.setdefault("name", Path(policy["path"]).name)
        values.setdefault("policies", []).append(policy)
    return values


def _look_for_data(config: RunConfig, models: Sequence[str]) -> None:
    """Raise MrlError if the run needs data/, which an installed package does not contain."""
    paths = [config.train, *config.heldout, *models]
    if not DATA.is_dir() and any(path.startswith(str(DATA)) for path in paths):
        raise MrlError(
            f"{DATA} does not exist: an installed package contains neither the tiny pair nor the "
            "problems. Install from a checkout with `pip install -e .`, or name your own models, "
            "`train` and `heldout`."
        )


def apply_settings(
    values: dict[str, Any],
    settings: Sequence[str] | dict[str, Any],
    compared: Sequence[str] = (),
) -> None:
    """Apply settings to `RunConfig` fields. They are Python values by key, or `key=value` texts.

    A key names a setting of the run or of all policies (`steps`, `objective`), of one policy
    (`qwen-tiny.objective`), or of the run's mode (`sgt.imitation_weight`). Settings of the other
    modes in `compared` are ignored.
    """
    policies = {table["name"]: table for table in values["policies"]}
    # in this order, because an error suggests the first key that resembles an unknown one
    of_policy = [f.name for f in fields(PolicyConfig) if f.name not in ("name", "path")]
    also = [*of_policy, *_settings_of_modes(values.get("mode", RunConfig.mode))]

    # settings of all policies first, so that those of a single policy override them
    for where, key, value in sorted(_named(settings), key=lambda entry: "." in entry[1]):
        owner, _, name = key.rpartition(".")
        setting = {name: value}

        # does the key belong to policies, to the run, or to the mode?
        if owner in policies or (not owner and name in of_policy):
            for policy in [policies[owner]] if owner else policies.values():
                policy.update(check_table(setting, PolicyConfig, where))
            continue
        if not owner:
            values |= check_table(setting, RunConfig, where, also=also)
            continue

        mode = mode_class(values.get("mode", RunConfig.mode)).name
        if owner != mode and owner in compared:
            continue
        if owner in MODES and owner != mode:
            raise MrlError(
                f"{where}: this is a setting of mode `{owner}`, but the mode of this run is "
                f"`{mode}`. Leave the setting out, or train with --mode {owner}."
            )
        if owner != mode:
            known = ", ".join([mode, *policies])
            raise MrlError(
                f"{where}: `{owner}` is neither this run's mode nor one of its policies ({known})."
            )
        of_modes = _tables(values.get("settings", {}))
        values["settings"] = of_modes | {mode: of_modes.get(mode, {}) | setting}


def _settings_of_modes(mode: object) -> list[str]:
    """The settings of all modes, such as `sgt.imitation_weight`; those of `mode` come first."""
    names = sorted(MODES, key=lambda name: name != mode)
    return [f"{name}.{f.name}" for name in names for f in fields(MODES[name]) if f.init]


def _named(settings: Sequence[str] | dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """For each setting: how an error message names it, its key, and its value."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield f"{key}={value!r:.200}", key, _as_toml(value)
        return

    for text in settings:
        key, equals, value = text.partition("=")
        if not (equals and key.rpartition(".")[2]) or key == "settings":
            raise MrlError(f"--set {text}: write KEY=VALUE, for example sgt.imitation_weight=0.5.")
        try:
            document = parse(f"value = {value}", text, "TOML")
        except MrlError:  # an unquoted text, which is also accepted
            document = {"value": value.replace("\\n", "\n")}  # `\n` is a line break, as in TOML
        yield f"--set {text}", key, document["value"]


def _as_toml(value: Any) -> Any:
    """A Python value in TOML's types: paths become texts."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list):
        return [_as_toml(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _as_toml(entry) for key, entry in value.items()}
    return value


def _tables(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Check that the settings of each mode are a table; returns them unchanged."""
    for name, table in settings.items():
        if not isinstance(table, dict):
            raise MrlError(
                f"settings.{name} is {table!r}, but must be a table: write [settings.{name}]."
            )
    return settings


def check(config: RunConfig) -> None:
    """Raise MrlError, which says what to do instead, for values that cannot work."""
    if all(policy.frozen for policy in config.policies):
        raise MrlError(
            "All policies are frozen, so nothing would be trained; unfreeze at least one of them."
        )

    names = [policy.name for policy in config.policies]
    for name in [*names, config.name] if config.name else names:
        if not (NAME.fullmatch(name) and name.isprintable()):
            raise MrlError(
                f"{name!r} cannot be the name of a run or a policy, because it also names a "
                "directory; use at most 64 letters, digits, '-' and '_'."
            )

    for policy in config.policies:
        if names.count(policy.name) > 1:
            raise MrlError(f"Two policies are named {policy.name!r}; give each a different name.")
        check_rules(policy, f"policy {policy.name}: ")
        if policy.template and "{prompt}" not in policy.template:
            raise MrlError(
                f"policy {policy.name}: `template` does not contain {{prompt}}, so the model would "
                "not see the problem; add {prompt} where the problem belongs."
            )
        if policy.system_prompt and isfile(policy.system_prompt):
            raise MrlError(
                f"policy {policy.name}: system_prompt is the name of a file "
                f"({policy.system_prompt}), and the model would read only this name. Give the text "
                "itself, or put it next to the training problems as system_prompt.txt."
            )

    check_rules(config)
    if not config.heldout:
        raise MrlError("`heldout` names no file; name at least one file of held-out problems.")

    for path, then in config.checksums.items():
        now = checksum(path)
        if now != then:
            raise MrlError(
                f"{path} has changed since the run began: its checksum is {now} instead of {then}. "
                "Put the old one back, or start a new run."
            )


def files_of(config: RunConfig) -> list[str]:
    """What decides a run's result: files of problems, the user's own judge and mode, and models."""
    paths = [config.train, *config.heldout, config.judge]
    if isinstance(config.mode, str) and (own_mode := OWN_MODE.fullmatch(config.mode)):
        paths.append(own_mode[1])
    for policy in config.policies:
        paths += [path for path in models_of(policy) if Path(path).is_dir()]
    return [path for path in paths if path]


def models_of(policy: PolicyConfig, trained: bool = False) -> list[str]:
    """The models that a policy reads: its weights, their base under LoRA, its reference.

    trained: whether its weights come from a checkpoint. Returns folders and hub names.
    """
    base = policy.path
    if Path(base, "adapter_config.json").is_file():
        from mrl.models.lora import base_of  # which imports torch

        base = base_of(base)
    paths = {base} if policy.lora_rank or base != policy.path else set()
    if policy.frozen or not trained:
        paths.add(policy.path)
    if policy.kl_coef > 0:
        paths.add(policy.reference or policy.path)
    return sorted(paths)


def checksum(path: str) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of a file, or of all files of a model."""
    if not Path(path).is_dir():
        return _digest(Path(path))[:16]
    lines = []
    for file in sorted(Path(path).iterdir()):
        if file.suffix in (".json", ".jinja", ".safetensors"):
            lines.append(f"{_digest(file)}  {file.name}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _digest(file: Path) -> str:
    state = file.stat()
    return _digest_of(file, state.st_size, state.st_mtime_ns)


@cache  # a file of weights is large, so it is read again only if it was written again
def _digest_of(file: Path, size: int, written_ns: int) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


# ------------------------------------------------------------------------------ modes


def mode_class(name: str | type[Mode] | Mode) -> type[Mode]:
    """The class of a mode.

    name: the name of a mode, `file.py:Class`, or, from Python, a mode's class or object.
    Raises MrlError if there is no such mode, and OSError if its file cannot be read.
    """
    if not isinstance(name, str):
        return _checked(name if isinstance(name, type) else type(name), f"mode={name!r:.200}")
    if name in MODES:
        return MODES[name]

    own = OWN_MODE.fullmatch(name)
    if not own:
        hint = nearest(name.lower(), MODES)
        raise MrlError(f"There is no mode {name!r}{hint} Write your own mode as FILE.py:Class.")

    path, class_name = Path(own[1]).expanduser(), own[2]
    source = path.read_bytes()
    try:
        mode = getattr(run_file(path.absolute(), source), class_name, None)
    except (Exception, SystemExit) as error:
        where = place_of(error)
        raise MrlError(
            f"--mode {name}: this file cannot be loaded ({error!r}, {where})."
        ) from error

    return _checked(mode, f"--mode {name}: {class_name} in {path}")


def _checked(mode: object, where: str) -> type[Mode]:
    """Check that a class is a mode; returns it, or raises MrlError."""
    if (
        not isinstance(mode, type)
        or not issubclass(mode, Mode)
        or mode.__abstractmethods__
        or not isinstance(getattr(mode, "name", None), str)
    ):
        raise MrlError(
            f"{where} is not a usable mode. It must be a subclass of Mode with a method "
            'training_samples and a line such as `name = "mine"`.'
        )

    try:
        inspect.signature(mode.training_samples).bind("self", "receiver", "experiences", "rng")
    except TypeError as error:
        raise MrlError(
            f"{where}: training_samples must take (self, receiver, experiences, rng)."
        ) from error

    if mode.consumes not in (None, *RECORD_TYPES):
        names = ", ".join(kind.__name__ for kind in RECORD_TYPES)
        raise MrlError(f"{where}: `consumes` must be None or one of {names}.")

    # without @dataclass, each `setting(...)` is still a Field instead of its default
    for kind in mode.__mro__:
        lost = [name for name, value in vars(kind).items() if isinstance(value, Field)]
        if lost:
            raise MrlError(
                f"The class {kind.__name__} has settings ({', '.join(lost)}), so it needs a line "
                "`@dataclass` above `class`."
            )
    return mode


def make_mode(name: str | type[Mode] | Mode, settings: dict[str, dict[str, Any]]) -> Mode:
    """Make a mode. name: as in `mode_class`; settings: those of every mode, by mode name.

    A mode object is copied, so that each policy has its own and they share no state.
    """
    mode_type = mode_class(name)
    own = check_table(settings.get(mode_type.name, {}), mode_type, f"settings.{mode_type.name}")
    if isinstance(name, Mode):
        mode = deepcopy(name)
        vars(mode).update(own)
    else:
        mode = mode_type(**own)
    check_rules(mode, f"{mode_type.name}.")

    return mode


def system_prompt_of(path: Path) -> str:
    """The system prompt in `system_prompt.txt` next to a problem file, or "" without that file."""
    file = path.parent / "system_prompt.txt"
    return read_text(file).strip() if file.is_file() else ""
