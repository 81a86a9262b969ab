"""A model of `vitkit export` that answers requests: decoding in threads, computing in a thread of its own.

Nothing here knows HTTP; `application.py` does. Nothing imports torch.
"""

import asyncio
import re
import shlex
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.decode.image import decode
from vitkit.data.transforms import preprocess
from vitkit.engines.folder import EngineModel, serve_folder
from vitkit.engines.golden import check_golden, read_golden
from vitkit.errors import DecodeError
from vitkit.jobs.predict import Predictor
from vitkit.jobs.serving.batches import Batches
from vitkit.jobs.serving.inference_protocol import image_shape
from vitkit.jobs.serving.metrics import Metrics
from vitkit.tasks.answering import Answer
from vitkit.world import usable_processors

DECODERS = 4
"""Most threads that decode: each may hold an image of the largest size."""


@dataclass(frozen=True)
class Settings:
    """The settings of a server, which `vitkit.serve` describes."""

    bundle: Path
    counts: Path
    """A folder for the counters of all processes."""
    batch_size: int
    delay: float
    """Seconds."""
    queue: int
    max_bytes: int
    max_pixels: int
    max_images: int
    """Most images of one request."""
    key: str | None
    drain: float
    """Seconds."""
    threads: int = 1
    """Threads that compute."""


class Service:
    """A model with its golden set checked, its threads and its queue.

    Raises:
        VitkitError: the bundle cannot be read.
    """

    def __init__(self, settings: Settings) -> None:
        self.name = re.sub(r"[^\w.-]", "-", settings.bundle.resolve().name)  # a part of addresses
        self.settings, self.draining = settings, False
        self.metrics = Metrics(settings.counts)
        self.predictor = Predictor(settings.bundle, max_pixels=settings.max_pixels)
        model = self.predictor.model
        assert isinstance(model, EngineModel)  # the job takes bundles alone
        self.model = model
        self.levels = check_golden(model, read_golden(settings.bundle))
        failed = "; ".join(f"{level.name}: {level}" for level in self.levels if not level.passed)
        self.differs = failed and (
            f"This machine computes other answers than the exporting one ({failed}). Look at it by: vitkit "
            f"export --check {shlex.quote(str(settings.bundle))}"
        )
        """The reason why nothing is answered: the golden set does not pass. Empty where it does."""
        self.held_bytes = 0
        """Bytes of request bodies in memory."""
        size, compute, threads = settings.batch_size, self.predictor.compute, settings.threads
        side_by_side = compute
        if threads > 1:  # another copy of the weights
            side_by_side = serve_folder(settings.bundle, threads, side_by_side=True)[0].with_novelty
        self.batches = Batches(
            compute, side_by_side, threads, size=size, delay=settings.delay, queue=settings.queue
        )
        self._decoders = ThreadPoolExecutor(min(DECODERS, usable_processors()), "vitkit-decode")
        # The first images of a size of batch wait for memory, or for a compilation: not a client's. A size
        # that comes twice running may get a graph of its own.
        usual = 1 if threads > 1 else size
        for count in (usual, usual, *range(1, size + 1)):
            for computing in {compute, side_by_side}:
                computing(np.zeros((count, *image_shape(model)), np.uint8))

    def explain_unready(self) -> str | None:
        """Say why this server should get no more requests; None where it is ready."""
        if self.draining:
            return "The server is stopping: it answers what it has accepted."
        return self.differs or None

    async def outputs(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Compute outputs `(n, K)`, with the scores of a `Novelty` behind them `(n, K + 1)`, of images
        `(n, C, H, W)`.

        Raises:
            BusyError: the queue has no place for them.
        """
        with self.batches.accept(len(images)):
            return np.stack(await asyncio.gather(*map(self.batches.outputs, images)))

    async def answer(self, contents: Sequence[bytes], top: int) -> list[Answer | DecodeError]:
        """Answer encoded images; a file that cannot be read has its error.

        Raises:
            BusyError: the queue has no place for them.
            VitkitError: the logits are not finite.
        """
        with self.batches.accept(len(contents)):
            rows = await asyncio.gather(*map(self._outputs_of, contents))
        readable = [row for row in rows if not isinstance(row, DecodeError)]
        answers = iter(self.predictor.answers(np.stack(readable), top) if readable else [])
        return [row if isinstance(row, DecodeError) else next(answers) for row in rows]

    async def _outputs_of(self, content: bytes) -> NDArray[np.float32] | DecodeError:
        loop = asyncio.get_running_loop()
        with self.batches.preparing():
            try:
                image = await loop.run_in_executor(self._decoders, self._read, content)
            except DecodeError as error:
                return error
        return await self.batches.outputs(image)

    def _read(self, content: bytes) -> NDArray[np.uint8]:
        rule = self.predictor.preprocessing
        return preprocess(decode(content, rule.decode), rule).transpose(2, 0, 1)

    def describe(self, answer: Answer | DecodeError) -> dict[str, Any]:
        """Make the JSON of an image, as `vitkit predict --json` writes it."""
        if isinstance(answer, DecodeError):
            return {"error": str(answer)}
        return self.predictor.answering.guess_json(answer)

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request, and what was computed until now."""
        self.metrics.count_request(route, status, seconds)
        self.metrics.set("vitkit_images_total", self.batches.computed)
        self.metrics.set("vitkit_batches_total", self.batches.batches)
        self.metrics.set("vitkit_queue_images", self.batches.accepted)

    def close(self) -> None:
        """End the threads."""
        self._decoders.shutdown()
        self.batches.close()
