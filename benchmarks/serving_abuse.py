#!/usr/bin/env python
"""`vitkit serve` under abuse: malformed, slow, broken and too many requests, image bombs, and SIGTERM.

    python -m benchmarks.serving_abuse BUNDLE [--malformed 20000] [--slow 1000] [--times 10] [--seconds 600]

Run from the repository's root. Each row says what was sent, how it was answered, and the resident memory of
the server before and after. It ends with 1 where an answer is a 5xx other than 503, a 503 does not say when
to come again, or the server did not end with 0. Requests stay on this machine.
"""

import argparse
import asyncio
import io
import random
import re
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.load import LOST, Answers, Client, all_answers, closed_load, open_load, post
from PIL import Image

PORT = 8191
AT_A_TIME = 64
"""Malformed requests that are under way together."""
CALM = 5
"""Times the median of a server without load: what counts as recovered."""


def resident_mb(process: int) -> float:
    """Return the resident memory of a process and its children in MB."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    text = Path(f"/proc/{process}/status").read_text()
    own = int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1000
    return own + sum(resident_mb(int(child)) for child in children)


def mutate(request: bytes, chance: random.Random) -> bytes:
    """Damage a request: its bytes, its length, its head, or its end."""
    kind, damaged = chance.randrange(7), bytearray(request[: chance.choice((200, 2000, len(request)))])
    if kind == 0:
        return chance.randbytes(chance.randrange(1, 600)) + b"\r\n\r\n"
    if kind == 1:
        return bytes(damaged[: chance.randrange(1, len(damaged))])
    head, _, body = bytes(damaged).partition(b"\r\n\r\n")
    if kind == 2:
        body = chance.randbytes(chance.randrange(2000))
        return post("/predict", body, chance.choice(("image/jpeg", "application/json", "text/html", "\x7f")))
    if kind == 3:
        lengths = (b"-1", b"9" * 30, b"0x10", b"1, 2", b"", b"5", b" 7")
        head = re.sub(rb"Content-Length: \d+", b"Content-Length: " + chance.choice(lengths), head)
    elif kind == 4:
        head += b"\r\nTransfer-Encoding: " + chance.choice((b"chunked", b"gzip", b"chunked, chunked"))
    elif kind == 5:
        head = head.replace(
            b"/predict", chance.choice((b"/%00", b"//", b"/v2/models/x/infer", b"/..%2f..", b"*"))
        )
    else:
        for _ in range(chance.randrange(1, 20)):
            place = chance.randrange(len(damaged))
            damaged[place] = chance.randrange(256)
        return bytes(damaged)
    return head + b"\r\n\r\n" + body


async def send_raw(data: bytes, patience: float) -> int:
    """Send bytes, and no more; return the status of the answer, `LOST` where none comes."""
    with suppress(OSError, TimeoutError, ValueError, IndexError):
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
            try:
                writer.write(data)
                if writer.can_write_eof():
                    await writer.drain()
                return int((await reader.readline()).split()[1])
            finally:
                writer.close()
    return LOST


async def send_malformed(requests: Sequence[bytes], count: int) -> Answers:
    """Send so many damaged requests."""
    chance, answers, left = random.Random(0), Answers(), iter(range(count))

    async def send() -> None:
        for _ in left:
            # Most of those without an answer are unfinished: the server's patience is not waited for.
            answers.statuses.append(await send_raw(mutate(chance.choice(requests), chance), 1.0))

    await asyncio.gather(*(send() for _ in range(AT_A_TIME)))
    return answers


async def beside_slow_clients(requests: Sequence[bytes], count: int, seconds: float) -> Answers:
    """Send good requests beside so many clients that stop in the middle of theirs."""
    writers = list[asyncio.StreamWriter]()
    for number in range(count):
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", PORT)
            whole = requests[number % len(requests)]
            writer.write(whole[: (30, len(whole) // 2, len(whole) - 1)[number % 3]])
            writers.append(writer)
    answers = await closed_load(PORT, requests, 4, seconds)
    for writer in writers:
        writer.close()
    return answers


async def send_and_go(requests: Sequence[bytes], count: int) -> Answers:
    """Send so many whole requests, and close each connection at once."""
    for number in range(count):
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", PORT)
            writer.write(requests[number % len(requests)])
            await writer.drain()
            writer.transport.abort()
    return Answers([LOST] * count)


def bombs() -> list[bytes]:
    """Make files that are small and promise, or hold, very many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def png(width: int, height: int, data: bytes) -> bytes:
        head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data) + chunk(b"IEND", b"")

    zeros = zlib.compress(bytes(60_000_000), 9)
    files = [
        png(60_000, 60_000, zeros),
        png(2**31 - 1, 2**31 - 1, zeros),
        png(5000, 4000, zeros),
        png(1, 25_000_000, zeros),
    ]
    for format_name, size in (
        ("JPEG", (5000, 5000)),
        ("WEBP", (5000, 5000)),
        ("GIF", (5000, 5000)),
        ("TIFF", (9000, 9000)),
    ):
        stream = io.BytesIO()
        options = (
            {"progressive": True}
            if format_name == "JPEG"
            else {"compression": "tiff_lzw"}
            if format_name == "TIFF"
            else {}
        )
        Image.new("RGB", size).save(stream, format_name, **options)
        files.append(stream.getvalue())
    return files


