"""The settings of a run, put together and checked; every mistake in them gets one sentence.

Precedence: defaults < preset of the pair < `--config` file < options of the command line.
"""

import difflib
import importlib.util
import math
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from mrl.config import PolicyConfig, RunConfig
from mrl.errors import MrlError
from mrl.modes import MODES, Mode
from mrl.records import RECORD_TYPES
from mrl.runtime.judge import check_judge, checksum
from mrl.runtime.own_code import place_of
from mrl.runtime.pairs import pair_settings
from mrl.runtime.problems import system_prompt_of
from mrl.runtime.reading import parse, read_text

LONGEST_NAME = 64  # of a policy: it stands in every record, metric and sentence
OWN_MODE = re.compile(r"(.+\.py)(?::(.*))?")  # file.py:Class


def run_config(
    pair: str | None, file: Path | None, options: dict[str, Any], settings: Sequence[str]
) -> RunConfig:
    """The settings of a new run, checked.

    options: of the command line, None for one that was not used; settings: texts of --set.
    """
    from_file = load_config(file) if file else {}
    if pair is not None:
        from_file.pop("policies", None)
    preset = {}
    if "policies" not in from_file:
        preset = pair_settings("tiny" if pair is None else pair)
    used_options = {key: value for key, value in options.items() if value is not None}
    values = preset | from_file | used_options

    for name, table in values.get("settings", {}).items():
        if not isinstance(table, dict):
            raise MrlError(f"settings.{name} is {table!r}; write [settings.{name}] as a table.")
    apply_settings(values, settings)
    config = RunConfig(**values)

    # after --set, which may name the mode
    own = mode_class(config.mode).name if config.settings else ""
    for name in config.settings:
        if name not in (*MODES, own):
            raise MrlError(f"settings.{name}: there is no such mode{_nearest(name, MODES)}")

    # kept in config.json: a run is resumed with the prompt and the judge that it began with
    for policy in config.policies:
        policy.system_prompt = policy.system_prompt or system_prompt_of(Path(config.train))
    if config.judge and not config.judge_checksum:
        config.judge_checksum = checksum(config.judge)
    check(config)
    return config


def load_config(path: Path) -> dict[str, Any]:
    """Read a run's TOML file (or a run's own config.json) into `RunConfig` fields.

    Raises MrlError with the place for a missing file, broken TOML, an unknown key (naming the
    nearest right one) or a value of the wrong type.
    """
    table = parse(read_text(path), str(path), "JSON" if path.suffix == ".json" else "TOML")
    named = table.keys() & {"policy", "policies"}
    policies = table.pop("policy", table.pop("policies", []))
    if named and not policies:
        raise MrlError(f"{path}: names no policy; write a [[policy]] table, or leave it out.")
    if not isinstance(policies, list) or not all(isinstance(entry, dict) for entry in policies):
        raise MrlError(f"{path}: policies are written as [[policy]] tables, with two brackets.")

    values = check_table(table, RunConfig, str(path))
    for number, entry in enumerate(policies, start=1):
        where = f"{path}, [[policy]] number {number}"
        policy = check_table(entry, PolicyConfig, where)
        if "path" not in policy:
            raise MrlError(f"{where}: `path` is missing; give a model directory or a hub name.")
        policy.setdefault("name", Path(policy["path"]).name)
        values.setdefault("policies", []).append(PolicyConfig(**policy))
    return values


