"""Bring decoded images to the model's size, as evaluation and prediction do; `augment.py` is for training."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.channels import border_of, by_threes
from vitkit.data.config import Preprocessing
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
        return resize_box(image, whole, preprocessing.image_size, preprocessing, out=out)
    return _middle(image, _resized_shape(height, width, preprocessing), preprocessing, out)


WHOLE_PIXELS = 2**23
"""Pixels up to which an image is resized whole and then cut, as other libraries do. Pillow holds the corners
of a box in float32, by which some pixels of a box differ by two levels."""


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
        part = resize_box(image, whole, resized, preprocessing, (first, before, last, after), target)
    else:
        # The crop is mapped back to the image: resizing that box alone gives the same but for rounding, and
        # does not build the enormous image that a 1 x 10000 strip would become.
        down, across = height / resized[0], width / resized[1]
        # The minimum only undoes rounding: Pillow refuses a box that leaves the image by the last bit.
        box = (first * down, before * across, min(last * down, height), min(after * across, width))
        part = resize_box(image, box, (last - first, after - before), preprocessing, out=target)
    return part if inside or out is None else out


def write_to(pixels: Pixels, out: Pixels | None) -> Pixels:
    """Copy the pixels into `out` if it is given, else return them as they are."""
    if out is None:
        return np.ascontiguousarray(pixels)
    if pixels is not out:
        out[:] = pixels
    return out


def resize_box(
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
        return write_to(image[first:last, before:after], out)
    if image.shape[2] != 3:
        return by_threes(image, lambda part: resize_box(part, box, size, preprocessing, cut), out)
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
        if (part := sample(image, down, across, out)) is not None:
            return part
        rows = _between(image[down[0]], image[down[1]], down[2][:, None, None])
        values = _between(rows[:, across[0]], rows[:, across[1]], across[2][None, :, None])
        values += 0.5  # to the nearest level
        return write_to(values.astype(np.uint8), out)
    return write_to(pixels[first:last, before:after], out)


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
