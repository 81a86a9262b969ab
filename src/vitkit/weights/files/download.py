"""Checkpoints by address: downloaded once into a cache, and from there on files like any other.

`hf:org/name[@revision][/file]`, and the web address of a file on the Hub, go through huggingface_hub and its
cache. Other addresses go through Python's urllib with a least speed, because a timeout of the connection
alone lets a server hold a download for ever with a byte now and then; a download that was cut begins again.
The SHA-256 of what an address held at first is recorded: it must keep to it.
"""

import glob
import hashlib
import http.client
import logging
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from vitkit.config import write
from vitkit.durable import cache_folder, hash_file, parse_json, remove_leftovers, replace_file, sync_folder
from vitkit.errors import VitkitError
from vitkit.text import first_line, visible
from vitkit.weights.files.source import SETTINGS, choose_weights, read_head, read_json_object, weight_names
from vitkit.weights.format_names import ENDINGS
from vitkit.weights.published import PublishedStart, find_start_named


def record_of(address: str) -> Path:
    """Return the path of the record of an address's first fetch."""
    return cache_folder() / "hub" / f"first-{hashlib.sha256(address.encode()).hexdigest()[:16]}.json"


def read_record(address: str) -> dict[str, Any]:
    """Read what an address held at first, where it was recorded and is not damaged.

    Returns:
        `source` without secrets; `sha256` of each file of weights by its name.
    """
    with suppress(VitkitError):
        return read_json_object(record_of(address))
    return {}


def write_record(address: str, source: str, digests: Mapping[str, str]) -> None:
    """Record what an address held at first: its source without secrets, and the SHA-256 of each file."""
    with suppress(OSError):  # the cache cannot be written: nothing is compared next time
        if not read_record(address):
            record_of(address).parent.mkdir(parents=True, exist_ok=True)
            write(record_of(address), {"source": source, "sha256": digests})


def _difference(address: str, digests: Mapping[str, str], expected: str | None) -> str:
    """Say how files differ from the SHA-256 that an address asks for, or from the first fetch; "" if not."""
    actual = _listed(digests)
    if expected:
        if [*digests.values()] == [expected]:
            return ""
        return f"expected the SHA-256 {expected}, found {actual}: it is another file, or a damaged one"
    first = read_record(address)
    if not first or digests == first["sha256"]:
        return ""
    return (
        f"it is not what it was when it was first fetched: expected {_listed(first['sha256'])} of "
        f"{first['source']}, found {actual}; if you trust the other, delete {record_of(address)}"
    )


def _listed(digests: Mapping[str, str]) -> str:
    return ", ".join(f"{digest} of {name}" for name, digest in digests.items())


_HUB_MODEL = re.compile(r"hf:(?://)?([\w.-]+/[\w.-]+)(?:@([^/@]+))?(?:/(.+))?")


def from_hub(address: str, expected: str | None = None) -> "Fetched":
    """Fetch a model's weights and the JSON files beside them.

    Without `expected`, the weights that were fetched first are remembered by their SHA-256, and other weights
    at the same address are refused.

    Args:
        address: `hf:org/name[@revision][/file]`.
        expected: SHA-256 that the file of weights must have.

    Raises:
        VitkitError: no such address, model or revision, no network, or files that are not what they should
            be.
    """
    repository, revision, inside = _parts(address)
    import huggingface_hub as hub

    def require(digests: Mapping[str, str]) -> None:
        if difference := _difference(address, digests, expected):
            raise VitkitError(f"{address}: {difference}. It is not used.")

    with _explained(address):
        announced = _list_files(address)
        chosen = _choose(list(announced), inside, address)
        folder = PurePosixPath(chosen).parent
        needed = {chosen, *(str(folder / name) for name in SETTINGS)} & set(announced)
        if chosen.endswith(".index.json"):
            index = Path(hub.hf_hub_download(repository, chosen, revision=revision))
            shards = set(map(str, read_json_object(index).get("weight_map", {}).values()))
            needed |= {str(folder / shard) for shard in shards} & set(announced)
        elif (digest := announced[chosen]) is not None:
            require({chosen: digest})  # before all of it is fetched
        patterns = [glob.escape(name) for name in sorted(needed)]
        snapshot = Path(hub.snapshot_download(repository, revision=revision, allow_patterns=patterns))
        digests = {}
        for name in (name for name in sorted(needed) if name.endswith(ENDINGS)):
            file = (snapshot / name).resolve()
            digest = digests[name] = hash_file(file)[1]
            # The Hub's cache names a large file by its SHA-256.
            right = announced[name] or (file.name if re.fullmatch(r"[0-9a-f]{64}", file.name) else digest)
            if digest != right:
                raise VitkitError(
                    f"{name} of {repository} is not the file that the Hub says it has: expected SHA-256 "
                    f"{right}, found {digest}. Delete {file} and run the same command again."
                )
    require(digests)
    exact = f"hf:{repository}@{snapshot.name}/{chosen}"
    if not expected:  # a hash in the address is compared in place of the first fetch's
        write_record(address, exact, digests)
    origin = {"source": exact, "sha256": digests.get(chosen) if len(digests) == 1 else digests}
    return Fetched(snapshot / chosen, origin)


