"""Checkpoints by address: downloaded once into a cache, and from there on files like any other.

`hf:org/name[@revision][/file]`, and the web address of a file on the Hub, go through huggingface_hub and its
cache; `gs://` and `s3://` through fsspec. Other `https://` and `http://` addresses need Python alone, because
both libraries leave out two things: a download that was cut goes on from the last byte, if the server says
that the file is still the same (RFC 9110, `If-Range`), and a connection that brings too little is cut. The
SHA-256 of a downloaded file is recorded: the file must keep it.
"""

import hashlib
import http.client
import io
import json
import logging
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from vitkit.durable import replace_json, sync_folder
from vitkit.errors import VitkitError
from vitkit.text import first_line, visible
from vitkit.weights.files.cache import cache_folder, described, file_digest, read_note, recorded_digest
from vitkit.weights.files.hub import from_hub, is_in_cache, require_on_hub
from vitkit.weights.files.source import SETTINGS, explain_no_weights
from vitkit.weights.format_names import ENDINGS
from vitkit.weights.published import PublishedStart, find_start_named

ATTEMPTS = 5
"""In a row without new bytes, before a download is given up."""
PAUSE = 1.0
"""Seconds before the second attempt; each further attempt waits twice as long."""
TIMEOUT = 30.0
"""Seconds of silence after which a connection counts as cut."""
WINDOW = 30.0
"""Seconds in which an answer must begin, and then `LEAST` bytes of the file must come: `TIMEOUT` alone would
wait for ever for a byte now and then."""
LEAST = 30 << 10
"""Bytes that must come in a window: 1 KiB a second."""
CHUNK = 1 << 20
"""The most bytes that are read at a time."""
MAX_WEIGHTS = 64 << 30
"""Bytes of a file of weights."""
MAX_SETTINGS = 8 << 20
"""Bytes of a JSON file beside the weights; 21,000 class names take two MB."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes that have arrived and the bytes of the whole file, if the server says them."""

_log = logging.getLogger("vitkit")
_retries = logging.getLogger("vitkit.download")
_retries.setLevel(logging.WARNING)  # pauses are shown also where other warnings are not

_ADDRESS = re.compile(r"(https?|gs|s3):/+(?=[^/])")  # one slash is what pathlib leaves of two
_HUB_FILE = re.compile(
    r"https://(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)/(?:resolve|blob)/([^/]+)/([^?#]+)"
)
_CLOSED = (
    " The authors' bucket vit_models has been closed to the public since February 2026. The AugReg weights "
    "that were in it are among timm's models on the Hugging Face Hub, such as "
    "hf:timm/vit_base_patch16_224.augreg_in21k."
)


class _CutError(Exception):
    """A download broke off: another attempt may go on from there."""


class _RefusedError(Exception):
    """The answer will be the same next time."""


class _AbsentError(_RefusedError):
    """There is no such file, or none for us."""


class _SlowError(OSError):
    """The server does send bytes, but what must come in `WINDOW` seconds did not."""


@dataclass(frozen=True)
class Fetched:
    """A checkpoint that is now on this machine."""

    path: Path
    origin: Mapping[str, Any] = field(default_factory=dict)
    """`source`, the address without passwords and signatures, and `sha256` (of several files: by name); empty
    for what was a path to begin with."""
    image_size: tuple[int, int] | None = None
    """Pixels that a published checkpoint was made for: not every file records them."""


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
            machine is changed; the bytes of a cut `https://` download stay, and the next call goes on.
    """
    text = str(path)
    if Path(path).exists():
        return Fetched(Path(path))
    text = _hub_address(text)
    if text.startswith("hf:"):
        address, _, fragment = text.partition("#")
        return Fetched(*from_hub(address, _digest_in(fragment, address)))
    if _ADDRESS.match(text):
        return _from_server(text, progress)
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
    with _with_other_places(start):
        fetched = fetch(start.pinned_address, progress)
    return Fetched(fetched.path, fetched.origin, size)


@contextmanager
def _with_other_places(start: PublishedStart) -> Iterator[None]:
    """Name the other places of a published checkpoint's weights in the error of its first."""
    try:
        yield
    except VitkitError as error:
        others = f" Its weights are published as {' and '.join(start.other_addresses)} too." * bool(
            start.other_addresses
        )
        raise VitkitError(
            f"{start.name} is not on this machine. {error}{others} Files put into the folder "
            f"{cache_folder() / 'starts' / start.name} are found by the name."
        ) from error


