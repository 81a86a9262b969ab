"""Telling the address of a checkpoint from a path."""

import re
from pathlib import Path


def is_address(path: str | Path) -> bool:
    """Whether a checkpoint is fetched from somewhere: hf:org/name, https://... and so on."""
    # One slash, because pathlib leaves one of two. A file of that name on this machine goes first.
    return bool(re.match(r"hf:|[A-Za-z][\w+.-]+:/", str(path))) and not Path(path).exists()
