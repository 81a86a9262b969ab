"""A load of HTTP requests to a server of this machine, and how each was answered.

A closed load has so many clients, each of which sends its next request when the last one is answered. An open
load sends at its own pace, whatever the server does, and counts seconds from when a request was due.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

PATIENCE = 60.0
"""Seconds after which a request counts as lost."""
LOST = 0
"""The status of a request without an answer."""


def post(path: str, body: bytes, content_type: str = "image/jpeg") -> bytes:
    """Write the bytes of a POST."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class Answers:
    """The statuses of requests, the seconds that each took, and the seconds of the whole load."""

    statuses: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    duration: float = 0.0
    without_retry: int = 0
    """Answers of status 503 that do not say when to come again."""

    def add(self, other: "Answers") -> None:
        """Add the requests of another load."""
        self.statuses += other.statuses
        self.seconds += other.seconds
        self.duration += other.duration
        self.without_retry += other.without_retry

    def rate(self) -> float:
        """Return the requests that were answered with 200, a second."""
        return self.statuses.count(200) / self.duration

    def percentile(self, percent: float, status: int = 200) -> float:
        """Return a percentile of the milliseconds of requests of a status; NaN where there are none."""
        chosen = [second for second, each in zip(self.seconds, self.statuses, strict=True) if each == status]
        return 1000 * float(np.percentile(chosen, percent)) if chosen else float("nan")

    def counts(self) -> dict[int, int]:
        """Count the requests by status."""
        return dict(sorted(Counter(self.statuses).items()))


class Client:
    """A connection that stays open between requests, and is opened anew where the server has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes, bytes]:
        """Send a request; return status, head and body, and status `LOST` where no answer came."""
        for _ in range(2):  # an idle connection may be closed at the moment that it is used
            is_fresh = self._streams is None
            try:
                async with asyncio.timeout(PATIENCE):
                    if self._streams is None:
                        self._streams = await asyncio.open_connection("127.0.0.1", self._port)
                    reader, writer = self._streams
                    writer.write(request)
                    head = await reader.readuntil(b"\r\n\r\n")
                    lower = head.lower()
                    length = int(lower.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0] or b"0")
                    body = await reader.readexactly(length)
                    if b"connection: close" in lower:
                        self.close()
                    return int(head.split(b" ", 2)[1]), lower, body
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                self.close()
                if is_fresh:
                    break
        return LOST, b"", b""

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _timed(client: Client, request: bytes, due: float, answers: Answers, keep: bool) -> None:
    status, head, body = await client.ask(request)
    answers.statuses.append(status)
    answers.seconds.append(time.perf_counter() - due)
    answers.without_retry += status == 503 and b"retry-after:" not in head
    if keep:
        answers.bodies.append(body)


async def closed_load(port: int, requests: Sequence[bytes], clients: int, seconds: float) -> Answers:
    """Send requests by so many clients for so many seconds."""
    answers, start, queue = Answers(), time.perf_counter(), itertools.cycle(requests)

    async def send() -> None:
        client = Client(port)
        while (now := time.perf_counter()) < start + seconds:
            await _timed(client, next(queue), now, answers, False)
        client.close()

    await asyncio.gather(*(send() for _ in range(clients)))
    answers.duration = time.perf_counter() - start
    return answers


async def open_load(port: int, requests: Sequence[bytes], rate: float, seconds: float) -> Answers:
    """Send so many requests a second for so many seconds, whether earlier ones are answered or not."""
    answers, idle, queue = Answers(), list[Client](), itertools.cycle(requests)
    tasks, start = set[asyncio.Task[None]](), time.perf_counter()

    async def send(due: float) -> None:
        client = idle.pop() if idle else Client(port)
        await _timed(client, next(queue), due, answers, False)
        idle.append(client)

    for number in range(int(rate * seconds)):
        due = start + number / rate
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(send(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if tasks:
        await asyncio.wait(tasks)
    answers.duration = time.perf_counter() - start
    for client in idle:
        client.close()
    return answers


async def all_answers(port: int, requests: Sequence[bytes], clients: int = 4) -> Answers:
    """Send each request once, in order, by so many clients; the bodies of the answers stand in this order."""
    bodies, answers = dict[int, bytes](), Answers()
    numbered = iter(enumerate(requests))

    async def send() -> None:
        client = Client(port)
        for number, request in numbered:
            status, _, bodies[number] = await client.ask(request)
            answers.statuses.append(status)
        client.close()

    await asyncio.gather(*(send() for _ in range(clients)))
    answers.bodies = [bodies[number] for number in range(len(requests))]
    return answers
