"""Unite the images of many requests into batches, which a single thread computes beside the event loop.

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
    """A bounded queue of images and the thread that computes them.

    A batch begins as soon as the thread is free and no other image is being decoded, and at the latest
    `delay` seconds after the first of its images is there, so that a lone request never waits for others.

    Args:
        compute: computes a batch; called in the thread alone.
        size: the most images of a batch.
        delay: the most seconds that an image waits for others while the thread is free.
        queue: the most images that are accepted and not answered.
    """

    def __init__(self, compute: Compute, *, size: int, delay: float, queue: int) -> None:
        self._compute, self._size, self._delay, self.queue = compute, size, delay, queue
        self._waiting: deque[Waiting] = deque()
        self._changed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "vitkit-compute")
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
        loop = asyncio.get_running_loop()
        while True:
            if not (batch := await self._gather()):
                await self._changed.wait()
                continue
            start = time.perf_counter()
            try:
                images = [waiting.image for waiting in batch]
                rows = await loop.run_in_executor(self._thread, self._compute_all, images)
            except Exception as error:
                for waiting in batch:
                    if not waiting.outputs.done():
                        waiting.outputs.set_exception(error)
                continue
            rate = len(batch) / (time.perf_counter() - start)
            # The first batch sets the rate; later ones move it by a fifth: a slow one does little.
            self._rate = rate if not self.batches else 0.8 * self._rate + 0.2 * rate
            self.batches, self.computed = self.batches + 1, self.computed + len(batch)
            for waiting, row in zip(batch, rows, strict=True):
                if not waiting.outputs.done():
                    waiting.outputs.set_result(row)

    def _compute_all(self, images: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
        return self._compute(np.stack(images))

    async def _gather(self) -> list[Waiting]:
        """Wait for a batch within its delay, and take its images; images of gone clients are dropped."""
        loop = asyncio.get_running_loop()
        self._changed.clear()
        while self._waiting and self._preparing and len(self._waiting) < self._size:
            left = self._waiting[0].since + self._delay - loop.time()
            if left <= 0:
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
            self._changed.clear()
        batch: list[Waiting] = []
        while self._waiting and len(batch) < self._size:
            waiting = self._waiting.popleft()
            if not waiting.outputs.done():
                batch.append(waiting)
        return batch

    def close(self) -> None:
        """End the thread once its batch is computed."""
        self._thread.shutdown()