@contextmanager
def _explained(address: str) -> Iterator[None]:
    """Explain the errors of the Hub's library."""
    from huggingface_hub import errors

    repository, revision, _ = _parts(address)
    messages = {
        errors.GatedRepoError: " is open only to those who accepted its terms: do so at "
        f"https://huggingface.co/{repository}, then log in with 'hf auth login'. Nothing was changed.",
        errors.RepositoryNotFoundError: f": there is no public model {repository} on the Hub. Look at its "
        "name again; for a private one, log in with 'hf auth login'. Nothing was changed.",
        errors.RevisionNotFoundError: f": {repository} has no revision {revision}. Nothing was changed.",
    }
    try:
        yield
    except VitkitError:
        raise
    except Exception as error:  # of the network, by any library below
        otherwise = (
            f" cannot be fetched: {first_line(error)}. Nothing was changed. With no network here, fetch the "
            f"files of https://huggingface.co/{repository}/tree/{revision or 'main'} elsewhere and give the "
            "path of their folder."
        )
        message = next((text for kind, text in messages.items() if isinstance(error, kind)), otherwise)
        raise VitkitError(f"{address}{message}") from error


def _parts(address: str) -> tuple[str, str | None, str]:
    """Split an address into model, revision and path inside it."""
    if (match := _HUB_MODEL.fullmatch(address)) is None:
        raise VitkitError(
            f"{address}: expected hf:org/name, hf:org/name@revision or hf:org/name/file, such as "
            "hf:timm/vit_base_patch16_224.augreg_in21k."
        )
    return match[1], match[2] and unquote(match[2]), match[3] or ""


def _list_files(address: str) -> dict[str, str | None]:
    """List the files of a model with the SHA-256 that the Hub says, or None.

    Without a network, the files in the Hub's own cache are listed.
    """
    repository, revision, _ = _parts(address)
    import huggingface_hub as hub

    try:
        info = hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
        files = {file.rfilename: file.lfs.sha256 if file.lfs else None for file in info.siblings or ()}
    except Exception as error:  # no network, a proxy, HF_HUB_OFFLINE, a model that its owner removed
        if (snapshot := _local_snapshot(address)) is None:
            raise
        _log.info("%s: no answer from the Hub (%s); its cache is used", repository, first_line(error))
        paths = (path for path in snapshot.rglob("*") if path.is_file())
        files = {path.relative_to(snapshot).as_posix(): None for path in paths}
    return {name: digest for name, digest in files.items() if ".." not in PurePosixPath(name).parts}


def _local_snapshot(address: str) -> Path | None:
    """Return the folder of a model in the Hub's cache; None where nothing of the model is on this machine."""
    repository, revision, _ = _parts(address)
    import huggingface_hub as hub

    local: dict[str, Any] = {"local_files_only": True, "allow_patterns": list(SETTINGS)}
    with suppress(Exception):
        return Path(hub.snapshot_download(repository, revision=revision, **local))
    return None


