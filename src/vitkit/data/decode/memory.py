"""Bound the memory that decoding an image takes, from its header, so that a small file cannot fill it.

The figures hold for Pillow 12 and 13 with libjpeg-turbo, libwebp, libavif, OpenJPEG and libtiff, measured
as growth of the resident set (`tests/data/decode/test_memory.py` measures them again). They are about other
people's libraries and not about our rule of decoding, hence a file apart from `image.py`.
"""

import re
from typing import Any, cast

from PIL import Image

# Bytes per pixel that a reader takes beside the image it fills. WebP: two canvases and a copy of the frame;
# AVIF, HEIF: planes of up to 16 bits, the colours made from them and a copy; the others are read by Python
# code.
_BESIDE_THE_IMAGE = {
    "WEBP": 12.1,
    "AVIF": 16.0,
    "HEIF": 16.0,
    "SGI": 8.0,
    "PPM": 8.0,
    "QOI": 4.0,
    "BMP": 3.0,
    "GIF": 3.0,
}

_STORED_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
"""Bytes that Pillow uses for a pixel of a colour mode; 4 of any other: colours of three bytes take four."""

MAX_JPEG_SCANS = 100
"""Real progressive JPEGs have about ten scans; each costs a pass over all of the image, in a few bytes."""

# A marker of a JPEG file: 0xFF and a byte that is neither a stuffed zero, nor filling, nor a restart.
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
# Start of a frame (ITU-T T.81, Table B.1); C4, C8 and CC are tables and a reserved marker.
_FRAME_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})


def decoding_bytes(image: Image.Image, file_bytes: int, buffered: bool = False) -> int:
    """Bound the memory in bytes that decoding takes, from the file's bytes to RGB pixels of three bytes.

    Args:
        image: opened, not loaded.
        file_bytes: the size of the file, if it is held for the decoding; 0 if it is the caller's.
        buffered: whether it is a JPEG whose coefficients are all in memory before the first pixel is made.
    """
    pixels = image.size[0] * image.size[1]
    stored = _STORED_BYTES.get(image.mode, 4)
    if image.format == "JPEG":
        reader = _jpeg_coefficients(image) if buffered else 0.0
    elif image.format == "JPEG2000":
        # 32 bits a value, then a tile's values packed to 16 or 8 bits.
        reader = (6.2 if image.mode.startswith("I") else 5.2) * len(image.getbands())
    elif image.format == "TIFF":
        reader = _tiff_bytes(image)
    elif image.format in ("PPM", "BMP", "SGI") and all(tile[0] == "raw" for tile in cast("Any", image).tile):
        reader = 2.0 if image.format == "SGI" else 0.0  # copied without a decoder, SGI band by band
    else:
        reader = _BESIDE_THE_IMAGE.get(image.format or "", 0.0)
    # Comments, profiles and further frames may be held twice more while they are read.
    beside = file_bytes + 2 * max(0, file_bytes - pixels * stored)
    return round(max(beside + pixels * (stored + reader), pixels * (stored + 3)))


def _jpeg_coefficients(image: Image.Image) -> float:
    """Count the bytes per pixel of the coefficients, 16 bits each, with the subsampling of each component."""
    factors = [(max(1, layer[1]), max(1, layer[2])) for layer in cast("Any", image).layer]
    most = max((h for h, _ in factors), default=1) * max((v for _, v in factors), default=1)
    return float(2 * sum(h * v for h, v in factors) / most)


def _tiff_bytes(image: Image.Image) -> float:
    """Count the bytes per pixel that libtiff takes for a strip or a tile, or that turning the image takes."""
    tags = cast("Any", image).tag_v2
    width, height = image.size
    turning = float(_STORED_BYTES.get(image.mode, 4)) if tags.get(0x0112, 1) != 1 else 0.0
    compression = tags.get(259, 1)
    bits = tags.get(258, (8,))
    if compression == 1:
        bands_apart = tags.get(284, 1) == 2  # each is read whole
        return max(turning, 2 * max(bits) / 8 if bands_apart else 0.0)
    rows = tags.get(278, height)
    area = width * min(rows, height) if isinstance(rows, int) else width * height
    if isinstance(tags.get(322), int) and isinstance(tags.get(323), int):
        area = tags[322] * tags[323]
    # JPEG and WebP within a TIFF (6, 7, 50001) take as much as in files of their own.
    bytes_per_pixel = 14 if compression in (6, 7, 50001) else max(4, sum(bits) / 8)
    return max(turning, bytes_per_pixel * area / (width * height))


def jpeg_scans(data: bytes) -> tuple[int, bool]:
    """Count the scans of a JPEG that a decoder would read, and say whether it keeps all coefficients.

    A scan is what begins with a start-of-scan marker (ITU-T T.81, B.2.3). The segments are stepped over by
    their lengths, so thumbnails and comments do not count, nor do bytes within a scan that look like a
    marker but are stuffed, nor what comes after the end of the image. Counting stops above `MAX_JPEG_SCANS`.
    """
    scans, position, components, buffered = 0, 2, 0, False
    while match := _MARKER.search(data, position):
        marker, position = data[match.end() - 1], match.end()
        if marker == 0xD9:  # end of image
            break
        if marker in (0x01, 0xD8):  # these two have no segment
            continue
        if marker in _FRAME_MARKERS:
            components = data[position + 7] if position + 7 < len(data) else 0
            buffered = marker in _PROGRESSIVE
        elif marker == 0xDA:
            scans += 1
            buffered = buffered or data[position + 2 : position + 3] < bytes([components])
            if not buffered:  # all components at once: the decoder reads no further
                break
            if scans > MAX_JPEG_SCANS:
                break
        position += max(2, int.from_bytes(data[position : position + 2]))
    return scans, buffered
