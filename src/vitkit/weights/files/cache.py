"""The folder of fetched files, and the records beside them."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitkit.durable import hash_file, replace_json
from vitkit.errors import VitkitError
from vitkit.weights.files.source import read_json_object


def cache_folder() -> Path:
    """Return the folder of fetched files: VITKIT_CACHE, or `vitkit` in the user's cache (XDG_CACHE_HOME)."""
    chosen = os.environ.get("VITKIT_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitkit"


def read_note(path: Path) -> dict[str, Any]:
    """Read a small JSON file; empty where it is missing or damaged."""
    try:
        return read_json_object(path)
    except VitkitError:
        return {}


def recorded_digest(file: Path, record: dict[str, Any]) -> str | None:
    """Return the recorded SHA-256 of a file; None where its size or time differs from the record."""
    stat = file.stat()
    same = (record.get("size"), record.get("mtime_ns")) == (stat.st_size, stat.st_mtime_ns)
    return str(record.get("sha256")) if record and same else None


def described(file: Path, digest: str) -> dict[str, Any]:
    """Make the record of a file that `recorded_digest` reads."""
    stat = file.stat()
    return {"sha256": digest, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def remembered_digest(file: Path) -> str:
    """Return the SHA-256 of a file in another library's cache; it is read only when it has changed."""
    place = hashlib.sha256(os.fsencode(file.resolve())).hexdigest()[:16]
    record = cache_folder() / "hub" / f"{place}.json"
    digest = recorded_digest(file, read_note(record))
    if digest is None:
        _, digest = hash_file(file)
        with suppress(OSError):  # then it is read again next time
            record.parent.mkdir(parents=True, exist_ok=True)
            replace_json(record, described(file, digest))
    return digest
