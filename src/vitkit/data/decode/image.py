"""Decode any image file to pixels, RGB unless the rule says otherwise, by one declared rule.

Training, evaluation and prediction use the same function, so that a model never meets an image
turned, inverted or clipped in another way than it was trained on. Whatever Pillow does with a damaged file,
the caller sees pixels or a `DecodeError` with the reason.

The memory that decoding takes is bounded from an image's header, so that a small file cannot fill it. The
figures hold for Pillow 12 and 13 with libjpeg-turbo, libwebp, libavif, OpenJPEG and libtiff, measured
as growth of the resident set (`tests/data/decode/test_memory.py` measures them again).

Images that are arrays have any number of channels: `.npy` files of (height, width, channels), and TIFF files
whose channels are no colours, with one grey page for each channel or several samples a pixel. Of `.npy` files
only the three types of `to_levels` are read; nothing is unpickled. The header is matched by a pattern, as
numpy and other writers make it (numpy/lib/_format_impl.py), and the length it states must be the file's. TIFF
files are read by tifffile, one strip or tile after the other, each unpacked to no more than its pixels.

Shapes: H x W pixels of C channels.
"""

import io
import logging
import math
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from PIL import IcoImagePlugin, Image, JpegImagePlugin, TiffImagePlugin

from vitkit.data.channels import STRIP_PIXELS, from_rgb, make_converter, strips, upright
from vitkit.data.config import BYTES_PER_PIXEL, DEFAULT_RULE, JPEG_SCALES, OVERHEAD_BYTES, DecodeRule
from vitkit.data.files import UnreadableFileError, read_unchanged_file
from vitkit.errors import DecodeError

MAGIC = b"\x93NUMPY"
_HEADER = re.compile(
    r"\{'descr': (?P<type>'[^']*'|\[.*\]), 'fortran_order': (?P<columns_first>True|False), "
    r"'shape': \((?P<shape>(?:\d{1,10}, ?)*(?:\d{1,10})?)\),? ?\}\s*",
    re.DOTALL,
)
_LONGEST_HEADER = 1000  # characters; an image's has about 70
_TYPES = {"'|u1'", "'<u2'", "'>u2'", "'<f4'", "'>f4'"}
_STRIP = 1 << 18  # values that are converted at a time, so that their floats take little memory
STRIP_BYTES = 16 * _STRIP
"""Bytes of memory that converting takes beside values and levels: four floats for each value of a strip."""


