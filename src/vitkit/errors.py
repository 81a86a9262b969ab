"""The one exception a user is meant to read."""


class VitkitError(Exception):
    """Something the caller can mend: says what was expected, what was found and what to do.

    The command line prints the message alone and exits with `exit_code`; any other exception is a bug and
    keeps its traceback.
    """

    exit_code = 1
