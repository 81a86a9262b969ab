"""The preprocessing that a model's weights were made for, and how far another one is from it."""

import math
from dataclasses import replace
from typing import Any

from vitkit.config import difference, to_json
from vitkit.data.transforms_config import Preprocessing
from vitkit.models.image_config import ImageConfig
from vitkit.weights.card import Described, card_of


def preprocessing_of(model: Described) -> Preprocessing:
    """Return how images become the model's input.

    Size and channels are the model's: it may have been loaded for others than its weights were made for.
    Where the card records nothing, it is as the original evaluates: stretched, not antialiased.
    """
    return fit_preprocessing(card_of(model).preprocessing, model.config)


def fit_preprocessing(recorded: Preprocessing | None, config: ImageConfig) -> Preprocessing:
    """Fit a recorded preprocessing to a model's size and channels; the original's where none is recorded."""
    if recorded is None:
        recorded = Preprocessing(config.image_size, antialias=False)
    decode = replace(recorded.decode, channels=config.in_channels)
    return replace(recorded, image_size=config.image_size, decode=decode)


def fraction_of(side: int, resized: int) -> float:
    """Compute the crop_fraction with which `side`, divided by it and rounded down, is `resized`."""
    fraction = side / resized
    return fraction if math.floor(side / fraction) == resized else math.nextafter(fraction, 0)


def changed_pixels(before: Preprocessing, after: Preprocessing) -> list[str]:
    """Name the fields in which two preprocessings differ, in words; none where both make the same pixels.

    How files are decoded is left out: no library's format says it.
    """
    old, new = _without_idle_fields(before), _without_idle_fields(replace(after, decode=before.decode))
    if all(old.resized(axis) == new.resized(axis) for axis in (0, 1)):
        new = replace(new, crop_fraction=old.crop_fraction)  # the same by another number
    lines = difference(to_json(old), to_json(new))
    return [f"preprocessing's {line.replace('->', 'becomes')}" for line in lines]


def changed_pixels_noted(model: Described, written: Preprocessing, file: str) -> list[str]:
    """Say in one note what a file cannot say of a model's preprocessing; nothing if the card has none."""
    lost = card_of(model).preprocessing is not None
    changes = changed_pixels(preprocessing_of(model), written) if lost else []
    return [f"{file} cannot say: {'; '.join(changes)}"] if changes else []


def border_colour(mean: tuple[float, ...]) -> tuple[int, int, int]:
    """Turn the mean of pixels in [0, 1] into red, green and blue in 0..255: timm's border around images."""
    levels = [min(max(round(255 * value), 0), 255) for value in mean]
    return (levels[0], levels[1], levels[2]) if len(levels) == 3 else (levels[0],) * 3


def notable_fields(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return size, way of resizing and antialiasing as plain data, and other fields that are not usual."""
    usual = to_json(Preprocessing(preprocessing.image_size))
    always = ("image_size", "resize", "antialias")
    return {
        name: value
        for name, value in to_json(preprocessing).items()
        if name in always or value != usual[name]
    }


def _without_idle_fields(preprocessing: Preprocessing) -> Preprocessing:
    """Return the same with the usual values in fields that this way of resizing does not look at."""
    resize = preprocessing.resize
    idle: dict[str, Any] = {}
    if resize in ("stretch", "none"):
        idle["crop_fraction"] = 0.875
    if resize in ("stretch", "crop"):
        idle["crop_offset"] = "even"
    if resize not in ("longest", "none") and (resize == "stretch" or preprocessing.crop_fraction <= 1):
        idle["border"] = (0, 0, 0)
    return replace(preprocessing, **idle)