def require_answer(name: str) -> None:
    """Refuse a published checkpoint that is not on this machine and whose address does not answer.

    Raises:
        VitkitError: as `fetch_any`; no weights are fetched.
    """
    start = find_start_named(name)
    if start is not None and start.address.startswith("hf:") and not is_local(name):
        with _with_other_places(start):
            require_on_hub(start.pinned_address.partition("#")[0])


def is_local(path: str | Path) -> bool:
    """Whether a checkpoint is on this machine, so that reading it fetches no weights; no server is asked."""
    start = find_start_named(path)
    if start is not None and (cache_folder() / "starts" / start.name).is_dir():
        return True
    address = _hub_address((str(path) if start is None else start.pinned_address).partition("#")[0])
    if Path(address).exists():
        return True
    if address.startswith("hf:"):
        return is_in_cache(address)
    return bool(_ADDRESS.match(address)) and _target(address).exists()


def _hub_address(text: str) -> str:
    """Give an address its second slash again, and the web address of a file on the Hub its short form."""
    address = _ADDRESS.sub(r"\1://", text, count=1)
    file = _HUB_FILE.match(address)
    if file is None:
        return address
    fragment = urlsplit(address).fragment
    return f"hf:{file[1]}@{file[2]}/{unquote(file[3])}" + (f"#{fragment}" if fragment else "")


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:  # brackets that do not close, say
        raise VitkitError(
            f"{visible(address[:200])} is no address that can be fetched: {first_line(error)}."
        ) from error


def _target(address: str) -> Path:
    """Return the file of the cache for an address without a fragment."""
    name = PurePosixPath(unquote(_split(address).path)).name
    return cache_folder() / hashlib.sha256(address.encode()).hexdigest()[:16] / name


# One file from a server


def _from_server(address: str, progress: Progress | None) -> Fetched:
    parts = _split(address)
    expected = _digest_in(parts.fragment, address)
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
    parts = parts._replace(fragment="")
    address, target = urlunsplit(parts), _target(urlunsplit(parts))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.parent):
            digest = _cached_digest(target, shown)
            if digest is None or digest != (expected or digest):
                digest = _download(address, shown, target, progress, expected or _first_digest(target))
                if not name.endswith(".npz"):
                    _fetch_settings(parts, target.parent)
    except OSError as error:  # of the disk: errors of the network are dealt with where they arise
        raise VitkitError(
            f"{shown} cannot be kept in {target.parent}: {error}. Make room there, or choose another folder "
            "with the environment variable VITKIT_CACHE."
        ) from error
    return Fetched(target, {"source": shown, "sha256": digest})


def _digest_in(fragment: str, address: str) -> str | None:
    """Read the SHA-256 that may stand behind the '#' of an address."""
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


