"""Probe images before training: how well their classes are told apart by frozen features, or by pixels.

At most `MOST_IMAGES` training images are looked at, and of features as many as the given seconds allow. Test
images are not touched.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.data.config import Preprocessing
from vitkit.data.listing import class_numbers
from vitkit.data.sources import ImageData, Samples
from vitkit.data.stream.loader import evaluation_batches
from vitkit.errors import VitkitError
from vitkit.evaluation.features import FeatureCache, FeatureExtractor, Features, cached_features
from vitkit.evaluation.fewshot.folds import FOLDS, Folded, cross_validate, fits, mixed_order
from vitkit.listener import Listener
from vitkit.runs.checkpoints import load_model
from vitkit.runs.config import StartConfig
from vitkit.weights.files.cache import cache_folder

MOST_IMAGES = 4_000
"""More take seconds in every fit, and move the accuracy by less than what fine-tuning adds to it."""
LEAST_IMAGES = 2 * FOLDS
CHUNK = 128
"""Images between two looks at the clock; each chunk has a file of its own in the cache."""
PIXEL_SIDE = 12
"""Side in pixels of the small pictures that the probe without a start looks at."""


@dataclass(frozen=True)
class Probe:
    """The accuracy of cross-validated classifiers on some training images."""

    folded: Folded
    image_seconds: float
    """Time that an image took, from file to features; 0 where all came from the cache."""


def probe_features(
    start: StartConfig,
    data: ImageData,
    preprocessing: Preprocessing,
    seconds: float,
    *,
    device: torch.device,
    cache: bool,
    listener: Listener,
) -> Probe:
    """Probe training images by the features of a frozen start.

    Args:
        start: the weights.
        data: the images.
        preprocessing: from an image to the model's input, whose size the model gets.
        seconds: after which no further images are looked at, once there are some.
        device: where the features are computed.
        cache: whether features are kept in the user's cache folder, and taken from it.
        listener: hears the progress.

    Raises:
        VitkitError: the start cannot be loaded, or too few images can be read.
    """
    with listener.progress(f"reading {start.start}"):
        model = load_model(start.start, image_size=preprocessing.image_size, num_heads=start.num_heads)
    extractor = FeatureExtractor(model.to(device), preprocessing, device)
    kept = FeatureCache(cache_folder() / "features", listener.note) if cache else None
    fingerprint = extractor.fingerprint() if kept is not None else ""

    def compute(samples: Samples, indices: NDArray[np.int64]) -> Looked:
        fresh = False

        def anew() -> Features:
            nonlocal fresh
            fresh = True
            return extractor.compute(samples, indices, batch_size=CHUNK)

        found = anew() if kept is None else cached_features(fingerprint, samples, indices, kept, anew)
        return found.rows, found.readable, fresh

    return _probe(data, compute, seconds, f"features by {start.start}", listener)


def probe_pixels(data: ImageData, seconds: float, listener: Listener) -> Probe:
    """Probe training images by their pixels, as small pictures: what can be told without any model."""
    rule = Preprocessing((PIXEL_SIDE, PIXEL_SIDE))

    def compute(samples: Samples, indices: NDArray[np.int64]) -> Looked:
        rejects: dict[str, str] = {}
        batches = list(evaluation_batches(samples, rule, CHUNK, rejects=rejects, indices=indices))
        readable = np.concatenate([batch.mask.numpy() for batch in batches])
        pixels = np.concatenate([batch.images.numpy() for batch in batches])
        return pixels[readable].reshape(int(readable.sum()), -1).astype(np.float32), readable, True

    return _probe(data, compute, seconds, "small pictures", listener)


Looked = tuple[NDArray[np.float32], NDArray[np.bool_], bool]
"""Rows of the readable images, which of all these are, and whether they were computed just now."""


def _probe(
    data: ImageData,
    compute: Callable[[Samples, NDArray[np.int64]], Looked],
    seconds: float,
    what: str,
    listener: Listener,
) -> Probe:
    """Look at training images until the time is over, and cross-validate."""
    samples = data.splits["train"]
    labels = class_numbers(samples.labels)
    order = mixed_order(labels)[:MOST_IMAGES]
    rows: list[NDArray[np.float32]] = []
    known: list[NDArray[np.int64]] = []
    spent, computed, started = 0.0, 0, time.monotonic()
    with listener.progress(what, len(order)) as progress:
        for first in range(0, len(order), CHUNK):
            if rows and time.monotonic() - started > seconds:
                break
            chunk, now = order[first : first + CHUNK], time.monotonic()
            found, readable, fresh = compute(samples, chunk)
            if fresh:
                spent, computed = spent + time.monotonic() - now, computed + len(chunk)
            rows.append(found)
            known.append(chunk[readable])
            progress(first + len(chunk))
    features, indices = np.concatenate(rows), np.concatenate(known)
    if len(indices) < LEAST_IMAGES:
        raise VitkitError(
            f"Expected at least {LEAST_IMAGES} training images that can be read, found {len(indices)} in "
            f"{data.spec}: nothing can be foretold from them. Add images, or look at them with vitkit data "
            "check."
        )
    with listener.progress(f"cross-validation, {what}", fits()) as progress:
        folded = cross_validate(features, labels[indices], len(data.class_names), progress=progress)
    return Probe(folded, spent / computed if computed else 0.0)