def to_levels(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Turn values into levels from 0 to 255: uint8 as they are, uint16 times 255/65535, floats times 255.

    Raises:
        DecodeError: floats that are not in [0, 1], or values of another type.
    """
    if values.dtype == np.uint8:
        return values.astype(np.uint8, copy=False)
    if values.dtype.kind == "u" and values.dtype.itemsize == 2:
        scaled = values.astype(np.float32) * np.float32(255 / 65535)
    elif values.dtype.kind == "f":
        if not values.size or not (values.min() >= 0 and values.max() <= 1):  # NaN is neither
            extent = "NaN" if np.isnan(values).any() else f"{values.min():g} to {values.max():g}"
            raise DecodeError(f"expected floats from 0 to 1, found {extent}: scale all images alike")
        scaled = values.astype(np.float32) * np.float32(255)
    else:
        raise DecodeError(f"expected values of uint8, uint16 or float32, found {values.dtype}")
    levels: NDArray[np.uint8] = np.floor(scaled + np.float32(0.5)).astype(np.uint8)
    return levels


@dataclass(frozen=True)
class ArrayFile:
    """An image file that holds an array, whose header was read and agrees with the file's length."""

    format: str
    shape: tuple[int, int, int]
    """(H, W, C)"""
    kind: np.dtype[Any]
    parts: Callable[[], Iterable[tuple[tuple[slice, slice, slice], NDArray[Any]]]]
    """A function that reads the array in parts: their rows, columns and channels, and values (H, W, C)."""
    decoding_bytes: int
    """Bytes of memory that decoding takes beside the file."""
    orientation: int = 1
    """The turn of the stored array, from 1 to 8 as in EXIF."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height), in Pillow's order."""
        return self.shape[1], self.shape[0]

    @property
    def mode(self) -> str:
        return f"{self.kind.name} x {self.shape[2]}"

    def pixels(self, rule: DecodeRule) -> NDArray[np.uint8]:
        """Decode to (H, W, channels); grey, a single channel, is repeated where the rule has 3 or 4.

        Raises:
            DecodeError: another number of channels, values out of range, or a damaged part.
        """
        channels = self.shape[2]
        if channels != rule.channels and not (channels == 1 and rule.channels in (3, 4)):
            if self.shape[0] == rule.channels:
                raise DecodeError(
                    f"expected (height, width, {rule.channels}), found {self.shape}, channels first: save "
                    "numpy.moveaxis(array, 0, -1) instead"
                )
            raise DecodeError(
                f"expected {rule.channels} channels, found an array of {channels}, {self.shape}: give "
                f"--channels {channels}"
            )
        levels = np.empty((*self.shape[:2], rule.channels), np.uint8)
        for place, values in self.parts():
            filled, (height, width, depth) = levels[place], values.shape
            # Strip by strip, so that the floats take little memory.
            rows, columns = max(1, _STRIP // (width * depth)), max(1, _STRIP // depth)
            for top in range(0, height, rows):
                for left in range(0, width, columns):
                    strip = np.s_[top : top + rows, left : left + columns]
                    filled[strip] = to_levels(values[strip])
        if channels != rule.channels:  # of grey, which is opaque
            levels[:, :, 1:3], levels[:, :, 3:] = levels[:, :, :1], 255
        return np.ascontiguousarray(upright(levels, self.orientation if rule.apply_exif else 1))


def read_array(data: bytes) -> ArrayFile:
    """Read the header of an `.npy` file.

    Raises:
        DecodeError: it is no image, or the file is not as long as the header says.
    """
    if (start := {b"\1": 10, b"\2": 12, b"\3": 12}.get(data[6:7])) is None:
        raise DecodeError(f"a .npy file of version {data[6:7].hex()}; 1, 2 and 3 can be read")
    length = int.from_bytes(data[8:start], "little")
    header = _HEADER.fullmatch(data[start : start + min(length, _LONGEST_HEADER)].decode("latin-1"))
    if header is None:
        raise DecodeError("the header of this .npy file cannot be read: save the array with numpy.save")
    if header["type"] not in _TYPES:
        python = " (Python objects are never loaded)" if "O" in header["type"] else ""
        raise DecodeError(
            f"an array of type {header['type'][:40]}{python}: save it as uint8, uint16, or float32 from 0 "
            "to 1"
        )
    shape = tuple(int(side) for side in header["shape"].replace(",", " ").split())
    if len(shape) not in (2, 3) or 0 in shape:
        raise DecodeError(f"an array of shape {shape}: expected (height, width) or (height, width, channels)")
    kind = np.dtype(header["type"].strip("'"))
    promised = kind.itemsize * int(np.prod(shape, dtype=object))  # of Python's integers, which never wrap
    held = len(data) - start - length
    if promised != held:
        raise DecodeError(
            f"the header promises {promised:,} bytes of pixels, {shape} of {kind.name}, the file has "
            f"{max(held, 0):,}"
        )
    flat = np.frombuffer(data, kind, offset=start + length)
    values = flat.reshape(shape, order="F" if header["columns_first"] == "True" else "C")
    values = values if values.ndim == 3 else values[:, :, None]
    height, width, channels = values.shape
    # Levels, which are repeated for grey, and a strip of floats.
    needed = (4 if channels == 1 else channels) * height * width + STRIP_BYTES
    place = np.s_[:, :, :channels]
    return ArrayFile("NPY", (height, width, channels), kind, lambda: [(place, values)], needed)


# Numbers of TIFF's tags.
_COLOURS, _ORIENTATION, _SAMPLES, _EXTRA = 262, 274, 277, 338  # the orientation's is that of EXIF too
_DEFLATE = (8, 32946)  # the numbers of deflate as a compression: Adobe's, and an older one
_COMPRESSIONS = (1, 5, *_DEFLATE, 32773, 50000)
"""None, LZW, deflate, PackBits, Zstandard: their output is bounded. A JPEG inside can have any size."""

# It logs what is odd, and raises what is wrong.
logging.getLogger("tifffile").addHandler(logging.NullHandler())


def read_tiff(data: bytes, channels: int) -> ArrayFile | None:
    """Read the tags of a TIFF file whose samples or grey pages are channels; None for one that Pillow reads.

    Pillow reads four channels that are colours with an alpha or CMYK, and a single grey page.

    Raises:
        DecodeError: it is stored in a way that is not read here, or damaged.
    """
    if channels == 4:
        # A BigTIFF has the version 43, at byte 2 or 3 by its byte order, and a longer head.
        tags: Any = TiffImagePlugin.ImageFileDirectory_v2(data[: 16 if 43 in data[2:4] else 8])
        stream = io.BytesIO(data)
        stream.seek(tags.next)
        tags.load(stream)
        samples, grey = tags.get(_SAMPLES, 1), tags.get(_COLOURS) in (0, 1)
        unknown = samples == 4 and (grey or tags.get(_EXTRA) == (0,))
        if not unknown and not (samples == 1 and grey and tags.next):  # the last: there is a second page
            return None
    try:
        import imagecodecs  # noqa: F401 (tifffile unpacks by it)
        from tifffile import TiffFile
    except ImportError:
        message = "a TIFF of channels, which the extra tiff reads: pip install 'vitkit[tiff]', or save .npy"
        raise DecodeError(message) from None
    tiff: Any = TiffFile(io.BytesIO(data))
    first = tiff.pages[0]
    if tiff.is_ome:
        _check_ome(first.description, channels)
    pages = [first]
    if first.samplesperpixel == 1:
        # Further pages are not searched: some files have thousands. In an OME-TIFF they are other images.
        pages = list(islice(tiff.pages, channels + (not tiff.is_ome)))
        if len(pages) != channels:
            return None
    orientation = first.tags.valueof(_ORIENTATION, 1)
    for number, page in enumerate(pages, 1):
        if page.photometric not in (0, 1) and len(pages) > 1:
            raise DecodeError(f"page {number} of {channels} has colours, expected grey")
        if page.shaped != first.shaped or page.tags.valueof(_ORIENTATION, 1) != orientation:
            size = page.imagewidth, page.imagelength
            raise DecodeError(f"page {number} has {size} pixels (width, height), or a turn, unlike the first")
        if page.dtype not in (np.uint8, np.uint16, np.float32) or page.bitspersample < 8:
            bits = page.bitspersample
            raise DecodeError(f"samples of {bits} bits: save them as uint8, uint16, or float32 from 0 to 1")
        if page.compression not in _COMPRESSIONS:
            raise DecodeError(f"{page.compression!r}: save it with LZW or deflate, or as .npy")
        count, expected = len(page.dataoffsets), math.prod(page.chunked)
        if not count == len(page.databytecounts) == expected or page.imagedepth != 1:
            raise DecodeError(f"{count:,} strips, expected {expected:,}: the file is damaged")
    planes, _, height, width, together = first.shaped
    deflated = [page.compression in _DEFLATE for page in pages]
    segment_bytes = max(math.prod(page.chunks) * page.dtype.itemsize for page in pages)

    def read_segments() -> Iterator[tuple[tuple[slice, slice, slice], NDArray[Any]]]:
        for number, page in enumerate(pages):
            if deflated[number]:
                page.compression = 1  # it is unpacked here, for libdeflate refuses a strip that is too long
            elif page.compression == 1:
                page.predictor = 1  # libtiff and Pillow ignore it here, so that writers may leave any there
            for index, (start, length) in enumerate(zip(page.dataoffsets, page.databytecounts, strict=True)):
                stored = data[start : start + length]
                if deflated[number]:
                    stored = zlib.decompressobj().decompress(stored, segment_bytes)
                # Values (depth, height, width, samples), and where they stand: plane, z, row, column, sample.
                segment, (sample, _, top, left, _), _ = page.decode(stored, index)
                values = segment[0, : height - top, : width - left]  # a tile may reach beyond the image
                if page.photometric == 0 and len(pages) > 1 and values.dtype == np.uint8:
                    values = ~values  # white is 0, as Pillow reads it
                bottom, right, channel = top + len(values), left + values.shape[1], number + sample
                yield np.s_[top:bottom, left:right, channel : channel + values.shape[2]], values

    shape = (height, width, planes * together * len(pages))
    # Levels, and others that are turned; zlib joins pieces into a copy, undoing the predictor takes another.
    needed = math.prod(shape) * (1 if orientation == 1 else 2) + 3 * segment_bytes + STRIP_BYTES
    return ArrayFile("TIFF", shape, first.dtype, read_segments, needed, orientation)


def _check_ome(description: str, channels: int) -> None:
    """Refuse an OME-TIFF whose first image is not one plane of so many channels, page after page."""
    pixels = ElementTree.fromstring(description).findall("{*}Image/{*}Pixels")[0]
    held, planes, times = (int(pixels.get(f"Size{axis}", 1)) for axis in "CZT")
    if (held, planes, times) != (channels, 1, 1):
        raise DecodeError(
            f"an OME-TIFF of {held} channels, {planes} planes (Z) and {times} times (T), expected {channels} "
            "channels of one plane: give --channels; save each plane, or their maximum, as a file of its own"
        )
    for stored in pixels.iterfind("{*}TiffData"):
        if stored.get("IFD", "0") != stored.get("FirstC", "0"):
            raise DecodeError("an OME-TIFF whose channels are in other files or another order: save it anew")


# Bytes per pixel that a reader takes beside the image it fills. WebP: two canvases and a copy of the frame;
# AVIF, HEIF: planes of up to 16 bits, the colours made from them and a copy; the others are read by Python
# code.
_BESIDE_THE_IMAGE = {"WEBP": 12.1, "AVIF": 16, "HEIF": 16, "SGI": 8, "PPM": 8, "QOI": 4, "BMP": 3, "GIF": 3}

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
        reader = 0.0
        if buffered:  # coefficients of 16 bits, with the subsampling of each component
            factors = [(max(1, layer[1]), max(1, layer[2])) for layer in cast("Any", image).layer]
            most = max((h for h, _ in factors), default=1) * max((v for _, v in factors), default=1)
            reader = 2 * sum(h * v for h, v in factors) / most
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


# Importing a plug-in is how Pillow learns its format: only the formats named in _FORMATS are ever tried.
for _plugin in ("Avif", "Bmp", "Gif", "Jpeg2K", "Png", "Ppm", "Qoi", "Sgi", "WebP"):
    import_module(f"PIL.{_plugin}ImagePlugin")


@dataclass(frozen=True)
class Header:
    """The format, colour mode and size of an image file, from its header."""

    format: str
    """Pillow's name: "JPEG", "PNG", ..."""
    mode: str
    """Pillow's colour mode: "RGB", "L", "P", "CMYK", "I;16", ..."""
    size: tuple[int, int]
    """(height, width) of the decoded image, so after the EXIF turn where the rule applies it."""
    decoding_bytes: int = 0
    """Upper bound of the memory in bytes that decoding takes."""


class _Jpeg(JpegImagePlugin.JpegImageFile):
    """Pillow's JPEG reader without its look into EXIF for a print resolution, which warns on damaged EXIF.

    It also reads a multi-picture file as its first picture, which is what `decode` promises.
    """

    def _read_dpi_from_exif(self) -> None:
        pass


class _Ico(IcoImagePlugin.IcoImageFile):
    """Pillow's icon reader, which also checks the size of the image inside before decoding it."""

    def load(self) -> Any:
        if self._im is None:
            entry = self.ico.entry[self.ico.getentryindex(self.size)]
            self.ico.buf.seek(entry.offset)
            # Of so many bytes, to the end of a PNG's width and height, which begin at 16.
            if (start := self.ico.buf.read(24)).startswith(b"\x89PNG"):
                inside = struct.unpack_from(">II", start, 16)
            else:
                # A bitmap's header of 12 bytes has its size in 16 bits, a later header in 32; the height is
                # that of colours and mask together, and negative where the top row is stored first.
                inside = struct.unpack_from("<HH" if start[:4] == b"\x0c\0\0\0" else "<ii", start, 4)
                inside = (inside[0], abs(inside[1]) // 2)
            if inside != self.size:
                raise DecodeError(_other_size(self.size, inside))
        return super().load()


def _open_heif(stream: IO[bytes], name: str | bytes) -> Image.Image:
    """Open an HEIC image by pillow-heif, which turns it upright whatever the rule says of EXIF.

    Raises:
        DecodeError: it is not installed.
    """
    try:
        from pillow_heif.as_plugin import HeifImageFile
    except ImportError:
        raise DecodeError(
            "an HEIC image, which the extra heif reads: pip install 'vitkit[heif]'; or convert it to JPEG or "
            "PNG"
        ) from None
    opener: _Opener = HeifImageFile
    return opener(stream, name)


_Opener = Callable[[IO[bytes], str | bytes], Image.Image]

# Formats that their first bytes tell. Formats without a signature (TGA, PCX) would accept garbage; formats
# that run an interpreter (EPS, WMF) would run a stranger's program.
_FORMATS: dict[str, _Opener] = {
    "JPEG": _Jpeg,
    **{
        name: Image.OPEN[name][0] for name in ("PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")
    },
    "ICO": _Ico,
    **{name: Image.OPEN[name][0] for name in ("QOI", "SGI")},
    "HEIF": _open_heif,
}
_HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
"""The brands of files of HEVC images (ISO/IEC 23008-12, B.4); mif1 and msf1 leave the codec open."""

# Readers that warn about odd files instead of refusing them. Python 3.11 can only silence warnings for the
# whole process, so these few take turns, and the common formats never enter the lock.
_TALKATIVE = frozenset({"GIF", "TIFF", "AVIF", "ICO"})
_silence = threading.Lock()


Shrinking = Callable[[int, int], int]
"""A function from the (height, width) of a JPEG to how many times smaller it may be decoded: 1, 2, 4 or 8."""


def decode(
    file: bytes | Path, rule: DecodeRule = DEFAULT_RULE, shrinking: Shrinking | None = None
) -> NDArray[np.uint8]:
    """Decode one image file to pixels, (height, width, channels) uint8; the array may be read-only.

    Three channels are RGB; `channels.py` says what others are.

    - The EXIF orientation is applied if the rule says so.
    - Transparency (alpha, transparent palette entries, transparent colours) is composited on the background;
      with four channels it is the last one.
    - CMYK and YCCK become RGB, Adobe's inverted ones too.
    - 16-bit grey is scaled by 255/65535 and rounded, never clipped. Floating-point grey in [0, 1] is
      multiplied by 255, in [0, 255] left as it is; any other range, and 32-bit integers beyond 16 bits, is
      stretched from its smallest to its largest value. NaN and infinity are refused.
    - An animation gives its first frame.
    - A JPEG is decoded smaller by libjpeg where the rule or `shrinking`, which is called with the size after
      the rule, allows it; sides are rounded up.

    Raises DecodeError for everything that is not such an image: missing, empty, truncated, damaged, too
    large, of another type.
    """
    with _opened(file, rule) as (image, stream, _):
        if isinstance(image, ArrayFile):
            return image.pixels(rule)
        if image.format == "JPEG" and (shrinking is not None or rule.jpeg_side is not None):
            width, height = image.size
            times = rule.jpeg_scale(height, width)
            if shrinking is not None:
                rows, columns = -(-height // times), -(-width // times)
                # From 5 on width and height change.
                turned = rule.apply_exif and orientation_of(image)[1] >= 5
                more = shrinking(columns, rows) if turned else shrinking(rows, columns)
                times = min(times * more, JPEG_SCALES[0])
            if times > 1:
                # Pillow decodes at the smallest of its scales whose sides are not below this size: 1 / times.
                image.draft(None, (max(1, width // times), max(1, height // times)))
                return _pixels(image, rule)
        return _pixels(image, rule, stream)


def decode_image(image: Image.Image, rule: DecodeRule = DEFAULT_RULE) -> NDArray[np.uint8]:
    """Decode an image that Pillow has already opened by the same rule; the image itself is not changed."""
    with _failures_explained(image.format or "image"):
        _check_size(*image.size, rule)
        file: IO[bytes] | None = getattr(image, "fp", None)
        if image.format == "TIFF" and file is not None and rule.channels not in (1, 3):
            file.seek(0)
            if (stack := read_tiff(file.read(), rule.channels)) is not None:
                return stack.pixels(rule)
        return _pixels(image, rule)


def header(file: bytes | Path, rule: DecodeRule = DEFAULT_RULE) -> Header:
    """Read format, colour mode and size from the header, without decoding.

    Raises:
        DecodeError: the header alone shows that the file cannot be decoded.
    """
    with _opened(file, rule) as (image, _, needed):
        width, height = image.size
        if image.format == "JPEG":
            times = rule.jpeg_scale(height, width)
            width, height = -(-width // times), -(-height // times)
        turned, turn = orientation_of(image)
        # A reader that turns the image gives the size after the turn, even where the rule wants none.
        swapped = turn >= 5 and turned != rule.apply_exif
        size = (width, height) if swapped else (height, width)
        return Header(image.format or "", image.mode, size, needed)


@contextmanager
def _opened(
    file: bytes | Path, rule: DecodeRule
) -> Iterator[tuple[Image.Image | ArrayFile, io.BytesIO, int]]:
    """Open an image with the reader that its first bytes ask for, and check its size and memory.

    Yields the image, the stream it is read from, and the bytes of memory that decoding takes.

    Errors inside the block become DecodeError. Pillow's own `Image.open` is not used: it warns about large
    images before anybody can ask their size.
    """
    try:
        data = file if isinstance(file, bytes) else read_unchanged_file(file, rule.max_bytes)
    except UnreadableFileError as error:
        raise DecodeError(str(error)) from error
    if len(data) > rule.max_bytes:  # the cell of a Parquet file, say, which a few bytes can unpack to
        raise DecodeError(f"the image has {len(data):,} bytes, more than the {rule.max_bytes:,} allowed")
    file_bytes = 0 if isinstance(file, bytes) else len(data)  # the caller's bytes are not memory of decoding
    name = _recognise(data)
    with _failures_explained(name), ExitStack() as stack:
        # Inside a PNG only the animation chunk has a check that warns.
        if name in _TALKATIVE or (name == "PNG" and b"acTL" in data):
            stack.enter_context(_silence)
            stack.enter_context(warnings.catch_warnings(action="ignore"))
        scans, buffered = jpeg_scans(data) if name == "JPEG" else (0, False)
        if scans > MAX_JPEG_SCANS:
            raise DecodeError(
                f"a progressive JPEG of more than {MAX_JPEG_SCANS} scans, each of which takes as long as a "
                "whole image: no camera or program writes that. Save it again as a plain JPEG"
            )
        image: Image.Image | ArrayFile | None = read_array(data) if name == "NPY" else None
        if name == "TIFF" and rule.channels not in (1, 3):
            image = read_tiff(data, rule.channels)
        stream = io.BytesIO(data)
        del data  # so that closing the stream frees the bytes
        if image is None:
            image = _FORMATS[name](stream, b"")
        width, height = image.size
        _check_size(width, height, rule)
        if isinstance(image, ArrayFile):
            needed = file_bytes + image.decoding_bytes
        else:  # `decoding_bytes` counts pixels of three bytes
            needed = decoding_bytes(image, file_bytes, buffered) + max(0, rule.channels - 3) * width * height
        if needed > rule.max_bytes:
            # The message gives the smallest max_pixels whose `max_bytes` is enough, by its formula backwards.
            raise DecodeError(
                f"decoding this {image.format} file of {width} x {height} pixels would take "
                f"{needed / 1e6:,.0f} MB of memory, more than the {rule.max_bytes / 1e6:,.0f} MB that "
                f"max_pixels = {rule.max_pixels:,} allows. It fits with max_pixels = "
                f"{-(-(needed - OVERHEAD_BYTES) // BYTES_PER_PIXEL):,}, or saved as a plain JPEG or PNG"
            )
        yield image, stream, needed


@contextmanager
def _failures_explained(format_name: str) -> Iterator[None]:
    """Turn every exception into DecodeError: decoders raise OSError, SyntaxError, ValueError, struct.error,
    MemoryError, DecompressionBombError and more, none of which should end a training run."""
    try:
        yield
    except DecodeError:
        raise
    except MemoryError as error:
        raise DecodeError(
            f"there is not enough memory to decode this {format_name} file; fewer workers need less"
        ) from error
    except Exception as error:
        raise DecodeError(f"damaged {format_name} file: {error or type(error).__name__}") from error


def _recognise(data: bytes) -> str:
    """Return the name of the format by its first bytes."""
    if not data:
        raise DecodeError("the file is empty (0 bytes)")
    # As many bytes as `Image.open` gives the accept functions.
    if (start := data[:16]).startswith(MAGIC):
        return "NPY"
    if data[4:8] == b"ftyp":
        # The compatible brands stand from byte 16 to the end of the box, which may claim any length. AVIF, a
        # box of the same kind, has brands of its own.
        brands = {data[place : place + 4] for place in range(16, min(int.from_bytes(data[:4]), 256), 4)}
        any_codec = data[8:12] in (b"mif1", b"msf1")
        if data[8:12] in _HEIF_BRANDS or (any_codec and not {b"avif", b"avis"} & brands):
            return "HEIF"
    for name in (name for name in _FORMATS if name in Image.OPEN):  # HEIF is no format of Pillow
        accept = Image.OPEN[name][1]
        # An accept function answers with a sentence when Pillow was built without the codec.
        answer = accept(start) if accept else False
        if isinstance(answer, str):
            raise DecodeError(answer)
        if answer:
            return name
    text = data[:256].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head")):
        raise DecodeError("an HTML page, not an image (a download that failed?)")
    if text.startswith((b"<svg", b"<?xml")):
        raise DecodeError("an SVG or XML file; only pixel images can be read")
    raise DecodeError(f"not an image of a format that is read here ({', '.join((*_FORMATS, 'NPY'))})")


def _check_size(width: int, height: int, rule: DecodeRule) -> None:
    if width < 1 or height < 1:
        raise DecodeError(f"the header gives an empty image of {width} x {height} pixels")
    if width * height > rule.max_pixels:
        raise DecodeError(
            f"{width} x {height} = {width * height:,} pixels, more than the limit of {rule.max_pixels:,} "
            "(--max-pixels)"
        )


def _other_size(promised: tuple[int, int], size: tuple[int, int]) -> str:
    return f"the header promises {promised[0]} x {promised[1]} pixels, the image has {size[0]} x {size[1]}"


def _pixels(image: Image.Image, rule: DecodeRule, stream: IO[bytes] | None = None) -> NDArray[np.uint8]:
    """Return the pixels of an open image; its stream, where given, is closed as soon as it is read."""
    if rule.channels not in (1, 3, 4):
        raise DecodeError(
            f"expected {rule.channels} channels, found an image of colour mode {image.mode}: give .npy files "
            f"of (height, width, {rule.channels}), or TIFF files of {rule.channels} grey pages"
        )
    size = image.size
    turned, turn = orientation_of(image)  # before loading: the TIFF reader obeys its tag and then forgets it
    if image.format == "JPEG" and isinstance(stream, io.BytesIO):
        width, height = size
        if (quick := decoded_quickly(stream.getbuffer(), image.mode, (height, width))) is not None:
            quick = from_rgb(quick, rule.channels)
            return np.ascontiguousarray(upright(quick, turn if rule.apply_exif else 1))
    image.load()
    if image.size != size:
        raise DecodeError(_other_size(size, image.size))
    if stream is not None:
        stream.close()  # frees the file before the array is made
    if turned == rule.apply_exif:  # turned already, or not to be turned
        turn = 1
    elif turned:  # undo what the TIFF reader did: only the quarter turns are not their own inverse
        turn = INVERSE.get(turn, turn)
    convert = make_converter(image, rule)
    width, height = size
    if width * height <= STRIP_PIXELS:
        return np.ascontiguousarray(upright(convert(image), turn))
    pixels = np.empty((*((width, height) if turn >= 5 else (height, width)), rule.channels), dtype=np.uint8)
    as_stored = upright(pixels, INVERSE.get(turn, turn))  # a view: the rows of the file, wherever they go
    for top, strip in strips(image):
        as_stored[top : top + strip.height] = convert(strip)
    return pixels


def orientation_of(image: Image.Image | ArrayFile) -> tuple[bool, int]:
    """Return whether the reader has turned the image already, and its orientation, 1..8 as EXIF numbers them.

    EXIF is read here and not by `Image.getexif`, which warns about damaged blocks; one number is all we need.
    An orientation that stands in XMP alone is not read.
    """
    if isinstance(image, ArrayFile):
        return False, image.orientation
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        turned, stored = True, image.tag_v2.get(_ORIENTATION)
    else:
        turned, stored, exif = False, 1, image.info.get("exif")
        block = exif.removeprefix(b"Exif\0\0") if isinstance(exif, bytes) else b""
        order = {b"II": "<", b"MM": ">"}.get(block[:2], "")
        with suppress(struct.error):  # cut short: as if there were none
            # In the first directory of the block (EXIF 2.3, section 4.6.2).
            (directory,) = struct.unpack_from(order + "I", block, 4)
            (entries,) = struct.unpack_from(order + "H", block, directory)
            for place in range(directory + 2, directory + 2 + 12 * entries, 12) if order else ():
                number, kind, count, value = struct.unpack_from(order + "HHIH", block, place)
                # Kind 3: one 16-bit number, stored in the entry itself.
                if (number, kind, count) == (_ORIENTATION, 3, 1):
                    stored = int(value)
                    break
    return turned, stored if isinstance(stored, int) and 1 <= stored <= 8 else 1


INVERSE = {6: 8, 8: 6}
"""The orientation that undoes another; all that are not listed undo themselves."""


Pixels = NDArray[np.uint8]  # (height, width, 3)
_Decoder = Callable[..., Any]


def decoded_quickly(data: bytes | memoryview, mode: str, size: tuple[int, int]) -> Pixels | None:
    """Decode a JPEG by simplejpeg to the same bits as Pillow in half the time; None where Pillow has to.

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
    except ImportError:  # there is no wheel of it for this machine
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
