"""Checkpoints by address: fetched once, kept in a cache, and from there on files like any other.

`hf:org/name[@revision][/file]` goes through huggingface_hub and its cache, `gs://` and `s3://` through
fsspec. `https://` and `http://` need Python alone, because they need what general libraries leave out: a
download that was cut goes on from the last byte, if the server says that the file is still the same one
(RFC 9110, `If-Range`). What is kept is used; now and then the server is asked whether it still has the same
file, and with no network that question is left out. What was fetched first is remembered by its SHA-256, and
another file at the same address is refused.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from vitkit.durable import replace_json, sync_folder
from vitkit.errors import VitkitError
from vitkit.weights.files.cache import cache_folder, described, file_digest, read_note, recorded_digest
from vitkit.weights.files.hub import from_hub, is_on_disk
from vitkit.weights.files.source import SETTINGS, disguise
from vitkit.weights.files.transport import (
    LEAST,
    Ask,
    FetchError,
    RefusedError,
    Reply,
    StaleError,
    TemporaryError,
    ask_http,
    ask_store,
)
from vitkit.weights.format_names import ENDINGS
from vitkit.weights.published import find_start_named

ATTEMPTS = 5
"""In a row without new bytes, before a download is given up."""
PAUSE = 1.0
"""Seconds before the second attempt; each further one waits twice as long."""
TOTAL_TIME = 24 * 3600.0
"""Seconds after which a download is given up, however fast it is; the next call goes on from there."""
SETTINGS_TIME = 60.0
"""The same for each JSON file next to the weights."""
MAX_WEIGHTS = 64 << 30
"""Bytes of a file of weights."""
MAX_SETTINGS = 8 << 20
"""Bytes of a JSON file fetched beside the weights; 21,000 class names take two MB."""
CHECK_AGAIN = 600.0
"""Seconds after which the server of a kept file is asked again whether it still has the same one."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there and those of the whole file, where the server says."""

_log = logging.getLogger("vitkit")
_retries = logging.getLogger("vitkit.download")
_retries.setLevel(logging.WARNING)  # pauses are shown also where other warnings are not

_ADDRESS = re.compile(r"(https?|gs|s3):/+(?=[^/])")  # one slash is what pathlib leaves of two
_CLOSED = (
    " The authors' bucket vit_models has been closed to the public since February 2026. The AugReg weights "
    "that were in it are among timm's models on the Hugging Face Hub, such as "
    "hf:timm/vit_base_patch16_224.augreg_in21k."
)


@dataclass(frozen=True)
class Fetched:
    """A checkpoint that is now on this machine."""

    path: Path
    origin: Mapping[str, Any] = field(default_factory=dict)
    """`source`, the address without what may be secret in it, and `sha256` (of several files: by name); empty
    for what was a path to begin with."""
    image_size: tuple[int, int] | None = None
    """Pixels that the weights were made for, where they are known by name: not every file records them."""


def fetch(path: str | Path, progress: Progress | None = None) -> Fetched:
    """Return the local path of a checkpoint, which is downloaded first where it is an address.

    Args:
        path: a local path, which is returned as it is; or an address. `hf:org/name[@revision][/file]`: the
            weights of a model on the Hugging Face Hub and the JSON files beside them, of one format alone,
            safetensors first. `https://`, `http://`, `gs://`, `s3://`: one file. An address may end in
            `#sha256=` and the digits that the file of weights must have.
        progress: called as bytes come in; the Hub's own library shows its own bar.

    Raises:
        VitkitError: no such address, no network, or not the file it should be. Nothing that was on this
            machine is changed, and what was received of a file is kept and continued next time.
    """
    text = str(path)
    if Path(path).exists():
        return Fetched(Path(path))
    if text.startswith("hf:"):
        address, _, fragment = text.partition("#")
        return Fetched(*from_hub(address, _wanted_digest(fragment, address)))
    if _ADDRESS.match(text):
        return _from_server(_ADDRESS.sub(r"\1://", text, count=1), progress)
    if re.match(r"[A-Za-z][\w+.-]+://", text):
        raise VitkitError(
            f"{text} is no address that can be fetched: expected hf:org/name, https://, http://, gs:// or "
            "s3://, or a path on this machine."
        )
    return Fetched(Path(path))


