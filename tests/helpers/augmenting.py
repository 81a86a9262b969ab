"""One random view of an image, as training makes it."""

import numpy as np

from vitkit.data.config import Augmentation, Preprocessing
from vitkit.data.transforms import Pixels, RandomView


def augment(
    image: Pixels,
    preprocessing: Preprocessing,
    augmentation: Augmentation,
    rng: np.random.Generator,
    out: Pixels | None = None,
) -> Pixels:
    """Change one image (H, W, C) at random to (height, width, C) of image_size, as training sees it.

    It is written into `out` where that is given, whatever its strides.
    """
    view = RandomView(preprocessing, augmentation, rng)
    view.draw(*image.shape[:2])
    return view.pixels(image, out)