def _choose(names: list[str], inside: str, address: str) -> str:
    """Choose the weight file that the text after the model's name means: a file, or the best of a folder."""
    if inside in names:
        return inside
    folder = f"{inside.rstrip('/')}/" if inside else ""
    here = [name.removeprefix(folder) for name in names if name.startswith(folder)]
    here = [name for name in here if "/" not in name]
    if (chosen := choose_weights(here)) is not None:
        return folder + chosen
    candidates = ", ".join(weight_names(here)[:8] or weight_names(names)[:8])
    raise VitkitError(
        f"{address}: expected weights under one of the usual names, or the name of one file behind a slash; "
        f"found {candidates or 'none'}."
    )


ATTEMPTS = 5
"""The most times that a download which broke off is begun."""
PAUSE = 1.0
"""Seconds before the second attempt; each further attempt waits twice as long."""
WINDOW = 30.0
"""Seconds in which `LEAST` bytes of the file must come; and of silence, after which a connection is cut."""
LEAST = 30 << 10
"""Bytes that must come in a window: 1 KiB a second."""
MAX_WEIGHTS = 64 << 30
"""Bytes of a file of weights."""
MAX_SETTINGS = 8 << 20
"""Bytes of a JSON file beside the weights; 21,000 class names take two MB."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes that have arrived and the bytes of the whole file, if the server says them."""

_log = logging.getLogger("vitkit")
_retries = logging.getLogger("vitkit.download")
_retries.setLevel(logging.WARNING)  # pauses are shown also where other warnings are not

_ADDRESS = re.compile(r"(https?):/+(?=[^/])")  # one slash is what pathlib leaves of two
_HUB_FILE = re.compile(
    r"https://(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)/(?:resolve|blob)/([^/]+)/([^?#]+)(?:\?[^#]*)?(#.+)?.*"
)


class _FailedError(Exception):
    """A download failed."""


class _AbsentError(_FailedError):
    """There is no such file, or none for us."""


class _CutError(_FailedError):
    """Another attempt may succeed."""


@dataclass(frozen=True)
class Fetched:
    """A checkpoint that is now on this machine."""

    path: Path
    origin: Mapping[str, Any] = field(default_factory=dict)
    """`source`, the address without passwords and signatures, and `sha256` (of several files: by name); empty
    for what was a path to begin with."""
    image_size: tuple[int, int] | None = None
    """Pixels that a published checkpoint was made for: not every file records them."""


def fetch(path: str | Path, progress: Progress = lambda done, total: None) -> Fetched:
    """Return the local path of a checkpoint, which is downloaded first where it is an address.

    Files in the folder `starts/NAME` of the cache are taken for the published checkpoint NAME without asking
    any server: a machine without a network gets them in this way.

    Args:
        path: a local path, which is returned as it is; a name that `vitkit starts` lists; or an address.
            `hf:org/name[@revision][/file]`: the weights of a model on the Hugging Face Hub and the JSON files
            beside them, of one format alone, safetensors first. `https://`, `http://`: one public file. An
            address may end in `#sha256=` and the digits that the file of weights must have.
        progress: called as bytes come in; the Hub's own library shows its own bar.

    Raises:
        VitkitError: no such address, no network, or not the file it should be; for a name the message says
            what to fetch elsewhere and where to put it. Nothing that was on this machine is changed.
    """
    if Path(path).exists():
        return Fetched(Path(path))
    if (start := find_start_named(path)) is not None:
        size = (start.image_size, start.image_size)
        if (placed := cache_folder() / "starts" / start.name).is_dir():
            return Fetched(placed, {"source": f"{start.name}, put by hand into {placed}"}, size)
        with _with_own_folder(start):
            return replace(fetch(start.pinned_address, progress), image_size=size)
    text = _hub_address(str(path))
    address, _, fragment = text.partition("#")
    if text.startswith("hf:"):
        return from_hub(address, _digest_in(fragment, address))
    if _ADDRESS.match(text):
        return _from_server(address, _digest_in(fragment, address), progress)
    if re.match(r"[A-Za-z][\w+.-]+:/", text):
        raise VitkitError(
            f"{text} is no address that can be fetched: expected https://, http:// or hf:org/name, or a path "
            "on this machine."
        )
    return Fetched(Path(path))


@contextmanager
def _with_own_folder(start: PublishedStart) -> Iterator[None]:
    """Name the folder for files that are fetched elsewhere, in the error of a published checkpoint."""
    try:
        yield
    except VitkitError as error:
        raise VitkitError(
            f"{start.name} is not on this machine. {error} Files put into the folder "
            f"{cache_folder() / 'starts' / start.name} are found by the name."
        ) from error


