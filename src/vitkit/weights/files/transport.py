"""Requests for files to servers: one request and its reply, which ends in every case.

A connection must bring `LEAST` bytes in every `WINDOW` seconds, the first lines of its answer counted, or it
is cut: a time limit for silence alone would wait for ever for a server that sends a byte now and then.
"""

import http.client
import re
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from vitkit.text import first_line, visible

CHUNK = 1 << 20
"""The most bytes that are read at a time."""
TIMEOUT = 30.0
"""Seconds of silence after which a connection counts as cut."""
CHECK_TIMEOUT = 5.0
"""The same for a request that only asks whether a file has changed."""
WINDOW = 30.0
"""Seconds in which `LEAST` bytes must come."""
LEAST = 30 << 10
"""Bytes that must come in a window: 1 KiB a second."""
LINGER = 1.0
"""Seconds to wait for the end of a connection after the last byte that was announced."""
SHOWN = 200
"""Characters of a server's message that are shown."""

NUMBER = re.compile(r"[0-9]{1,30}")


@dataclass(frozen=True)
class Reply:
    """A server's answer to a request for a file."""

    start: int
    """The offset in the file at which the bytes begin: the requested offset, or 0."""
    total: int | None
    """Bytes of the whole file, where the server says."""
    version: str
    """Changes when the file does; empty where the server cannot say, and then nothing can be continued."""
    chunks: Iterator[bytes]
    sha256: str | None = None
    """SHA-256 of the whole file, where the server states it (the Hugging Face Hub does)."""


Ask = Callable[[str, int, str, bool], AbstractContextManager[Reply]]
"""(address, first byte, version of the file it belongs to, whether to ask for a description without bytes) ->
the reply."""


class FetchError(Exception):
    """One attempt failed; what the caller sees is a VitkitError."""


class TemporaryError(FetchError):
    """Worth another attempt."""


class StaleError(FetchError):
    """The part of a file that was downloaded belongs to another version than the server now has."""


class RefusedError(FetchError):
    """The server has given its answer: it will be the same next time."""


class _Watchdog:
    """Cuts a connection that brings too little, from a thread of its own."""

    def __init__(self, window: float) -> None:
        self.window = window
        self.cut = False
        self.socket: socket.socket | None = None
        self._reading, self._since, self._count = True, time.monotonic(), 0
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "_Watchdog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        self._thread.join()

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Do not count the time that the receiver takes."""
        self._reading, before = False, time.monotonic()
        yield
        self._since += time.monotonic() - before
        self._reading = True

    def received(self, count: int) -> None:
        self._count += count
        if self._count >= LEAST:
            self._count, self._since = 0, time.monotonic()

    def _watch(self) -> None:
        while not self._finished.wait(min(0.5, self.window / 4)):
            if self._reading and time.monotonic() - self._since > self.window:
                self.cut = True
                if self.socket is not None:
                    with suppress(OSError):
                        # Not SSL's own shutdown, which would talk to the server first.
                        socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
                    return

    @property
    def message(self) -> str:
        return f"fewer than {LEAST:,} bytes came in {self.window:g} s"


class _Plain(http.client.HTTPConnection):
    def __init__(self, watchdog: _Watchdog, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self.watchdog = watchdog

    def connect(self) -> None:
        super().connect()
        self.watchdog.socket = self.sock


class _Encrypted(http.client.HTTPSConnection):
    def __init__(self, watchdog: _Watchdog, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self.watchdog = watchdog

    def connect(self) -> None:
        super().connect()
        self.watchdog.socket = self.sock


class _Connections(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def __init__(self, watchdog: _Watchdog) -> None:
        super().__init__()
        self.watchdog = watchdog

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_Plain, self.watchdog), request)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        connection: Any = partial(_Encrypted, self.watchdog)
        return self.do_open(connection, request, context=ssl.create_default_context())


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections to http and https, but not from https to http."""

    sha256: str | None = None
    size: int | None = None

    def redirect_request(
        self, request: urllib.request.Request, file: Any, code: int, message: str, headers: Any, url: str
    ) -> urllib.request.Request | None:
        scheme, elsewhere = urlsplit(url).scheme, visible(url.split("?")[0][:SHOWN])
        if scheme not in ("http", "https"):
            file.close()
            raise RefusedError(f"the server sends it on to {elsewhere}, which is neither https nor http")
        if request.full_url.startswith("https:") and scheme != "https":
            file.close()
            raise RefusedError(f"the server sends it on to {elsewhere}, which is not encrypted")
        self.note(headers)
        following = super().redirect_request(request, file, code, message, headers, url)
        if following is not None:
            following.method = request.get_method()  # urllib would send GET for all of the file
        return following

    def note(self, headers: Any) -> None:
        """Note the Hub's description of a large file, sent before the redirection to its store."""
        digest = re.fullmatch(r'"?([0-9a-f]{64})"?', headers.get("X-Linked-ETag", ""))
        if digest:
            self.sha256, self.size = digest[1], _number(headers.get("X-Linked-Size", ""))


def _number(text: str) -> int | None:
    return int(text) if NUMBER.fullmatch(text) else None


