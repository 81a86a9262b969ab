"""A server of files on this machine that cuts, repeats, refuses and lies as it is told to."""

import http.server
import io
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers import refusals
from vitkit.weights.files.download import fetch


def npz(size: int = 200_000, fill: float = 1.0) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.full(size, fill, np.float32))
    return buffer.getvalue()


REPEATS = 150
"""A server repeats bytes so often, 0.02 s apart, before it gives up."""


@dataclass
class Hosted:
    """One file, and how its server behaves."""

    data: bytes
    length: int | None = None
    """What Content-Length says, if not the truth; 0: nothing."""
    cuts: list[int] = field(default_factory=list)
    """After how many bytes each of the next connections breaks."""
    statuses: list[int] = field(default_factory=list)
    """Errors of the next replies."""
    after_cut: "Hosted | None" = None
    """The file that takes its place after a cut."""
    raw: bytes = b""
    """All that is answered, in place of HTTP."""
    repeated: bytes = b""
    """The bytes that follow `raw` again and again, `REPEATS` times at most."""


def redirection(address: str) -> bytes:
    """The answer of a server that redirects."""
    return f"HTTP/1.1 302 Found\r\nLocation: {address}\r\n\r\n".encode("latin-1")


class Server(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, Hosted] = {}
        self.requests: list[str] = []
        self.scheme = "http"

    def url(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}{path}"

    def handle_error(self, *_: Any) -> None:
        """A client that goes away is what some tests are about."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.server.requests.append(path)
        file = self.server.files.get(path)
        if file is None:
            self.send_error(404)
            return
        if file.raw:
            self.wfile.write(file.raw)
            for _ in range(REPEATS if file.repeated else 0):
                self.wfile.write(file.repeated)
                time.sleep(0.02)
            return
        if file.statuses:
            self.send_error(file.statuses.pop(0))
            return
        self.send_response(200)
        body = file.data
        length = len(body) if file.length is None else file.length
        if length:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if file.cuts:
            body = body[: file.cuts.pop(0)]
            if file.after_cut:
                self.server.files[path] = file.after_cut
        self.wfile.write(body)


@contextmanager
def running_server(certificate: Path | None = None) -> Iterator[Server]:
    """Run a server in a thread of its own; with a certificate, it speaks https."""
    with Server() as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.scheme = "https"
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def refused(address: str, *parts: str) -> str:
    """Check that an address cannot be fetched, with these parts in the message, and return the message."""
    message = refusals.refused(".", fetch, address)
    assert [part for part in parts if part not in message] == [], message
    return message
