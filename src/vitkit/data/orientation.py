"""Read the orientation that a camera wrote into an image file, and turn the pixels upright."""

import struct

import numpy as np
from numpy.typing import NDArray
from PIL import Image, TiffImagePlugin


def orientation_of(image: Image.Image) -> tuple[bool, int]:
    """Return whether the reader has turned the image already, and its orientation, 1..8 as EXIF numbers them.

    EXIF is read here and not by `Image.getexif`, which warns about damaged blocks; one number is all we need.
    """
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return True, _plausible(image.tag_v2.get(0x0112))
    exif = image.info.get("exif")
    return False, _plausible(_exif_tag(exif, 0x0112)) if isinstance(exif, bytes) else 1


def _plausible(orientation: object) -> int:
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def _exif_tag(exif: bytes, tag: int) -> int | None:
    """Read one 16-bit tag of the first directory of an EXIF block (EXIF 2.3, section 4.6.2)."""
    block = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(block[:2])
    if order is None:
        return None
    try:
        (directory,) = struct.unpack_from(order + "I", block, 4)
        (entries,) = struct.unpack_from(order + "H", block, directory)
        for entry in range(entries):
            found, kind, count, value = struct.unpack_from(order + "HHIH", block, directory + 2 + 12 * entry)
            if (found, kind, count) == (tag, 3, 1):  # kind 3: one 16-bit number, stored in the entry itself
                return int(value)
    except struct.error:  # cut short: as good as absent
        return None
    return None


INVERSE = {6: 8, 8: 6}
"""The orientation that undoes another; all that are not listed undo themselves."""


def upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn an image upright that is stored in one of the eight EXIF orientations."""
    match orientation:
        case 2:
            return pixels[:, ::-1]
        case 3:
            return pixels[::-1, ::-1]
        case 4:
            return pixels[::-1]
        case 5:
            return pixels.swapaxes(0, 1)
        case 6:
            return np.rot90(pixels, -1)
        case 7:
            return pixels[::-1, ::-1].swapaxes(0, 1)
        case 8:
            return np.rot90(pixels, 1)
        case _:
            return pixels
