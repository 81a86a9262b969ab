"""Checkpoints by address: fetched once, kept in a cache, and from there on files like any other.

`hf:org/name[@revision][/file]` goes through huggingface_hub and its cache, `gs://` and `s3://` through
fsspec. `https://` and `http://` need Python alone, because they need what general libraries leave out: a
download that was cut goes on from the last byte, if the server says that the file is still the same one
(RFC 9110, `If-Range`). What is kept is used without asking the server again; delete it to have it fetched
anew.
"""

import glob
import hashlib
import http.client
import json
import logging
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from vitkit.durable import replace_json, sync_folder
from vitkit.errors import VitkitError
from vitkit.models.weights.source import (
    ENDINGS,
    SETTINGS,
    choose_weights,
    disguise,
    read_json,
    weight_names,
)

CHUNK = 1 << 20
TIMEOUT = 30.0
"""Seconds of silence after which a connection counts as cut."""
ATTEMPTS = 5
"""In a row without a new byte, before a download is given up."""
PAUSE = 1.0
"""Seconds before the second attempt; each further one waits twice as long."""
MAX_SETTINGS = 16 << 20
"""Bytes of a JSON file fetched beside the weights."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are there and those of the whole file, where the server says."""

_log = logging.getLogger("vitkit")

_ADDRESS = re.compile(r"(https?|gs|s3):/+(?=[^/])")  # one slash is what pathlib leaves of two
_HUB = re.compile(r"hf:(?://)?([\w.-]+/[\w.-]+)(?:@([^/@]+))?(?:/(.+))?")
_INSTALL = 'pip install "vitkit[hub]"'
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


@dataclass(frozen=True)
class Reply:
    """What a server sends of a file."""

    start: int
    """Where in the file the bytes begin: where we asked, or 0."""
    total: int | None
    """Bytes of the whole file, where the server says."""
    version: str
    """Changes when the file does; empty where the server cannot say, and then nothing can be continued."""
    chunks: Iterator[bytes]


Ask = Callable[[str, int, str], AbstractContextManager[Reply]]
"""(address, first byte wanted, version it is of) -> the reply."""


class _FetchError(Exception):
    """Of one attempt; what the caller sees is a VitkitError."""


class _TemporaryError(_FetchError):
    """Worth another attempt."""


class _StaleError(_FetchError):
    """What is here is the beginning of another file than the server now has."""


class _RefusedError(_FetchError):
    """The server has given its answer: it will be the same next time."""


def fetch(path: str | Path, progress: Progress | None = None) -> Fetched:
    """A checkpoint by path or address.

    Args:
        path: a local path, which is returned as it is; or an address. `hf:org/name[@revision][/file]`: the
            weights of a model on the Hugging Face Hub and the JSON files beside them, of one format alone,
            safetensors first. `https://`, `http://`, `gs://`, `s3://`: one file. An address may end in
            `#sha256=` and the digits the file must have.
        progress: called as bytes come in; the Hub's own library shows its own bar.

    Raises:
        VitkitError: no such address, no network, or not the file it should be. Nothing that was on this
            machine is changed, and what was received of a file is kept and continued next time.
    """
    text = str(path)
    if Path(path).exists():
        return Fetched(Path(path))
    if text.startswith("hf:"):
        return _from_hub(text)
    if _ADDRESS.match(text):
        return _from_server(_ADDRESS.sub(r"\1://", text, count=1), progress)
    if re.match(r"[A-Za-z][\w+.-]+://", text):
        raise VitkitError(
            f"{text} is no address that can be fetched: expected hf:org/name, https://, http://, gs:// or "
            "s3://, or a path on this machine."
        )
    return Fetched(Path(path))


