"""Fetching published checkpoints by their short names, and everything else by path or address."""

from pathlib import Path

from vitkit.errors import VitkitError
from vitkit.weights.files.cache import cache_folder
from vitkit.weights.files.remote import Fetched, Progress, fetch
from vitkit.weights.published import find_start_named


def fetch_any(path: str | Path, progress: Progress | None = None) -> Fetched:
    """Return the local path of a checkpoint, which may be given by a name that `vitkit starts` lists.

    What somebody put into the folder `starts/NAME` of the cache is taken for the published checkpoint NAME
    without asking anyone, which is how machines without a network come by it.

    Args:
        path: a name, or what `vitkit.weights.files.remote.fetch` takes.
        progress: as there.

    Raises:
        VitkitError: as there; of a name it says what to fetch elsewhere and where to put it.
    """
    start = find_start_named(path)
    if start is None:
        return fetch(path, progress)
    size = (start.image_size, start.image_size)
    placed = cache_folder() / "starts" / start.name
    if placed.is_dir():
        return Fetched(placed, {"source": f"{start.name}, put by hand into {placed}"}, size)
    try:
        found = fetch(start.pinned_address, progress)
    except VitkitError as error:
        others = f" Its weights are published as {' and '.join(start.addresses[1:])} too." * (
            len(start.addresses) > 1
        )
        raise VitkitError(
            f"{start.name} is not on this machine. {error}{others} Files put into the folder {placed} are "
            "found by the name."
        ) from error
    return Fetched(found.path, found.origin, size)
