"""The place that a command writes a new file or folder to: free, and filled at one instant."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitkit.errors import VitkitError


def refuse_taken(out: Path) -> None:
    """Refuse a destination that cannot be written, before work begins.

    Raises:
        VitkitError: it is there already, or would be inside a file.
    """
    if out.exists():
        raise VitkitError(f"{out} is there already. Choose another name, or remove it first.")
    blocking = next((parent for parent in out.parents if parent.exists() and not parent.is_dir()), None)
    if blocking is not None:
        raise VitkitError(f"{blocking} is a file, and {out} would be in it: choose another place.")


@contextmanager
def beside(out: Path) -> Iterator[Path]:
    """Make a folder on the same disk as `out`, which is gone afterwards with all that is still in it.

    The folders on the way to `out` stay only if something was put there.
    """
    made = [parent for parent in out.parents if not parent.exists()]
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # not empty: the work succeeded
            for parent in made:
                parent.rmdir()
