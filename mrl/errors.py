"""The errors that end a run, or a command, with one sentence."""


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
