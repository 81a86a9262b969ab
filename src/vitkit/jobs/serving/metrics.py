"""Count what a server does, and write it as Prometheus reads it, summed over its processes.

Each process counts in a file of its own in a folder that all share, so that any of them answers for all, and
the counters of a process that was replaced stay. The format is Prometheus' text format 0.0.4.
"""

import os
from bisect import bisect_left
from itertools import product
from pathlib import Path

import numpy as np

STATUSES = (200, 400, 401, 404, 405, 408, 411, 413, 422, 499, 500, 503)
"""Codes that are counted by their number; 499 is a client that has gone. Others count as 500."""
ROUTES = ("predict", "infer", "other")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, float("inf"))
"""Upper bounds in seconds: Prometheus' own defaults, which its rules and panels expect."""
HELP = {
    "vitkit_requests_total": ("counter", "Requests by route and status; 499: the client has gone."),
    "vitkit_images_total": ("counter", "Images computed."),
    "vitkit_batches_total": ("counter", "Batches computed."),
    "vitkit_queue_images": ("gauge", "Images accepted and not answered."),
    "vitkit_request_seconds": ("histogram", "Seconds from a request's head to its answer, of status 200."),
}
SECONDS = "vitkit_request_seconds"
KEYS = (
    *(
        f'vitkit_requests_total{{route="{route}",status="{status}"}}'
        for route, status in product(ROUTES, STATUSES)
    ),
    *("vitkit_images_total", "vitkit_batches_total", "vitkit_queue_images"),
    *(f'{SECONDS}_bucket{{le="{"+Inf" if bound == BUCKETS[-1] else f"{bound:g}"}"}}' for bound in BUCKETS),
    *(f"{SECONDS}_sum", f"{SECONDS}_count"),
)
"""Every line of the text, without its number."""
PLACES = {key: place for place, key in enumerate(KEYS)}
_FIRST_BUCKET = len(KEYS) - len(BUCKETS) - 2  # two lines stand behind the buckets


class Metrics:
    """The counters of this process, and of the others that count in the same folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = folder / str(os.getpid())
        self._own = np.memmap(path, np.float64, "w+", shape=(len(KEYS),))

    def set(self, key: str, number: float) -> None:
        """Set a number of this process by its line."""
        self._own[PLACES[key]] = number

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request that took so many seconds."""
        status = status if status in STATUSES else 500
        self._own[PLACES[f'vitkit_requests_total{{route="{route}",status="{status}"}}']] += 1
        if status == 200 and route != "other":
            # The buckets of the text are sums: every bound that is not below it.
            self._own[_FIRST_BUCKET + bisect_left(BUCKETS, seconds) : -2] += 1
            self._own[-2:] += (seconds, 1)

    def text(self) -> str:
        """Write all numbers in Prometheus' text format."""
        lines, totals = list[str](), read_totals(self._folder)
        for name, (kind, text) in HELP.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{key} {number:.10g}" for key, number in totals.items() if key.startswith(name)]
        return "\n".join([*lines, ""])


def read_totals(folder: Path) -> dict[str, float]:
    """Sum the numbers of all processes that count in a folder, by their lines.

    A process that has ended has no queue any more.
    """
    total = np.zeros(len(KEYS))
    for path in folder.iterdir():
        numbers = np.fromfile(path, np.float64)
        if not Path(f"/proc/{path.name}").exists() and Path("/proc/self").exists():
            numbers[PLACES["vitkit_queue_images"]] = 0
        total += numbers
    return dict(zip(KEYS, total.tolist(), strict=True))
