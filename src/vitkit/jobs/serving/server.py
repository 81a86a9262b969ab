"""Run the server: sockets, signals, processes. uvicorn speaks HTTP.

A signal to stop is answered in this order: `/ready` says 503, and every answer closes its connection, while
requests are still accepted, so that a load balancer can turn away; then nothing is accepted; what
was is answered; the process ends with 0.
"""

import asyncio
import multiprocessing
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitkit.errors import VitkitError
from vitkit.jobs.serving.application import build_application
from vitkit.jobs.serving.service import Service, Settings
from vitkit.signals import SAME_SECONDS, STOP_SIGNALS, stop_signals

HEAD_SECONDS = 10.0
"""Seconds within which the head of a request must be there, and a body that was refused may still come."""
MOST_CONNECTIONS = 4096
"""Connections of a process: some 20 kB of memory each. Further ones are closed at once."""
IDLE_SECONDS = 5
"""Seconds that a connection stays open between two requests; uvicorn's default."""
LAST_SECONDS = 30
"""Seconds after which a process that was asked to stop ends, whatever is not answered."""
ON_THE_WAY_SECONDS = 0.25
"""Seconds for requests on connections that were opened before the last moment of accepting."""

Ready = Callable[[str], None]


class Protocol(H11Protocol):
    """uvicorn's HTTP/1.1, with a limit on the time that a head takes and on the number of connections."""

    _expiry: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            transport.abort()
        self._expect_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._expiry is not None:
            self._expiry.cancel()

    def _expect_head(self) -> None:
        """Close the connection unless another request begins in time."""
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = self.loop.call_later(HEAD_SECONDS, self._expire, self.cycle)

    def _expire(self, before: Any) -> None:
        if self.cycle is before:
            self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn's server of a bundle, stopped by vitkit's signals, and careful with its last connections."""

    def __init__(self, service: Service) -> None:
        super().__init__(
            uvicorn.Config(
                build_application(service),
                http=Protocol,
                loop="asyncio",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                log_level="error",
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=LAST_SECONDS,
            )
        )
        self.service = service
        self._stopping_since = 0.0

    async def answer(self, listening: socket.socket, ready: Ready) -> None:
        """Answer requests until a signal asks to stop."""
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    asyncio.get_running_loop().add_signal_handler(number, self.stop, number)
        computing = asyncio.create_task(self.service.batches.run())
        asyncio.get_running_loop().call_soon(ready, self.service.differs)
        await self._serve([listening])  # `serve` would raise the signals again after the end
        computing.cancel()

    def stop(self, number: int) -> None:
        """Begin to stop; a second Ctrl-C does not wait for what was accepted."""
        if not self.service.draining:
            self.service.draining, self._stopping_since = True, time.monotonic()
            drain = self.service.settings.drain
            asyncio.get_running_loop().call_later(drain, setattr, self, "should_exit", True)
        elif number == signal.SIGINT and time.monotonic() - self._stopping_since > SAME_SECONDS:
            self.should_exit = self.force_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # A connection that the kernel has opened would be reset when its socket closes: take it before.
        last = list[socket.socket]()
        for listening in sockets or ():
            with suppress(BlockingIOError):
                while True:
                    last.append(listening.accept()[0])
        for server in self.servers:
            server.close()

        def speak() -> Protocol:
            return Protocol(self.config, self.server_state, self.lifespan.state)

        for connection in last:
            await asyncio.get_running_loop().connect_accepted_socket(speak, connection)
        await asyncio.sleep(ON_THE_WAY_SECONDS)
        await super().shutdown(sockets)


def open_socket(host: str, port: int) -> socket.socket:
    """Open the socket that the processes of a server share; port 0 is any free one.

    Raises:
        VitkitError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # So many connections wait while the event loop is busy.
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise VitkitError(
            f"The server cannot listen on {host}:{port} ({error.strerror or error}): give another --port or "
            "--host."
        ) from error
    # Connections inherit it. asyncio sets it for sockets that name TCP as their protocol, which these do not;
    # without it the body of an answer waits 40 ms for the client to acknowledge its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def run_process(settings: Settings, listening: socket.socket, ready: Ready) -> None:
    """Load a bundle, and serve it in this process until a signal asks to stop.

    Args:
        settings: what is served, and how.
        listening: the socket.
        ready: called with the reason why nothing is answered, empty where all is well, before the first
            request.

    Raises:
        VitkitError: the bundle cannot be read.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # each connection is a file
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * MOST_CONNECTIONS)), hard))
    service = Service(settings)
    try:
        asyncio.run(Server(service).answer(listening, ready))
    finally:
        service.close()


def _run_child(parent: Connection, settings: Settings, listening: socket.socket) -> None:
    """Serve in a child process, and tell its parent that it is ready, or why it is not."""
    try:
        run_process(settings, listening, lambda differs: parent.send((True, differs)))
    except VitkitError as error:
        parent.send((False, str(error)))


def run_processes(count: int, settings: Settings, listening: socket.socket, ready: Ready) -> None:
    """Serve a bundle by several processes until a signal asks to stop; a process that dies is replaced.

    Args:
        count: processes.
        settings, listening, ready: as `run_process` has them.

    Raises:
        VitkitError: a process cannot begin.
    """
    spawn = multiprocessing.get_context("spawn")  # threads of engines do not survive a fork
    children, remarks = list[SpawnProcess](), list[str]()

    def begin() -> SpawnProcess:
        mine, parent = spawn.Pipe(duplex=False)
        child = spawn.Process(target=_run_child, args=(parent, settings, listening))
        child.start()
        parent.close()
        begun, remark = False, "A process of the server ended before it was ready."
        with suppress(EOFError):
            begun, remark = mine.recv()
        if not begun:
            raise VitkitError(remark)
        remarks.append(remark)
        return child

    with stop_signals() as stop, suppress(KeyboardInterrupt):
        try:
            with stop.held():
                children += (begin() for _ in range(count))
                ready(remarks[0])
                while stop.number is None:
                    wait([child.sentinel for child in children], timeout=0.5)
                    for place, child in enumerate(children):
                        if not child.is_alive() and stop.number is None:
                            children[place] = begin()
        finally:
            listening.close()  # or it would accept requests that no process answers
            for child in children:
                child.terminate()
            for child in children:
                child.join(settings.drain + LAST_SECONDS)
                child.kill()
