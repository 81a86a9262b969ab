"""Checkpoints by address, fetched while a bar shows how far it is."""

from pathlib import PurePosixPath

from vitkit.cli import console
from vitkit.weights.files.address import is_address
from vitkit.weights.files.remote import fetch


def download(path: str) -> None:
    """Fetch a checkpoint if it is an address, so that what reads it afterwards finds it on this machine.

    The Hub's own library shows its own bar. A path is left alone.

    Raises:
        VitkitError: as `fetch`.
    """
    if is_address(path) and not path.startswith("hf:"):
        name = PurePosixPath(path.split("#")[0].split("?")[0]).name
        with console.download_bar(f"fetching {name}") as progress:
            fetch(path, progress)
