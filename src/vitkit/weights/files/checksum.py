"""The checksum of a file of weights, which `model.json` carries so that damage is noticed.

Two hashes are taken while the file is written. XXH3 (128 bits) is held against the file whenever it is
opened, which takes less time than reading the weights. SHA-256 is a record of where weights come from: it
identifies the file to other programs, and is not computed when a model is loaded. Of a ViT-B/16 the first
takes a tenth of a second, the other a second.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from vitkit.durable import read_chunks, replace_file
from vitkit.errors import VitkitError


@dataclass(frozen=True)
class Checksum:
    """Size and hashes of a file."""

    bytes: int
    xxh3_128: str
    """XXH3 of 128 bits as 32 hexadecimal digits, the canonical form that `xxhsum -H2` prints."""
    sha256: str


def write_hashed(path: Path, chunks: Iterable[bytes | memoryview]) -> Checksum:
    """Replace or make a file at one instant, as `replace_file` does; return its size and hashes."""
    xxh3 = xxhash.xxh3_128()

    def passing() -> Iterator[memoryview]:
        for chunk in chunks:
            data = memoryview(chunk).cast("B")
            xxh3.update(data)
            yield data

    size, sha256 = replace_file(path, passing())
    return Checksum(size, xxh3.hexdigest(), sha256)


def checksum_of(path: Path) -> Checksum:
    """Return the size and hashes of a file."""
    xxh3, sha256, size = xxhash.xxh3_128(), hashlib.sha256(), 0
    for chunk in read_chunks(path):
        xxh3.update(chunk)
        sha256.update(chunk)
        size += len(chunk)
    return Checksum(size, xxh3.hexdigest(), sha256.hexdigest())


def verify(path: Path, expected: Checksum) -> None:
    """Refuse a file of weights that its description was not written for.

    Raises:
        VitkitError: its size or its XXH3 differs from the record.
    """
    size = path.stat().st_size
    actual = f"{size:,} bytes"
    recorded = f"{expected.bytes:,} bytes"
    if size == expected.bytes:
        with path.open("rb", buffering=0) as file:  # mapped, it would crash the process if it became shorter
            digest = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
        if digest == expected.xxh3_128:
            return
        actual, recorded = f"XXH3 {digest}", f"XXH3 {expected.xxh3_128}"
    raise VitkitError(
        f"{path} is not the file that model.json beside it describes: expected {recorded}, found {actual}. "
        "It was damaged or replaced, or a program was stopped between writing the two files. In a run "
        f"folder, remove {path.name} and run the same vitkit train command again: it writes both anew from "
        "its last checkpoint. Elsewhere, fetch or copy both files again."
    )
