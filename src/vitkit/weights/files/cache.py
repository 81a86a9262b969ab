"""The folder of fetched files, and the records beside them."""

import hashlib
import os
from collections.abc import Mapping
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


def remembered_digest(file: Path) -> str:
    """Return the SHA-256 of a file in a cache; it is read only when its size or time has changed."""
    record = _note_about("", os.fsencode(file.resolve()))
    stat, note = file.stat(), read_note(record)
    state = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    if note.items() >= state.items() and "sha256" in note:
        return str(note["sha256"])
    _, digest = hash_file(file)
    remember_digest(file, digest)
    return digest


def remember_digest(file: Path, digest: str) -> None:
    """Remember the SHA-256 of a file in a cache until its size or time changes."""
    stat = file.stat()
    note = {"sha256": digest, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    _write_note(_note_about("", os.fsencode(file.resolve())), note)


def first_fetch(address: str) -> Path:
    """Return the path of the record of an address's first fetch."""
    return _note_about("first-", address.encode())


def read_first_fetch(address: str) -> dict[str, Any]:
    """Read the record of an address's first fetch, its `source` and `sha256`; empty where there is none."""
    record = read_note(first_fetch(address))
    digests = record.get("sha256")
    return record if isinstance(digests, dict) and digests and isinstance(record.get("source"), str) else {}


def record_first_fetch(address: str, source: str, digests: Mapping[str, str]) -> None:
    """Record what an address held: its source without secrets, and the SHA-256 of each file of weights."""
    _write_note(first_fetch(address), {"source": source, "sha256": digests})


def _note_about(kind: str, subject: bytes) -> Path:
    return cache_folder() / "hub" / f"{kind}{hashlib.sha256(subject).hexdigest()[:16]}.json"


def _write_note(path: Path, note: Mapping[str, Any]) -> None:
    with suppress(OSError):  # the cache cannot be written: next time the file is read, and nothing compared
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(path, note)