def cache_folder() -> Path:
    """Where fetched files are kept: VITKIT_CACHE, or `vitkit` in the user's cache (XDG_CACHE_HOME)."""
    chosen = os.environ.get("VITKIT_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitkit"


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
    ask = _ask_http if parts.scheme in ("http", "https") else _ask_store
    target = cache_folder() / hashlib.sha256(address.encode()).hexdigest()[:16] / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent):
            digest = _kept(target, shown)
            if digest is None or (wanted and digest != wanted):
                digest = _download(address, shown, target, ask, progress, wanted)
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
    """One process at a time, so that two that start together download once."""
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
    """The SHA-256 of the file in the cache; None where there is none, or where it is not what was fetched.

    Its size and time stand for its contents; where they differ from the record, all of it is read.
    """
    if not target.exists():
        return None
    record, stat = _note(_record(target)), target.stat()
    if record and (record.get("size"), record.get("mtime_ns")) == (stat.st_size, stat.st_mtime_ns):
        return str(record.get("sha256"))
    digest = _sha256(target)
    if record and record.get("sha256") != digest:
        _log.warning("%s is not the file that was fetched from %s: fetching it again", target, shown)
        return None
    if not record:
        _log.info("%s: taken as %s, put there by hand", target, shown)
    _write_record(target, target, shown, digest)
    return digest


def _download(
    address: str, shown: str, target: Path, ask: Ask, progress: Progress | None, wanted: str | None
) -> str:
    """Fetch into a file beside `target`, going on where an earlier call ended; rename it when it is whole."""
    part, note = target.with_name(target.name + ".part"), target.with_name(f".{target.name}.part.json")
    _log.info("fetching %s into %s", shown, target)
    failures = longest = 0
    while True:
        known = _note(note)
        done = part.stat().st_size if part.exists() and known.get("version") else 0
        if done and done == known.get("total"):
            break
        try:
            with ask(address, done, str(known.get("version", ""))) as reply:
                if reply.start and reply.total != known.get("total"):
                    raise _StaleError
                if not reply.start:  # the old beginning goes before it can be taken for the new file's
                    part.unlink(missing_ok=True)
                    replace_json(note, {"version": reply.version, "total": reply.total})
                total = reply.total
                _receive(reply, part, progress)
            size = part.stat().st_size
            if total in (None, size):
                break
            if size > total:
                part.unlink()
            reason = f"it ended after {size:,} of {total:,} bytes"
        except _RefusedError as error:
            closed = _CLOSED if "vit_models" in shown else ""
            raise VitkitError(f"{shown} cannot be fetched: {error}.{closed} Nothing was changed.") from error
        except _StaleError:
            part.unlink(missing_ok=True)
            reason = "the file changed on the server while it was fetched"
        except _TemporaryError as error:
            reason = str(error)
        here = part.stat().st_size if part.exists() else 0
        failures = 1 if here > longest else failures + 1
        longest = max(longest, here)
        if failures >= ATTEMPTS:
            closed = _CLOSED if "vit_models" in shown else ""
            resumes = here and _note(note).get("version")
            kept = f"; {here:,} bytes are kept, and the next call goes on from there" if resumes else ""
            raise VitkitError(
                f"{shown} cannot be fetched: {reason}.{closed} Nothing was changed{kept}. With no network "
                f"here, fetch the file elsewhere and give its path, or put it at {target}."
            )
        _log.info("%s: %s; attempt %d of %d", shown, reason, failures + 1, ATTEMPTS)
        time.sleep(PAUSE * 2 ** (failures - 1))
    digest, words = _sha256(part), disguise(part)
    if wanted and digest != wanted:
        words = f"its SHA-256 is {digest}, expected {wanted}: it is another file, or a damaged one"
    if words:
        part.unlink()
        raise VitkitError(f"{shown} was fetched, but {words}. It was thrown away; nothing else was changed.")
    _write_record(target, part, shown, digest)
    part.replace(target)
    note.unlink(missing_ok=True)
    sync_folder(target.parent)
    _log.info("fetched %s: %d bytes, SHA-256 %s", shown, target.stat().st_size, digest)
    return digest


def _receive(reply: Reply, part: Path, progress: Progress | None) -> None:
    """Write what comes after what is there; what came before a cut is on the disk."""
    done = reply.start
    with part.open("r+b" if done else "wb") as file:
        file.truncate(done)
        file.seek(done)
        try:
            for chunk in reply.chunks:
                file.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, reply.total)
        finally:
            file.flush()
            os.fsync(file.fileno())


