"""Pixels to pixels of the model's size: what evaluation does, and what training draws at random.

Both halves are plain values that are saved, `Preprocessing` with the model, `Augmentation` with the run. They
need neither numpy nor Pillow.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from vitkit.config import require_finite
from vitkit.data.decode_config import DEFAULT_RULE, DecodeRule
from vitkit.errors import VitkitError

Resize = Literal["stretch", "crop", "shortest", "longest", "squash", "none"]


Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
"""Pillow's filters, by the names that timm gives them."""


@dataclass(frozen=True)
class Preprocessing:
    """From a decoded image to the input of the model; the same in evaluation and prediction."""

    image_size: tuple[int, int]
    """(height, width) in pixels."""
    resize: Resize = "stretch"
    """stretch: straight to image_size, as the original evaluates (input_pipeline.py:212-214). crop: keep the
    proportions, resize to cover image_size / crop_fraction and cut out the middle (0.875: big_vision's
    `resize_small(256)|central_crop(224)`). The others are those of timm, torchvision and transformers, who
    all cut image_size out of the middle. shortest: the shortest side becomes image_size / crop_fraction.
    longest: the longest one does, so that the whole image is seen between borders (timm's crop_mode border).
    squash: both do, each by itself. none: the image is not resized."""
    crop_fraction: float = 0.875
    """Side of image_size / side of the resized image, which crop rounds to the nearest pixel, the others
    down; above 1 the image has borders (not with crop). stretch and none do not look at it."""
    antialias: bool = True
    """Average over the source pixels when shrinking. Without: plain bilinear sampling at half-pixel centres,
    as `tf.image.resize` does by default and the original did."""
    decode: DecodeRule = DEFAULT_RULE
    interpolation: Interpolation = "bilinear"
    """How pixels are weighted, by Pillow. Without antialias there is bilinear alone."""
    crop_offset: Literal["even", "down"] = "even"
    """Where the middle lies when an odd number of pixels is cut off: half of it is rounded to the even number
    (torchvision, timm) or down (transformers, and crop whatever is said here)."""
    border: tuple[int, int, int] = (0, 0, 0)
    """Red, green and blue in 0..255 around an image that does not fill image_size."""

    def __post_init__(self) -> None:
        require_finite(self)
        if len(self.image_size) != 2 or min(self.image_size) < 1:
            raise VitkitError(
                f"image_size must be (height, width), each at least 1, found {self.image_size}."
            )
        for name, choices in (("resize", Resize), ("interpolation", Interpolation)):
            if getattr(self, name) not in get_args(choices):
                known = ", ".join(f'"{choice}"' for choice in get_args(choices))
                raise VitkitError(f"{name} must be one of {known}, found {getattr(self, name)!r}.")
        if self.crop_offset not in ("even", "down"):
            raise VitkitError(f'crop_offset must be "even" or "down", found {self.crop_offset!r}.')
        most = 1 if self.resize == "crop" else 1000
        if not 0.001 <= self.crop_fraction <= most:
            raise VitkitError(f"crop_fraction must be from 0.001 to {most}, found {self.crop_fraction}.")
        if not self.antialias and self.interpolation != "bilinear":
            raise VitkitError(
                f"antialias=False goes with bilinear interpolation alone, found {self.interpolation!r}."
            )
        if len(self.border) != 3 or not all(0 <= value <= 255 for value in self.border):
            raise VitkitError(f"border must be three numbers in 0..255, found {self.border}.")

    def resized(self, axis: Literal[0, 1]) -> int:
        """Compute the side in pixels that images, or their shortest or longest side, are resized to.

        `crop` rounds to the nearest pixel, as big_vision does; the others down, as timm and torchvision do.
        """
        side = self.image_size[axis] / self.crop_fraction
        return round(side) if self.resize == "crop" else max(math.floor(side), 1)


@dataclass(frozen=True)
class Augmentation:
    """What training changes at random; saved with the model.

    The defaults are the original code's (vision_transformer/vit_jax/input_pipeline.py:195-211). What shifting
    and turning uncover repeats the pixel at the edge.
    """

    crop_area: tuple[float, float] | None = (0.05, 1.0)
    """Smallest and largest share of the image's area that a random crop takes; None: no crop. The crop is
    stretched to the image size, whatever `Preprocessing.resize` says."""
    crop_aspect: tuple[float, float] = (0.75, 1.33)
    """Range of width / height of the crop."""
    flip: bool = True
    """Mirror left and right, every other time."""
    shift: int = 0
    """Move by up to this many pixels each way, after resizing: CIFAR's padding by 4 pixels with a random crop
    is a shift of 4 without crop_area."""
    rotate: float = 0.0
    """Turn by up to this many degrees each way, after resizing."""
    rand_augment: int = 0
    """How many of RandAugment's 14 operations change each image, after all that (arXiv 1909.13719: 1 to 3);
    0: none. What they uncover has the image's mean colour."""
    rand_augment_magnitude: float = 9.0
    """Their strength, from 0 to 10, as timm counts it (DeiT: 9; on small images less)."""
    random_erasing: float = 0.0
    """Probability that a box of the image is replaced by noise at last (arXiv 1708.04896; DeiT: 0.25)."""

    def __post_init__(self) -> None:
        require_finite(self)
        if self.crop_area is not None and not 0 < self.crop_area[0] <= self.crop_area[1] <= 1:
            raise VitkitError(f"crop_area must be two parts of 1, smaller first, found {self.crop_area}.")
        if not 0 < self.crop_aspect[0] <= self.crop_aspect[1]:
            raise VitkitError(
                f"crop_aspect must be two positive ratios, smaller first, found {self.crop_aspect}."
            )
        if self.shift < 0:
            raise VitkitError(f"shift must be 0 or more pixels, found {self.shift}.")
        if not 0 <= self.rotate <= 180:
            raise VitkitError(f"rotate must be in 0..180 degrees, found {self.rotate}.")
        if not 0 <= self.rand_augment <= 14:
            raise VitkitError(
                f"rand_augment is a number of operations from 0 to 14, found {self.rand_augment}."
            )
        if not 0 <= self.rand_augment_magnitude <= 10:
            raise VitkitError(f"rand_augment_magnitude is from 0 to 10, found {self.rand_augment_magnitude}.")
        if not 0 <= self.random_erasing <= 1:
            raise VitkitError(f"random_erasing is a probability from 0 to 1, found {self.random_erasing}.")
