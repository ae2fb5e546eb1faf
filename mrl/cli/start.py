"""The start and the end of `python mini_mrl.py`: signals, missing packages, the exit code.

This file imports only the standard library, so that it can say which package is missing.
"""

import signal
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run a command line, print its closing sentence, and return its exit code.

    arguments: the words of the command line; None takes those of this process.
    """
    end_by_signals()
    try:
        from mrl.cli.command_line import run_command

        code, sentence = run_command(sys.argv[1:] if arguments is None else arguments)
    except ModuleNotFoundError as error:
        if error.name is None:  # Ctrl-C came while a compiled package was being imported
            return 130
        code = 2
        sentence = (
            f"{error.name} is not installed for this Python. Run the first command of README.md, "
            "or, if you have done that already, `. .venv/bin/activate`."
        )
    except KeyboardInterrupt:
        code, sentence = 130, ""  # the exit code that shells use after Ctrl-C
    if sentence:
        print(sentence, file=sys.stderr)
    if arguments is None:  # Ctrl-C while Python ends prints no traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def import_torch() -> None:
    """Import torch; until that is done, Ctrl-C ends the process at once.

    Its C++ code would abort with a message of its own if Python raised KeyboardInterrupt in it.
    """
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        import torch  # noqa: F401
    finally:
        signal.signal(signal.SIGINT, handler)


def end_by_signals() -> None:
    """Handle SIGTERM and a closed terminal (SIGHUP) as Python handles Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # `nohup` ignores SIGHUP, so that a program outlives its terminal
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: object) -> None:
    from mrl.run.view import drop_closed_terminal

    drop_closed_terminal()
    raise KeyboardInterrupt
