"""A zoo of small image files, each with the pixel that it shows or the reason why it cannot be read."""

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL
from PIL import Image

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


Colour = tuple[int, int, int]


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def plain(mode: str, colour: Any, size: tuple[int, int] = (6, 4)) -> Image.Image:
    return Image.new(mode, size, colour)


def exif(orientation: int, order: str = "<") -> bytes:
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0" + mark + struct.pack(order + "IH", 8, 1) + entry + b"\0\0\0\0"


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: bytes) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(extra) + body + chunk(b"IEND", b"")


def palette(transparency: bytes | int | None = None, index: int = 1) -> bytes:
    image = plain("P", index)
    image.putpalette([*BLUE, *RED, *GREEN])
    return encoded(image, "PNG") if transparency is None else encoded(image, "PNG", transparency=transparency)


def animation(format: str) -> bytes:
    frames = [plain("RGB", colour) for colour in (RED, GREEN, BLUE)]
    return encoded(frames[0], format, save_all=True, append_images=frames[1:], lossless=True)


def grey16(value: int, mode: str = "I;16") -> Image.Image:
    values = np.full((4, 6), value, dtype=">u2" if mode == "I;16B" else "<u2")
    return Image.frombytes(mode, (6, 4), values.tobytes())


def floats(*values: float) -> bytes:
    return encoded(Image.fromarray(np.resize(np.array(values, dtype=np.float32), (4, 6))), "TIFF")


def integers(*values: int) -> bytes:
    return encoded(Image.fromarray(np.resize(np.array(values, dtype=np.int32), (4, 6))), "TIFF")


def adobe_cmyk(inverted: bool) -> bytes:
    """Cyan as Photoshop writes it, with its marker and inverted; or plainly."""
    data = encoded(plain("CMYK", (255, 0, 0, 0)), "JPEG", quality=100)
    return data if inverted else data.replace(b"Adobe", b"Adobx")


