"""Files that are whole or absent, also after a crash: write, flush to the disk, then rename.

Every filesystem call goes through `os`, one by one, so that the tests can make each of them fail.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WRITE_SIZE = 8 << 20


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a new file and flush it to the disk.

    Returns:
        Its size in bytes and SHA-256.

    Raises:
        OSError: the file exists, or the disk refused.
    """
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        for chunk in chunks:
            data = memoryview(chunk).cast("B")
            digest.update(data)
            size += len(data)
            while data:  # a write may be short
                data = data[os.write(descriptor, data[:WRITE_SIZE]) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size, digest.hexdigest()


def replace_file(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Put a file in place of another, or of none, at one instant: a reader sees the old or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # left by a process of the same number that was killed
    try:
        write_file(temporary, chunks)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_json(path: Path, data: Any) -> None:
    """`replace_file` with readable JSON."""
    replace_file(path, [json_bytes(data)])


def json_bytes(data: Any) -> bytes:
    """Readable JSON, UTF-8, with a final newline."""
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def sync_folder(path: Path) -> None:
    """Flush a folder's list of names, without which a renamed file may be gone after a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
