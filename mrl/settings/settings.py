"""The settings of a run, put together and checked; every mistake in them gets one sentence.

Precedence: defaults < preset of the pair < `--config` file < options of the command line.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import Field, fields
from os.path import expanduser
from pathlib import Path, PurePath
from typing import Any

from mrl.config import DATA, PolicyConfig, RunConfig
from mrl.errors import MrlError
from mrl.modes import MODES, Mode
from mrl.modes.check import place_of
from mrl.parsing import check_rules, check_table, nearest, parse, read_text, run_file
from mrl.settings.pairs import pair_settings

NAME = re.compile(r"[^./\\][^/\\]{0,63}")  # of a policy or a run: of a directory, in every sentence
OWN_MODE = re.compile(r"(.+\.py):(\w+)")  # file.py:Class
# how a path into the program's own `data` begins in config.json, so that a run can go on in another
# checkout; and how it begins here
OWN_DATA, DATA_HERE = '"{data}/', json.dumps(f"{DATA}/")[:-1]


def run_config(
    pair: str | None,
    file: Path | None,
    options: dict[str, Any],
    settings: Sequence[str] | dict[str, Any],
    compared: Sequence[str] = (),
) -> RunConfig:
    """The settings of a new run, checked.

    pair: None takes the file's policies, or the tiny pair where it has none.
    options: of the command line, None for one that was not used.
    settings: texts of --set, or Python values by name.
    compared: other modes of a comparison, for which the file may have settings as well.
    """
    from_file = load_config(file.expanduser()) if file else {}
    if pair is not None:
        from_file.pop("policies", None)
    preset = {} if "policies" in from_file else pair_settings("tiny" if pair is None else pair)
    values = preset | from_file
    values |= {key: value for key, value in options.items() if value is not None}

    apply_settings(values, settings)
    config = RunConfig(**values)
    _expand_home(config)
    _look_for_data(config)

    # after --set, which may name the mode
    mode = mode_class(config.mode)
    known = [*MODES, mode.name]
    for name in compared:
        if name != mode.name:
            config.settings.pop(name, None)
    for name in _tables(config.settings):
        if name not in known:
            raise MrlError(f"settings.{name}: there is no such mode{nearest(name, known)}")

    # kept in config.json: a run is resumed with the prompt and the files that it began with
    for policy in config.policies:
        if policy.system_prompt is None:
            policy.system_prompt = system_prompt_of(Path(config.train))
        if policy.updates_per_step is None:
            policy.updates_per_step = mode.published_updates
    for path in files_of(config):
        if Path(path).is_file() and path not in config.checksums:
            config.checksums[path] = checksum(path)
    check(config)
    return config


def _expand_home(config: RunConfig) -> None:
    """Write out the `~` of every path."""
    for name in ("train", "judge", "runs"):
        setattr(config, name, expanduser(getattr(config, name)))
    if isinstance(config.mode, str):  # from Python it may be a class or an object
        config.mode = expanduser(config.mode)
    config.heldout = [expanduser(path) for path in config.heldout]
    for policy in config.policies:
        policy.path, policy.reference = expanduser(policy.path), expanduser(policy.reference)


def load_config(path: Path) -> dict[str, Any]:
    """Read a run's TOML file (or a run's own config.json) into `RunConfig` fields.

    Raises MrlError with the place for broken TOML, an unknown key (naming the nearest right one) or
    a value of the wrong type; OSError if there is no file.
    """
    text = read_text(path).replace(OWN_DATA, DATA_HERE)
    table = parse(text, str(path), "JSON" if path.suffix == ".json" else "TOML")
    of_judge = table.pop("judge_checksum", "")  # all that runs of earlier versions kept
    if of_judge:
        table["checksums"] = {table["judge"]: of_judge}
    policies = table.pop("policy", table.pop("policies", []))
    if not isinstance(policies, list) or not all(isinstance(entry, dict) for entry in policies):
        raise MrlError(f"{path}: policies are written as [[policy]] tables, with two brackets.")

    of_run = [entry.name for entry in fields(RunConfig)]
    for entry in fields(PolicyConfig):
        if entry.name in table and entry.name not in of_run:
            remedy = f"write it into each [[policy]] table, or use --set {entry.name}=VALUE for all"
            raise MrlError(f"{path}: `{entry.name}` is a setting of a policy; {remedy}.")

    values = check_table(table, RunConfig, str(path))
    for number, entry in enumerate(policies, start=1):
        where = f"{path}, [[policy]] number {number}"
        policy = check_table(entry, PolicyConfig, where)
        if "path" not in policy:
            raise MrlError(f"{where}: `path` is missing; give a model directory or a hub name.")
        policy.setdefault("name", Path(policy["path"]).name)
        values.setdefault("policies", []).append(PolicyConfig(**policy))
    return values


def _look_for_data(config: RunConfig) -> None:
    """MrlError if the run needs the program's own data, and the installed program has none."""
    paths = [config.train, *config.heldout, *(policy.path for policy in config.policies)]
    if not DATA.is_dir() and any(path.startswith(str(DATA)) for path in paths):
        raise MrlError(
            f"{DATA}: is missing; the tiny pair and the problems are part of a checkout and not of "
            "an installed package, so install from a checkout with `pip install -e .`, or name "
            "models, `train` and `heldout` of your own."
        )


