#!/usr/bin/env python
"""`vitkit serve` beside LitServe and BentoML: requests a second, and how long each waits.

    python -m benchmarks.serving BUNDLE [--clients 1 8 32] [--seconds 10] [--rounds 3] [--json FILE]

Run from the repository's root with fastapi, uvicorn, litserve and bentoml installed. All serve the same
bundle with the same engine and threads, and take turns within a round; the others are paused meanwhile, as
an idle LitServe uses 9 % of a core. The golden images of the bundle are sent; all must give the
same best classes. Requests stay on this machine.
"""

import argparse
import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from benchmarks.load import Answers, all_answers, closed_load, post

from vitkit.jobs.bench import describe_machine

PORTS = {"vitkit": 8181, "litserve": 8182, "bentoml": 8183}
WAIT = 180
"""Seconds within which a server must answer: a loaded machine starts slowly."""


def command(name: str, bundle: str, port: int) -> list[str]:
    """Return the command that serves a bundle."""
    python = [sys.executable, "-m"]
    return {
        "vitkit": [*python, "vitkit", "serve", bundle, "--port", str(port)],
        "litserve": [*python, "benchmarks.serving_litserve", str(port)],
        "bentoml": [*python, "bentoml", "serve", "benchmarks.serving_bentoml:Bento", "-p", str(port)],
    }[name]


def request(name: str, content: bytes) -> bytes:
    """Write the request of an image, as each server takes it."""
    if name == "vitkit":
        return post("/predict", content)
    text = base64.b64encode(content).decode()
    body = {"image": text} if name == "litserve" else {"images": [text]}
    return post("/predict", json.dumps(body).encode(), "application/json")


def best_class(body: bytes) -> str:
    """Read the best class of an answer."""
    answer = json.loads(body)
    answer = answer[0] if isinstance(answer, list) else answer
    return str(answer["predictions"][0]["class"])


@contextmanager
def serving(name: str, bundle: str, warm: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """Serve a bundle while the block lasts; yields the process, which leads a group of its own.

    Args:
        name: the server.
        bundle: the folder.
        warm: a request that it must answer first.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        bentoml = {"BENTOML_HOME": folder, "BENTOML_DO_NOT_TRACK": "True"}
        process = subprocess.Popen(
            command(name, bundle, PORTS[name]),
            env=os.environ | bentoml | {"BUNDLE": bundle},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + WAIT
            while asyncio.run(all_answers(PORTS[name], [warm], 1)).statuses != [200]:
                if process.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    raise SystemExit(f"{name} does not answer:\n{log.read().decode()[-2000:]}")
                time.sleep(0.5)
            yield process
        finally:
            os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def measure(
    bundle: str, contents: Sequence[bytes], clients: Sequence[int], seconds: float, rounds: int
) -> dict[tuple[str, int], Answers]:
    """Load the servers by turns; return the answers by server and number of clients."""
    names = [name for name in PORTS if name == "vitkit" or find_spec(name) is not None]
    requests = {name: [request(name, content) for content in contents] for name in names}
    measured = {(name, count): Answers() for name in names for count in clients}
    with ExitStack() as stack:
        processes = {name: stack.enter_context(serving(name, bundle, requests[name][0])) for name in names}
        answers = {name: asyncio.run(all_answers(PORTS[name], requests[name], 1)) for name in names}
        classes = {name: [best_class(body) for body in answers[name].bodies] for name in names}
        if any(given != classes["vitkit"] for given in classes.values()):
            raise SystemExit(f"The servers give other classes: {classes}")
        for process in processes.values():
            os.killpg(process.pid, signal.SIGSTOP)
        for number in range(rounds):
            for count in clients:
                for place in range(len(names)):  # in another order each round
                    name = names[(number + place) % len(names)]
                    os.killpg(processes[name].pid, signal.SIGCONT)
                    asyncio.run(closed_load(PORTS[name], requests[name], count, 1.0))  # after the pause
                    load = closed_load(PORTS[name], requests[name], count, seconds)
                    measured[name, count].add(asyncio.run(load))
                    os.killpg(processes[name].pid, signal.SIGSTOP)
    return measured


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("bundle")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    contents = [path.read_bytes() for path in sorted((Path(given.bundle) / "golden").iterdir())]
    measured = measure(given.bundle, contents, given.clients, given.seconds, given.rounds)
    print(f"{'server':10}{'clients':>8}{'requests/s':>12}{'p50 ms':>10}{'p99 ms':>10}  statuses")
    rows = []
    for (name, count), answers in sorted(measured.items(), key=lambda item: item[0][1]):
        row: dict[str, Any] = {
            "server": name,
            "clients": count,
            "rate": answers.rate(),
            "p50": answers.percentile(50),
            "p99": answers.percentile(99),
            "statuses": answers.counts(),
        }
        rows.append(row)
        print("{server:10}{clients:>8}{rate:>12.1f}{p50:>10.1f}{p99:>10.1f}  {statuses}".format(**row))
    if given.json:
        given.json.write_text(
            json.dumps({"machine": describe_machine(torch.device("cpu"), None), "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
