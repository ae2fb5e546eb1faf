"""The errors that end a run, or a command, with one sentence."""

import re

# where an error has no type of its own: CUDA's driver, cuBLAS, cuDNN, a CPU's allocator, a file
NO_MEMORY = "out of memory|STATUS_ALLOC_FAILED|can't allocate memory|Cannot allocate memory"


class MrlError(Exception):
    """A person's mistake: the message says what was found, where, and what to do instead.

    The command line prints it without a traceback and exits with code 2.
    """

    exit_code = 2


class RunFailed(Exception):
    """A run ended early, but its input was right; exit code 1, its last checkpoint is kept."""

    exit_code = 1


class PeerLost(RunFailed):
    """The process of another policy has ended, and that one knows why."""

    exit_code = 3


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory has run out, on a device or in the host, as whichever library says it."""
    # by its name: the verifier's process reads this file, too, and must not load torch
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    by_words = isinstance(error, RuntimeError | OSError)
    return by_words and re.search(NO_MEMORY, str(error)) is not None
