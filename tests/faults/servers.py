"""Servers that drip, flood, lie and send elsewhere: a download ends in words or with the right file.

All of them are on this machine, and none sends for longer than `LONGEST` seconds.
"""

import hashlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import numpy as np

from tests.faults.harness import Kind, Outcome
from vitkit.errors import VitkitError
from vitkit.weights.files import download

LONGEST = 8.0
"""Seconds for which a server goes on sending, and in which a download must have ended."""
WINDOW = 0.4
"""Seconds in place of `download.WINDOW`, so that a case takes a second and no minutes."""

Talk = Callable[[socket.socket, bytes, bytes], None]
"""Answers one request: the connection, the request, the file that is served."""

ENDLESS = (
    (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
    (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    (b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"),
    (b"HTTP/1.1 100 Continue\r\nX: ", b"y"),
    (b"", b"H"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n", b"X: y\r\n"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", b"x"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"y"),
    (b"HTTP/1.1 302 Found\r\nLocation: /x.npz\r\n\r\n", b"body of a redirection"),
    (b"HTTP/1.1 503 Busy\r\n\r\n", b"body of an error"),
    (b"HTTP/1.1 416 No\r\n\r\n", b"body of a 416"),
)
"""The bytes that a server begins with, and those that it then repeats."""
TARGETS = (
    "http://[::1/x.npz",
    "http://a..b/x.npz",
    f"http://{'a' * 70}.org/x.npz",
    "http://127.0.0.1:99999/x.npz",
    "http://127.0.0.1:x/x.npz",
    "http:///x.npz",
    "http://",
    "//",
    "/x.npz",
    "x y\tz",
    "http://127.0.0.1:1/\x00",
    "http://\u2100.invalid/x.npz",
    "http://127.0.0.1:1/x.npz",
    "ftp://127.0.0.1/x.npz",
    "file:///etc/passwd",
    "https://127.0.0.1:1/x.npz",
    "data:,x",
)
NUMBERS = ("-1", "0", "7", "1e3", "0x10", "9" * 40, "12 34", "\u0663", "", "+5", "18446744073709551616")


class Servers(Kind):
    """Endless answers, redirections to broken addresses, untrue lengths, odd headers."""

    name, count = "servers", 300
    sample = tuple(range(16))
    most_memory = 256 << 20

    def prepare(self, folder: Path) -> None:
        values = np.random.default_rng(0).random(20_000, np.float32)
        np.savez(folder / "x.npz", x=values)

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        os.environ.update(VITKIT_CACHE=str(folder / "cache"), NO_PROXY="*", no_proxy="*")
        download.WINDOW, download.TIMEOUT, download.ATTEMPTS, download.PAUSE = WINDOW, 1.0, 2, 0.0
        logging.getLogger("vitkit.download").setLevel(logging.ERROR)  # no word of each new attempt
        data = (shared / "x.npz").read_bytes()
        kinds = (_endless(number // 4), _elsewhere(draw), _lengths(draw), _flipped(draw))
        talk = kinds[number % 4]
        if number % 4 and draw.random() < 0.5:
            talk = _cut_first(talk, draw.randrange(1, len(data)))
        # Bytes that a server sends in the frame that it announces are the file, unless its hash is known.
        fragment = f"#sha256={hashlib.sha256(data).hexdigest()}" if number % 4 in (0, 2) else ""
        began = time.monotonic()
        try:
            with _serving(talk, data) as port:
                path = download.fetch(f"http://127.0.0.1:{port}/x.npz{fragment}").path
        except VitkitError as error:
            seconds = time.monotonic() - began
            if seconds > LONGEST:
                return Outcome("hang", f"{seconds:.1f} s: {error}")
            return Outcome("words", str(error))
        # A length that is too short cuts the file, which nothing but its hash or its reader can tell.
        fetched = path.read_bytes()
        is_right = fetched == data or (not fragment and data.startswith(fetched))
        return Outcome("right" if is_right else "wrong", f"{len(fetched)} of {len(data)} bytes")


def _head(status: str, **fields: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("utf-8")


def _honest(data: bytes) -> tuple[bytes, bytes]:
    return _head("200 OK", Content_Length=str(len(data)), ETag='"1"'), data


def _cut_first(then: Talk, size: int) -> Talk:
    """Send the first bytes of the file to the first who asks, and answer the others in another way."""
    requests: list[bytes] = []

    def talk(connection: socket.socket, request: bytes, data: bytes) -> None:
        requests.append(request)
        if len(requests) == 1:
            head, body = _honest(data)
            connection.sendall(head + body[:size])
        else:
            then(connection, request, data)

    return talk


def _endless(number: int) -> Talk:
    opening, repeated = ENDLESS[number % len(ENDLESS)]
    is_flood = number // len(ENDLESS) % 2

    def talk(connection: socket.socket, request: bytes, data: bytes) -> None:
        connection.sendall(opening)
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            connection.sendall(repeated * (1000 if is_flood else 1))
            if not is_flood:
                time.sleep(0.02)

    return talk


def _elsewhere(draw: Random) -> Talk:
    target, status = draw.choice(TARGETS), draw.choice((301, 302, 303, 307, 308))

    def talk(connection: socket.socket, request: bytes, data: bytes) -> None:
        connection.sendall(_head(f"{status} Elsewhere", Location=target, Content_Length="0"))

    return talk


def _lengths(draw: Random) -> Talk:
    """Lie about the length of the body or of its chunks, or send a part that nobody asked for."""
    number, other = draw.choice(NUMBERS), draw.choice(NUMBERS)
    what = draw.choice(("length", "two lengths", "chunks", "part", "416"))

    def talk(connection: socket.socket, request: bytes, data: bytes) -> None:
        if what == "length":
            connection.sendall(_head("200 OK", Content_Length=number, ETag='"1"') + data)
        elif what == "two lengths":
            fields = f"Content-Length: {number}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + fields + data)
        elif what == "chunks":
            frames = f"{number}\r\n".encode() + data + f"\r\n{other}\r\n\r\n".encode()
            connection.sendall(_head("200 OK", Transfer_Encoding="chunked") + frames)
        elif what == "part":
            field = f"bytes {number}-{other}/{len(data)}"
            connection.sendall(_head("206 Partial Content", Content_Range=field, ETag='"1"') + data[1:])
        else:
            connection.sendall(_head("416 Range Not Satisfiable", Content_Range=f"bytes */{number}"))

    return talk


def _flipped(draw: Random) -> Talk:
    """Change, remove or insert some bytes of an honest answer's head."""
    changes = [(draw.random(), draw.randrange(256), draw.randrange(3)) for _ in range(draw.randrange(1, 6))]

    def talk(connection: socket.socket, request: bytes, data: bytes) -> None:
        head, body = _honest(data)
        changed = bytearray(head)
        for where, value, kind in changes:
            place = int(where * len(changed))
            changed[place : place + (kind < 2)] = [value][: kind != 1]
        connection.sendall(bytes(changed) + body)

    return talk


@contextmanager
def _serving(talk: Talk, data: bytes) -> Iterator[int]:
    """Answer every connection in a thread of its own, until the block ends; yields the port."""

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request and (chunk := connection.recv(4096)):
                request += chunk
            talk(connection, request, data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
