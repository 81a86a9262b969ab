"""Show images in the report: those that a task chooses, and what the model looks at."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitkit.analysis import drawing, inspect, model_figures
from vitkit.data.channels import to_rgb
from vitkit.data.decode import DecodeError
from vitkit.data.sources import Samples
from vitkit.data.transforms import preprocess
from vitkit.models.image_model import ImageModel
from vitkit.models.vit import ViT
from vitkit.tasks.answering import Result, SplitPredictions
from vitkit.tasks.page import Pictures, ShownImage, describe_images
from vitkit.weights.preprocessing import preprocessing_of

THUMBNAIL = 192  # pixels
ATTENTION_FLOATS = 1 << 26  # of one layer's attention at a time: 256 MiB


@dataclass(frozen=True)
class Picture:
    sources: tuple[str, ...]  # data URIs, side by side
    alt: str
    key: str
    true: str
    predicted: str
    confidence: float


@dataclass(frozen=True)
class ShownEvaluation:
    """The evaluation that the page is about, and the pictures that belong to it."""

    split: str
    result: Result
    predictions: SplitPredictions
    samples: Samples | None

    @property
    def images(self) -> str:
        """The images that were evaluated, for titles and sentences: "360 test images"."""
        return describe_images(self.result.count, self.split)


def pictures(evaluation: ShownEvaluation, chosen: Pictures) -> list[Picture]:
    """Show those images of a task's choice that can be read, as many as it wants."""
    made = []
    for shown in chosen.images:
        image = _decode(evaluation, shown.index)
        if image is not None:
            source = drawing.image_data_uri(_shrunk(to_rgb(image)))
            made.append(_picture(evaluation, shown, "", (source,)))
        if len(made) == chosen.most:
            break
    return made


def rollouts(model: ViT, evaluation: ShownEvaluation, chosen: Pictures) -> list[Picture]:
    """Show images of a task's choice, and where the model looks.

    Args:
        model: with attention between all tokens.
        evaluation: what it predicted.
    """
    indices = [shown.index for shown in chosen.images]
    positions, images = model_images(model, evaluation, indices, chosen.most)
    if not positions:
        return []
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    size = attention_batch(model)
    maps = [inspect.attention_rollout(model, pixels[i : i + size]) for i in range(0, len(pixels), size)]
    made = []
    for position, image, heat in zip(positions, images, np.concatenate(maps), strict=True):
        enlarged = drawing.enlarged(to_rgb(image), THUMBNAIL)
        overlay = model_figures.heat_overlay(enlarged, heat)
        sources = tuple(drawing.image_data_uri(_shrunk(part)) for part in (enlarged, overlay))
        made.append(_picture(evaluation, chosen.images[position], "with its attention map, ", sources))
    return made


def _decode(evaluation: ShownEvaluation, index: int) -> NDArray[np.uint8] | None:
    """Decode an image (H, W, C) of the split; None if the data is gone or cannot be read."""
    if evaluation.samples is None:
        return None
    try:
        return evaluation.samples.decode(index)
    except DecodeError:
        return None


def model_images(
    model: ImageModel, evaluation: ShownEvaluation, indices: Sequence[int], count: int
) -> tuple[list[int], list[NDArray[np.uint8]]]:
    """Read the first `count` of the images `indices` that can be read.

    Returns:
        Their positions among `indices`, and the images `(H, W, C)` as the model sees them.
    """
    preprocessing = preprocessing_of(model)
    readable, images = [], []
    for position, index in enumerate(indices):
        image = _decode(evaluation, index)
        if image is not None:
            readable.append(position)
            images.append(preprocess(image, preprocessing))
        if len(images) == count:
            break
    return readable, images


def _picture(evaluation: ShownEvaluation, shown: ShownImage, what: str, sources: tuple[str, ...]) -> Picture:
    assert evaluation.samples is not None  # it was decoded
    return Picture(
        sources=sources,
        alt=f"An image of {shown.true}, {what}predicted to be {shown.predicted}.",
        key=evaluation.samples.key(shown.index),
        true=shown.true,
        predicted=shown.predicted,
        confidence=shown.confidence,
    )


def _shrunk(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    thumbnail = Image.fromarray(image)
    thumbnail.thumbnail((THUMBNAIL, THUMBNAIL))  # never enlarges
    return np.asarray(thumbnail)


def attention_batch(model: ViT) -> int:
    """Return the number of images whose attention in one layer fits the memory allowed for it."""
    config = model.config
    return max(1, min(32, ATTENTION_FLOATS // (config.num_heads * config.num_tokens**2)))
