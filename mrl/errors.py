"""The one family of errors that a person can cause, and so is told about in one sentence."""


class MrlError(Exception):
    """A person's mistake: the message says what was found, where, and what to do instead.

    The command line prints it without a traceback and exits with code 2.
    """
