"""Any image file to RGB pixels, by one declared rule.

The same function serves training, evaluation, prediction and serving, so that a model never meets an image
turned, inverted or clipped in another way than it was trained on. Whatever Pillow does with a damaged file,
the caller sees pixels or a `DecodeError` with the reason.
"""

import io
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

# Importing a plug-in is how Pillow learns its format: only the formats named in _FORMATS are ever tried.
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    IcoImagePlugin,
    Image,
    Jpeg2KImagePlugin,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    QoiImagePlugin,
    SgiImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from vitkit.errors import VitkitError


class DecodeError(VitkitError):
    """One file that gives no pixels. The message is the reason alone: the caller knows which file it was."""


@dataclass(frozen=True)
class DecodeRule:
    """How a file becomes RGB; saved with the model."""

    apply_exif: bool = True
    """Turn the image as the orientation in its EXIF block (or its TIFF tag) says. Published ImageNet figures
    were made without."""
    background: tuple[int, int, int] = (255, 255, 255)
    """The colour under transparent pixels: red, green, blue in 0..255."""
    max_pixels: int = 64_000_000
    """Larger images are refused from their header, before any pixel is decoded."""

    def __post_init__(self) -> None:
        if len(self.background) != 3 or not all(0 <= value <= 255 for value in self.background):
            raise VitkitError(f"background must be three numbers in 0..255, found {self.background}.")
        if self.max_pixels < 1:
            raise VitkitError(f"max_pixels must be at least 1, found {self.max_pixels}.")


DEFAULT_RULE = DecodeRule()


@dataclass(frozen=True)
class Header:
    """What a file says of itself before its pixels are read."""

    format: str
    """Pillow's name: "JPEG", "PNG", ..."""
    mode: str
    """Pillow's colour mode: "RGB", "L", "P", "CMYK", "I;16", ..."""
    size: tuple[int, int]
    """(height, width) of the decoded image, so after the EXIF turn where the rule applies it."""


class _Jpeg(JpegImagePlugin.JpegImageFile):
    """Pillow's JPEG reader without its look into EXIF for a print resolution, which warns on damaged EXIF.

    It also reads a multi-picture file as its first picture, which is what `decode` promises.
    """

    def _read_dpi_from_exif(self) -> None:
        pass


_Opener = Callable[[IO[bytes], str | bytes], Image.Image]

# Formats that are known by their first bytes. Those without a signature (TGA, PCX) would accept garbage, and
# those that run an interpreter (EPS, WMF) have no place here.
_FORMATS: dict[str, _Opener] = {
    "JPEG": _Jpeg,
    "PNG": PngImagePlugin.PngImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "PPM": PpmImagePlugin.PpmImageFile,
    "JPEG2000": Jpeg2KImagePlugin.Jpeg2KImageFile,
    "AVIF": AvifImagePlugin.AvifImageFile,
    "ICO": IcoImagePlugin.IcoImageFile,
    "QOI": QoiImagePlugin.QoiImageFile,
    "SGI": SgiImagePlugin.SgiImageFile,
}

# Readers that warn about odd files instead of refusing them. Python 3.11 can only silence warnings for the
# whole process, so these few take turns, and the common formats never enter the lock.
_TALKATIVE = frozenset({"GIF", "TIFF", "AVIF", "ICO"})
_silence = threading.Lock()


def decode(file: bytes | Path, rule: DecodeRule = DEFAULT_RULE) -> NDArray[np.uint8]:
    """The pixels of one image file, (height, width, 3) RGB, uint8; possibly read-only.

    - The EXIF orientation is applied if the rule says so.
    - Transparency (alpha, transparent palette entries, transparent colours) is composited on the background.
    - CMYK and YCCK become RGB, Adobe's inverted ones too.
    - 16-bit grey is scaled by 255/65535 and rounded, never clipped. Floating-point grey in [0, 1] is
      multiplied by 255, in [0, 255] kept; any other range, and 32-bit integers beyond 16 bits, is stretched
      from its smallest to its largest value. NaN and infinity are refused.
    - An animation gives its first frame.

    Raises DecodeError for everything that is not such an image: missing, empty, truncated, damaged, too
    large, of another type.
    """
    with _opened(file) as image:
        return _pixels(image, rule)


def decode_image(image: Image.Image, rule: DecodeRule = DEFAULT_RULE) -> NDArray[np.uint8]:
    """The same rule for an image that Pillow has already opened; the image itself is left as it is."""
    with _failures_explained(image.format or "image"):
        return _pixels(image, rule)


def header(file: bytes | Path, rule: DecodeRule = DEFAULT_RULE) -> Header:
    """Format, colour mode and size, without decoding. Raises DecodeError for what can be seen so early."""
    with _opened(file) as image:
        width, height = image.size
        _check_size(width, height, rule)
        turned, turn = _orientation(image)
        swapped = turn >= 5 and turned != rule.apply_exif
        return Header(image.format or "", image.mode, (width, height) if swapped else (height, width))


def image_size(file: bytes | Path, rule: DecodeRule = DEFAULT_RULE) -> tuple[int, int]:
    """(height, width) of what `decode` would return, from the header alone. Raises DecodeError."""
    return header(file, rule).size