def apply_settings(values: dict[str, Any], settings: Sequence[str] | dict[str, Any]) -> None:
    """Put settings into `RunConfig` fields: Python values by key, or texts of `--set`, `key=value`.

    A key is a setting of the run or of every policy (`steps`, `objective`), of one policy
    (`qwen-tiny.objective`) or of the run's mode (`sgt.imitation_weight`).
    """
    policies = {policy.name: policy for policy in values["policies"]}
    # in their order: the first that fits an unknown key is suggested
    of_policy = [f.name for f in fields(PolicyConfig) if f.name not in ("name", "path")]

    # a setting of all policies comes before one of a single policy, which may differ from it
    for where, key, value in sorted(_named(settings), key=lambda entry: "." in entry[1]):
        owner, _, name = key.rpartition(".")
        setting = {name: value}

        # it is for policies, for the run, or else for the mode
        if owner in policies or (not owner and name in of_policy):
            for policy in [policies[owner]] if owner else policies.values():
                vars(policy).update(check_table(setting, PolicyConfig, where))
            continue
        if not owner:
            values |= check_table(setting, RunConfig, where, also=of_policy)
            continue

        mode = mode_class(values.get("mode", RunConfig.mode)).name
        if owner != mode:
            known = ", ".join([mode, *policies])
            raise MrlError(f"{where}: `{owner}` is not for this run's mode or policies ({known}).")
        of_modes = _tables(values.get("settings", {}))
        values["settings"] = of_modes | {mode: of_modes.get(mode, {}) | setting}