def fetch_any(path: str | Path, progress: Progress | None = None) -> Fetched:
    """Return the local path of a checkpoint, which may be given by a name that `vitkit starts` lists.

    Files in the folder `starts/NAME` of the cache are taken for the published checkpoint NAME without asking
    any server: a machine without a network gets them in this way.

    Args:
        path: a name, or what `fetch` takes.
        progress: as for `fetch`.

    Raises:
        VitkitError: as `fetch`; for a name the message says what to fetch elsewhere and where to put it.
    """
    start = find_start_named(path)
    if start is None:
        return fetch(path, progress)
    size = (start.image_size, start.image_size)
    placed = cache_folder() / "starts" / start.name
    if placed.is_dir():
        return Fetched(placed, {"source": f"{start.name}, put by hand into {placed}"}, size)
    try:
        fetched = fetch(start.pinned_address, progress)
    except VitkitError as error:
        others = f" Its weights are published as {' and '.join(start.addresses[1:])} too." * (
            len(start.addresses) > 1
        )
        raise VitkitError(
            f"{start.name} is not on this machine. {error}{others} Files put into the folder {placed} are "
            "found by the name."
        ) from error
    return Fetched(fetched.path, fetched.origin, size)


def is_kept(path: str | Path) -> bool:
    """Whether a checkpoint is on this machine, so that reading it fetches no weights; no server is asked."""
    start = find_start_named(path)
    if start is not None and (cache_folder() / "starts" / start.name).is_dir():
        return True
    address = (str(path) if start is None else start.pinned_address).partition("#")[0]
    if Path(address).exists():
        return True
    if address.startswith("hf:"):
        return is_on_disk(address)
    return bool(_ADDRESS.match(address)) and _target(_ADDRESS.sub(r"\1://", address, count=1)).exists()


def _target(address: str) -> Path:
    """Return the file of the cache that an address without a fragment is kept in."""
    name = PurePosixPath(unquote(urlsplit(address).path)).name
    return cache_folder() / hashlib.sha256(address.encode()).hexdigest()[:16] / name


# One file from a server


def _from_server(address: str, progress: Progress | None) -> Fetched:
    parts = urlsplit(address)
    wanted = _wanted_digest(parts.fragment, address)
    shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    name = PurePosixPath(unquote(parts.path)).name
    if "@" in parts.netloc:
        raise VitkitError(
            f"{shown} was given with a name and password, which would end up in logs: leave them out."
        )
    if not name.endswith(ENDINGS) or re.search(r"[\\:\0-\x1f]", name):
        raise VitkitError(
            f"{shown}: expected the address of one file of weights, that ends in {', '.join(ENDINGS)}. "
            "Of a model in several files, fetch the folder yourself and give its path."
        )
    address = urlunsplit(parts._replace(fragment=""))
    ask = ask_http if parts.scheme in ("http", "https") else ask_store
    target = _target(address)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent):
            digest = _kept(target, shown)
            if digest is None or (digest != wanted if wanted else _is_outdated(address, target, shown, ask)):
                first = _remembered(target)
                digest = _download(address, shown, target, ask, progress, wanted or first)
                if not name.endswith(".npz"):
                    _fetch_settings(parts._replace(fragment=""), target.parent, ask)
    except OSError as error:  # of the disk: those of the network are dealt with where they arise
        raise VitkitError(
            f"{shown} cannot be kept in {target.parent}: {error}. Make room there, or choose another folder "
            "with the environment variable VITKIT_CACHE."
        ) from error
    return Fetched(target, {"source": shown, "sha256": digest})


def _wanted_digest(fragment: str, address: str) -> str | None:
    if not fragment:
        return None
    match = re.fullmatch(r"sha256=([0-9a-fA-F]{64})", fragment)
    if match is None:
        raise VitkitError(f"{address}: after '#' expected sha256= and 64 digits, found {fragment!r}.")
    return match[1].lower()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock, so that of two processes that start together one downloads and one waits."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("%s: waiting for another process that is fetching it", folder)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _kept(target: Path, shown: str) -> str | None:
    """Return the SHA-256 of the file in the cache; None where there is none or it is not what was fetched.

    Its size and time stand for its contents; where they differ from the record, all of it is read.
    """
    if not target.exists():
        return None
    record = read_note(_record(target))
    digest = recorded_digest(target, record)
    if digest is not None:
        return digest
    digest = file_digest(target)
    if record and record.get("sha256") != digest:
        _log.warning("%s is not the file that was fetched from %s: fetching it again", target, shown)
        return None
    if not record:
        _log.info("%s: taken as %s, put there by hand", target, shown)
    _write_record(target, target, shown, digest)
    return digest


