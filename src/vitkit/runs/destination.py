"""Write a new file or folder so that it appears complete, at a place that is free."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from vitkit.errors import VitkitError

UNFINISHED = ".unfinished"
"""The end of the name of a hidden folder in which a result is made."""


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


def require_folder(out: Path) -> None:
    """Refuse a place where no folder can be written, before work begins.

    Raises:
        VitkitError: it is a file, would be inside one, or may not be written.
    """
    try:
        there = next(place for place in (out, *out.parents) if place.exists())
    except OSError as error:  # a folder on the way that may not be looked into, or a name that is too long
        raise _no_folder(out, error) from None
    if not there.is_dir():
        what = "is a file" if there == out else f"would be in {there}, which is a file"
        raise VitkitError(f"{out} {what}: --out names a folder. Give another name.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise VitkitError(
            f"This user may not write to {there}, and so not to {out}. Give another --out, or change the "
            "permissions of that folder."
        )


def make_folder(out: Path) -> None:
    """Make a folder and its parents, unless they are there.

    Raises:
        VitkitError: it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_folder(out, error) from error


def _no_folder(out: Path, error: OSError) -> VitkitError:
    return VitkitError(
        f"No folder can be made at {out} ({error.strerror}): expected a place that this user may write to. "
        "Give another name."
    )


@contextmanager
def beside(out: Path) -> Iterator[Path]:
    """Make a temporary folder on the same disk as `out`, from which the finished result is moved there.

    It is removed afterwards, and so are new parents of `out` if they are empty, and the temporary folders of
    killed processes that were writing `out`.
    """
    made = [parent for parent in out.parents if not parent.exists()]
    require_folder(out.parent)
    make_folder(out.parent)
    for leftover in out.parent.glob(f".{escape(out.name)}.*{UNFINISHED}"):
        if leftover.is_dir() and not leftover.is_symlink():
            _remove_dead(leftover)
    folder, lock = _make_locked(out)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        with suppress(OSError):  # not empty: the work succeeded
            for parent in made:
                parent.rmdir()


def _make_locked(out: Path) -> tuple[Path, int]:
    """Make a hidden folder beside `out`, and lock it as long as this process lives.

    Returns:
        The folder, and the descriptor of its lock.
    """
    import fcntl

    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=UNFINISHED, dir=out.parent))
        # Before it is locked another process may remove it as a leftover: then a new one is made.
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            held = False
        except OSError:  # a disk without locks, where no folder is taken for a leftover
            held = True
        if held and folder.exists():
            return folder, lock
        os.close(lock)


def _remove_dead(folder: Path) -> None:
    """Remove a folder that no living process has locked; on a disk without locks nothing is removed."""
    import fcntl

    with suppress(OSError):
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def require_runs(folder: str | Path) -> Path:
    """Refuse a folder of runs that is not there."""
    path = Path(folder)
    if not path.is_dir():
        raise VitkitError(
            f"{folder} is no folder: expected a folder of run folders. Name another; vitkit train makes "
            "runs/ in the working folder."
        )
    return path