def _cached_digest(target: Path, shown: str) -> str | None:
    """Return the SHA-256 of the file in the cache; None where it is absent or not what was downloaded.

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
    replace_json(_record(target), {"source": shown, **described(target, digest)})
    return digest


def _first_digest(target: Path) -> str | None:
    """Return the recorded SHA-256 of a file that the cache still holds, damaged perhaps."""
    digest = read_note(_record(target)).get("sha256") if target.exists() else None
    return digest if isinstance(digest, str) else None


def _record(target: Path) -> Path:
    return target.with_name(f".{target.name}.fetched.json")


def _download(address: str, shown: str, target: Path, progress: Progress | None, expected: str | None) -> str:
    """Fetch into a file beside `target`, going on where an earlier call ended; rename it when it is whole."""
    part, note = target.with_name(target.name + ".part"), target.with_name(f".{target.name}.part.json")
    _log.info("fetching %s into %s", shown, target)
    closed = _CLOSED if "vit_models" in shown else ""
    failures, longest = 0, 0
    while True:
        try:
            _transfer(address, part, note, MAX_WEIGHTS, progress)
            break
        except _RefusedError as error:
            raise VitkitError(f"{shown} cannot be fetched: {error}.{closed} Nothing was changed.") from error
        except _CutError as error:
            reason = str(error)
        size = part.stat().st_size if part.exists() else 0
        # A few bytes do not count, or a server that sends some now and then would keep us for ever.
        failures = 1 if size - longest >= LEAST else failures + 1
        longest = max(longest, size)
        if failures >= ATTEMPTS:
            resumes = size and read_note(note).get("version")
            rest = f"; {size:,} bytes are kept, and the next call goes on from there" if resumes else ""
            raise VitkitError(
                f"{shown} cannot be fetched: {reason}.{closed} Nothing was changed{rest}. With no network "
                f"here, fetch the file elsewhere and give its path, or put it at {target}."
            )
        pause = PAUSE * 2 ** (failures - 1)
        _retries.warning(
            "%s: %s; trying again in %g s (attempt %d of %d)", shown, reason, pause, failures + 1, ATTEMPTS
        )
        time.sleep(pause)
    digest, fault = file_digest(part), explain_no_weights(part)
    if digest != (expected or digest):
        fault = f"its SHA-256 is {digest}, expected {expected}: it is another file, or a damaged one"
    if fault:
        part.unlink()
        advice = (
            f" The file here is left as it is, {target}: use it by its path if you trust it, or delete it to "
            "fetch the other."
        ) * (target.exists() and expected == _first_digest(target))
        raise VitkitError(
            f"{shown} was fetched, but {fault}. It was thrown away; nothing else was changed.{advice}"
        )
    replace_json(_record(target), {"source": shown, **described(part, digest)})
    part.replace(target)
    note.unlink(missing_ok=True)
    sync_folder(target.parent)
    _log.info("fetched %s: %d bytes, SHA-256 %s", shown, target.stat().st_size, digest)
    return digest


def _transfer(address: str, part: Path, note: Path, most: int, progress: Progress | None = None) -> None:
    """Request the missing bytes once; returns when the file is whole.

    A server that sends another rest of an interrupted download under the same mark is believed, where no
    SHA-256 is known.

    Args:
        address: of the file.
        part: where its bytes are written.
        note: version and size of the file that the bytes in `part` belong to.
        most: bytes that the file may have.
        progress: called as bytes come in.

    Raises:
        _CutError, _RefusedError: it is not whole.
    """
    if not address.startswith("http"):
        _copy_from_store(address, part, most, progress)
        return
    facts = read_note(note)
    version, total = facts.get("version"), facts.get("total")
    size = part.stat().st_size if part.exists() and version else 0
    if size and size == total:
        return
    with _request(address, size, version) as response:
        headers = response.headers
        mark = headers.get("ETag", "")
        if not mark or mark.startswith("W/"):  # a weak mark does not promise the same bytes
            mark = headers.get("Last-Modified", "")
        rest = re.fullmatch(r"bytes (\d{1,30})-\d{1,30}/(\d{1,30})", headers.get("Content-Range", ""))
        continues = rest is not None and (int(rest[1]), int(rest[2])) == (size, total)
        if response.status != 206 or not continues or mark not in ("", version):
            part.unlink(missing_ok=True)  # the old beginning, before it can be taken for the new file's
            if response.status in (206, 416):  # 416: it is shorter now
                raise _CutError("the file changed on the server while it was fetched")
            length = headers.get("Content-Length", "")
            size, total = 0, int(length) if re.fullmatch(r"\d{1,30}", length) else None
            replace_json(note, {"version": mark, "total": total})
        limit = _room(size, total, part.parent, most)
        with part.open("ab") as file:
            try:
                for piece in _pieces(response):
                    file.write(piece)
                    size += len(piece)
                    if progress is not None:
                        progress(size, total)
                    if size > limit:
                        break
            finally:  # what came before a cut is on the disk
                file.flush()
                os.fsync(file.fileno())
    if size > limit:
        part.unlink()
        raise _RefusedError(
            f"it has not ended after {size:,} bytes, and the server does not say how long it is"
        )
    if size != (total or size):
        raise _CutError(f"it ended after {size:,} of {total:,} bytes")


def _room(size: int, total: int | None, folder: Path, most: int) -> int:
    """Return how many bytes a file may have: all that the server announces, if the disk has room for them.

    A body of unannounced length may fill half of what is free.
    """
    free = shutil.disk_usage(folder).free
    if total is None:
        return min(most, size + free // 2)
    if total > most:
        raise _RefusedError(f"the server announces {total:,} bytes, and at most {most:,} are read")
    if total - size > free:
        raise _RefusedError(
            f"it needs {total - size:,} more bytes, and {folder} has {free:,} free: make room there, or "
            "choose another folder with the environment variable VITKIT_CACHE"
        )
    return total


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections to https, and from http to http."""

    def http_error_302(self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any) -> Any:
        fp.close()  # or urllib reads what comes with the redirection, of any length, into memory
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(
        self, request: urllib.request.Request, file: Any, code: int, message: str, headers: Any, url: str
    ) -> urllib.request.Request | None:
        if urlsplit(url).scheme != "https" and not (url.startswith("http:") and request.type == "http"):
            shown = visible(url.split("?")[0][:200])
            raise _RefusedError(f"the server sends it on to {shown}, which is not encrypted")
        return super().redirect_request(request, file, code, message, headers, url)


