"""The exceptions whose messages are written for the user."""


class VitkitError(Exception):
    """A mistake that the caller can correct: the message says what was expected, what was found, what to do.

    The command line prints the message alone and exits with `exit_code`; any other exception is a bug and
    keeps its traceback.
    """

    exit_code = 1


class NonFiniteError(VitkitError):
    """Loss, gradients, weights or logits are infinite or not a number: training has diverged."""


class DecodeError(VitkitError):
    """A file cannot be decoded to pixels. The message is the reason alone: the caller knows the file."""