def require_answer(start: PublishedStart) -> None:
    """Refuse a published checkpoint whose address on the Hub does not answer; no weights are fetched.

    Raises:
        VitkitError: as `fetch`.
    """
    address = start.pinned_address.partition("#")[0]
    with _with_own_folder(start), _explained(address):
        _list_files(address)


def is_local(checkpoint: str | Path) -> bool:
    """Whether a checkpoint is on this machine, so that reading it fetches no weights; no server is asked."""
    start = find_start_named(checkpoint)
    if start is not None and (cache_folder() / "starts" / start.name).is_dir():
        return True
    address = _hub_address((str(checkpoint) if start is None else start.pinned_address).partition("#")[0])
    if Path(address).exists():
        return True
    if address.startswith("hf:"):
        if (folder := _local_snapshot(address)) is None:
            return False
        path = folder / _parts(address)[2]
        return path.is_file() or bool(weight_names(map(str, path.rglob("*"))))
    return bool(_ADDRESS.match(address)) and _target(address).exists()


def _hub_address(text: str) -> str:
    """Give an address its second slash again, and the web address of a file on the Hub its short form."""
    address = _ADDRESS.sub(r"\1://", text, count=1)
    if (file := _HUB_FILE.fullmatch(address)) is None:
        return address
    return f"hf:{file[1]}@{file[2]}/{unquote(file[3])}{file[4] or ''}"


def _target(address: str) -> Path:
    """Return the file of the cache for an address without a fragment."""
    name = PurePosixPath(unquote(address.partition("?")[0])).name
    return cache_folder() / hashlib.sha256(address.encode()).hexdigest()[:16] / name


# One file from a server


