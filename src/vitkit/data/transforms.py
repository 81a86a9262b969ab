"""Bring decoded images to the model's size, as evaluation and prediction do; and change them at random, as
training sees them: crop, flip, rotation, shift, RandAugment, random erasing.

All randomness comes from one generator, which is drawn from in the order of the code, whatever the images
show. The operations of RandAugment and their ranges of strength are Cubuk et al.'s (2019, arXiv 1909.13719,
section 3), by Pillow, as in timm (`data/auto_augment.py`) and torchvision (`transforms/autoaugment.py`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from vitkit.data.channels import border_of, by_threes, to_rgb
from vitkit.data.config import JPEG_SCALES, Augmentation, Preprocessing
from vitkit.kernels.resample import (
    PILLOW_FILTERS,
    Matrix,
    Neighbours,
    has_kernel,
    make_views,
    resample,
    sample,
    turn,
)

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
        if (part := resample(image, box, size, preprocessing.interpolation, cut, out)) is not None:
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
    return (second.astype(np.float32) - start) * weight + start


MOST_DEGREES, MOST_SHEAR, MOST_SHIFT = 30.0, 0.3, 150 / 331
"""Ranges of rotations, shears and translations (a fraction of the side): AutoAugment's, on 331 pixels
(Cubuk et al. 2018, arXiv 1805.09501, Table 6)."""
MOST_CHANGE = 0.9
"""Colour, contrast, brightness and sharpness are multiplied by 1 plus or minus this at most (same table)."""
LEAST_BITS = 4
"""The fewest bits to which posterising reduces each colour (same table; torchvision)."""

ERASED_AREA, ERASED_ASPECT, ERASING_ATTEMPTS = (0.02, 1 / 3), (0.3, 1 / 0.3), 10
"""Fraction of the image and height / width of an erased box, and the most boxes drawn until one fits: timm's
`data/random_erasing.py`, after Zhong et al. 2017 (arXiv 1708.04896, whose largest fraction is 0.4)."""


class RandomView:
    """One random view of an image, as training sees it.

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
        return next((scale for scale in JPEG_SCALES if scale <= most), 1)

    def place(self, image: Pixels) -> "Placed":
        """Cut an image of the size that the crop was drawn for, or that image at a smaller scale.

        All is drawn here but what `distort` draws.
        """
        assert self.size is not None
        augmentation, rng = self.augmentation, self.rng
        if self.crop is not None:
            top, left, height, width = self.crop
            top, bottom = _scaled(top, top + height, self.size[0], image.shape[0])
            left, right = _scaled(left, left + width, self.size[1], image.shape[1])
            image = image[top:bottom, left:right]
        mirrored = augmentation.flip and rng.random() < 0.5
        degrees = augmentation.rotate * (2 * rng.random() - 1) if augmentation.rotate else 0.0
        down = right = 0
        if augmentation.shift:
            down, right = (_below(2 * augmentation.shift + 1, rng) - augmentation.shift for _ in range(2))
        return Placed(image, mirrored, degrees, down, right)

    def pixels(self, image: Pixels, out: Pixels | None = None) -> Pixels:
        """Make the view (height, width, C) of an image, and write it into `out` if that is given.

        The image has the size that the crop was drawn for, or is that image at a smaller scale.
        """
        augmentation, rng = self.augmentation, self.rng
        image, mirrored, degrees, down, right = self.place(image)
        if mirrored:
            image = image[:, ::-1]
        if self.crop is not None:
            # The crop is cut out first, so that resizing cannot look at pixels beyond its border.
            whole = (0.0, 0.0, float(image.shape[0]), float(image.shape[1]))
            size = self.preprocessing.image_size
            image = resize_box(image, whole, size, self.preprocessing, out=out)
        else:
            image = preprocess(image, self.preprocessing, out)
        if down or right or degrees:
            image = _move(image, down, right, degrees)
        image = distort(image, augmentation, rng)
        # The changes after the resize may have made a new image.
        return write_to(image, out)


class Placed(NamedTuple):
    """A part (H, W, C) of an image, and how it is moved once it is resized."""

    part: Pixels
    mirrored: bool
    degrees: float
    down: int
    right: int


MADE_TOGETHER = ("crop_area", "crop_aspect", "flip", "shift", "rotate")
"""The options of augmentation that `make_batch` knows; with another one, views are made one by one."""


