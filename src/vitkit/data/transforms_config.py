"""The preprocessing of images in evaluation, and their random augmentation in training.

The defaults follow vision_transformer/vit_jax/input_pipeline.py: lines 195-211 draw the crop and the flip of
training, lines 212-214 stretch an image to the model's size in evaluation. `resize="crop"` is big_vision's
`resize_small(256)|central_crop(224)`; `resize="longest"` is timm's crop_mode border.

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
    """The way from a decoded image to the input of the model; the same in evaluation and prediction."""

    image_size: tuple[int, int]
    """Height and width of the model's input in pixels: `--image-size 224` or `--image-size 224 320`."""
    resize: Resize = "stretch"
    """How images are brought to image_size. stretch: directly, whatever their proportions, as the original
    code evaluates. crop: keep the proportions, resize to cover image_size / crop_fraction and cut out the
    middle, as in big_vision. The others are those of timm, torchvision and transformers, which all cut
    image_size out of the middle. shortest: the shortest side becomes image_size / crop_fraction. longest: the
    longest side does, so that the whole image is seen between borders. squash: both sides do, each by itself.
    none: the image is not resized."""
    crop_fraction: float = 0.875
    """Side of image_size divided by the side of the resized image: with 0.875, a model of 224 pixels sees the
    middle of an image resized to 256. Above 1 the image has borders (not with crop). stretch and none ignore
    it."""
    antialias: bool = True
    """Average over the source pixels when an image is shrunk. Without it, plain bilinear sampling at
    half-pixel centres, as `tf.image.resize` does by default and the original code did."""
    decode: DecodeRule = DEFAULT_RULE
    interpolation: Interpolation = "bilinear"
    """Pillow's filter for resizing. Without antialias only bilinear is available."""
    crop_offset: Literal["even", "down"] = "even"
    """Where the middle lies when an odd number of pixels is cut off: half of that number is rounded to the
    even number (torchvision, timm) or down (transformers; crop always rounds down)."""
    border: tuple[int, int, int] = (0, 0, 0)
    """Colour around an image that does not fill image_size: red, green, blue in 0..255."""

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
    """The random changes of training images; saved with the model.

    The defaults are those of the original code. Pixels that shifting and turning uncover repeat the pixel at
    the edge.
    """

    crop_area: tuple[float, float] | None = (0.05, 1.0)
    """Smallest and largest fraction of the image's area that a random crop takes; None for no crop. The crop
    is stretched to image_size, whatever resize says."""
    crop_aspect: tuple[float, float] | None = (0.75, 1.33)
    """Smallest and largest width / height of the crop; None for that of the image, as where an image is
    stretched to a size and a part of that is cut out."""
    flip: bool = True
    """Mirror images left to right, with a probability of one half."""
    shift: int = 0
    """Move images by up to this many pixels each way, after resizing. A shift of 4 without crop_area is
    CIFAR's padding by 4 pixels with a random crop."""
    rotate: float = 0.0
    """Turn images by up to this many degrees each way, after resizing."""
    jpeg_scaling: bool = False
    """Decode JPEGs at a half, a quarter or an eighth of their size where the random crop keeps at least the
    image size in pixels: several times as fast for photographs of many megapixels. Pixels differ a little,
    since libjpeg shrinks by its own rule."""
    rand_augment: int = 0
    """Number of RandAugment's 14 operations that change each image after all that, usually 1 to 3 (arXiv
    1909.13719); 0 for none. What they uncover gets the image's mean colour. For images of 1 or 3 channels."""
    rand_augment_magnitude: float = 9.0
    """Strength of these operations, from 0 to 10 as in timm (DeiT: 9; less for small images)."""
    random_erasing: float = 0.0
    """Probability that a box of the image is replaced by noise in the end (arXiv 1708.04896; DeiT: 0.25)."""

    def __post_init__(self) -> None:
        require_finite(self)
        if self.crop_area is not None and not 0 < self.crop_area[0] <= self.crop_area[1] <= 1:
            raise VitkitError(f"crop_area must be two parts of 1, smaller first, found {self.crop_area}.")
        if self.crop_aspect is not None and not 0 < self.crop_aspect[0] <= self.crop_aspect[1]:
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


def refuse_augmentation(augmentation: Augmentation, channels: int) -> None:
    """Refuse changes of colours for images that have none.

    Raises:
        VitkitError: RandAugment is asked for, and the images are neither grey nor RGB.
    """
    if augmentation.rand_augment and channels not in (1, 3):
        raise VitkitError(
            f"rand_augment changes the colours of grey and RGB images, found images of {channels} channels: "
            "leave it out (--rand-augment 0). Crop, flip, shift, rotation and erasing work with any number."
        )
