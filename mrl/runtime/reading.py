"""The reader of JSON and TOML: a fault of a file's content is one sentence."""

import json
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from mrl.errors import MrlError


def read_text(path: Path) -> str:
    """A file's text; OSError if it cannot be read, MrlError if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
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