def _remembered(target: Path) -> str | None:
    """Return the SHA-256 of the file that was fetched first; None where there is none in the cache."""
    digest = read_note(_record(target)).get("sha256") if target.exists() else None
    return digest if isinstance(digest, str) else None


def _is_outdated(address: str, target: Path, shown: str, ask: Ask) -> bool:
    """Whether the server may have another file than the one that is kept; False where it cannot be asked.

    Raises:
        VitkitError: it surely has.
    """
    record, now = read_note(_record(target)), time.time()
    checked = record.get("checked")
    if isinstance(checked, float) and abs(now - checked) < CHECK_AGAIN:
        return False
    differences = []
    try:
        with ask(address, 0, "", True) as reply:
            pairs = [
                ("length", record.get("size"), reply.total),
                ("SHA-256", record.get("sha256"), reply.sha256),
            ]
            if reply.sha256 is None:
                pairs.append(("version", record.get("version"), reply.version))
            differences = [
                f"{name} {old} here, {new} there" for name, old, new in pairs if old and new and old != new
            ]
    except FetchError as error:
        _log.info("%s: no answer (%s); what was fetched before is used", shown, error)
    is_commit = re.search(r"/(resolve|raw|blob)/[0-9a-f]{40}/", shown)
    if differences and (is_commit or not differences[0].startswith("version")):
        commit = " names a commit, whose files never change, but it" if is_commit else ""
        raise VitkitError(
            f"{shown}{commit} has changed on the server since it was fetched: {'; '.join(differences)}. "
            f"{_choice(target)}"
        )
    if differences:  # a server may give the same bytes another mark: they are fetched, and compared
        _log.warning("%s may have changed on the server (%s): fetching it again", shown, differences[0])
        return True
    replace_json(_record(target), record | {"checked": now})
    return False


def _download(
    address: str, shown: str, target: Path, ask: Ask, progress: Progress | None, wanted: str | None
) -> str:
    """Fetch into a file beside `target`, going on where an earlier call ended; rename it when it is whole."""
    part, note = target.with_name(target.name + ".part"), target.with_name(f".{target.name}.part.json")
    _log.info("fetching %s into %s", shown, target)
    closed = _CLOSED if "vit_models" in shown else ""
    deadline, failures, longest = time.monotonic() + TOTAL_TIME, 0, 0
    while True:
        try:
            _attempt(address, part, note, ask, progress, deadline)
            break
        except RefusedError as error:
            raise VitkitError(f"{shown} cannot be fetched: {error}.{closed} Nothing was changed.") from error
        except StaleError:
            part.unlink(missing_ok=True)
            reason = "the file changed on the server while it was fetched"
        except TemporaryError as error:
            reason = str(error)
        here = part.stat().st_size if part.exists() else 0
        # A few bytes do not count, or a server that sends one now and then would keep us for ever.
        failures = 1 if here - longest >= LEAST else failures + 1
        longest = max(longest, here)
        if failures >= ATTEMPTS or time.monotonic() > deadline:
            resumes = here and read_note(note).get("version")
            kept = f"; {here:,} bytes are kept, and the next call goes on from there" if resumes else ""
            raise VitkitError(
                f"{shown} cannot be fetched: {reason}.{closed} Nothing was changed{kept}. With no network "
                f"here, fetch the file elsewhere and give its path, or put it at {target}."
            )
        pause = PAUSE * 2 ** (failures - 1)
        _retries.warning(
            "%s: %s; trying again in %g s (attempt %d of %d)", shown, reason, pause, failures + 1, ATTEMPTS
        )
        time.sleep(pause)
    return _accept(part, note, target, shown, wanted)


def _attempt(
    address: str, part: Path, note: Path, ask: Ask, progress: Progress | None, deadline: float
) -> None:
    """Ask once for what is missing; returns when the file is whole.

    Raises:
        FetchError: it is not.
    """
    known = read_note(note)
    done = part.stat().st_size if part.exists() and known.get("version") else 0
    if done and done == known.get("total"):
        return
    with ask(address, done, str(known.get("version", "")), False) as reply:
        if reply.start and reply.total != known.get("total"):
            raise StaleError
        if not reply.start:  # the old beginning goes before it can be taken for the new file's
            part.unlink(missing_ok=True)
            facts = {"version": reply.version, "total": reply.total, "sha256": reply.sha256}
            replace_json(note, facts)
        limit = _room(reply, part.parent)
        _receive(reply, part, progress, limit, deadline)
    size = part.stat().st_size
    if reply.total not in (None, size):
        if size > reply.total:
            part.unlink()
        raise TemporaryError(f"it ended after {size:,} of {reply.total:,} bytes")