def apply_settings(values: dict[str, Any], texts: Sequence[str]) -> None:
    """Put `--set` texts into `RunConfig` fields: `key=value`, values as in TOML.

    A key is a setting of the run or of every policy (`steps`, `objective`), of one policy
    (`qwen-tiny.objective`) or of the run's mode (`sgt.imitation_weight`).
    """
    policies = {policy.name: policy for policy in values["policies"]}
    of_policy = {entry.name for entry in fields(PolicyConfig)} - {"name", "path"}

    # a setting of all policies comes before one of a single policy, which may differ from it
    for text in sorted(texts, key=lambda text: "." in text.partition("=")[0]):
        key, equals, value = text.partition("=")
        owner, _, name = key.rpartition(".")
        if not (equals and name) or key == "settings":
            raise MrlError(f"--set {text}: write it as key=value, e.g. sgt.imitation_weight=0.5.")

        try:
            document = parse(f"value = {value}", text, "TOML")
        except MrlError:  # a text without quotation marks
            document = {"value": value}
        if len(document) > 1:
            raise MrlError(f"--set {key}: its value has more lines than one; give each its --set.")
        parsed = document["value"]

        # it is for policies, for the run, or else for the mode
        if owner in policies or (not owner and name in of_policy):
            owners = [policies[owner]] if owner else list(policies.values())
            for policy in owners:
                vars(policy).update(check_table({name: parsed}, PolicyConfig, f"--set {text}"))
            continue
        if not owner:
            values |= check_table({name: parsed}, RunConfig, f"--set {text}")
            continue

        mode = mode_class(values.get("mode", RunConfig.mode)).name
        if owner != mode:
            known = ", ".join([mode, *policies])
            raise MrlError(
                f"--set {text}: `{owner}` is not for this run's mode or policies ({known})."
            )
        settings = values.get("settings", {})
        values["settings"] = settings | {mode: settings.get(mode, {}) | {name: parsed}}


def check_table(table: dict[str, Any], target: type, where: str) -> dict[str, Any]:
    """The table as keyword arguments for dataclass `target`, every key and type checked."""
    hints = get_type_hints(target)
    known = {entry.name: hints[entry.name] for entry in fields(target) if entry.init}
    known.pop("policies", None)

    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            also = ["policy"] if target is RunConfig else []
            if where.startswith("--set"):  # there a setting of all policies is written alike
                also = [entry.name for entry in fields(PolicyConfig)]
            raise MrlError(f"{where}: there is no setting `{key}`{_nearest(key, [*known, *also])}")

        # an integer may stand for a float, and one text for a list of one
        hint = known[key]
        if hint in (float, float | None) and type(value) is int:
            value = float(value)
        if hint == list[str] and isinstance(value, str):
            value = [value]

        if type(value) is float and not math.isfinite(value):
            raise MrlError(f"{where}: {key} is {value}, but must be a finite number.")
        if not _fits(value, hint):
            wanted = hint.__name__ if isinstance(hint, type) else hint
            raise MrlError(f"{where}: {key} is {value!r}, but must be of type {wanted}.")
        values[key] = value
    return values


def _fits(value: Any, hint: Any) -> bool:
    if hint == list[str]:
        return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    is_union = get_origin(hint) in (Union, UnionType)  # as int | None
    alternatives = get_args(hint) if is_union else [hint]
    return type(value) in [get_origin(entry) or entry for entry in alternatives]  # True is no int


def _nearest(word: str, known: Iterable[str]) -> str:
    # its initials, as `lr`, or letters in common
    near = [name for name in known if "".join(part[:1] for part in name.split("_")) == word]
    near += difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    return f"; did you mean `{near[0]}`?" if near else f"; known are {', '.join(sorted(known))}."


# ------------------------------------------------------------------------------ checks


def check(config: RunConfig) -> None:
    """Raise MrlError for values that cannot work, each with what to do instead."""
    if not config.policies:
        raise MrlError("The run has no policy; give --pair or [[policy]] tables in --config.")
    if all(policy.frozen for policy in config.policies):
        raise MrlError("Every policy is frozen, so none would learn; leave one without `frozen`.")

    names = [policy.name for policy in config.policies]
    for policy in config.policies:
        if names.count(policy.name) > 1:
            raise MrlError(f"Two policies are called {policy.name!r}; give each its own name.")
        if not _is_plain(policy.name):
            raise MrlError(
                f"A policy's name is {policy.name!r}; use letters, digits, '-' and '_', at most "
                f"{LONGEST_NAME} of them (`name` in its [[policy]] table)."
            )
        _check_rules(policy, f"policy {policy.name}: ")
        if policy.template and "{prompt}" not in policy.template:
            raise MrlError(
                f"policy {policy.name}: the template lacks {{prompt}}; no problem would be asked."
            )

    _check_rules(config)
    check_judge(config)
    if not config.heldout:
        raise MrlError("heldout names no file; a run is scored on at least one.")
    if config.name and not _is_plain(config.name):
        raise MrlError(f"--name is {config.name!r}; give a plain directory name.")