def can_make_batches(rule: Preprocessing, augmentation: Augmentation) -> bool:
    """Whether `make_batch` makes the views of whole images, all changes included, on this machine."""
    options = {name: getattr(augmentation, name) for name in MADE_TOGETHER}
    resizes = augmentation.crop_area is not None and rule.antialias and rule.decode.channels == 3
    return resizes and augmentation == Augmentation(**options) and has_kernel(rule.interpolation)


def make_batch(placed: Sequence[Placed], rule: Preprocessing, out: NDArray[np.uint8]) -> None:
    """Make the views of a batch by one call: where images are small, most of the time was that of calls.

    Args:
        placed: by `RandomView.place`, parts of arrays (H, W, 3) that are contiguous.
        rule: the size and the filter.
        out: `(B, 3, height, width)`, to which they are written.
    """
    height, width = rule.image_size
    matrices = [_turning(height, width, view.degrees)[1] if view.degrees else None for view in placed]
    views = [
        (view.part, view.mirrored, view.down, view.right, matrix)
        for view, matrix in zip(placed, matrices, strict=True)
    ]
    make_views(views, rule.interpolation, _turning(height, width, 0.0)[0], out)


def _scaled(start: int, stop: int, size: int, scaled: int) -> tuple[int, int]:
    """Map the pixels start..stop-1 of `size` to an image of `scaled` pixels; at least one pixel."""
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


def _shift(image: Pixels, down: int, right: int) -> Pixels:
    """Shift an image by whole pixels; edge pixels are repeated.

    Copied by slices, in a third to a half of the time that an index for each row and column takes.
    """
    height, width = image.shape[:2]
    # At least one row and column stay inside, to be repeated.
    down, right = max(1 - height, min(down, height - 1)), max(1 - width, min(right, width - 1))
    top, left = max(down, 0), max(right, 0)
    bottom, end = height + min(down, 0), width + min(right, 0)
    out = np.empty(image.shape, image.dtype)
    inside = out[top:bottom]
    inside[:, left:end] = image[top - down : bottom - down, left - right : end - right]
    inside[:, :left], inside[:, end:] = inside[:, left : left + 1], inside[:, end - 1 : end]
    out[:top], out[bottom:] = inside[0], inside[-1]
    return out


def _turning(height: int, width: int, degrees: float) -> tuple[int, Matrix]:
    """Compute the pixels of padding and Pillow's matrix that turn an image anticlockwise about its centre."""
    # Half of the diagonal reaches this far beyond half of the shorter side; 1 for the interpolation.
    pad = math.ceil((math.hypot(height, width) - min(height, width)) / 2) + 1
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    middle_x, middle_y = width / 2, height / 2
    over = middle_x + pad - cosine * middle_x + sine * middle_y
    under = middle_y + pad - sine * middle_x - cosine * middle_y
    return pad, (cosine, -sine, over, sine, cosine, under)


def _move(image: Pixels, down: int, right: int, degrees: float) -> Pixels:
    """Shift an image, then turn it anticlockwise about its centre, bilinearly; edge pixels are repeated.

    Pillow cuts the fraction off instead of rounding: turned pixels may be one level too dark.
    """
    if not degrees:
        return _shift(image, down, right)
    height, width = image.shape[:2]
    pad, matrix = _turning(height, width, degrees)
    if (turned := turn(image, (down, right), pad, matrix)) is not None:
        return turned
    rows = np.clip(np.arange(-pad, height + pad) - down, 0, height - 1)
    columns = np.clip(np.arange(-pad, width + pad) - right, 0, width - 1)

    def turn_part(part: Pixels) -> Pixels:
        moved = part[rows[:, None], columns]
        padded = Image.frombytes("RGB", (width + 2 * pad, height + 2 * pad), moved.tobytes())
        affine, bilinear = Image.Transform.AFFINE, Image.Resampling.BILINEAR
        return np.asarray(padded.transform((width, height), affine, matrix, bilinear), np.uint8)

    return turn_part(image) if image.shape[2] == 3 else by_threes(image, turn_part)


