"""Measure the mean and standard deviation of the pixels that a model is trained on."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitkit.data.decode import DecodeError
from vitkit.data.listing import pluralize
from vitkit.data.sources import ImageData
from vitkit.data.transforms import preprocess
from vitkit.errors import VitkitError
from vitkit.listener import Listener
from vitkit.runs.config import Run

MOST_IMAGES = 500
"""Training images, spread evenly, on which they are measured: of 224 x 224 pixels they take seconds."""
LEAST_STD = 1 / 255
"""One level: a channel of equal pixels has a deviation of 0, by which nothing can be divided."""


def with_measured_pixels(run: Run, data: ImageData, listener: Listener) -> Run:
    """Fill in the pixel statistics of a run that asks for them, where they are not given.

    The same images give the same figures, so that the same command again is the same run.

    Raises:
        VitkitError: none of the images looked at can be read.
    """
    start = run.start
    if not start.measure_pixels or (start.image_mean is not None and start.image_std is not None):
        return run
    samples, channels = data.splits["train"], run.preprocessing.decode.channels
    numbers = np.unique(np.linspace(0, len(samples) - 1, MOST_IMAGES).astype(np.int64)).tolist()
    sums, squares, count, readable, reason = np.zeros(channels), np.zeros(channels), 0, 0, ""
    with listener.progress("measuring the pixels", len(numbers)) as progress:
        for done, index in enumerate(numbers, start=1):
            try:
                image = preprocess(samples.decode(index), run.preprocessing)
            except DecodeError as error:
                reason = f"{samples.key(index)}: {error}"
            else:
                levels = image.reshape(-1, channels).astype(np.int64)  # whole numbers: the sums are exact
                sums, squares = sums + levels.sum(0), squares + (levels**2).sum(0)
                count, readable = count + len(levels), readable + 1
            progress(done)
    if not count:
        raise VitkitError(f"The pixels cannot be measured, for no training image can be read. {reason}")
    mean = sums / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    start = replace(
        start,
        image_mean=start.image_mean or _rounded(mean / 255),
        image_std=start.image_std or _rounded(np.maximum(std / 255, LEAST_STD)),
    )
    listener.note(
        f"Pixels: mean {start.image_mean}, std {start.image_std}, on {pluralize(readable, 'training image')}."
    )
    return replace(run, start=start)


def _rounded(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(round(float(value), 4) for value in values)
