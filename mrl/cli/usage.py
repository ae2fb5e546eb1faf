"""What the command line says about an option or a command that it cannot use.

The library that reads the command line has its own messages. Some of them are written for
programmers ("unable to parse string as an integer"), so each becomes a sentence that says what was
found and what to do instead.
"""

import re
from difflib import get_close_matches

from mrl.config import HELP
from mrl.parsing import nearest

KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def usage_sentence(error: Exception) -> str:
    """One sentence about an error of the command line, or "" if it is another kind of error."""
    if not hasattr(error, "format_message"):
        return ""
    words = error.format_message().rstrip(".")  # pyright: ignore[reportAttributeAccessIssue]
    if name := getattr(error, "option_name", ""):
        return _about_option(error, name, words)

    context = getattr(error, "ctx", None)
    if unknown := re.match("No such command '(.*?)'", words):
        known = [*context.command.commands, "train"] if context else []
        return f"There is no command {unknown[1]!r}{nearest(unknown[1], known)}"
    if found := re.search(r"unexpected extra arguments?(?:\(s\))? \((.*)\)", words):
        words = f"{found[1]!r} is too much here. A text with spaces needs quotation marks"
    elif type(error).__name__ == "MissingParameter":
        words = f"{_name_of(error)} is missing"
    elif wrong := _wrong_value(error):
        return f"{_name_of(error)} is {wrong}."
    command = context.info_name if context and context.parent else ""
    about = f"{command} --help".strip()
    return f"{words}. `python mini_mrl.py {about}` shows what can be written here."


def _about_option(error: Exception, name: str, words: str) -> str:
    """A sentence about an option that does not exist, or that is used in a wrong way."""
    if "requires an argument" in words:
        return f"{name} needs a value: write it after the option."
    if type(error).__name__ != "NoSuchOption":
        return f"{words}."
    bare = name.strip("-").replace("-", "_")
    settings = [key for key in HELP if bare in (key, "".join(part[:1] for part in key.split("_")))]
    if settings:
        return f"There is no option {name}, but a setting: --set {settings[0]}=VALUE."
    options = {option.strip("-"): option for option in getattr(error, "possibilities", None) or ()}
    if near := get_close_matches(name.strip("-"), options, n=1, cutoff=0.7):
        return f"There is no option {name}; did you mean {options[near[0]]}?"
    return (
        f"There is no option {name}. --help lists the options. Every setting can be changed with "
        "--set KEY=VALUE, and `settings` lists them."
    )


def _name_of(error: Exception) -> str:
    """The option or the argument that an error is about."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        return "A value"
    if parameter.param_type_name == "option":
        return parameter.opts[0]
    return parameter.name.upper()


def _wrong_value(error: Exception) -> str:
    """What was found, and what it must be; "" if the library does not say."""
    reasons = getattr(error.__cause__, "errors", list)()  # a method of pydantic's errors
    if not reasons:
        return ""
    found = reasons[0]
    kind, _, _ = found["type"].partition("_")
    context = found.get("ctx", {})
    limits = [f"{BOUNDS[key]} {value:g}" for key, value in context.items() if key in BOUNDS]
    wanted = " and ".join(limits) or KINDS.get(kind, "")
    return f"{str(found['input'])!r:.200}, but must be {wanted}" if wanted else ""
