"""The rule by which any image file becomes pixels. It needs no Pillow."""

from dataclasses import dataclass

from vitkit.errors import VitkitError

BYTES_PER_PIXEL = 8
"""Bytes per pixel that decoding may take: 4 for an RGB image in Pillow, 3 for the array, 1 to spare."""
OVERHEAD_BYTES = 16_000_000
"""Bytes of memory that do not depend on the number of pixels: headers, tables, strips."""
# The memory limit never falls below that of this many pixels: a low max_pixels is meant to reject large
# images, not small images whose format needs much memory.
_FEWEST_PIXELS = 16_000_000

MOST_CHANNELS = 1024
"""Bands of a hyperspectral image are some hundreds."""


@dataclass(frozen=True)
class DecodeRule:
    """The rule by which an image file becomes pixels; it is saved with the model."""

    apply_exif: bool = True
    """Turn the image as the orientation in its EXIF block (or its TIFF tag) says. Published ImageNet figures
    were made without."""
    background: tuple[int, int, int] = (255, 255, 255)
    """The colour under transparent pixels: red, green, blue in 0..255."""
    max_pixels: int = 64_000_000
    """Larger images are refused from their header, before any pixel is decoded. So are those that take more
    than 8 bytes for each of these pixels to decode, their file included (528 MB by default, 144 MB at
    least): WebP from 32 million pixels on, JPEG 2000 and AVIF from 26, progressive JPEGs without
    subsampling from 52."""
    channels: int = 3
    """Channels of the model's input. 3: red, green, blue; grey images are repeated. 1: grey; colours become
    their luma. 4: with alpha, which is kept instead of shown on the background. Any number from arrays: .npy
    of (height, width, channels), and TIFF files of so many grey pages. 16 bits are scaled to 8."""

    def __post_init__(self) -> None:
        if len(self.background) != 3 or not all(0 <= value <= 255 for value in self.background):
            raise VitkitError(f"background must be three numbers in 0..255, found {self.background}.")
        if self.max_pixels < 1:
            raise VitkitError(f"max_pixels must be at least 1, found {self.max_pixels}.")
        if not 1 <= self.channels <= MOST_CHANNELS:
            raise VitkitError(f"channels is from 1 to {MOST_CHANNELS}, found {self.channels}.")

    @property
    def max_bytes(self) -> int:
        """Bytes of memory that decoding one image may take."""
        return BYTES_PER_PIXEL * max(self.max_pixels, _FEWEST_PIXELS) + OVERHEAD_BYTES


DEFAULT_RULE = DecodeRule()
