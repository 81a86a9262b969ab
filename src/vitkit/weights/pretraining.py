"""The number of images that the weights of a model were first trained on, where something records it.

It stands in the origin of the card, so that the format of `model.json` is unchanged.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitkit.weights.model_card import ModelCard
from vitkit.weights.published import find_start_named, starts

TRAINING_IMAGES = "training_images"
"""The key of a card's origin: images of the training split, of a model that began with new weights."""
SETS = {"ImageNet-1k": 1_281_167, "ImageNet-21k": 14_000_000, "JFT-300M": 303_000_000}
"""Images of the sets that published checkpoints were pre-trained on: ImageNet's training list, and the others
as the paper rounds them (4.1)."""


def pretraining_images(start: str | Path, card: ModelCard) -> int | None:
    """Return the number of images that a model was pre-trained on; None where nothing records it.

    The card of a fine-tuned model records its start; cards of early versions do not.

    Args:
        start: the path, the address or the name that the model was loaded by.
        card: its card.
    """
    images = _of_published(start)
    origin: Any = card.origin
    while images is None and isinstance(origin, Mapping):
        number = origin.get(TRAINING_IMAGES)
        images = number if isinstance(number, int) else _of_published(str(origin.get("from", "")))
        origin = origin.get("start")
    return images


def _of_published(name: str | Path) -> int | None:
    """Return the images of the first set that a published checkpoint was trained on."""
    by_address = (checkpoint for checkpoint in starts() if str(name) in checkpoint.addresses)
    published = find_start_named(name) or next(by_address, None)
    return None if published is None else SETS.get(published.data.partition(",")[0])