def _room(reply: Reply, folder: Path) -> int:
    """Return how many bytes a file may have: the size that the server announces, if the disk has room for it.

    A body of unannounced length may fill half of what is free.
    """
    free = shutil.disk_usage(folder).free
    if reply.total is None:
        return min(MAX_WEIGHTS, reply.start + free // 2)
    if reply.total > MAX_WEIGHTS:
        raise RefusedError(
            f"the server announces {reply.total:,} bytes, and weights may have {MAX_WEIGHTS:,}"
        )
    if reply.total - reply.start > free:
        raise RefusedError(
            f"it needs {reply.total - reply.start:,} more bytes, and {folder} has {free:,} free: make room "
            "there, or choose another folder with the environment variable VITKIT_CACHE"
        )
    return reply.total


def _receive(reply: Reply, part: Path, progress: Progress | None, limit: int, deadline: float) -> None:
    """Write what comes after what is there, piece by piece; what came before a cut is on the disk."""
    done = reply.start
    with part.open("r+b" if done else "wb", buffering=0) as file:
        file.truncate(done)
        file.seek(done)
        try:
            for chunk in reply.chunks:
                rest = memoryview(chunk)
                while rest:  # a write may be short
                    rest = rest[file.write(rest) :]
                done += len(chunk)
                if progress is not None:
                    progress(done, reply.total)
                if time.monotonic() > deadline:
                    raise TemporaryError(f"it is not whole after {TOTAL_TIME / 3600:g} hours")
                if done > limit:
                    break
        finally:
            os.fsync(file.fileno())
    if done > limit:
        part.unlink()
        raise RefusedError(
            f"it has not ended after {done:,} bytes, and the server does not say how long it is"
        )


def _accept(part: Path, note: Path, target: Path, shown: str, wanted: str | None) -> str:
    """Put a whole file in its place, if it is what it should be; returns its SHA-256."""
    facts = read_note(note)
    wanted = wanted or facts.get("sha256")
    digest, words = file_digest(part), disguise(part)
    if wanted and digest != wanted:
        words = f"its SHA-256 is {digest}, expected {wanted}: it is another file, or a damaged one"
    if words:
        part.unlink()
        choice = f" {_choice(target)}" if target.exists() and wanted == _remembered(target) else ""
        raise VitkitError(
            f"{shown} was fetched, but {words}. It was thrown away; nothing else was changed.{choice}"
        )
    _write_record(target, part, shown, digest, str(facts.get("version", "")))
    part.replace(target)
    note.unlink(missing_ok=True)
    sync_folder(target.parent)
    _log.info("fetched %s: %d bytes, SHA-256 %s", shown, target.stat().st_size, digest)
    return digest


def _choice(target: Path) -> str:
    """Say what to do with a file whose address has another one now."""
    return (
        f"The file here is left as it is, {target}: use it by its path if you trust it, or delete it to "
        "fetch the other."
    )


def _fetch_settings(parts: Any, folder: Path, ask: Ask) -> None:
    """Fetch the JSON files beside the weights, where the server has them and they are JSON."""
    for name in SETTINGS:
        beside = urlunsplit(parts._replace(path=parts.path.rpartition("/")[0] + "/" + name))
        received, deadline = b"", time.monotonic() + SETTINGS_TIME
        try:
            with ask(beside, 0, "", False) as reply:
                for chunk in reply.chunks:
                    received += chunk
                    if len(received) > MAX_SETTINGS:
                        raise TemporaryError(f"it is larger than {MAX_SETTINGS:,} bytes")
                    if time.monotonic() > deadline:
                        raise TemporaryError(f"it is not whole after {SETTINGS_TIME:g} s")
            data = json.loads(received)
        except TemporaryError as error:  # it may be there: the user is told that the model is read without it
            _retries.warning("%s beside the weights is left out: %s", name, error)
            continue
        except (FetchError, ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            replace_json(folder / name, data)


# Records


def _record(target: Path) -> Path:
    return target.with_name(f".{target.name}.fetched.json")


def _write_record(target: Path, file: Path, shown: str, digest: str, version: str = "") -> None:
    checked = time.time() if version else None
    record = {"source": shown, **described(file, digest), "version": version, "checked": checked}
    replace_json(_record(target), record)
