"""The error of a file that cannot be decoded."""

from vitkit.errors import VitkitError


class DecodeError(VitkitError):
    """One file that gives no pixels. The message is the reason alone: the caller knows which file it was."""
