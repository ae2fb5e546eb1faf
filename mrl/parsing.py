"""Reads text files, JSON, TOML and tables of settings. Reports any fault in one sentence.

It also runs a user's Python files. The verifier's child process loads this file, so it must not
load torch.
"""

import difflib
import json
import math
import sys
import tomllib
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from mrl.errors import MrlError

WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
WORDS |= {list: "a list of texts", dict: "a table"}


def read_text(path: Path) -> str:
    """The text of a file. Raises OSError if it cannot be read, and MrlError if it is not UTF-8."""
    try:
        # this encoding drops the byte order mark that some editors write
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise MrlError(f"{path} is not UTF-8 text ({error.reason}). Convert it to UTF-8.") from None


# In JSON, a LaTeX command that is written with one backslash begins with one of these.
_CONTROL_CHARACTERS = {
    "\b": r"\b (backspace)", "\t": r"\t (TAB)", "\n": r"\n (line break)", "\f": r"\f (form feed)",
    "\r": r"\r (carriage return)",
}  # fmt: skip


def control_character(text: str, allowed: str = "") -> str:
    """The name of the first control character in a text, except for allowed ones; "" if none."""
    for sign in text:
        if unicodedata.category(sign) == "Cc" and sign not in allowed:
            return _CONTROL_CHARACTERS.get(sign, ascii(sign).strip("'"))
    return ""


def parse(text: str, where: str, form: str = "JSON") -> dict[str, Any]:
    """The object in a JSON or TOML text. If there is none, raises MrlError, which names `where`."""
    try:
        value = tomllib.loads(text) if form == "TOML" else json.loads(text)
    except (ValueError, RecursionError) as error:  # also for a very long number, or deep nesting
        raise MrlError(f"{where}: this is not valid {form} ({error}).") from None

    if not isinstance(value, dict):
        raise MrlError(
            f"{where}: expected a JSON object ({{...}}), but found {type(value).__name__}."
        )
    return value


def read_json_lines(path: Path, last: int | None = None) -> list[dict]:
    """The JSON objects of a log, one per line. Invalid lines, such as a torn last one, are skipped.

    Only the newline byte ends a line, because completions may contain other line breaks.
    last: read only so many bytes, from the end of the file.
    """
    if not path.is_file():
        return []

    with path.open("rb") as file:
        if last is not None:
            file.seek(max(0, path.stat().st_size - last))
        lines = file.read().split(b"\n")
    entries = []
    for line in lines:
        with suppress(MrlError):
            entries.append(parse(line.decode("utf-8", errors="replace"), str(path)))
    return entries


def split_list(text: str) -> list[str]:
    """The entries of a list that is written as one text, separated by commas."""
    return [entry.strip() for entry in text.split(",")]


@cache
def run_file(path: Path, source: bytes) -> ModuleType:
    """Run a user's file as a module. It runs again only if its content has changed.

    Exceptions that the file raises are passed on.
    """
    module = ModuleType(f"own {path.stem}")  # so that a random.py does not replace `random`
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look the module up by its name
    exec(compile(source, path, "exec"), module.__dict__)
    return module


# ------------------------------------------------------------------------------ tables of settings


def check_table(
    table: dict[str, Any], target: type, where: str, also: Iterable[str] = ()
) -> dict[str, Any]:
    """Check every key and type of a table; returns keyword arguments for the dataclass `target`.

    also: keys outside the dataclass that an error message may suggest.
    """
    hints = get_type_hints(target)
    known = [entry.name for entry in fields(target) if entry.init and entry.name != "policies"]

    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise MrlError(f"{where}: there is no setting `{key}`{nearest(key, [*known, *also])}")

        # accept an integer for a float, and a text with commas for a list
        hint = hints[key]
        if hint in (float, float | None) and type(value) is int:
            value = float(value)
        if hint == list[str] and isinstance(value, str):
            value = split_list(value)

        if type(value) is float and not math.isfinite(value):
            raise MrlError(f"{where}: {key} is {value}, but must be a finite number.")
        if not _fits(value, hint):
            raise MrlError(f"{where}: {key} is {value!r}, but must be {_in_words(hint)}.")
        values[key] = value
    return values


def _fits(value: Any, hint: Any) -> bool:
    if hint == list[str]:
        return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    # `type` instead of isinstance, which would accept True as an int
    return type(value) in [get_origin(entry) or entry for entry in _alternatives(hint)]


def _alternatives(hint: Any) -> Sequence[Any]:
    """The types that a type hint such as `int | None` allows."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]


def _in_words(hint: Any) -> str:
    """What values a type hint allows, for people who do not know Python."""
    kinds = [get_origin(entry) or entry for entry in _alternatives(hint) if entry is not NoneType]
    return " or ".join(WORDS.get(kind, str(kind)) for kind in kinds)


def check_rules(config: Any, where: str = "") -> None:
    """Check every field by the rule that `config.setting` declared. Raises MrlError."""
    for entry in fields(config):
        value, rule = getattr(config, entry.name), entry.metadata
        if value is None:
            continue

        if "choices" in rule and value not in rule["choices"]:
            known = ", ".join(filter(None, rule["choices"]))
            raise MrlError(f"{where}{entry.name} is {value!r}, but must be one of: {known}.")

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
    """The end of a sentence about an unknown word: the most similar known word, or all of them.

    A known word such as `sgt.imitation_weight` may be meant by its last part alone.
    """
    known = list(known)
    # compare the last part and the initials first (`lr` is learning_rate), then the spelling
    near = [name for name in known if name.rpartition(".")[2] == word]
    near += [name for name in known if "".join(part[:1] for part in name.split("_")) == word]
    near += difflib.get_close_matches(word, known, n=1, cutoff=0.45)
    return (
        f"; did you mean `{near[0]}`?"
        if near
        else f"; the known ones are {', '.join(sorted(known))}."
    )
