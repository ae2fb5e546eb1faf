"""What a test of an error message asks of it: which names and values it has, not how it says so."""

import re


def names_it(message: str, names: str) -> bool:
    """Whether a message has every one of these names and values, which are separated by spaces.

    Each must be a whole word or number: `steps` is not found in `max_steps`, nor `5` in `0.5`.
    """
    for name in names.split():
        inside_a_number = r"(?<!\d\.)" if name[0].isdigit() else ""
        if not re.search(rf"(?<!\w){inside_a_number}{re.escape(name)}(?!\w|\.\d)", message):
            return False
    return True