def distort(image: Pixels, augmentation: Augmentation, rng: np.random.Generator) -> Pixels:
    """Apply RandAugment's operations and random erasing; without either option nothing is drawn.

    A grey image (H, W, 1) is changed as an image of equal red, green and blue. The operations do not work on
    other numbers of channels, which a run refuses.
    """
    if augmentation.rand_augment:
        picture = Image.frombytes("RGB", (image.shape[1], image.shape[0]), to_rgb(image).tobytes())
        operations = tuple(OPERATIONS.values())
        for _ in range(augmentation.rand_augment):
            # Operations are drawn with replacement. The direction is drawn even for operations without one,
            # so that the number of draws does not depend on the operation.
            operation = operations[int(rng.random() * len(operations))]
            strength = augmentation.rand_augment_magnitude / 10  # magnitudes go up to 10, strengths to 1
            picture = operation(picture, strength if rng.random() < 0.5 else -strength)
        changed = np.frombuffer(picture.tobytes(), np.uint8).reshape(*image.shape[:2], 3)
        image = changed[:, :, : image.shape[2]]
    if augmentation.random_erasing and rng.random() < augmentation.random_erasing:
        image = erase(image, rng)
    return image


def erase(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Replace a random box by random pixels, as Zhong et al. found best (2017, section 4)."""
    height, width = image.shape[:2]
    low, high = (math.log(aspect) for aspect in ERASED_ASPECT)
    for _ in range(ERASING_ATTEMPTS):
        smallest, largest = ERASED_AREA
        area = height * width * (smallest + (largest - smallest) * rng.random())
        aspect = math.exp(low + (high - low) * rng.random())
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 1 <= rows < height and 1 <= columns < width:
            top, left = int(rng.random() * (height - rows + 1)), int(rng.random() * (width - columns + 1))
            erased, box = image.copy(), rng.integers(0, 256, (rows, columns, image.shape[2]), np.uint8)
            erased[top : top + rows, left : left + columns] = box
            return erased
    return image


Operation = Callable[[Image.Image, float], Image.Image]
"""A picture and a strength from -1 to 1; operations without a direction use its absolute value."""


def _affine(picture: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    """Fill each position of the result from the position in the picture that the matrix maps it to."""
    kind, sampling = Image.Transform.AFFINE, Image.Resampling.BILINEAR
    return picture.transform(picture.size, kind, matrix, sampling, fillcolor=_mean_colour(picture))


def _mean_colour(picture: Image.Image) -> tuple[int, ...]:
    """Compute the picture's mean, the colour of pixels that a geometric operation uncovers."""
    pixels = np.asarray(picture).reshape(-1, 3)
    return tuple(int(level) for level in pixels.mean(0).round())


def _enhance(
    kind: Callable[[Image.Image], ImageEnhance._Enhance], picture: Image.Image, strength: float
) -> Image.Image:
    return kind(picture).enhance(1 + MOST_CHANGE * strength)


OPERATIONS: Mapping[str, Operation] = {
    "identity": lambda picture, _: picture,
    "auto_contrast": lambda picture, _: ImageOps.autocontrast(picture),
    "equalize": lambda picture, _: ImageOps.equalize(picture),
    "rotate": lambda picture, strength: picture.rotate(
        MOST_DEGREES * strength, Image.Resampling.BILINEAR, fillcolor=_mean_colour(picture)
    ),
    "solarize": lambda picture, strength: ImageOps.solarize(picture, round(256 * (1 - abs(strength)))),
    "colour": partial(_enhance, ImageEnhance.Color),
    "posterize": lambda picture, strength: ImageOps.posterize(
        picture, 8 - round((8 - LEAST_BITS) * abs(strength))
    ),
    "contrast": partial(_enhance, ImageEnhance.Contrast),
    "brightness": partial(_enhance, ImageEnhance.Brightness),
    "sharpness": partial(_enhance, ImageEnhance.Sharpness),
    "shear_x": lambda picture, strength: _affine(picture, (1.0, MOST_SHEAR * strength, 0.0, 0.0, 1.0, 0.0)),
    "shear_y": lambda picture, strength: _affine(picture, (1.0, 0.0, 0.0, MOST_SHEAR * strength, 1.0, 0.0)),
    "translate_x": lambda image, strength: _affine(
        image, (1.0, 0.0, MOST_SHIFT * image.width * strength, 0.0, 1.0, 0.0)
    ),
    "translate_y": lambda image, strength: _affine(
        image, (1.0, 0.0, 0.0, 0.0, 1.0, MOST_SHIFT * image.height * strength)
    ),
}
"""The paper's fourteen, in its order."""
