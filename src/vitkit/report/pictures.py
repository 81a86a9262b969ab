"""The report's pictures of images: the surest mistakes, and what the model looks at."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitkit.analysis import drawing, inspect, model_figures
from vitkit.data.decode import DecodeError
from vitkit.data.sources import Samples
from vitkit.data.transforms import preprocess
from vitkit.evaluation.classify import Classification, Predictions
from vitkit.models.image_model import ImageModel
from vitkit.models.vit import ViT
from vitkit.weights.preprocessing import preprocessing_of

MISTAKES_SHOWN = 24
ROLLOUTS_SHOWN = 12
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
    result: Classification
    predictions: Predictions
    samples: Samples | None

    @property
    def images(self) -> str:
        """What was evaluated, for titles and sentences: "360 test images"."""
        word = {"val": "validation"}.get(self.split, self.split)
        return f"{self.result.count:,} {word} image{'s' * (self.result.count != 1)}"


def mistakes(evaluation: ShownEvaluation) -> list[Picture]:
    """Select the wrong predictions with the highest confidence."""
    pictures = []
    for row in _surest_mistakes(evaluation.predictions):
        image = _decode(evaluation, row)
        if image is not None:
            pictures.append(_picture(evaluation, row, "", (drawing.image_data_uri(_shrunk(image)),)))
        if len(pictures) == MISTAKES_SHOWN:
            break
    return pictures


def rollouts(model: ViT, evaluation: ShownEvaluation) -> list[Picture]:
    """Images of as many classes as there is room for, a quarter of them wrong, and where the model looks.

    Args:
        model: with attention between all tokens.
        evaluation: what it predicted.
    """
    predictions = evaluation.predictions
    wrong = _surest_mistakes(predictions)[: ROLLOUTS_SHOWN // 4].tolist()
    right = np.flatnonzero(predictions.predicted == predictions.labels)
    # The first image of every class, then the second of every class, and so on.
    seen: dict[int, int] = {}
    turns = []
    for label in predictions.labels[right].tolist():
        seen[label] = seen.get(label, -1) + 1
        turns.append(seen[label])
    fair = right[np.lexsort((right, predictions.labels[right], np.array(turns, int)))].tolist()
    rows, images = model_images(model, evaluation, wrong + fair, ROLLOUTS_SHOWN)
    if not rows:
        return []
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    size = attention_batch(model)
    maps = [inspect.attention_rollout(model, pixels[i : i + size]) for i in range(0, len(pixels), size)]
    pictures = []
    for row, image, heat in zip(rows, images, np.concatenate(maps), strict=True):
        shown = drawing.enlarged(image, THUMBNAIL)
        overlay = model_figures.heat_overlay(shown, heat)
        sources = tuple(drawing.image_data_uri(_shrunk(part)) for part in (shown, overlay))
        pictures.append(_picture(evaluation, row, "with its attention map, ", sources))
    return pictures


def _surest_mistakes(predictions: Predictions) -> NDArray[np.int64]:
    """Rows of the wrong predictions, the most confident first."""
    wrong = np.flatnonzero(predictions.predicted != predictions.labels)
    return wrong[np.argsort(-predictions.confidence[wrong], kind="stable")]


def _decode(evaluation: ShownEvaluation, row: int) -> NDArray[np.uint8] | None:
    """Decode the picture of a prediction; None if the data is not there any more or cannot be read."""
    if evaluation.samples is None:
        return None
    try:
        return evaluation.samples.decode(int(evaluation.predictions.ids[row]))
    except DecodeError:
        return None


def model_images(
    model: ImageModel, evaluation: ShownEvaluation, rows: Sequence[int], count: int
) -> tuple[list[int], list[NDArray[np.uint8]]]:
    """Take the first `count` readable rows, with their images `(H, W, 3)` as the model sees them."""
    preprocessing = preprocessing_of(model)
    readable, images = [], []
    for row in rows:
        image = _decode(evaluation, row)
        if image is not None:
            readable.append(row)
            images.append(preprocess(image, preprocessing))
        if len(images) == count:
            break
    return readable, images


def _picture(evaluation: ShownEvaluation, row: int, what: str, sources: tuple[str, ...]) -> Picture:
    predictions, names = evaluation.predictions, evaluation.result.class_names
    predicted = int(predictions.predicted[row])
    true, predicted_name = names[int(predictions.labels[row])], names[predicted]
    assert evaluation.samples is not None  # it was decoded
    return Picture(
        sources=sources,
        alt=f"An image of {true}, {what}predicted to be {predicted_name}.",
        key=evaluation.samples.key(int(predictions.ids[row])),
        true=true,
        predicted=predicted_name,
        confidence=float(predictions.confidence[row]),
    )


def _shrunk(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    thumbnail = Image.fromarray(image)
    thumbnail.thumbnail((THUMBNAIL, THUMBNAIL))  # never enlarges
    return np.asarray(thumbnail)


def attention_batch(model: ViT) -> int:
    """Images whose attention in one layer fits the memory allowed for it."""
    config = model.config
    return max(1, min(32, ATTENTION_FLOATS // (config.num_heads * config.num_tokens**2)))
