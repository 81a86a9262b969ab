"""The configuration of the image loader. It needs no torch."""

import math
from dataclasses import dataclass
from typing import Literal

from vitkit.config import require_finite
from vitkit.errors import VitkitError

WORKER_TIMEOUT = 600.0
"""Default seconds to wait for a batch before the process that loads it is considered stuck."""


@dataclass(frozen=True)
class Loading:
    """The loading of images; these options do not change the result of training."""

    workers: int | None = None
    """Processes that decode images which are not kept in memory; left out, one for each CPU core. With 0 the
    main process decodes."""
    memory_gib: float = 2.0
    """Size in GiB up to which the decoded images of a split are kept in memory; with 0 they are read from
    disk every time."""
    bad_quota: float = 0.05
    """Fraction of the training files, from 0 to 1, that may be unreadable before training stops."""
    check_images: Literal["time", "content", "names"] = "time"
    """The property of every image file that must be unchanged when a run is continued. time: its size and
    time of change. content: all of its bytes, which are then read at every start. names: only its name."""
    worker_timeout: float = WORKER_TIMEOUT
    """Seconds to wait for a batch before the process that loads it is considered stuck, which ends the run; 0
    waits for ever."""

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