# Each file shows its expected colour at the top left pixel, give or take the loss of JPEG.
GOOD: dict[str, tuple[Callable[[], bytes], Colour]] = {
    "jpeg": (lambda: encoded(plain("RGB", RED), "JPEG", quality=100), RED),
    "progressive jpeg": (lambda: encoded(plain("RGB", RED), "JPEG", progressive=True, quality=100), RED),
    "grey jpeg": (lambda: encoded(plain("L", 77), "JPEG", quality=100), (77, 77, 77)),
    "cmyk jpeg, inverted by adobe": (lambda: adobe_cmyk(True), (0, 255, 255)),
    "multi-picture jpeg": (lambda: animation("MPO"), RED),
    "jpeg with broken exif": (lambda: encoded(plain("RGB", RED), "JPEG", exif=b"Exif\0\0II*\0zzzz"), RED),
    "jpeg with exif of no known order": (lambda: encoded(plain("RGB", RED), "JPEG", exif=b"Exif\0\0??"), RED),
    "jpeg with exif that says 9": (lambda: encoded(plain("RGB", RED), "JPEG", exif=exif(9)), RED),
    "jpeg with bytes behind its end": (lambda: encoded(plain("RGB", RED), "JPEG") + b"tail", RED),
    "png": (lambda: encoded(plain("RGB", RED), "PNG"), RED),
    "grey png": (lambda: encoded(plain("L", 77), "PNG"), (77, 77, 77)),
    "1-bit png": (lambda: encoded(plain("1", 1), "PNG"), WHITE),
    "2-bit png": (lambda: png(4, 1, 2, 0, b"\0\x55"), (85, 85, 85)),
    "palette png": (palette, RED),
    "palette png, entry transparent": (lambda: palette(1), WHITE),
    "palette png, entry half transparent": (lambda: palette(bytes([255, 128, 255])), (255, 127, 127)),
    "palette png, another entry transparent": (lambda: palette(0), RED),
    "grey png, colour transparent": (lambda: encoded(plain("L", 9), "PNG", transparency=9), WHITE),
    "rgb png, colour transparent": (lambda: encoded(plain("RGB", RED), "PNG", transparency=RED), WHITE),
    "1-bit png, black transparent": (lambda: encoded(plain("1", 0), "PNG", transparency=0), WHITE),
    "16-bit png, value transparent": (
        lambda: png(1, 1, 16, 0, b"\0\x01\x02", chunk(b"tRNS", b"\x01\x02")),
        WHITE,
    ),
    "rgba png, opaque": (lambda: encoded(plain("RGBA", (*RED, 255)), "PNG"), RED),
    "rgba png, half transparent": (lambda: encoded(plain("RGBA", (*BLACK, 128)), "PNG"), (127, 127, 127)),
    "rgba png, transparent": (lambda: encoded(plain("RGBA", (*RED, 0)), "PNG"), WHITE),
    "grey png with alpha": (lambda: encoded(plain("LA", (0, 0)), "PNG"), WHITE),
    "16-bit png, top": (lambda: encoded(grey16(65535), "PNG"), WHITE),
    "16-bit png, middle": (lambda: encoded(grey16(257 * 100), "PNG"), (100, 100, 100)),
    "16-bit png, rounds": (lambda: encoded(grey16(257 * 100 + 129), "PNG"), (101, 101, 101)),
    "16-bit colour png": (lambda: png(1, 1, 16, 2, b"\0\xff\xff\0\0\x80\x80"), (255, 0, 128)),
    "16-bit grey png with alpha": (lambda: png(1, 1, 16, 4, b"\0\x80\x80\xff\xff"), (128, 128, 128)),
    "animated png": (lambda: animation("PNG"), RED),
    "png with a bad animation chunk": (
        lambda: png(1, 1, 8, 0, b"\0\x4d", chunk(b"acTL", b"\0" * 8)),
        (77, 77, 77),
    ),
    "png turned by exif": (lambda: encoded(two_colours(), "PNG", exif=exif(3)), BLUE),
    "gif": (lambda: encoded(plain("P", 0), "GIF"), BLACK),
    "gif, transparent": (lambda: encoded(plain("P", 0), "GIF", transparency=0), WHITE),
    "animated gif": (lambda: animation("GIF"), RED),
    "webp": (lambda: encoded(plain("RGB", RED), "WEBP", lossless=True), RED),
    "webp, transparent": (lambda: encoded(plain("RGBA", (*RED, 0)), "WEBP", lossless=True), WHITE),
    "animated webp": (lambda: animation("WEBP"), RED),
    "webp turned by exif": (lambda: encoded(two_colours(), "WEBP", lossless=True, exif=exif(3)), BLUE),
    "bmp": (lambda: encoded(plain("RGB", RED), "BMP"), RED),
    "1-bit bmp": (lambda: encoded(plain("1", 1), "BMP"), WHITE),
    "tiff": (lambda: encoded(plain("RGB", RED), "TIFF"), RED),
    "tiff, lzw": (lambda: encoded(plain("RGB", RED), "TIFF", compression="tiff_lzw"), RED),
    "tiff, jpeg inside": (lambda: encoded(plain("L", 77), "TIFF", compression="jpeg"), (77, 77, 77)),
    "cmyk tiff": (lambda: encoded(plain("CMYK", (255, 0, 0, 0)), "TIFF"), (0, 255, 255)),
    "rgba tiff": (lambda: encoded(plain("RGBA", (*RED, 0)), "TIFF"), WHITE),
    "16-bit tiff": (lambda: encoded(grey16(257 * 100), "TIFF"), (100, 100, 100)),
    "16-bit tiff, big-endian": (lambda: encoded(grey16(257 * 100, "I;16B"), "TIFF"), (100, 100, 100)),
    "32-bit tiff within 16 bits": (lambda: integers(257 * 100, 0), (100, 100, 100)),
    "32-bit tiff beyond 16 bits": (lambda: integers(1_000_000, -1_000_000), WHITE),
    "32-bit tiff of one value": (lambda: integers(-5), BLACK),
    "float tiff in 0..1": (lambda: floats(0.5, 1), (128, 128, 128)),
    "float tiff in 0..255": (lambda: floats(100.4, 255), (100, 100, 100)),
    "float tiff of another range": (lambda: floats(-10, 10, 0), BLACK),
    "tiff turned by its tag": (lambda: encoded(two_colours(), "TIFF", tiffinfo={0x0112: 3}), BLUE),
    "pgm": (lambda: b"P5 2 1 255\n\x4d\x4d", (77, 77, 77)),
    "16-bit pgm": (lambda: b"P5 1 1 65535\n\x64\x64", (100, 100, 100)),
    "ppm in words": (lambda: b"P3 1 1 255 255 0 0 ", RED),
    "pbm": (lambda: b"P4 8 1\n\x00", WHITE),
    "jpeg 2000": (lambda: encoded(plain("RGB", RED, (32, 32)), "JPEG2000"), RED),
    "ico": (lambda: encoded(plain("RGBA", (*RED, 255), (16, 16)), "ICO", sizes=[(16, 16)]), RED),
    "ico, a bitmap inside": (
        lambda: encoded(plain("RGBA", (*RED, 255), (16, 16)), "ICO", sizes=[(16, 16)], bitmap_format="bmp"),
        RED,
    ),
    "ico, an old bitmap inside": (
        lambda: (
            struct.pack("<HHH", 0, 1, 1)
            + struct.pack("<BBBBHHII", 8, 8, 0, 0, 1, 24, 12 + 8 * 24 + 8, 22)
            + struct.pack("<IHHHH", 12, 8, 16, 1, 24)
            + bytes([0, 0, 255] * 64)
            + bytes(8)
        ),
        RED,
    ),
    "qoi": (lambda: b"qoif" + struct.pack(">IIBB", 1, 1, 3, 0) + b"\xfe\xff\0\0" + b"\0" * 7 + b"\1", RED),
    "sgi": (lambda: encoded(plain("RGB", RED), "SGI"), RED),
}
if PIL.__version__ >= "13":  # Pillow 12 cannot read what it writes: it calls the file truncated
    GOOD["ycbcr tiff"] = (lambda: encoded(plain("YCbCr", (77, 128, 128)), "TIFF"), (77, 77, 77))


