"""What a test of an error message asks of it: that it names the thing, not how it says so."""

import re


def names_it(message: str, expected: str) -> bool:
    """Whether a message names one of the things that an expected message names.

    Things are names in quotes, numbers, paths, and words with `_`, `.` or `-`. If there are none,
    one of the longer words must occur.
    """
    quoted = re.findall(r"`[^`]+`|'[^']+'", expected)
    things = [text.strip("`'") for text in quoted]
    things += [
        text.strip(".,:;()") for text in re.findall(r"\S*[\w}][_./=-]\S*|\S*\d\S*", expected)
    ]
    if not things:
        things = re.findall(r"[A-Za-z{}]{4,}", expected)
    return any(thing.lower() in message.lower() for thing in things)
