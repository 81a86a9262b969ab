"""The rule by which any image file becomes RGB pixels. It needs no Pillow."""

from dataclasses import dataclass

from vitkit.errors import VitkitError

BYTES_PER_PIXEL = 8
"""Bytes per pixel that decoding may take: 4 for an RGB image in Pillow, 3 for the array, 1 to spare."""
OVERHEAD_BYTES = 16_000_000
"""Bytes of memory that do not depend on the number of pixels: headers, tables, strips."""
# The memory limit never falls below that of this many pixels: a low max_pixels is meant to reject large
# images, not small images whose format needs much memory.
_FEWEST_PIXELS = 16_000_000


@dataclass(frozen=True)
class DecodeRule:
    """The rule by which an image file becomes RGB; it is saved with the model."""

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

    def __post_init__(self) -> None:
        if len(self.background) != 3 or not all(0 <= value <= 255 for value in self.background):
            raise VitkitError(f"background must be three numbers in 0..255, found {self.background}.")
        if self.max_pixels < 1:
            raise VitkitError(f"max_pixels must be at least 1, found {self.max_pixels}.")

    @property
    def max_bytes(self) -> int:
        """Bytes of memory that decoding one image may take."""
        return BYTES_PER_PIXEL * max(self.max_pixels, _FEWEST_PIXELS) + OVERHEAD_BYTES


DEFAULT_RULE = DecodeRule()
