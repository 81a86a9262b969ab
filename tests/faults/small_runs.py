"""The images that small runs are trained on."""

from pathlib import Path

import numpy as np
from PIL import Image


def image_folder(folder: Path, images: int = 60) -> Path:
    """Class folders of small PNG files, half of them dark and half light."""
    generator = np.random.default_rng(0)
    for number in range(images):
        path = folder / ("dark" if number % 2 else "light") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 128, (9 + number % 5, 11, 3)) + 120 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder
