"""Checkpoints by address, fetched while a bar shows how far it is."""

from pathlib import Path, PurePosixPath

from vitkit.cli import console
from vitkit.weights.files.address import is_address
from vitkit.weights.published import find_start_named


def download(path: str | Path) -> None:
    """Fetch a checkpoint if it is an address, so that what reads it afterwards finds it on this machine.

    The Hub's own library shows its own bar. A path is left alone.

    Raises:
        VitkitError: as `fetch`.
    """
    start = find_start_named(path)
    address = str(path) if start is None else start.address
    if is_address(path) and not address.startswith("hf:"):
        from vitkit.weights.files.named import fetch_any  # torch: an exported folder is read without it

        name = PurePosixPath(address.split("#")[0].split("?")[0]).name
        with console.download_bar(f"fetching {name}") as progress:
            fetch_any(path, progress)