def _is_plain(name: str) -> bool:
    short = 0 < len(name) <= LONGEST_NAME
    return short and name.isprintable() and not set(name) & set("/\\") and name[0] != "."


def _check_rules(config: object, where: str = "") -> None:
    """Check every field by the rule that `setting` declared it with."""
    for entry in fields(config):
        value, rule = getattr(config, entry.name), entry.metadata
        if value is None:
            continue

        if "choices" in rule and value not in rule["choices"]:
            known = ", ".join(filter(None, rule["choices"]))
            raise MrlError(f"{where}{entry.name} is {value!r}; known are {known}.")

        # written with `not`, because NaN is neither below a bound nor above it
        wanted = ""
        if "least" in rule and not value >= rule["least"]:
            wanted = f"{rule['least']} or more"
        elif "above" in rule and not value > rule["above"]:
            wanted = f"above {rule['above']}"
        elif "most" in rule and not value <= rule["most"]:
            wanted = f"{rule['most']} or less"
        if wanted:
            raise MrlError(
                f"{where}{entry.name} is {value:g}, but must be {wanted} ({rule['help']})."
            )


# ------------------------------------------------------------------------------ modes


def mode_class(name: str) -> type[Mode]:
    """The class of a mode, by its name or as `file.py:Class`; MrlError if there is none.

    The file is run at each call, so the policies of a run share nothing of a mode of one's own.
    """
    if name in MODES:
        return MODES[name]

    own = OWN_MODE.fullmatch(name)
    if not own:
        hint = _nearest(name.lower(), MODES)
        raise MrlError(f"There is no mode {name!r}{hint} A mode of your own is file.py:Class.")
    path, class_name = own.groups()
    if not class_name:
        raise MrlError(f"--mode {path}: name the class, too, as {path}:MyMode.")
    if not Path(path).is_file():
        raise MrlError(f"--mode {name}: there is no file {path}.")

    # dataclasses look their module up by name; this one cannot replace another, such as `random`
    spec = importlib.util.spec_from_file_location(f"mode {Path(path).stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        reason = f"{error!r}, {place_of(error)}"
        raise MrlError(f"--mode {name}: {path} cannot be loaded ({reason}).") from error

    mode = getattr(module, class_name, None)
    if not (isinstance(mode, type) and issubclass(mode, Mode)):
        raise MrlError(f"--mode {name}: {path} has no class {class_name} that is a Mode.")
    if mode.__abstractmethods__:
        raise MrlError(f"--mode {name}: {class_name} does not define training_samples yet.")
    if not isinstance(getattr(mode, "name", None), str):
        raise MrlError(f'--mode {name}: {class_name} needs a name, as `name = "mine"` in it.')
    return mode


def make_mode(name: str, settings: dict[str, dict[str, Any]]) -> Mode:
    """Make the mode of that name; settings: of every mode, by its name."""
    mode_type = mode_class(name)
    own = settings.get(mode_type.name, {})
    mode = mode_type(**check_table(own, mode_type, f"settings.{mode_type.name}"))
    _check_rules(mode, f"{mode_type.name}.")

    for key in ("minibatches", "rollout_factor"):  # without a rule in a mode of one's own
        number = getattr(mode, key)
        if type(number) is not int or number < 1:
            raise MrlError(f"--mode {name}: {key} is {number!r}, but must be 1 or more.")
    if mode.consumes not in (None, *RECORD_TYPES):
        raise MrlError(f"--mode {name}: consumes is {mode.consumes!r}, which is no type of record.")
    return mode