def _fetch_settings(parts: Any, folder: Path, ask: Ask) -> None:
    """The JSON files that stand beside the weights, where the server has them and they are JSON."""
    for name in SETTINGS:
        beside = urlunsplit(parts._replace(path=parts.path.rpartition("/")[0] + "/" + name))
        received = b""
        try:
            with ask(beside, 0, "") as reply:
                for chunk in reply.chunks:
                    received += chunk
                    if len(received) > MAX_SETTINGS:
                        break
            data = json.loads(received)
        except (_FetchError, ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            replace_json(folder / name, data)


@contextmanager
def _ask_http(address: str, start: int, version: str) -> Iterator[Reply]:
    request = urllib.request.Request(address, headers={"User-Agent": "vitkit", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", version)  # of another version: all of it, from the beginning
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # it ends before `start`
            raise _StaleError from error
        words = {401: "it is not public", 403: "access is refused", 404: "there is no such file"}
        reason = f"{words.get(error.code, error.reason)} (HTTP {error.code})"
        again = error.code >= 500 or error.code in (408, 429)
        raise (_TemporaryError if again else _RefusedError)(reason) from error
    except (ValueError, http.client.InvalidURL) as error:
        raise _RefusedError(str(error)) from error
    except (OSError, http.client.HTTPException) as error:
        raise _TemporaryError(f"the server cannot be reached ({getattr(error, 'reason', error)})") from error
    with response:
        if address.startswith("https:") and not response.url.startswith("https:"):
            elsewhere = response.url.split("?")[0]
            raise _RefusedError(f"the server sends it on to {elsewhere}, which is not encrypted")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise _RefusedError("the server sends it compressed, although it was asked not to")
        yield _http_reply(response, start, version)


def _http_reply(response: Any, start: int, version: str) -> Reply:
    headers = response.headers
    found = headers.get("ETag", "")
    if not found or found.startswith("W/"):  # a weak one does not promise the same bytes
        found = headers.get("Last-Modified", "")
    if response.status == 206:
        part = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range", ""))
        if part is None or int(part[1]) != start or (found and found != version):
            raise _StaleError
        return Reply(start, int(part[2]), version, _pieces(response))
    length = headers.get("Content-Length", "")
    return Reply(0, int(length) if length.isdigit() else None, found, _pieces(response))


def _pieces(file: Any) -> Iterator[bytes]:
    read = getattr(file, "read1", file.read)  # what has come, rather than waiting for a whole chunk
    while True:
        try:
            piece = read(CHUNK)
        except Exception as error:  # each store's library has its own kinds
            raise _TemporaryError(f"the connection was cut ({_said(error)})") from error
        if not piece:
            return
        yield piece


@contextmanager
def _ask_store(address: str, start: int, version: str) -> Iterator[Reply]:
    scheme = address.partition(":")[0]
    package = {"gs": "gcsfs", "s3": "s3fs"}[scheme]
    try:
        import fsspec  # type: ignore[import-untyped]

        system, inside = fsspec.core.url_to_fs(address)
    except ImportError as error:
        public = f", or give the address under https://storage.googleapis.com/{address[5:]}, if it is public"
        raise _RefusedError(
            f"{scheme}:// needs fsspec and {package} ({_INSTALL} {package}{public if scheme == 'gs' else ''})"
        ) from error
    except Exception as error:
        raise _RefusedError(f"{package} cannot be used: {_said(error)}") from error
    try:
        system.invalidate_cache()
        info = system.info(inside)
        file = system.open(inside, "rb", cache_type="none")
    except FileNotFoundError as error:
        raise _RefusedError("there is no such file") from error
    except PermissionError as error:
        raise _RefusedError("access is refused, or needs a login") from error
    except Exception as error:
        anonymous = " (for a public file without a login, set FSSPEC_S3_ANON=true)" if scheme == "s3" else ""
        raise _TemporaryError(f"the store cannot be reached: {_said(error)}{anonymous}") from error
    with file:
        marks = (info.get(key) for key in ("ETag", "etag", "generation", "md5Hash"))
        found = next((str(mark) for mark in marks if mark), "")
        start = start if found and found == version else 0
        file.seek(start)
        yield Reply(start, int(info["size"]), found, _pieces(file))


# A model of the Hugging Face Hub


def _from_hub(address: str) -> Fetched:
    match = _HUB.fullmatch(address)
    if match is None:
        raise VitkitError(
            f"{address}: expected hf:org/name, hf:org/name@revision or hf:org/name/file, such as "
            "hf:timm/vit_base_patch16_224.augreg_in21k."
        )
    repository, revision, inside = match[1], match[2] and unquote(match[2]), match[3] or ""
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ImportError as error:
        raise VitkitError(f"{address} needs the package huggingface_hub: {_INSTALL}") from error
    try:
        names = _hub_names(hub, repository, revision)
        chosen = _choose(names, inside, address)
        folder = PurePosixPath(chosen).parent
        needed = {chosen, *(str(folder / name) for name in SETTINGS)} & set(names)
        if chosen.endswith(".index.json"):
            index = Path(hub.hf_hub_download(repository, chosen, revision=revision))
            shards = set(map(str, read_json(index).get("weight_map", {}).values()))
            needed |= {str(folder / shard) for shard in shards} & set(names)
        patterns = [glob.escape(name) for name in sorted(needed)]
        snapshot = Path(hub.snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except errors.GatedRepoError as error:
        raise VitkitError(
            f"{address} is open only to those who accepted its terms: do so at "
            f"https://huggingface.co/{repository}, then log in with 'hf auth login'. Nothing was changed."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise VitkitError(
            f"{address}: there is no public model {repository} on the Hub. Look at its name again; "
            "for a private one, log in with 'hf auth login'. Nothing was changed."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise VitkitError(
            f"{address}: {repository} has no revision {revision}. Nothing was changed."
        ) from error
    except VitkitError:
        raise
    except Exception as error:  # of the network, by any library below
        raise VitkitError(
            f"{address} cannot be fetched: {_said(error)}. Nothing was changed. With no network here, fetch "
            f"the files of https://huggingface.co/{repository}/tree/{revision or 'main'} elsewhere and give "
            "the path of their folder."
        ) from error
    weights = [name for name in sorted(needed) if name.endswith(ENDINGS)]
    digests = {name: _hub_digest(snapshot / name) for name in weights}
    exact = f"hf:{repository}@{snapshot.name}/{chosen}"
    return Fetched(
        snapshot / chosen, {"source": exact, "sha256": digests.get(chosen) if len(digests) == 1 else digests}
    )


def _hub_names(hub: Any, repository: str, revision: str | None) -> list[str]:
    """The files of a model; with no network, those that are in the Hub's own cache."""
    try:
        info = hub.HfApi().model_info(repository, revision=revision)
        names = [file.rfilename for file in info.siblings or ()]
    except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError):
        raise
    except Exception as error:  # no network, a proxy, HF_HUB_OFFLINE
        try:
            kept = hub.snapshot_download(
                repository, revision=revision, local_files_only=True, allow_patterns=list(SETTINGS)
            )
        except Exception:
            raise error from None
        _log.info(
            "%s: no answer from the Hub (%s); what was fetched before is used", repository, _said(error)
        )
        files = (file for file in Path(kept).rglob("*") if file.is_file())
        names = [file.relative_to(kept).as_posix() for file in files]
    return [name for name in names if ".." not in PurePosixPath(name).parts]


def _choose(names: list[str], inside: str, address: str) -> str:
    """The file of weights meant by what stands after the model's name: itself, or the best in its folder."""
    if inside in names:
        return inside
    folder = f"{inside.rstrip('/')}/" if inside else ""
    here = [name.removeprefix(folder) for name in names if name.startswith(folder)]
    here = [name for name in here if "/" not in name]
    chosen = choose_weights(here)
    if chosen is not None:
        return folder + chosen
    candidates = ", ".join(weight_names(here)[:8] or weight_names(names)[:8])
    advice = ": add the name of one to the address, after a slash" if candidates else ""
    raise VitkitError(
        f"{address}: expected weights under one of the usual names, or one file of them; found "
        f"{candidates or 'none'}{advice}."
    )


def _hub_digest(file: Path) -> str:
    """The Hub keeps a large file under its SHA-256; of others it is computed."""
    name = file.resolve().name
    return name if re.fullmatch(r"[0-9a-f]{64}", name) else _sha256(file)


# Records


def _record(target: Path) -> Path:
    return target.with_name(f".{target.name}.fetched.json")


def _write_record(target: Path, file: Path, shown: str, digest: str) -> None:
    stat = file.stat()
    record = {"source": shown, "sha256": digest, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    replace_json(_record(target), record)


def _note(path: Path) -> dict[str, Any]:
    """A small JSON file; empty where it is absent or damaged."""
    try:
        return read_json(path)
    except VitkitError:
        return {}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _said(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
