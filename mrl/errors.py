"""The errors that end a run or a command with one sentence, and the place where an error began."""

import re
import sysconfig
import traceback
from pathlib import Path

# Messages of CUDA, cuBLAS, cuDNN and the CPU's allocator, which have no error type for this
NO_MEMORY = "out of memory|STATUS_ALLOC_FAILED|can't allocate memory|Cannot allocate memory"
LIBRARIES = ("<", *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
HERE = Path(__file__).resolve().parents[1]
PROGRAM = (f"{HERE / 'mrl'}/", str(HERE / "mini_mrl.py"))


class MrlError(Exception):
    """A user's mistake. The message says what was found, where, and what to do instead.

    The command line prints it without a traceback and exits with code 2.
    """

    exit_code = 2


class RunFailed(Exception):
    """A run ended early, through no fault of the user. Its checkpoint is kept. Exit code 1."""

    exit_code = 1


class PeerLost(RunFailed):
    """Another policy's process ended; its own message says why."""

    exit_code = 3


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, from any library, says that a device or the host ran out of memory."""
    # compared by name: the verifier's child process loads this file and must not load torch
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    by_words = isinstance(error, RuntimeError | OSError)
    return by_words and re.search(NO_MEMORY, str(error)) is not None


def place_of(error: BaseException) -> str:
    """File and line where an error began; in your own code, if the error passed through it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"  # this code never ran, so it has no frame

    frames = traceback.extract_tb(error.__traceback__)
    known = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    own = [frame for frame in known if not frame.filename.startswith(PROGRAM)]
    last = (own or known or frames)[-1]
    return f"{last.filename}, line {last.lineno}"
