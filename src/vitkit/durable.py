"""Write files that are whole or absent even after a crash: write, flush to the disk, then rename.

Also read JSON that people may have edited or that a disk may have damaged.

Every filesystem call goes through `os`, so that the tests can make each call fail.
"""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, TextIO

from platformdirs import user_cache_path

from vitkit.errors import VitkitError

WRITE_SIZE = 8 << 20  # bytes per write: Linux writes at most 2 GiB at a time, so large files need several
READ_SIZE = 1 << 20  # bytes per read, so that hashing a file of any size takes little memory
JSON_LIMIT = 64 << 20
"""Size in bytes of the largest JSON file that is read."""


def cache_folder() -> Path:
    """Return the folder of what can be fetched or made again: VITKIT_CACHE, or `vitkit` in the user's cache
    (XDG_CACHE_HOME)."""
    # platformdirs leaves "~" where a user has no home, and a folder of that name would be made.
    return Path(os.environ.get("VITKIT_CACHE") or user_cache_path("vitkit", False)).expanduser()


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a new file and flush it to the disk.

    Returns:
        Its size in bytes and SHA-256.

    Raises:
        OSError: the file exists, or the disk refused.
    """
    digest, size = hashlib.sha256(), 0
    # O_EXCL: a file that is there already is never overwritten, not even by two processes at once.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for chunk in chunks:
            data = memoryview(chunk).cast("B")
            digest.update(data)
            size += len(data)
            while data:  # a write may take fewer bytes than it was given, when the disk fills up
                data = data[os.write(descriptor, data[:WRITE_SIZE]) :]
        os.fsync(descriptor)  # before the file gets its final name: else the name could outlive the bytes
    finally:
        os.close(descriptor)
    return size, digest.hexdigest()


def replace_file(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Replace or make a file at one instant: a reader sees the old or the new content.

    Returns:
        Its size in bytes and SHA-256.
    """
    # In the same folder, because a rename is atomic only within a file system; hidden, with the process in
    # its name, so that `remove_leftovers` can remove it after a kill.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # left by a process of the same number that was killed
    try:
        size_and_hash = write_file(temporary, chunks)
        os.replace(temporary, path)
    except BaseException:  # KeyboardInterrupt too
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)  # the rename itself is on the disk only now
    return size_and_hash


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that `replace_file` left in a folder when its process was killed.

    Args:
        folder: a folder in which nobody else writes now; it may be missing.

    Raises:
        OSError: the disk refused.
    """
    for path in folder.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.[0-9]+\.tmp", path.name) and path.is_file():
            path.unlink()


def is_file_name(name: str) -> bool:
    """Whether a string is the name of a file within a folder, and no path that leads elsewhere."""
    return name not in ("", ".", "..") and not re.search(r"[/\\:\0]", name)


def refuse_links(folder: Path) -> None:
    """Refuse a folder in which files are written and removed, if a link in it leads out of it.

    A folder from somebody else could otherwise change files elsewhere on this machine. There is one rule for
    all names, because a list of names would have to follow every job: whoever keeps checkpoints on another
    disk puts the whole folder there. Hard links, and links made later, are not guarded against.

    Raises:
        VitkitError: there is such a link.
        OSError: the folder cannot be listed.
    """
    with os.scandir(folder) as entries:
        links = sorted(entry.name for entry in entries if entry.is_symlink())
    for name in links:
        refuse_link(folder / name)


def refuse_link(path: Path) -> None:
    """Refuse to write to a path that is a link out of its folder.

    Raises:
        VitkitError: it is such a link.
    """
    place, target = os.path.realpath(path.parent), os.path.realpath(path)
    if path.is_symlink() and os.path.commonpath([place, target]) != place:
        raise VitkitError(
            f"{path} is a link that leads out of its folder, in which vitkit writes and removes files. Put "
            f"its target, {target}, in its place, or remove the link."
        )


def moved_error(run: Path) -> VitkitError:
    """Make the error for a run folder that is no longer where its run began to write."""
    return VitkitError(
        f"{run} was moved, renamed or removed while its run was at work: the run ends, and writes nothing to "
        "the old place. What was committed is whole where the folder is now: continue with vitkit train "
        "--resume and its new path."
    )


def read_json(path: Path, limit: int = JSON_LIMIT) -> Any:
    """Read a JSON file in UTF-8, which may be damaged.

    Args:
        path: a regular file: a pipe or a device, which might never end, is refused.
        limit: bytes of the largest file that is read.

    Raises:
        FileNotFoundError: there is none.
        VitkitError: it cannot be read, or is no JSON.
    """
    try:
        data = read_regular_file(path, limit)
    except FileNotFoundError:
        raise  # callers tell a missing file from a damaged one
    except OSError as error:
        raise VitkitError(f"{path} cannot be read: {error.strerror or error}.") from error
    return parse_json(data, path)


def parse_json(data: bytes, path: Path) -> Any:
    """Parse the bytes of a JSON file in UTF-8.

    Raises:
        VitkitError: they are no JSON; the message names `path`.
    """
    try:
        return json.loads(data.decode("utf-8-sig"))  # editors on Windows put a byte order mark first
    except (ValueError, RecursionError, MemoryError) as error:  # bytes that are no UTF-8 are a ValueError too
        reason = error if isinstance(error, ValueError) else "nested too deep or too large to be read"
        raise VitkitError(
            f"{path} is damaged: it is no JSON in UTF-8 ({reason}). Put the original file back."
        ) from None


def read_regular_file(path: Path, limit: int) -> bytes:
    """Read a whole file of at most `limit` bytes without ever waiting for a pipe or a device.

    Raises:
        OSError: the system refuses; FileNotFoundError if there is none.
        VitkitError: it is a folder, a pipe or a device, or larger than `limit`.
    """
    chunks: list[bytes] = []
    size = 0
    for chunk in read_chunks(path):
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            raise VitkitError(f"{path} cannot be read: expected at most {limit:,} bytes, found more.")
    return b"".join(chunks)


def hash_file(path: Path) -> tuple[int, str]:
    """Return the size in bytes and the SHA-256 of a regular file, which may be of any size.

    Raises:
        OSError: the system refuses; FileNotFoundError if there is none.
        VitkitError: it is a folder, a pipe or a device.
    """
    digest, size = hashlib.sha256(), 0
    for chunk in read_chunks(path):
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def open_to_append(path: Path) -> TextIO:
    """Open a regular file of text in UTF-8 to write at its end; a new one is made where there is none.

    Raises:
        OSError: the system refuses.
        VitkitError: it is a folder, a pipe or a device: opening a pipe would wait for its reader.
    """
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, opened without waiting
            raise VitkitError(
                f"{path} cannot be written: expected a regular file, found a pipe. Remove it."
            ) from error
        raise
    try:
        require_regular_file(descriptor, path)
        return os.fdopen(descriptor, "a", encoding="utf-8")
    except BaseException:
        os.close(descriptor)
        raise


def require_regular_file(descriptor: int, path: Path) -> None:
    """Refuse everything but a regular file: reading a pipe could wait for ever, reading a device never end.

    Raises:
        VitkitError: `descriptor`, opened from `path`, is a folder, a pipe or a device.
    """
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
        raise VitkitError(f"{path} cannot be read: expected a regular file, found {kind}.")


def read_chunks(path: Path) -> Generator[bytes, None, None]:
    """Yield the bytes of a regular file, part by part."""
    # Without O_NONBLOCK, opening a pipe waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        require_regular_file(descriptor, path)
        while chunk := os.read(descriptor, READ_SIZE):
            yield chunk
    finally:
        os.close(descriptor)


def json_bytes(data: Any) -> bytes:
    """Write data as readable JSON in UTF-8, with a final newline."""
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def sync_folder(path: Path) -> None:
    """Flush a folder's list of names, without which a renamed file may be gone after a power cut."""
    descriptor = os.open(path, os.O_RDONLY)  # a folder can be flushed though not written to
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
