"""Unite the images of many requests into batches, which threads compute beside the event loop.

Accepted images are bounded: more are refused at once, with the seconds after which it pays to come again. A
request whose client has gone is cancelled, and its images are not computed.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import VitkitError

Compute = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
"""A function from images `(B, C, H, W)` to outputs `(B, K)`."""
LONGEST_RETRY = 60
"""Most seconds that a client is sent away for: by then the load may be another."""


class BusyError(VitkitError):
    """No image is accepted now.

    Args:
        retry_after: seconds after which the images before it are likely to be answered.
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"The server is busy: send this again in {retry_after} s.")
        self.retry_after = retry_after


class Waiting(NamedTuple):
    """A preprocessed image that waits for its batch."""

    since: float
    """The time of the event loop."""
    image: NDArray[np.uint8]
    """`(C, H, W)`."""
    outputs: "asyncio.Future[NDArray[np.float32]]"
    """Its outputs `(K,)`; cancelled where the client has gone."""


class Batches:
    """A bounded queue of images and the threads that compute them.

    A batch begins as soon as a thread is free and no other image is being decoded, and at the latest
    `delay` seconds after the first of its images is there, so that a lone request never waits for others.
    Fewer images than the processor has cores are computed by all cores; more are divided among the threads,
    each of which computes a batch of its own: no core then waits for another.

    Args:
        compute: computes a batch with all cores.
        side_by_side: computes a batch with one core; None where there is one core in all.
        threads: the batches that `side_by_side` computes at a time.
        size: the most images of a batch.
        delay: the most seconds that an image waits for others while a thread is free.
        queue: the most images that are accepted and not answered.
    """

    def __init__(
        self,
        compute: Compute,
        side_by_side: Compute | None = None,
        threads: int = 1,
        *,
        size: int,
        delay: float,
        queue: int,
    ) -> None:
        self._compute, self._side_by_side = compute, side_by_side or compute
        self._size, self._delay, self.queue = size, delay, queue
        self._waiting: deque[Waiting] = deque()
        self._changed = asyncio.Event()
        self._threads = ThreadPoolExecutor(threads, "vitkit-compute")
        self._cores = self._idle_cores = threads
        self._rate = 1.0  # images a second; a guess, until the first batch is computed
        self._preparing = 0
        self.accepted = self.computed = self.batches = 0

    def refuse_more(self, count: int = 1) -> None:
        """Refuse further images where the queue has no place for so many.

        Raises:
            BusyError: it has none.
        """
        if self.accepted + count > self.queue:
            seconds = math.ceil(self.accepted / self._rate)
            raise BusyError(max(1, min(seconds, LONGEST_RETRY)))

    @contextmanager
    def accept(self, count: int) -> Iterator[None]:
        """Hold a place for images of a request while the block lasts.

        Raises:
            BusyError: the queue has no place for them.
        """
        self.refuse_more(count)
        self.accepted += count
        try:
            yield
        finally:
            self.accepted -= count

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Have a batch wait, within its delay, for an image that is decoded in the block."""
        self._preparing += 1
        try:
            yield
        finally:
            self._preparing -= 1
            self._changed.set()

    async def outputs(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the outputs `(K,)` of an image `(C, H, W)`; a cancelled one is not computed."""
        loop = asyncio.get_running_loop()
        waiting = Waiting(loop.time(), image, loop.create_future())
        self._waiting.append(waiting)
        self._changed.set()
        return await waiting.outputs

    async def run(self) -> None:
        """Compute batches until cancelled."""
        async with asyncio.TaskGroup() as computing:
            while True:
                self._changed.clear()
                if self._idle_cores and self._waiting:
                    await self._gather()
                    batch, cores = self._take()
                    if batch:  # their clients may all have gone
                        self._idle_cores -= cores
                        computing.create_task(self._answer(batch, cores))
                else:
                    await self._changed.wait()

    async def _answer(self, batch: list[Waiting], cores: int) -> None:
        """Compute a batch by so many cores, and hand out its outputs."""
        compute = self._compute if cores == self._cores else self._side_by_side
        start, images = time.perf_counter(), [waiting.image for waiting in batch]
        try:
            loop = asyncio.get_running_loop()
            rows = await loop.run_in_executor(self._threads, lambda: compute(np.stack(images)))
        except Exception as error:
            for waiting in batch:
                if not waiting.outputs.done():
                    waiting.outputs.set_exception(error)
            return
        finally:
            self._idle_cores += cores
            self._changed.set()
        rate = len(batch) / (time.perf_counter() - start) * self._cores / cores
        # The first batch sets the rate; later ones move it by a fifth: a slow one does little.
        self._rate = rate if not self.batches else 0.8 * self._rate + 0.2 * rate
        self.batches, self.computed = self.batches + 1, self.computed + len(batch)
        for waiting, row in zip(batch, rows, strict=True):
            if not waiting.outputs.done():
                waiting.outputs.set_result(row)

    async def _gather(self) -> None:
        """Wait for the images of a batch, within its delay."""
        loop = asyncio.get_running_loop()
        while self._waiting and self._preparing and len(self._waiting) < self._size:
            left = self._waiting[0].since + self._delay - loop.time()
            if left <= 0:
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
            self._changed.clear()

    def _take(self) -> tuple[list[Waiting], int]:
        """Take the images of a batch and the cores for it; images of gone clients are dropped."""
        waiting, is_idle = len(self._waiting), self._idle_cores == self._cores
        cores = self._cores if is_idle and waiting < self._cores else 1
        share = min(self._size, math.ceil(waiting * cores / self._idle_cores))
        batch: list[Waiting] = []
        while self._waiting and len(batch) < share:
            image = self._waiting.popleft()
            if not image.outputs.done():
                batch.append(image)
        return batch, cores

    def close(self) -> None:
        """End the threads once their batches are computed."""
        self._threads.shutdown()
