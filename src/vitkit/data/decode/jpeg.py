"""Decode JPEGs by simplejpeg, an optional extra, where it gives Pillow's pixels in half the time.

The one format that a library beside Pillow decodes; `image.py`, which alone reads this file, need not know.
"""

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]  # (height, width, 3)
_Decoder = Callable[..., Any]


def decoded_quickly(data: bytes | memoryview, mode: str, size: tuple[int, int]) -> Pixels | None:
    """Decode a JPEG to the same bits as Pillow; None where Pillow has to decode it.

    Pillow decodes every irregular file: with an error or a warning of libjpeg, of other colours than grey and
    RGB, or of another size than its header says.

    Args:
        data: the whole file.
        mode: Pillow's colour mode.
        size: (height, width) by the header.
    """
    decoder = _same_decoder() if mode in ("L", "RGB") else None
    if decoder is None:
        return None
    try:
        pixels: Pixels = decoder(data, "RGB", strict=True)
    except (ValueError, TypeError, MemoryError):
        return None
    return pixels if pixels.shape == (*size, 3) else None


@cache
def _same_decoder() -> _Decoder | None:
    """Return simplejpeg's decoder; None where it is not installed or decodes other pixels than Pillow.

    Both contain a libjpeg of their own. Versions of libjpeg-turbo give the same pixels, but a Pillow that was
    built with another libjpeg does not, so that a few small images are compared.
    """
    try:
        from simplejpeg import decode_jpeg
    except ImportError:  # the extra `fast` is not installed, or not for this machine
        return None
    decoder: _Decoder = decode_jpeg
    noise = np.random.default_rng(0).integers(0, 256, (35, 51, 3), dtype=np.uint8)
    try:
        for image in (Image.fromarray(noise), Image.fromarray(noise).convert("L")):
            for subsampling, progressive in ((0, False), (1, False), (2, True), (2, False)):
                file = io.BytesIO()
                image.save(file, "JPEG", quality=80, subsampling=subsampling, progressive=progressive)
                expected = np.asarray(Image.open(file).convert("RGB"))
                if not np.array_equal(decoder(file.getvalue(), "RGB", strict=True), expected):
                    return None
    except (ValueError, TypeError, MemoryError):
        return None
    return decoder