def _from_server(address: str, expected: str | None, progress: Progress) -> Fetched:
    target, shown = _target(address), address.partition("?")[0]
    if "@" in shown.split("/")[2]:
        raise VitkitError(
            f"The address of {target.name} has a name and password, which logs would show: leave them out."
        )
    if not target.name.endswith(ENDINGS) or re.search(r"[\\:\0-\x1f]", target.name):
        raise VitkitError(
            f"{shown}: expected the address of one file of weights, that ends in {', '.join(ENDINGS)}. "
            "Of a model in several files, fetch the folder yourself and give its path."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Of two processes that start together one downloads and one waits.
        with FileLock(target.parent / ".lock"):
            if target.exists():
                digest = hash_file(target)[1]
                if difference := _difference(address, {target.name: digest}, expected):
                    advice = f"Delete {target} to fetch it again"
                    raise VitkitError(f"{target}, once fetched from {shown}: {difference}. {advice}.")
            else:
                remove_leftovers(target.parent)
                digest = _download(address, shown, target, progress, expected)
                if not target.name.endswith(".npz"):
                    _fetch_settings(address, target.parent)
            if not expected:
                write_record(address, shown, {target.name: digest})
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
    if (match := re.fullmatch(r"sha256=([0-9a-fA-F]{64})", fragment)) is None:
        raise VitkitError(f"{address}: after '#' expected sha256= and 64 digits, found {fragment!r}.")
    return match[1].lower()


def _download(address: str, shown: str, target: Path, progress: Progress, expected: str | None) -> str:
    """Fetch into a file beside `target`, and rename it when it is whole; returns its SHA-256.

    Args:
        address, shown: with secrets and without.
        target: the file of the cache.
        progress: as for `fetch`.
        expected: SHA-256 that the user asks for.
    """
    part = target.with_name(target.name + ".part")
    _log.info("fetching %s into %s", shown, target)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            size, digest = replace_file(part, _pieces(address, MAX_WEIGHTS, progress))
            break
        except _FailedError as error:
            if attempt == ATTEMPTS or not isinstance(error, _CutError):
                raise VitkitError(
                    f"{shown} cannot be fetched: {error}. Nothing was changed. With no network here, fetch "
                    f"the file elsewhere and give its path, or put it at {target}."
                ) from error
            pause = PAUSE * 2 ** (attempt - 1)
            _retries.warning(
                "%s: %s; trying again in %g s (attempt %d of %d)", shown, error, pause, attempt + 1, ATTEMPTS
            )
            time.sleep(pause)
    fault = read_head(part)[1] or _difference(address, {target.name: digest}, expected)
    if fault:
        part.unlink()
        raise VitkitError(f"{shown} was fetched, but {fault}. It was thrown away; nothing else was changed.")
    part.replace(target)
    sync_folder(target.parent)
    _log.info("fetched %s: %d bytes, SHA-256 %s", shown, size, digest)
    return digest


def _fetch_settings(address: str, folder: Path) -> None:
    """Fetch the JSON files beside the weights, where the server has them and they are JSON."""
    path, mark, query = address.partition("?")
    for name in SETTINGS:
        beside = f"{path.rpartition('/')[0]}/{name}{mark}{query}"
        try:
            settings = parse_json(b"".join(_pieces(beside, MAX_SETTINGS)), folder / name)
        except (_AbsentError, VitkitError):  # a page that says that the server has none, say
            continue
        except _FailedError as error:  # the user learns that the model is read without it
            _retries.warning("%s beside the weights is left out: %s", name, error)
            continue
        if isinstance(settings, dict):
            write(folder / name, settings)


def _pieces(address: str, most: int, progress: Progress = lambda done, total: None) -> Iterator[bytes]:
    """Yield the bytes of a file of at most `most` bytes, once.

    A thread reads them, which is left behind after `WINDOW` seconds without `LEAST` bytes: the timeout of a
    connection begins anew with each byte of a head that never ends.

    Raises:
        _FailedError: it does not come, or not whole.
    """
    requests, answers = SimpleQueue[bool](), SimpleQueue[Any]()

    def answer(deadline: float) -> Any:
        requests.put(True)
        if isinstance(value := answers.get(timeout=max(0, deadline - time.monotonic())), Exception):
            raise value
        return value

    threading.Thread(target=_answer, args=(address, requests, answers), daemon=True).start()
    try:
        total = answer(time.monotonic() + WINDOW)
        size, since, deadline = 0, 0, time.monotonic() + WINDOW
        while piece := answer(deadline):
            size, since = size + len(piece), since + len(piece)
            if size > most:
                raise _FailedError(f"it has not ended after {most:,} bytes, the most that are read")
            progress(size, total)
            yield piece
            if since >= LEAST:
                since, deadline = 0, time.monotonic() + WINDOW
        if total not in (None, size):
            raise _CutError(f"it ended after {size:,} of {total:,} bytes")
    except Empty:
        raise _CutError(f"fewer than {LEAST:,} bytes of the file came in {WINDOW:g} s") from None
    except _FailedError:
        raise
    except urllib.error.HTTPError as error:
        error.close()
        is_busy = error.code >= 500 or error.code in (408, 429)
        raise (_CutError if is_busy else _AbsentError)(first_line(error)) from error
    except Exception as error:  # of the network, by any library below
        is_address = not isinstance(error, http.client.InvalidURL | ValueError)
        reason = first_line(getattr(error, "reason", error))
        raise (_CutError if is_address else _FailedError)(f"no server can be reached: {reason}") from error
    finally:
        requests.put(False)


def _answer(address: str, requests: SimpleQueue[bool], answers: SimpleQueue[Any]) -> None:
    """Hand over the size of a file, or None, and its bytes piece by piece; or the error that ended it."""
    headers = {"User-Agent": "vitkit", "Accept-Encoding": "identity"}
    try:
        request = urllib.request.Request(address, headers=headers)
        with urllib.request.build_opener(_Redirects).open(request, timeout=WINDOW) as response:
            if response.status != 200:  # a part, say, although no part was requested
                raise _FailedError(f"the server answers with HTTP {response.status} in place of the file")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise _FailedError("the server sends it compressed, which was not requested")
            value = response.length
            while requests.get():
                answers.put(value)
                value = response.read1(1 << 20)
    except Exception as error:
        answers.put(error)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections to https, and from http to http."""

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        fp.close()  # or urllib reads what comes with the redirection, of any length, into memory
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("https", req.type):
            shown = visible(newurl.split("?")[0][:200])
            raise _FailedError(f"the server sends it on to {shown}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
