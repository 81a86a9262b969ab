"""Distortions of RandAugment and random erasing, on images of the model's size, drawn by a generator alone.

The operations and their order of strength are RandAugment's (Cubuk et al. 2019, arXiv 1909.13719,
section 3), by Pillow, as in timm (`data/auto_augment.py`) and torchvision (`transforms/autoaugment.py`).
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from vitkit.data.channels import to_rgb
from vitkit.data.config import Augmentation

Pixels = NDArray[np.uint8]  # (height, width, channels)

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


def distort(image: Pixels, augmentation: Augmentation, rng: np.random.Generator) -> Pixels:
    """Apply the operations and the erasing of an augmentation; without any, nothing is drawn.

    The operations change a grey image (H, W, 1) as an image of equal red, green and blue. They are not made
    for other numbers of channels: `refuse_augmentation` refuses them.
    """
    if augmentation.rand_augment:
        picture = Image.frombytes("RGB", (image.shape[1], image.shape[0]), to_rgb(image).tobytes())
        for _ in range(augmentation.rand_augment):
            # The operations are drawn with replacement, their direction always, used or not, so that later
            # draws do not depend on which operation it was.
            operation = OPERATIONS[int(rng.random() * len(OPERATIONS))]
            strength = augmentation.rand_augment_magnitude / 10
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


def _identity(picture: Image.Image, strength: float) -> Image.Image:
    return picture


def _auto_contrast(picture: Image.Image, strength: float) -> Image.Image:
    return ImageOps.autocontrast(picture)


def _equalize(picture: Image.Image, strength: float) -> Image.Image:
    return ImageOps.equalize(picture)


def _rotate(picture: Image.Image, strength: float) -> Image.Image:
    return picture.rotate(MOST_DEGREES * strength, Image.Resampling.BILINEAR, fillcolor=_mean_colour(picture))


def _solarize(picture: Image.Image, strength: float) -> Image.Image:
    return ImageOps.solarize(picture, round(256 * (1 - abs(strength))))


def _posterize(picture: Image.Image, strength: float) -> Image.Image:
    return ImageOps.posterize(picture, 8 - round((8 - LEAST_BITS) * abs(strength)))


def _colour(picture: Image.Image, strength: float) -> Image.Image:
    return ImageEnhance.Color(picture).enhance(1 + MOST_CHANGE * strength)


def _contrast(picture: Image.Image, strength: float) -> Image.Image:
    return ImageEnhance.Contrast(picture).enhance(1 + MOST_CHANGE * strength)


def _brightness(picture: Image.Image, strength: float) -> Image.Image:
    return ImageEnhance.Brightness(picture).enhance(1 + MOST_CHANGE * strength)


def _sharpness(picture: Image.Image, strength: float) -> Image.Image:
    return ImageEnhance.Sharpness(picture).enhance(1 + MOST_CHANGE * strength)


def _shear_x(picture: Image.Image, strength: float) -> Image.Image:
    return _affine(picture, (1.0, MOST_SHEAR * strength, 0.0, 0.0, 1.0, 0.0))


def _shear_y(picture: Image.Image, strength: float) -> Image.Image:
    return _affine(picture, (1.0, 0.0, 0.0, MOST_SHEAR * strength, 1.0, 0.0))


def _translate_x(picture: Image.Image, strength: float) -> Image.Image:
    return _affine(picture, (1.0, 0.0, MOST_SHIFT * picture.width * strength, 0.0, 1.0, 0.0))


def _translate_y(picture: Image.Image, strength: float) -> Image.Image:
    return _affine(picture, (1.0, 0.0, 0.0, 0.0, 1.0, MOST_SHIFT * picture.height * strength))


def _affine(picture: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    """Fill each position of the result from the position in the picture that the matrix maps it to."""
    kind, sampling = Image.Transform.AFFINE, Image.Resampling.BILINEAR
    return picture.transform(picture.size, kind, matrix, sampling, fillcolor=_mean_colour(picture))


def _mean_colour(picture: Image.Image) -> tuple[int, ...]:
    """Compute the picture's mean, the colour of pixels that a geometric operation uncovers."""
    pixels = np.asarray(picture).reshape(-1, 3)
    return tuple(int(level) for level in pixels.mean(0).round())


OPERATIONS: tuple[Operation, ...] = (
    *(_identity, _auto_contrast, _equalize, _rotate, _solarize, _colour, _posterize, _contrast, _brightness),
    *(_sharpness, _shear_x, _shear_y, _translate_x, _translate_y),
)
"""The paper's fourteen, in its order."""