def two_colours() -> Image.Image:
    """Red at the left, blue at the right: 6 x 4."""
    image = plain("RGB", RED)
    image.paste(BLUE, (3, 0, 6, 4))
    return image


def huge_png(width: int, height: int) -> bytes:
    """Tiny file, enormous image: only its header may be looked at."""
    return png(width, height, 1, 0, b"\0" * 100)


def huge_gif(width: int, height: int) -> bytes:
    """The frame is larger than the screen the header promises."""
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0)
    return b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + frame + b"\x02\x02\x44\x01\0;"


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "empty"),
    "words": (lambda: b"hello, this is not an image", "format that is read here"),
    "html": (lambda: b"  <!DOCTYPE html><html>not found</html>", "HTML"),
    "svg": (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
    "heic": (lambda: b"\0\0\0\x18ftypheic" + b"\0" * 20, "HEI[CF]"),
    "zip": (lambda: b"PK\3\4" + b"\0" * 40, "format that is read here"),
    "eps, which would run a program": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n", "format that is read here"),
    "jpeg, cut in its header": (lambda: encoded(plain("RGB", RED), "JPEG")[:40], "damaged JPEG"),
    "jpeg, cut in its pixels": (lambda: encoded(noise(), "JPEG")[:-300], "damaged JPEG"),
    "png, cut": (lambda: encoded(noise(), "PNG")[:-300], "damaged PNG"),
    "png, signature only": (lambda: b"\x89PNG\r\n\x1a\n", "damaged PNG"),
    "png of no width": (lambda: png(0, 5, 8, 0, b""), "PNG|empty image"),
    "gif, cut": (lambda: encoded(noise(), "GIF")[:-300], "damaged GIF"),
    "webp, cut": (lambda: encoded(noise(), "WEBP")[:-100], "damaged WEBP"),
    "bmp, cut": (lambda: encoded(noise(), "BMP")[:-300], "damaged BMP"),
    "tiff, cut": (lambda: encoded(noise(), "TIFF")[:-300], "damaged TIFF"),
    "float tiff with nan": (lambda: floats(1, float("nan")), "NaN"),
    "float tiff with infinity": (lambda: floats(1, float("inf")), "infinity"),
    "png above the limit": (lambda: huge_png(8001, 8000), "limit of 64,000,000"),
    "png where pillow warns": (lambda: huge_png(13000, 13000), "limit of 64,000,000"),
    "png where pillow refuses": (lambda: huge_png(60000, 60000), "limit of 64,000,000"),
    "gif where pillow warns": (lambda: huge_gif(10000, 10000), "limit of 64,000,000"),
    "gif where pillow refuses": (lambda: huge_gif(65535, 65535), "GIF"),
}


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
