"""Where fetched files are kept, and what is written down about them."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitkit.durable import replace_json
from vitkit.errors import VitkitError
from vitkit.weights.files.source import read_json


def cache_folder() -> Path:
    """Where fetched files are kept: VITKIT_CACHE, or `vitkit` in the user's cache (XDG_CACHE_HOME)."""
    chosen = os.environ.get("VITKIT_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitkit"


def read_note(path: Path) -> dict[str, Any]:
    """A small JSON file; empty where it is absent or damaged."""
    try:
        return read_json(path)
    except VitkitError:
        return {}


def file_digest(path: Path) -> str:
    """The SHA-256 of a file, all of which is read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def known_digest(file: Path, record: dict[str, Any]) -> str | None:
    """The SHA-256 that was written down of a file, if it has the size and time it had then."""
    stat = file.stat()
    same = (record.get("size"), record.get("mtime_ns")) == (stat.st_size, stat.st_mtime_ns)
    return str(record.get("sha256")) if record and same else None


def described(file: Path, digest: str) -> dict[str, Any]:
    """What is written down of a file for `known_digest`."""
    stat = file.stat()
    return {"sha256": digest, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def remembered_digest(file: Path) -> str:
    """The SHA-256 of a file in the cache of another library, which is read when it was changed only."""
    place = hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:16]
    record = cache_folder() / "hub" / f"{place}.json"
    digest = known_digest(file, read_note(record))
    if digest is None:
        digest = file_digest(file)
        with suppress(OSError):  # then it is read again next time
            record.parent.mkdir(parents=True, exist_ok=True)
            replace_json(record, described(file, digest))
    return digest
