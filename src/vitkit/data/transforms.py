"""Bring decoded images to the model's size: as evaluation does, and with the random changes of training.

Both halves are plain values that are saved, `Preprocessing` with the model, `Augmentation` with the run.
"""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.augment_ops import distort
from vitkit.data.channels import border_of, by_threes
from vitkit.data.config import Augmentation, Preprocessing
from vitkit.kernels.resample import PILLOW_FILTERS, Neighbours, resample, sample

Pixels = NDArray[np.uint8]  # (height, width, channels), 3 unless the rule of decoding says otherwise

Shape = tuple[int, int]
"""(height, width)"""


def preprocess(image: Pixels, preprocessing: Preprocessing, out: Pixels | None = None) -> Pixels:
    """Bring one image (H, W, C) to (height, width, C) of image_size, as evaluation and prediction see it.

    It is written into `out` where that is given, whatever its strides, so that a batch needs no second copy.
    """
    height, width = image.shape[:2]
    if preprocessing.resize == "stretch":
        whole = (0.0, 0.0, float(height), float(width))
        return _resize(image, whole, preprocessing.image_size, preprocessing, out=out)
    return _middle(image, _resized_shape(height, width, preprocessing), preprocessing, out)


def augment(
    image: Pixels,
    preprocessing: Preprocessing,
    augmentation: Augmentation,
    rng: np.random.Generator,
    out: Pixels | None = None,
) -> Pixels:
    """Change one image (H, W, C) at random to (height, width, C) of image_size, as training sees it.

    All randomness comes from `rng`, in a fixed order of draws: crop, flip, rotation, shift, the
    operations of RandAugment, erasing.

    It is written into `out` where that is given, whatever its strides.
    """
    view = RandomView(preprocessing, augmentation, rng)
    view.draw(*image.shape[:2])
    return view.pixels(image, out)