def _named(settings: Sequence[str] | dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Where each setting stands, for a sentence about it; its key; and its value."""
    if isinstance(settings, dict):
        for key, value in settings.items():
            yield f"{key}={value!r:.200}", key, _as_toml(value)
        return

    for text in settings:
        key, equals, value = text.partition("=")
        if not (equals and key.rpartition(".")[2]) or key == "settings":
            raise MrlError(f"--set {text}: write it as key=value, e.g. sgt.imitation_weight=0.5.")
        try:
            document = parse(f"value = {value}", text, "TOML")
        except MrlError:  # a text without quotation marks
            document = {"value": value}
        yield f"--set {text}", key, document["value"]


def _as_toml(value: Any) -> Any:
    """A Python value in the types of TOML: a path is a text, a tuple a list, a scalar a number."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, list | tuple):
        return [_as_toml(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _as_toml(entry) for key, entry in value.items()}
    return value.item() if getattr(value, "shape", None) == () else value  # numpy's and torch's


def _tables(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings of the modes, each a table."""
    for name, table in settings.items():
        if not isinstance(table, dict):
            raise MrlError(f"settings.{name} is {table!r}; write [settings.{name}] as a table.")
    return settings


def check(config: RunConfig) -> None:
    """Raise MrlError for values that cannot work, each with what to do instead."""
    if all(policy.frozen for policy in config.policies):
        raise MrlError("The run has no policy that learns; name one without `frozen`.")

    names = [policy.name for policy in config.policies]
    for name in [*names, config.name] if config.name else names:
        if not (NAME.fullmatch(name) and name.isprintable()):
            raise MrlError(
                f"{name!r} is no name for a run or a policy; use letters, digits, '-' and '_', at "
                "most 64 of them, as for a plain directory name."
            )

    for policy in config.policies:
        if names.count(policy.name) > 1:
            raise MrlError(f"Two policies are called {policy.name!r}; give each its own name.")
        check_rules(policy, f"policy {policy.name}: ")
        if policy.template and "{prompt}" not in policy.template:
            raise MrlError(
                f"policy {policy.name}: the template lacks {{prompt}}; no problem would be asked."
            )

    check_rules(config)
    if not config.heldout:
        raise MrlError("heldout names no file; a run is scored on at least one.")

    for path, then in config.checksums.items():
        now = checksum(path)
        if now != then:
            raise MrlError(
                f"{path}: its checksum is {now}, but the run began with {then}, so it would go on "
                "as another run; put the old file back, or start a new run."
            )


def files_of(config: RunConfig) -> list[str]:
    """The files that decide what a run comes to: problems, and a judge and a mode of one's own."""
    paths = [config.train, *config.heldout, config.judge]
    if isinstance(config.mode, str) and (own_mode := OWN_MODE.fullmatch(config.mode)):
        paths.append(own_mode[1])
    return [path for path in paths if path]


def checksum(path: str) -> str:
    """The checksum of a file, 16 digits."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


# ------------------------------------------------------------------------------ modes


def mode_class(name: str | type[Mode] | Mode) -> type[Mode]:
    """The class of a mode, by its name or as `file.py:Class`; or, from Python, the mode itself.

    MrlError if there is none, OSError if its file cannot be read.
    """
    if not isinstance(name, str):
        return _checked(name if isinstance(name, type) else type(name), f"mode={name!r:.200}")
    if name in MODES:
        return MODES[name]

    own = OWN_MODE.fullmatch(name)
    if not own:
        hint = nearest(name.lower(), MODES)
        raise MrlError(f"There is no mode {name!r}{hint} A mode of your own is file.py:Class.")

    path, class_name = Path(own[1]).expanduser(), own[2]
    source = path.read_bytes()
    try:
        mode = getattr(run_file(path.absolute(), source), class_name, None)
    except (Exception, SystemExit) as error:
        where = place_of(error)
        raise MrlError(f"--mode {name}: cannot be loaded ({error!r}, {where}).") from error

    return _checked(mode, f"--mode {name}: {path} has no class {class_name}, or it")


def _checked(mode: object, where: str) -> type[Mode]:
    """A class, if it can be a mode; else MrlError."""
    is_mode = isinstance(mode, type) and issubclass(mode, Mode) and not mode.__abstractmethods__
    if not is_mode or not isinstance(getattr(mode, "name", None), str):
        raise MrlError(
            f'{where} is not a Mode that defines training_samples and a name as `name = "mine"`.'
        )

    # @dataclass would have replaced each `setting(...)` by its default
    for kind in mode.__mro__:
        lost = [name for name, value in vars(kind).items() if isinstance(value, Field)]
        if lost:
            raise MrlError(
                f"The settings of the class {kind.__name__} ({', '.join(lost)}) need a line "
                "`@dataclass` above `class`."
            )
    return mode


def make_mode(name: str | type[Mode] | Mode, settings: dict[str, dict[str, Any]]) -> Mode:
    """Make the mode of that name (see `mode_class`); settings: of every mode, by its name.

    Of a mode that is there already, a copy is made: what a mode remembers is its receiver's alone.
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
    """The system prompt in `system_prompt.txt` beside a problem file; "" if there is none."""
    file = path.parent / "system_prompt.txt"
    return read_text(file).strip() if file.is_file() else ""
