"""A server on a free port of this machine, in a thread, whose model PyTorch computes; and requests to it."""

import asyncio
import http.client
import json
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tests.engines.models import FakeRunner
from vitkit.jobs.serving.server import Server, open_socket
from vitkit.jobs.serving.service import Service, Settings

SETTINGS = Settings(
    bundle=Path(),
    counts=Path(),
    batch_size=4,
    delay=0.01,
    queue=8,
    max_bytes=200_000,
    max_pixels=1_000_000,
    max_images=4,
    key=None,
    drain=0.0,
)
"""Limits that a few small requests reach."""


class Reply(NamedTuple):
    """An answer over HTTP."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


EMPTY: Mapping[str, str] = {}


def send(port: int, method: str, path: str, body: Any = None, headers: Mapping[str, str] = EMPTY) -> Reply:
    """Send a request on a connection of its own; an iterable as body is sent in chunks."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return Reply(answer.status, answer.headers, answer.read())


class Gate:
    """Lets the model compute, or has it wait: `change` of a `FakeRunner`."""

    def __init__(self) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        self.open.set()

    def __call__(self, logits: Any) -> Any:
        self.reached.set()
        assert self.open.wait(60)
        return logits

    @contextmanager
    def closed(self) -> Iterator[None]:
        self.reached.clear()
        self.open.clear()
        try:
            yield
        finally:
            self.open.set()


class Live(NamedTuple):
    """A server that answers on a port."""

    port: int
    server: Server
    loop: asyncio.AbstractEventLoop
    runner: FakeRunner
    thread: threading.Thread

    def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = EMPTY) -> Reply:
        return send(self.port, method, path, body, headers)

    def open(self, sent: bytes) -> socket.socket:
        """Open a connection, and send bytes as they are."""
        opened = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        opened.sendall(sent)
        return opened

    def stop(self) -> None:
        with suppress(RuntimeError):  # the loop has ended already
            self.loop.call_soon_threadsafe(self.server.stop, signal.SIGTERM)


@contextmanager
def live(bundle: Path, runner: FakeRunner, **changes: Any) -> Iterator[Live]:
    """Serve a bundle while the block lasts."""
    with tempfile.TemporaryDirectory() as counts:
        service = Service(replace(SETTINGS, bundle=bundle, counts=Path(counts), **changes))
        server, listening = Server(service), open_socket("127.0.0.1", 0)
        port, loops, begun = listening.getsockname()[1], list[asyncio.AbstractEventLoop](), threading.Event()

        async def answer() -> None:
            loops.append(asyncio.get_running_loop())
            await server.answer(listening, lambda differs: begun.set())

        thread = threading.Thread(target=lambda: asyncio.run(answer()))
        thread.start()
        assert begun.wait(60)
        running = Live(port, server, loops[0], runner, thread)
        try:
            yield running
        finally:
            running.stop()
            thread.join(60)
            assert not thread.is_alive()
            service.close()