class RandomView:
    """One random view of an image, as training sees it; all randomness comes from `rng`.

    The crop is drawn first, from the size of the image alone, so that decoding can depend on it.
    """

    def __init__(self, rule: Preprocessing, augmentation: Augmentation, rng: np.random.Generator) -> None:
        self.preprocessing, self.augmentation, self.rng = rule, augmentation, rng
        self.size: Shape | None = None
        self.crop: tuple[int, int, int, int] | None = None  # top, left, height, width

    def draw(self, height: int, width: int) -> int:
        """Draw the crop of an image of this size, once, and say at which scale the image may be decoded.

        Returns:
            1, 2, 4 or 8: how many times smaller each side may be.
        """
        if self.size != (height, width):
            self.size = (height, width)
            if self.augmentation.crop_area is not None:
                self.crop = _random_crop(height, width, self.augmentation, self.rng)
        if self.crop is None or not self.augmentation.jpeg_scaling:
            return 1
        rows, columns = self.preprocessing.image_size
        most = min(self.crop[2] // rows, self.crop[3] // columns)
        return next((scale for scale in (8, 4, 2) if scale <= most), 1)

    def pixels(self, image: Pixels, out: Pixels | None = None) -> Pixels:
        """Make the view (height, width, C) of an image, and write it into `out` if that is given.

        The image has the size that the crop was drawn for, or is that image at a smaller scale.
        """
        assert self.size is not None
        augmentation, rng = self.augmentation, self.rng
        # What follows the resize makes new images, so that only the last of them is written into `out`.
        moves = bool(
            augmentation.shift
            or augmentation.rotate
            or augmentation.rand_augment
            or augmentation.random_erasing
        )
        if self.crop is not None:
            top, left, height, width = self.crop
            top, bottom = _scaled(top, top + height, self.size[0], image.shape[0])
            left, right = _scaled(left, left + width, self.size[1], image.shape[1])
            image = image[top:bottom, left:right]
        if augmentation.flip and rng.random() < 0.5:
            image = image[:, ::-1]
        if self.crop is not None:
            # The crop is cut out first, so that resizing cannot look at pixels beyond its border.
            whole = (0.0, 0.0, float(image.shape[0]), float(image.shape[1]))
            size = self.preprocessing.image_size
            image = _resize(image, whole, size, self.preprocessing, out=None if moves else out)
        else:
            image = preprocess(image, self.preprocessing, None if moves else out)
        degrees = augmentation.rotate * (2 * rng.random() - 1) if augmentation.rotate else 0.0
        if augmentation.shift:
            down, right = (_below(2 * augmentation.shift + 1, rng) - augmentation.shift for _ in range(2))
            image = _move(image, down, right, degrees)
        elif degrees:
            image = _move(image, 0, 0, degrees)
        image = distort(image, augmentation, rng)
        return _put(image, out) if moves else image


def _scaled(start: int, stop: int, size: int, scaled: int) -> tuple[int, int]:
    """Find the pixels start..stop-1 of `size` in an image of `scaled` pixels, at least one of them."""
    if size == scaled:
        return start, stop
    first = min(round(start * scaled / size), scaled - 1)
    return first, max(first + 1, min(round(stop * scaled / size), scaled))


def _below(count: int, rng: np.random.Generator) -> int:
    """Draw a uniform integer in 0..count-1. (`rng.integers` takes ten times as long for a single number.)"""
    return int(rng.random() * count)


def _random_crop(
    height: int, width: int, augmentation: Augmentation, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draw (top, left, height, width) of a crop as `tf.image.sample_distorted_bounding_box` does.

    The aspect is uniform in its range; then the height, not the area, is uniform among the whole numbers for
    which the crop fits and its area is in range (tensorflow/core/kernels/image/
    sample_distorted_bounding_box_op.cc, GenerateRandomCrop). After 100 failures the whole image is taken. One
    difference: TensorFlow never draws the last offset, so its crops touch the bottom and right edge only when
    they span the image; here all offsets are equally likely.

    Without aspects the sides are uniform, as are the offsets.
    """
    assert augmentation.crop_area is not None
    smallest, largest = (part * height * width for part in augmentation.crop_area)
    if augmentation.crop_aspect is None:
        least, most = (math.sqrt(part) for part in augmentation.crop_area)
        side = least + (most - least) * rng.random()
        crop_height, crop_width = (max(1, round(side * length)) for length in (height, width))
        top = _below(height - crop_height + 1, rng)
        return top, _below(width - crop_width + 1, rng), crop_height, crop_width
    low, high = augmentation.crop_aspect
    for _ in range(100):
        aspect = low + (high - low) * rng.random()
        tallest = min(round(math.sqrt(largest / aspect)), height, int((width + 0.5) / aspect))
        if round(tallest * aspect) > width:
            tallest -= 1
        shortest = min(round(math.sqrt(smallest / aspect)), tallest)
        crop_height = shortest + _below(tallest - shortest + 1, rng)
        # Rounding may leave the range of areas by a little; one row more or less brings it back.
        if round(crop_height * aspect) * crop_height < smallest:
            crop_height += 1
        if round(crop_height * aspect) * crop_height > largest:
            crop_height -= 1
        crop_width = round(crop_height * aspect)
        area = crop_height * crop_width
        if 1 <= crop_height <= height and 1 <= crop_width <= width and smallest <= area <= largest:
            top = _below(height - crop_height + 1, rng)
            return top, _below(width - crop_width + 1, rng), crop_height, crop_width
    return 0, 0, height, width


WHOLE_PIXELS = 2**23
"""An image resized to at most so many pixels is resized whole, then cut, as other libraries do: Pillow keeps
the corners of a box in float32, which moves some pixels by two levels."""


def _resized_shape(height: int, width: int, preprocessing: Preprocessing) -> Shape:
    """Compute the (height, width) that an image is resized to before image_size is cut out of it.

    Sources: torchvision 0.29 `transforms/functional.py` `_compute_resized_output_size`, timm 1.0
    `data/transforms_factory.py` and `ResizeKeepRatio`, transformers 5 `get_resize_output_image_size`.
    """
    rows, columns = preprocessing.resized(0), preprocessing.resized(1)
    if preprocessing.resize == "crop":
        scale = max(rows / height, columns / width)
        return round(height * scale), round(width * scale)
    if preprocessing.resize == "none":
        return height, width
    if preprocessing.resize == "squash":
        return rows, columns
    if preprocessing.resize == "shortest" and rows == columns:
        long = int(rows * max(height, width) / min(height, width))
        return (long, rows) if width <= height else (rows, long)
    pick = max if preprocessing.resize == "longest" else min
    ratio = pick(height / rows, width / columns)
    return max(round(height / ratio), 1), max(round(width / ratio), 1)


def _offset(spare: int, preprocessing: Preprocessing) -> int:
    """Compute the offset of the middle of an image that is `spare` pixels larger than image_size.

    With `spare` below 0 the image is smaller, and its own offset within the border is returned, negated.
    """
    if preprocessing.resize == "crop" or preprocessing.crop_offset == "down":
        return spare // 2
    return round(spare / 2) if spare >= 0 else -(-spare // 2)


def _middle(image: Pixels, resized: Shape, preprocessing: Preprocessing, out: Pixels | None) -> Pixels:
    """Resize the image to `resized` and cut out its middle: (height, width, C) of image_size."""
    (height, width), (rows, columns) = image.shape[:2], preprocessing.image_size
    top, left = _offset(resized[0] - rows, preprocessing), _offset(resized[1] - columns, preprocessing)
    # What there is of the image between the borders, if any: from (first, before) to (last, after).
    first, before = max(top, 0), max(left, 0)
    last, after = min(top + rows, resized[0]), min(left + columns, resized[1])
    inside = (last - first, after - before) == (rows, columns)
    if not inside:
        channels = image.shape[2]
        out = np.empty((rows, columns, channels), np.uint8) if out is None else out
        out[:] = border_of(preprocessing.border, channels)
    target = out if inside or out is None else out[first - top : last - top, before - left : after - left]
    if preprocessing.resize != "crop" and resized[0] * resized[1] <= WHOLE_PIXELS:
        whole = (0.0, 0.0, float(height), float(width))
        part = _resize(image, whole, resized, preprocessing, (first, before, last, after), target)
    else:
        # The crop is mapped back to the image: resizing that box alone gives the same but for rounding, and
        # does not build the enormous image that a 1 x 10000 strip would become.
        down, across = height / resized[0], width / resized[1]
        # The minimum only undoes rounding: Pillow refuses a box that leaves the image by the last bit.
        box = (first * down, before * across, min(last * down, height), min(after * across, width))
        part = _resize(image, box, (last - first, after - before), preprocessing, out=target)
    return part if inside or out is None else out


def _put(pixels: Pixels, out: Pixels | None) -> Pixels:
    """Copy the pixels into `out` if it is given, else return them as they are."""
    if out is None:
        return np.ascontiguousarray(pixels)
    out[:] = pixels
    return out


def _resize(
    image: Pixels,
    box: tuple[float, float, float, float],
    size: Shape,
    preprocessing: Preprocessing,
    cut: tuple[int, int, int, int] | None = None,
    out: Pixels | None = None,
) -> Pixels:
    """Resize the box (top, left, bottom, right) of the image to size (height, width).

    Args:
        image: (H, W, C).
        box: in pixels of the image, which need not be whole.
        size: of the result.
        preprocessing: the filter, and whether to average when shrinking.
        cut: (top, left, bottom, right) of the part of the result to compute; None for all of it.
        out: where the result is written; None for a new array.
    """
    first, before, last, after = cut or (0, 0, *size)
    top, left, bottom, right = box
    height, width = image.shape[:2]
    if (height, width) == size and box == (0.0, 0.0, float(height), float(width)):
        return _put(image[first:last, before:after], out)
    if image.shape[2] != 3:
        return by_threes(image, lambda part: _resize(part, box, size, preprocessing, cut), out)
    # Pillow averages only where it shrinks, so while enlarging both kinds are the same, and Pillow is faster.
    if preprocessing.antialias or (bottom - top <= size[0] and right - left <= size[1]):
        part = resample(image, box, size, preprocessing.interpolation, cut, out)
        if part is not None:
            return part
        whole = Image.frombytes("RGB", (width, height), image.tobytes())
        kind = PILLOW_FILTERS[preprocessing.interpolation]
        resized = whole.resize((size[1], size[0]), kind, (left, top, right, bottom))
        pixels = np.frombuffer(resized.tobytes(), np.uint8).reshape(*size, 3)
    else:
        down = _neighbours(top, bottom, size[0], height, first, last)
        across = _neighbours(left, right, size[1], width, before, after)
        return _sampled(image, down, across, out)
    return _put(pixels[first:last, before:after], out)


def _sampled(image: Pixels, down: Neighbours, across: Neighbours, out: Pixels | None) -> Pixels:
    part = sample(image, down, across, out)
    if part is not None:
        return part
    rows = _between(image[down[0]], image[down[1]], down[2][:, None, None])
    values = _between(rows[:, across[0]], rows[:, across[1]], across[2][None, :, None])
    values += 0.5  # to the nearest level
    return _put(values.astype(np.uint8), out)


def _neighbours(start: float, stop: float, count: int, limit: int, first: int, last: int) -> Neighbours:
    """Find the pixels between which the half-pixel centres first..last-1 of `count` in [start, stop) lie.

    Returns:
        Index of the pixel before, index of the pixel after, weight of the latter.
    """
    centres = start + (np.arange(first, last) + 0.5) * ((stop - start) / count) - 0.5
    centres = np.clip(centres, 0, limit - 1)
    before = centres.astype(np.int64)
    return before, np.minimum(before + 1, limit - 1), (centres - before).astype(np.float32)


def _between(
    first: NDArray[np.generic], second: NDArray[np.generic], weight: NDArray[np.float32]
) -> NDArray[np.float32]:
    start = first.astype(np.float32)
    out = second.astype(np.float32)
    out -= start
    out *= weight
    out += start
    return out


def _shift(image: Pixels, down: int, right: int) -> Pixels:
    """Shift an image by whole pixels; edge pixels are repeated.

    Copied by slices, in a third to a half of the time that an index for each row and column takes.
    """
    height, width = image.shape[:2]
    # A pixel at least stays, to be repeated.
    down, right = max(1 - height, min(down, height - 1)), max(1 - width, min(right, width - 1))
    top, left = max(down, 0), max(right, 0)
    bottom, end = height + min(down, 0), width + min(right, 0)
    out = np.empty(image.shape, image.dtype)
    inside = out[top:bottom]
    inside[:, left:end] = image[top - down : bottom - down, left - right : end - right]
    inside[:, :left], inside[:, end:] = inside[:, left : left + 1], inside[:, end - 1 : end]
    out[:top], out[bottom:] = inside[0], inside[-1]
    return out


def _move(image: Pixels, down: int, right: int, degrees: float) -> Pixels:
    """Shift an image, then turn it anticlockwise about its centre, bilinearly; edge pixels are repeated.

    Pillow cuts the fraction off instead of rounding: turned pixels may be one level too dark.
    """
    if not degrees:
        return _shift(image, down, right)
    if image.shape[2] != 3:
        return by_threes(image, lambda part: _move(part, down, right, degrees))
    height, width = image.shape[:2]
    # As much as the corners reach beyond the sides, and a pixel for the interpolation.
    pad = math.ceil((math.hypot(height, width) - min(height, width)) / 2) + 1
    rows = np.clip(np.arange(-pad, height + pad) - down, 0, height - 1)
    columns = np.clip(np.arange(-pad, width + pad) - right, 0, width - 1)
    moved = image[rows[:, None], columns]
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    middle_x, middle_y = width / 2, height / 2
    matrix = (
        *(cosine, -sine, middle_x + pad - cosine * middle_x + sine * middle_y),
        *(sine, cosine, middle_y + pad - sine * middle_x - cosine * middle_y),
    )
    padded = Image.frombytes("RGB", (width + 2 * pad, height + 2 * pad), moved.tobytes())
    turned = padded.transform((width, height), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    return np.asarray(turned, np.uint8)
