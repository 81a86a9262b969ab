"""How images become a model's input, as the layouts say it and as a model's card keeps it.

The card holds plain data, the fields of `vitkit.data.transforms.Preprocessing`, which this room may not
import: `PixelRule` is the same but for decoding, and a test holds the two together.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from vitkit.config import difference, from_json, to_json
from vitkit.models.card import Assumption, ModelCard
from vitkit.models.zoo import ModelConfig

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


@dataclass(frozen=True)
class PixelRule:
    """The fields of `vitkit.data.transforms.Preprocessing`, where they are explained, without `decode`."""

    image_size: tuple[int, int]
    resize: Literal["stretch", "crop", "shortest", "longest", "squash", "none"] = "stretch"
    crop_fraction: float = 0.875
    antialias: bool = True
    interpolation: Interpolation = "bilinear"
    crop_offset: Literal["even", "down"] = "even"
    border: tuple[int, int, int] = (0, 0, 0)

    def record(self) -> dict[str, Any]:
        """What a card keeps: size, way of resizing and antialiasing, and the rest where it is not usual."""
        usual = to_json(PixelRule(self.image_size))
        always = ("image_size", "resize", "antialias")
        return {
            name: value for name, value in to_json(self).items() if name in always or value != usual[name]
        }

    def resized(self, axis: Literal[0, 1]) -> int:
        """The side that images are resized to, or that one side is, in pixels; `crop` alone rounds."""
        side = self.image_size[axis] / self.crop_fraction
        return round(side) if self.resize == "crop" else max(math.floor(side), 1)

    def without_idle_fields(self) -> "PixelRule":
        """The same pixels, with the usual values in fields that this way of resizing does not look at."""
        idle: dict[str, Any] = {}
        if self.resize in ("stretch", "none"):
            idle["crop_fraction"] = 0.875
        if self.resize in ("stretch", "crop"):
            idle["crop_offset"] = "even"
        if self.resize not in ("longest", "none") and (self.resize == "stretch" or self.crop_fraction <= 1):
            idle["border"] = (0, 0, 0)
        return replace(self, **idle)


def rule_of(saved: Mapping[str, Any], image_size: tuple[int, int]) -> PixelRule:
    """The rule that a card keeps; without one the original's: stretched, not antialiased.

    Raises:
        VitkitError: a field that there is not, or a value of another type.
    """
    if not saved:
        return PixelRule(image_size, antialias=False)
    known = {**saved, "image_size": list(image_size)}
    known.pop("decode", None)  # about files, not about sizes: it has its own place, and no layout says it
    return from_json(PixelRule, known, "model.card.preprocessing")


def fraction_of(side: int, resized: int) -> float:
    """The crop_fraction with which `side`, divided by it and rounded down, is `resized`."""
    fraction = side / resized
    return fraction if math.floor(side / fraction) == resized else math.nextafter(fraction, 0)


def unlike(rule: PixelRule, other: PixelRule) -> list[str]:
    """The fields in which a rule differs from another, in words; none where both make the same pixels."""
    ours, theirs = rule.without_idle_fields(), other.without_idle_fields()
    if all(ours.resized(axis) == theirs.resized(axis) for axis in (0, 1)):
        theirs = replace(theirs, crop_fraction=ours.crop_fraction)  # the same by another number
    lines = difference(to_json(ours), to_json(theirs))
    return [f"preprocessing's {line.replace('->', 'becomes')}" for line in lines]


def noted_changes(rule: PixelRule, written: PixelRule, card: ModelCard, file: str) -> list[str]:
    """What a file cannot say of a card's rule, as one note; a card without a rule has nothing to lose."""
    changes = unlike(rule, written) if card.preprocessing else []
    return [f"{file} cannot say: {'; '.join(changes)}"] if changes else []


def border_colour(mean: tuple[float, ...]) -> tuple[int, int, int]:
    """Red, green and blue in 0..255 of the mean of pixels in [0, 1]: what timm lays around images."""
    levels = [min(max(round(255 * value), 0), 255) for value in mean]
    return (levels[0], levels[1], levels[2]) if len(levels) == 3 else (levels[0],) * 3


def with_statistics(
    config: ModelConfig, card: ModelCard, mean: tuple[float, ...] | None, std: tuple[float, ...] | None
) -> tuple[ModelConfig, ModelCard]:
    """The same with the pixel statistics that are given: a value for each channel, or one for all.

    Raises:
        VitkitError: another number of values, or such as no pixels have.
    """
    channels = config.in_channels
    if mean is not None:
        config = replace(config, image_mean=mean * channels if len(mean) == 1 else mean)
    if std is not None:
        config = replace(config, image_std=std * channels if len(std) == 1 else std)
    if mean is not None and std is not None:
        left = tuple(one for one in card.assumed if one.what != "pixel statistics")
        card = replace(card, assumed=left)
    return config, card


def assumed_statistics(mean: tuple[float, ...], std: tuple[float, ...], whose: str) -> Assumption:
    """That the mean and std of pixels are not in the file."""
    return Assumption("pixel statistics", f"pixel mean {_values(mean)} and std {_values(std)}, {whose}")


def assumed_resizing(rule: PixelRule, whose: str) -> Assumption:
    """That the way to the model's size is not in the file."""
    if rule.resize == "stretch":
        way = f"images stretched by {rule.interpolation} interpolation"
    else:
        way = f"the shortest side resized to {rule.resized(0)} by {rule.interpolation} interpolation and the "
        way += "middle cut out"
    return Assumption("resizing", f"{way}, {whose}")


def _values(numbers: tuple[float, ...]) -> str:
    return f"{numbers[0]:g}" if len(set(numbers)) == 1 else ", ".join(f"{number:g}" for number in numbers)
