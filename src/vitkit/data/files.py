"""Read files from anywhere: only regular files of bounded size, never a pipe that would block."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from vitkit.errors import VitkitError
from vitkit.text import visible


class UnreadableFileError(VitkitError):
    """A file cannot be read. The message is the reason alone: the caller knows the file."""


@contextmanager
def regular_file(path: Path) -> Iterator[BufferedReader]:
    """Open a regular file to read its bytes; links are followed.

    A pipe, a socket or a device is refused instead of waited for.

    Raises:
        UnreadableFileError: it is missing, may not be read, or is no regular file.
    """
    with explain_os_errors():
        # Without O_NONBLOCK, opening a pipe waits for a process that writes into it.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0))
        # Checked on the descriptor and not on the name: the file cannot be exchanged in between.
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
            raise UnreadableFileError(f"{kind}, not a regular file")
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def read_unchanged_file(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes.

    It is not mapped: a mapped file that is cut meanwhile would kill the process.

    Raises:
        UnreadableFileError: it cannot be read, is larger, or changes while it is read.
    """
    with explain_os_errors(), regular_file(path) as stream:
        descriptor = stream.fileno()
        before = os.fstat(descriptor)
        size = before.st_size
        try:
            if size > limit:
                raise UnreadableFileError(f"the file has {size:,} bytes, more than the {limit:,} allowed")
            data = os.read(descriptor, size + 1)
            while len(data) <= size and (more := os.read(descriptor, size + 1 - len(data))):
                data += more
            after = os.fstat(descriptor)
        except MemoryError:
            raise UnreadableFileError(f"there is not enough memory to read its {size:,} bytes") from None
    same = (size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    if not same or len(data) != after.st_size:
        counts = f"{size:,} bytes at first, {len(data):,} read"
        raise UnreadableFileError(f"the file changed while it was read: {counts}")
    return data


@contextmanager
def explain_os_errors() -> Iterator[None]:
    """Turn an error of the operating system about a path into an error that states the reason.

    Raises:
        UnreadableFileError: in place of every OSError, and of the ValueError for a null byte in a path.
        VitkitError: no more files can be opened, which says nothing about this one.
    """
    try:
        yield
    except FileNotFoundError:
        raise UnreadableFileError("no such file") from None
    except IsADirectoryError:
        raise UnreadableFileError("a folder, not a regular file") from None
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            # The process has too many files open; nothing is wrong with this one.
            raise VitkitError(
                f"No file can be opened any more: {os.strerror(errno.EMFILE).lower()}. Raise the limit "
                "(`ulimit -n 4096` in the shell), or use fewer --workers."
            ) from error
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableFileError(f"cannot be read: {reason}") from error


@contextmanager
def damage_explained(path: Path, kind: str, again: str) -> Iterator[None]:
    """Turn every exception of a reader about a file into a VitkitError: for damage readers raise OSError,
    ValueError, KeyError, struct.error, NotImplementedError, UnicodeDecodeError, OverflowError and more.

    Args:
        path: the file.
        kind: what it is read as: "Parquet".
        again: how to get another one: "Download or write it again".
    """
    try:
        yield
    except MemoryError as error:
        raise VitkitError(f"{path} cannot be read: there is not enough memory.") from error
    except Exception as error:
        # Our own errors name the file already, but for an UnreadableFileError, which is the reason alone.
        if isinstance(error, VitkitError) and not isinstance(error, UnreadableFileError):
            raise
        reason = visible(str(error)[:300] or type(error).__name__).rstrip(".")
        raise VitkitError(f"{path} cannot be read as {kind}: {reason}. {again}.") from error
