"""Checkpoints by address, fetched while a bar shows how far it is."""

import re
from pathlib import Path, PurePosixPath

from vitkit.cli import console
from vitkit.weights.files.remote import fetch


def is_address(path: str | Path) -> bool:
    """Whether a checkpoint is fetched from somewhere: hf:org/name, https://... and so on."""
    return bool(re.match(r"hf:|[A-Za-z][\w+.-]+:/", str(path))) and not Path(path).exists()


def download(path: str) -> None:
    """Fetch a checkpoint if it is an address, so that what reads it afterwards finds it on this machine.

    The Hub's own library shows its own bar. A path is left alone.

    Raises:
        VitkitError: as `fetch`.
    """
    if is_address(path) and not path.startswith("hf:"):
        name = PurePosixPath(path.split("#")[0].split("?")[0]).name
        with console.receiving(f"fetching {name}") as progress:
            fetch(path, progress)