async def recover(request: bytes, median_ms: float) -> Answers:
    """Send a request after the other until an answer takes no longer than usual."""
    answers, client, start = Answers(), Client(PORT), time.perf_counter()
    while time.perf_counter() - start < 60:
        before = time.perf_counter()
        answers.statuses.append((await client.ask(request))[0])
        if answers.statuses[-1] == 200 and 1000 * (time.perf_counter() - before) <= CALM * median_ms:
            break
    client.close()
    answers.duration = time.perf_counter() - start
    return answers


def main() -> None:
    """Start a server, abuse it, and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("bundle")
    parser.add_argument("--malformed", type=int, default=20_000)
    parser.add_argument("--slow", type=int, default=1_000)
    parser.add_argument("--times", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=600.0)
    given = parser.parse_args()
    files = sorted((Path(given.bundle) / "golden").iterdir())
    requests = [post("/predict", path.read_bytes()) for path in files]
    command = [sys.executable, "-m", "vitkit", "serve", given.bundle, "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wrong = list[str]()

    def row(name: str, work: Callable[[], Awaitable[Answers]]) -> Answers:
        before, start = resident_mb(server.pid), time.perf_counter()
        answers = asyncio.run(_awaited(work))
        took, after, counts = time.perf_counter() - start, resident_mb(server.pid), answers.counts()
        wrong.extend(f"{name}: {status}" for status in counts if status >= 500 and status != 503)
        wrong.extend([f"{name}: 503 without Retry-After"] if answers.without_retry else [])
        print(f"{name:34}{took:>6.0f} s {before:>6.0f} to {after:>5.0f} MB  {counts}", flush=True)
        return answers

    while asyncio.run(all_answers(PORT, requests[:1], 1)).statuses != [200]:
        if server.poll() is not None:
            raise SystemExit(server.stdout.read() if server.stdout else "")
        time.sleep(0.5)
    calm = row("a client alone, 5 s", lambda: closed_load(PORT, requests, 1, 5))
    full = row("8 clients, 10 s: the capacity", lambda: closed_load(PORT, requests, 8, 10))
    capacity, median = full.rate(), calm.percentile(50)
    print(f"  alone p50 {median:.0f} ms; capacity {capacity:.1f}/s, p99 {full.percentile(99):.0f} ms")
    row(f"{given.malformed:,} malformed requests", lambda: send_malformed(requests, given.malformed))
    row(f"4 clients, {given.slow:,} slow ones", lambda: beside_slow_clients(requests, given.slow, 15))
    row(f"{given.slow:,} clients that go at once", lambda: send_and_go(requests, given.slow))
    bad = [post("/predict", bomb) for bomb in 5 * bombs()]
    row("image bombs, each 5 times", lambda: all_answers(PORT, bad))
    rate, seconds = given.times * capacity, given.seconds
    name = f"{given.times:g} times the capacity, {seconds:.0f} s"
    flood = row(name, lambda: open_load(PORT, requests, rate, seconds))
    p50, p99 = (flood.percentile(percent, 503) for percent in (50, 99))
    share = flood.rate() / capacity
    print(f"  {rate:.0f}/s sent, {flood.rate():.1f}/s answered ({share:.0%} of the capacity), ")
    print(f"  p99 {flood.percentile(99):.0f} ms; 503 after {p50:.1f} ms (p50) and {p99:.1f} ms (p99)")
    recovery = row("until as fast as before", lambda: recover(requests[0], median))
    print(f"  {recovery.duration:.1f} s")
    row("8 clients, 10 s, after all", lambda: closed_load(PORT, requests, 8, 10))

    async def stop_under_load() -> Answers:
        load = asyncio.create_task(closed_load(PORT, requests, 8, 6))
        await asyncio.sleep(2)
        server.send_signal(signal.SIGTERM)
        return await load

    metrics = asyncio.run(all_answers(PORT, [b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"], 1)).bodies[0]
    key = rb'vitkit_requests_total\{route="predict",status="200"\} (\d+)'
    counted_before = int(re.findall(key, metrics)[0])
    last = asyncio.run(stop_under_load())
    printed, _ = server.communicate(timeout=60)
    counted = int(re.findall(r"Stopped\. ([\d,]+) requests? answered", printed)[0].replace(",", ""))
    print(f"SIGTERM beside 8 clients: exit {server.returncode}; {last.counts()}; the server answered")
    print(f"  {counted - counted_before} of these, and {last.statuses.count(200)} answers arrived")
    wrong += [f"exit {server.returncode}"] if server.returncode else []
    wrong += ["answers lost"] if counted - counted_before != last.statuses.count(200) else []
    print("wrong:", "; ".join(wrong) or "nothing")
    raise SystemExit(bool(wrong))


async def _awaited(work: Callable[[], Awaitable[Answers]]) -> Answers:
    return await work()


if __name__ == "__main__":
    main()
