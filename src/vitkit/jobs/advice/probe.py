"""Probe training images: how well frozen features, or small pictures, tell their classes apart.

At most `MOST_IMAGES` training images take part, and only as many as some seconds allow. Test images do not.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.data.config import Preprocessing
from vitkit.data.listing import class_numbers
from vitkit.data.sources import ImageData, Samples
from vitkit.data.stream.loader import evaluation_batches
from vitkit.errors import VitkitError
from vitkit.evaluation.features import FeatureCache, FeatureExtractor, Features, cached_features
from vitkit.evaluation.fewshot.folds import FITS, FOLDS, Folded, cross_validate, mixed_order
from vitkit.listener import Listener
from vitkit.runs.config import Run
from vitkit.runs.start import load_model
from vitkit.weights.files.hub import cache_folder

MOST_IMAGES = 4_000
"""More images take seconds in every fit, and move the accuracy by less than fine-tuning adds to it."""
LEAST_IMAGES = 2 * FOLDS
CHUNK = 128
"""Images between two looks at the clock; each chunk has a file of its own in the cache."""
PIXEL_SIDE = 12
"""Side in pixels of the small pictures of the probe without a start."""


def probe_features(
    run: Run, data: ImageData, seconds: float, *, device: torch.device, cache: bool, listener: Listener
) -> Folded:
    """Probe training images by the features of a frozen start.

    Args:
        run: the fine-tuning of the start; the model is fitted to its image size.
        data: the images.
        seconds: after which no further chunk of images is begun.
        device: where the features are computed.
        cache: whether features are kept in the user's cache folder, and taken from it.
        listener: hears the progress.

    Raises:
        VitkitError: the start cannot be loaded, or too few images can be read.
    """
    start = run.start
    with listener.progress(f"reading {start.start}"):
        model = load_model(
            start.start,
            image_size=run.preprocessing.image_size,
            num_heads=start.num_heads,
            position_interpolation=start.position_interpolation,
        )
    extractor = FeatureExtractor(model.to(device), run.preprocessing, device, batch_size=CHUNK)
    stored = FeatureCache(cache_folder() / "features", listener.note) if cache else None
    fingerprint = extractor.fingerprint() if stored is not None else ""

    def compute(samples: Samples, indices: NDArray[np.int64]) -> Chunk:
        def anew() -> Features:
            return extractor.compute(samples, indices)

        features = cached_features(fingerprint, samples, indices, stored, anew)
        return features.rows, features.readable

    return _probe(data, compute, seconds, f"features by {start.start}", listener)


def probe_pixels(data: ImageData, seconds: float, listener: Listener) -> Folded:
    """Probe training images by their pixels, as small pictures: the accuracy without any model."""
    rule = Preprocessing((PIXEL_SIDE, PIXEL_SIDE))

    def compute(samples: Samples, indices: NDArray[np.int64]) -> Chunk:
        rejects: dict[str, str] = {}
        batches = list(evaluation_batches(samples, rule, CHUNK, rejects=rejects, indices=indices))
        readable = np.concatenate([batch.mask.numpy() for batch in batches])
        pixels = np.concatenate([batch.images.numpy() for batch in batches])
        return pixels[readable].reshape(int(readable.sum()), -1).astype(np.float32), readable

    return _probe(data, compute, seconds, "small pictures", listener)


Chunk = tuple[NDArray[np.float32], NDArray[np.bool_]]
"""The rows of the readable images of a chunk, and whether each image is readable."""
Compute = Callable[[Samples, NDArray[np.int64]], Chunk]
"""A function of a split and the indices of a chunk in it."""


def _probe(data: ImageData, compute: Compute, seconds: float, what: str, listener: Listener) -> Folded:
    """Compute rows of training images until the seconds are over, and cross-validate classifiers of them."""
    samples = data.splits["train"]
    labels = class_numbers(samples.labels)
    order = mixed_order(labels)[:MOST_IMAGES]
    rows: list[NDArray[np.float32]] = []
    readable_indices: list[NDArray[np.int64]] = []
    started = time.monotonic()
    with listener.progress(what, len(order)) as progress:
        for first in range(0, len(order), CHUNK):
            if rows and time.monotonic() - started > seconds:
                break
            chunk = order[first : first + CHUNK]
            chunk_rows, readable = compute(samples, chunk)
            rows.append(chunk_rows)
            readable_indices.append(chunk[readable])
            progress(first + len(chunk))
    features, indices = np.concatenate(rows), np.concatenate(readable_indices)
    if len(indices) < LEAST_IMAGES:
        raise VitkitError(
            f"Expected at least {LEAST_IMAGES} training images that can be read, found {len(indices)} in "
            f"{data.spec}: they are too few for a probe. Add images, or look at them with vitkit data check."
        )
    with listener.progress(f"cross-validation, {what}", FITS) as progress:
        return cross_validate(features, labels[indices], len(data.class_names), progress=progress)