class _Deadline(io.RawIOBase):
    """The bytes of a connection, which end with an error once a moment has passed.

    Everything that a server sends is read through it: status line, interim answers, headers, the lengths of
    chunks, trailers. The limits of `http.client` hold for one line or one wait, not for all of them together.
    """

    def __init__(self, connection: io.RawIOBase) -> None:
        self.connection, self.moment = connection, time.monotonic() + WINDOW

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self.connection.readinto(buffer)
        if time.monotonic() > self.moment:
            raise _SlowError
        return count

    def close(self) -> None:
        self.connection.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.deadline = _Deadline(self.fp.detach())
        self.fp = io.BufferedReader(self.deadline)


class _Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections whose answers have a deadline."""

    def do_open(self, http_class: Any, req: urllib.request.Request, **http_conn_args: Any) -> Any:
        def connect(*arguments: Any, **options: Any) -> Any:
            connection = http_class(*arguments, **options)
            connection.response_class = _Response
            return connection

        return super().do_open(connect, req, **http_conn_args)


def _request(address: str, start: int, version: str | None) -> Any:
    """Request a file from byte `start` on if it is still the same version, else all of it.

    Raises:
        _CutError, _RefusedError: there is no answer, or another one than the file.
    """
    headers = {"User-Agent": "vitkit", "Accept-Encoding": "identity"}
    if start and version:
        headers |= {"Range": f"bytes={start}-", "If-Range": version}
    try:
        opener = urllib.request.build_opener(_Redirects, _Handler)
        response = opener.open(urllib.request.Request(address, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return error
        error.close()
        reasons = {401: "it is not public", 403: "access is refused", 404: "there is no such file"}
        reason = f"{reasons.get(error.code, first_line(error.reason))} (HTTP {error.code})"
        again = error.code >= 500 or error.code in (408, 429)
        raise (_CutError if again else _AbsentError)(reason) from error
    except (http.client.InvalidURL, ValueError) as error:
        reason = first_line(error)
        raise _RefusedError(f"it, or where the server sends it on to, is no address ({reason})") from error
    except _SlowError as error:
        raise _RefusedError(f"the server sends bytes, but no answer in {WINDOW:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        reason = first_line(getattr(error, "reason", error))
        raise _CutError(f"the server cannot be reached ({reason})") from error
    if response.headers.get("Content-Encoding", "identity") != "identity":
        response.close()
        raise _RefusedError("the server sends it compressed, although it was asked not to")
    return response


def _pieces(response: Any) -> Iterator[bytes]:
    """Yield the body of an answer as it arrives.

    Raises:
        _CutError: the connection was cut, or brings fewer than `LEAST` bytes in `WINDOW` seconds.
    """
    count = 0
    response.deadline.moment = time.monotonic() + WINDOW
    while True:
        try:
            piece = response.read1(CHUNK)
        except _SlowError as error:
            raise _CutError(f"fewer than {LEAST:,} bytes came in {WINDOW:g} s") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _CutError(f"the connection was cut ({first_line(error)})") from error
        if not piece:
            return
        count += len(piece)
        if count >= LEAST:
            response.deadline.moment, count = time.monotonic() + WINDOW, 0
        yield piece


def _fetch_settings(parts: SplitResult, folder: Path) -> None:
    """Fetch the JSON files beside the weights, where the server has them and they are JSON."""
    part, note = folder / "settings.part", folder / ".settings.part.json"
    for name in SETTINGS:
        beside = urlunsplit(parts._replace(path=parts.path.rpartition("/")[0] + "/" + name))
        part.unlink(missing_ok=True)
        note.unlink(missing_ok=True)
        try:
            _transfer(beside, part, note, MAX_SETTINGS)
            data = json.loads(part.read_bytes())
            if isinstance(data, dict):
                replace_json(folder / name, data)
        except (_AbsentError, ValueError, RecursionError):
            continue
        except (_CutError, _RefusedError) as error:  # the user learns that the model is read without it
            _retries.warning("%s beside the weights is left out: %s", name, error)
    part.unlink(missing_ok=True)
    note.unlink(missing_ok=True)


def _copy_from_store(address: str, part: Path, most: int, progress: Progress | None) -> None:
    """Copy a file of a store that fsspec knows; its packages repeat what fails for a moment.

    Raises:
        _CutError, _RefusedError: it is not whole.
    """
    scheme = address.partition(":")[0]
    package = {"gs": "gcsfs", "s3": "s3fs"}[scheme]
    try:
        import fsspec  # type: ignore[import-untyped]

        system, inside = fsspec.core.url_to_fs(address)
    except ImportError as error:
        public = f", or give the address under https://storage.googleapis.com/{address[5:]}, if it is public"
        raise _RefusedError(
            f"{scheme}:// needs {package} (pip install {package}{public if scheme == 'gs' else ''})"
        ) from error
    except Exception as error:
        raise _RefusedError(f"{package} cannot be used: {first_line(error)}") from error
    try:
        total = int(system.info(inside)["size"])
        _room(0, total, part.parent, most)
        shown = {"shown": lambda total, size, **_: progress and progress(size, total)}
        system.get_file(inside, str(part), callback=fsspec.callbacks.Callback(hooks=shown))
    except _RefusedError:
        raise
    except FileNotFoundError as error:
        raise _AbsentError("there is no such file") from error
    except PermissionError as error:
        raise _AbsentError("access is refused, or needs a login") from error
    except Exception as error:
        anonymous = " (for a public file without a login, set FSSPEC_S3_ANON=true)" if scheme == "s3" else ""
        raise _CutError(f"the store cannot be reached: {first_line(error)}{anonymous}") from error
    if part.stat().st_size != total:
        raise _CutError(f"it ended after {part.stat().st_size:,} of {total:,} bytes")