@contextmanager
def _opened(file: bytes | Path) -> Iterator[Image.Image]:
    """The image, opened by the reader its first bytes ask for; errors inside the block become DecodeError.

    Pillow's own `Image.open` is not used: it warns about large images before anybody can ask their size.
    """
    data = file if isinstance(file, bytes) else _read(file)
    name = _recognise(data)
    # Inside a PNG only the animation chunk has a check that warns.
    talkative = name in _TALKATIVE or (name == "PNG" and b"acTL" in data)
    with _failures_explained(name):
        if not talkative:
            with _FORMATS[name](io.BytesIO(data), b"") as image:
                yield image
            return
        with _silence, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _FORMATS[name](io.BytesIO(data), b"") as image:
                yield image


@contextmanager
def _failures_explained(format_name: str) -> Iterator[None]:
    """Turns every exception into DecodeError: decoders raise OSError, SyntaxError, ValueError, struct.error,
    MemoryError, DecompressionBombError and more, none of which should end a training run."""
    try:
        yield
    except DecodeError:
        raise
    except Exception as error:
        raise DecodeError(f"damaged {format_name} file: {error or type(error).__name__}") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DecodeError("no such file") from None
    except IsADirectoryError:
        raise DecodeError("a folder, not an image file") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise DecodeError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _recognise(data: bytes) -> str:
    """The name of the format by its first bytes."""
    if not data:
        raise DecodeError("the file is empty (0 bytes)")
    start = data[:16]
    for name in _FORMATS:
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
    if data[4:12] in (b"ftypheic", b"ftypheix", b"ftypmif1", b"ftyphevc"):
        raise DecodeError("an HEIC image; convert it to JPEG or PNG")
    raise DecodeError(f"not an image of a known format ({', '.join(_FORMATS)})")


def _check_size(width: int, height: int, rule: DecodeRule) -> None:
    if width < 1 or height < 1:
        raise DecodeError(f"the header gives an empty image of {width} x {height} pixels")
    if width * height > rule.max_pixels:
        raise DecodeError(
            f"{width} x {height} = {width * height:,} pixels, more than the limit of {rule.max_pixels:,}"
        )


def _pixels(image: Image.Image, rule: DecodeRule) -> NDArray[np.uint8]:
    width, height = image.size
    _check_size(width, height, rule)
    turned, turn = _orientation(image)  # before loading: the TIFF reader obeys its tag and then forgets it
    image.load()
    if image.size != (width, height):
        raise DecodeError(
            f"the header promises {width} x {height} pixels, the image has {image.size[0]} x {image.size[1]}"
        )
    if image.mode.startswith(("I", "F")):
        pixels = _from_wide_grey(image, rule)
    elif image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        pixels = np.asarray(_composite(image, rule))
    else:
        pixels = np.asarray(image.convert("RGB"))
    if turned == rule.apply_exif:
        return pixels
    if turned:  # undo what the TIFF reader did: only the quarter turns are not their own inverse
        turn = {6: 8, 8: 6}.get(turn, turn)
    return np.ascontiguousarray(_turn(pixels, turn))


def _composite(image: Image.Image, rule: DecodeRule) -> Image.Image:
    if image.mode == "La":  # the one mode Pillow cannot take straight to RGBA
        image = image.convert("LA")
    over = image.convert("RGBA")
    under = Image.new("RGBA", image.size, (*rule.background, 255))
    return Image.alpha_composite(under, over).convert("RGB")


def _from_wide_grey(image: Image.Image, rule: DecodeRule) -> NDArray[np.uint8]:
    """16-bit, 32-bit and floating-point grey to RGB; Pillow's own conversion clips them at 255."""
    values = np.asarray(image).astype(np.float32)  # exact to 24 bits, and half the memory
    low, high = values.min(), values.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        raise DecodeError("floating-point pixels with NaN or infinity")
    if image.mode.startswith("I") and low >= 0 and high <= 65535:
        scaled = values * (255 / 65535)
    elif image.mode == "F" and low >= 0 and high <= 255:
        scaled = values * 255 if high <= 1 else values
    else:
        scaled = (values - low) * (255 / ((high - low) or 1))
    grey = np.floor(scaled + 0.5).astype(np.uint8)
    pixels = np.repeat(grey[:, :, None], 3, axis=2)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        pixels[values == transparent] = rule.background
    return pixels


def _orientation(image: Image.Image) -> tuple[bool, int]:
    """(has the reader turned the image already?, orientation 1..8 as EXIF numbers them).

    EXIF is read here and not by `Image.getexif`, which warns about damaged blocks; one number is all we need.
    """
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        return True, _plausible(image.tag_v2.get(0x0112))
    exif = image.info.get("exif")
    return False, _plausible(_exif_tag(exif, 0x0112)) if isinstance(exif, bytes) else 1


def _plausible(orientation: object) -> int:
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def _exif_tag(exif: bytes, tag: int) -> int | None:
    """The value of one 16-bit tag of the first directory of an EXIF block (EXIF 2.3, section 4.6.2)."""
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


def _turn(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Brings an image stored in one of the eight EXIF orientations upright."""
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
