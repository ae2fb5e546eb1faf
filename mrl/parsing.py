"""The one reader: texts, JSON, TOML and tables of settings; a fault in them is one sentence.

It runs a person's own Python files, too. The verifier's child loads it, so it must not load torch.
"""

import difflib
import json
import math
import sys
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from mrl.errors import MrlError


def read_text(path: Path) -> str:
    """A file's text; OSError if it cannot be read, MrlError if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")  # without the mark that some editors put first
    except UnicodeDecodeError as error:
        raise MrlError(f"{path}: is not UTF-8 text ({error.reason}); convert it first.") from None


def parse(text: str, where: str, form: str = "JSON") -> dict[str, Any]:
    """The object that a text in JSON or TOML holds; MrlError with the place if it holds none."""
    try:
        value = tomllib.loads(text) if form == "TOML" else json.loads(text)
    except (ValueError, RecursionError) as error:  # a long number, brackets in brackets
        raise MrlError(f"{where}: is not {form} ({error}).") from None

    if not isinstance(value, dict):
        raise MrlError(f"{where}: is not a JSON object, so nothing in it has a name.")
    return value


def read_json_lines(path: Path) -> list[dict]:
    """The objects of a log, one a line; other lines, as a torn last one, are left out.

    Only the newline byte ends a line: what models write may hold other line breaks.
    """
    if not path.is_file():
        return []

    entries = []
    for line in path.read_bytes().split(b"\n"):
        with suppress(MrlError):
            entries.append(parse(line.decode("utf-8", errors="replace"), str(path)))
    return entries


def split_list(text: str) -> list[str]:
    """The entries of a list that is written as one text, with commas between them."""
    return [entry.strip() for entry in text.split(",")]


@cache
def run_file(path: Path, source: bytes) -> ModuleType:
    """Run a file of one's own as a module, once; again if its content has changed.

    Whatever the file raises is raised here.
    """
    module = ModuleType(f"own {path.stem}")  # replaces no other, such as `random`
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look it up by its name
    exec(compile(source, path, "exec"), module.__dict__)
    return module


# ------------------------------------------------------------------------------ tables of settings


def check_table(
    table: dict[str, Any], target: type, where: str, also: Iterable[str] = ()
) -> dict[str, Any]:
    """The table as keyword arguments for dataclass `target`, every key and type checked.

    also: keys that may have been meant, besides those of the dataclass.
    """
    hints = get_type_hints(target)
    known = [entry.name for entry in fields(target) if entry.init and entry.name != "policies"]

    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise MrlError(f"{where}: there is no setting `{key}`{nearest(key, [*known, *also])}")

        # an integer may stand for a float, and one text with commas for a list
        hint = hints[key]
        if hint in (float, float | None) and type(value) is int:
            value = float(value)
        if hint == list[str] and isinstance(value, str):
            value = split_list(value)

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


def check_rules(config: object, where: str = "") -> None:
    """Check every field by the rule that `config.setting` declared it with."""
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


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence on an unknown word: the likeliest known one, else all of them."""
    # its initials, as `lr`, or letters in common
    near = [name for name in known if "".join(part[:1] for part in name.split("_")) == word]
    near += difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    return f"; did you mean `{near[0]}`?" if near else f"; known are {', '.join(sorted(known))}."
