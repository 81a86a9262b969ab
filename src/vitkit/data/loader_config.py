"""How images get to the model: the configuration of the loader. It needs no torch."""

import math
from dataclasses import dataclass
from typing import Literal

from vitkit.config import require_finite
from vitkit.errors import VitkitError

WORKER_TIMEOUT = 600.0
"""Seconds that a batch is waited for, where nothing else is given, before its worker is taken to hang."""


@dataclass(frozen=True)
class Loading:
    """How images get to the model; changes nothing in the result."""

    workers: int | None = None
    """Processes that decode images, where they are not kept in memory; left out, one for each core."""
    memory_gib: float = 2.0
    """Up to this size the decoded images of a split are kept in memory."""
    bad_quota: float = 0.05
    """Share of the training files that may be unreadable before training stops."""
    check_images: Literal["time", "content", "names"] = "time"
    """What must be the same in every image file when a run is continued: its size and time of change; all its
    bytes, which are then read at every start; or its name alone, whatever became of the file."""
    worker_timeout: float = WORKER_TIMEOUT
    """Seconds that a batch is waited for before the process that makes it is taken to hang, which ends the
    run; 0 waits for ever."""

    def __post_init__(self) -> None:
        require_finite(self)
        if (self.workers or 0) < 0 or self.memory_gib < 0 or not 0 <= self.bad_quota <= 1:
            raise VitkitError(
                "Expected workers and memory_gib of 0 or more and a bad_quota from 0 to 1, found "
                f"{self.workers}, {self.memory_gib} and {self.bad_quota}."
            )
        if not 0 <= self.worker_timeout < math.inf:
            raise VitkitError(
                f"Expected a worker_timeout of 0 seconds (no limit) or more, found {self.worker_timeout}."
            )