@contextmanager
def ask_http(address: str, start: int, version: str, describe: bool = False) -> Iterator[Reply]:
    """Ask an HTTP server for a file, from byte `start` on if it is still the same version."""
    method, timeout = ("HEAD", CHECK_TIMEOUT) if describe else ("GET", TIMEOUT)
    headers = {"User-Agent": "vitkit", "Accept-Encoding": "identity"}
    if start:  # of another version: all of it, from the beginning
        headers |= {"Range": f"bytes={start}-", "If-Range": version}
    redirects = _Redirects()
    with _Watchdog(min(WINDOW, timeout) if describe else WINDOW) as watchdog:
        try:
            request = urllib.request.Request(address, headers=headers, method=method)
            opener = urllib.request.build_opener(_Connections(watchdog), redirects)
            response = opener.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # it ends before `start`
                raise StaleError from error
            reasons = {401: "it is not public", 403: "access is refused", 404: "there is no such file"}
            reason = f"{reasons.get(error.code, first_line(error.reason))} (HTTP {error.code})"
            again = error.code >= 500 or error.code in (408, 429)
            raise (TemporaryError if again else RefusedError)(reason) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _unanswered(error, watchdog) from error
        with response:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise RefusedError("the server sends it compressed, although it was asked not to")
            redirects.note(response.headers)
            yield _http_reply(response, start, version, watchdog, redirects)


def _unanswered(error: Exception, watchdog: _Watchdog) -> FetchError:
    """Explain why a server gave no answer."""
    if watchdog.cut:
        return TemporaryError(watchdog.message)
    if isinstance(error, http.client.InvalidURL | ValueError) and not isinstance(error, OSError):
        return RefusedError(first_line(error))
    garbage = (http.client.BadStatusLine, http.client.LineTooLong)
    if isinstance(error, garbage) and not isinstance(error, ConnectionError):
        return TemporaryError(f"the server's answer is no HTTP ({first_line(error)})")
    reason = first_line(getattr(error, "reason", error))
    return TemporaryError(f"the server cannot be reached ({reason})")


def _http_reply(response: Any, start: int, version: str, watchdog: _Watchdog, redirects: _Redirects) -> Reply:
    headers, pieces = response.headers, _http_pieces(response, watchdog)
    validator = headers.get("ETag", "")
    if not validator or validator.startswith("W/"):  # a weak one does not promise the same bytes
        validator = headers.get("Last-Modified", "")
    if response.status == 206:
        part = re.fullmatch(
            r"bytes ([0-9]{1,30})-[0-9]{1,30}/([0-9]{1,30})", headers.get("Content-Range", "")
        )
        if part is None or int(part[1]) != start or (validator and validator != version):
            raise StaleError
        return Reply(start, int(part[2]), version, pieces, redirects.sha256)
    total = _number(headers.get("Content-Length", ""))
    if total is None:
        total = redirects.size
    return Reply(0, total, validator, pieces, redirects.sha256)


def _http_pieces(response: Any, watchdog: _Watchdog) -> Iterator[bytes]:
    """Yield the body as it arrives, rather than in whole chunks."""
    announced = response.length
    while True:
        left = response.length
        try:
            if left == 1:
                _check_end(response, watchdog, announced)
            # The last byte is left for the line above.
            piece = response.read1(CHUNK if left is None else min(CHUNK, max(1, left - 1)))
        except FetchError:
            raise
        except Exception as error:  # of sockets, of SSL, of HTTP
            message = watchdog.message if watchdog.cut else f"the connection was cut ({first_line(error)})"
            raise TemporaryError(message) from error
        watchdog.received(len(piece))
        if not piece:
            if watchdog.cut:
                raise TemporaryError(watchdog.message)
            return
        with watchdog.elsewhere():
            yield piece


def _check_end(response: Any, watchdog: _Watchdog, announced: int) -> None:
    """Refuse a body that goes on behind its announced length: cut short, it would pass for the whole file.

    One announced byte is still unread. The request asked the server to close the connection after it.
    """
    held, more = response.peek(2), b""
    if len(held) == 1 and watchdog.socket is not None:
        try:
            watchdog.socket.settimeout(LINGER)
            more = watchdog.socket.recv(1)
        except OSError:  # nothing comes, but the server does not close
            more = b""
    if len(held) > 1 or more:
        raise RefusedError(f"the server announces {announced:,} bytes of it, and sends more")


@contextmanager
def ask_store(address: str, start: int, version: str, describe: bool = False) -> Iterator[Reply]:
    """Ask a store that fsspec knows for a file, from byte `start` on."""
    scheme = address.partition(":")[0]
    package = {"gs": "gcsfs", "s3": "s3fs"}[scheme]
    try:
        import fsspec  # type: ignore[import-untyped]

        system, inside = fsspec.core.url_to_fs(address)
    except ImportError as error:
        public = f", or give the address under https://storage.googleapis.com/{address[5:]}, if it is public"
        raise RefusedError(
            f"{scheme}:// needs fsspec and {package} (pip install fsspec {package}"
            f"{public if scheme == 'gs' else ''})"
        ) from error
    except Exception as error:
        raise RefusedError(f"{package} cannot be used: {first_line(error)}") from error
    try:
        system.invalidate_cache()
        info = system.info(inside)
        file = system.open(inside, "rb", cache_type="none")
    except FileNotFoundError as error:
        raise RefusedError("there is no such file") from error
    except PermissionError as error:
        raise RefusedError("access is refused, or needs a login") from error
    except Exception as error:
        anonymous = " (for a public file without a login, set FSSPEC_S3_ANON=true)" if scheme == "s3" else ""
        raise TemporaryError(f"the store cannot be reached: {first_line(error)}{anonymous}") from error
    with file:
        marks = (info.get(key) for key in ("ETag", "etag", "generation", "md5Hash"))
        validator = next((str(mark) for mark in marks if mark), "")
        start = start if validator and validator == version else 0
        if not describe:
            file.seek(start)
        yield Reply(start, int(info["size"]), validator, _store_pieces(file))


def _store_pieces(file: Any) -> Iterator[bytes]:
    read = getattr(file, "read1", file.read)
    while True:
        try:
            piece = read(CHUNK)
        except Exception as error:  # each store's library has its own kinds
            raise TemporaryError(f"the connection was cut ({first_line(error)})") from error
        if not piece:
            return
        yield piece
