"""Telling the address of a checkpoint from a path."""

import re
from pathlib import Path

from vitkit.weights.published import find_start_named


def is_address(path: str | Path) -> bool:
    """Whether a checkpoint is fetched from somewhere: hf:org/name, https://..., a name of `vitkit starts`."""
    # One slash, because pathlib leaves one of two. A file of that name on this machine goes first.
    if re.match(r"hf:|[A-Za-z][\w+.-]+:/", str(path)):
        return not Path(path).exists()
    return find_start_named(path) is not None
