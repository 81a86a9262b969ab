"""Images that are arrays: .npy files, pages and samples of TIFF files, and such as lie."""

import io
import struct
import subprocess
import sys
import tracemalloc
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.check import check_data
from vitkit.data.config import DecodeRule, Splits
from vitkit.data.decode.arrays import to_levels
from vitkit.data.decode.image import decode, decode_image, header
from vitkit.data.sources import open_data
from vitkit.errors import DecodeError

Array = NDArray[Any]
FIVE = DecodeRule(channels=5)


def npy(array: Array, **options: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def with_header(text: str, data: bytes, version: int = 1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode("latin-1") + data


def noise(*shape: int) -> Array:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def pages(stack: Array, **options: Any) -> bytes:
    """A TIFF file of a page for each channel of an array (H, W, C)."""
    file = io.BytesIO()
    first, *others = (Image.fromarray(page) for page in np.moveaxis(stack, 2, 0))
    first.save(file, "TIFF", save_all=True, append_images=others, **options)
    return file.getvalue()


def tiff(
    stack: Array,
    rows: int,
    planar: bool = False,
    deflate: bool = False,
    predictor: int = 1,
    order: Literal["<", ">"] = "<",
) -> bytes:
    """A TIFF file of several samples a pixel, as scanners of the earth write it, in either byte order."""
    height, width, channels = stack.shape
    planes = [stack[:, :, c : c + 1] for c in range(channels)] if planar else [stack]
    strips = []
    for plane in planes:
        for top in range(0, height, rows):
            strip = plane[top : top + rows]
            if predictor == 2:
                strip = np.diff(strip, axis=1, prepend=np.zeros_like(strip[:, :1]))
            data = np.ascontiguousarray(strip).astype(strip.dtype.newbyteorder(order)).tobytes()
            strips.append(zlib.compress(data) if deflate else data)
    starts = np.cumsum([8, *map(len, strips)]).tolist()
    at = starts.pop()
    bits, form = stack.dtype.itemsize * 8, 3 if stack.dtype.kind == "f" else 1
    tags: list[tuple[int, int, list[int]]] = [
        (256, 4, [width]), (257, 4, [height]), (258, 3, [bits] * channels), (259, 3, [8 if deflate else 1]),
        (262, 3, [1]), (273, 4, starts), (277, 3, [channels]), (278, 4, [rows]),
        (279, 4, [len(strip) for strip in strips]), (284, 3, [2 if planar else 1]), (317, 3, [predictor]),
        (338, 3, [0] * (channels - 1)), (339, 3, [form] * channels),
    ]  # fmt: skip
    entries, beside = b"", b""
    place = at + 2 + 12 * len(tags) + 4
    for tag, kind, values in tags:
        packed = struct.pack(f"{order}{len(values)}{'H' if kind == 3 else 'I'}", *values)
        if len(packed) > 4:
            here, beside = place + len(beside), beside + packed
            packed = struct.pack(f"{order}I", here)
        entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    directory = struct.pack(f"{order}H", len(tags)) + entries + struct.pack(f"{order}I", 0) + beside
    head = b"II" if order == "<" else b"MM"
    return head + struct.pack(f"{order}HI", 42, at) + b"".join(strips) + directory


def test_an_array_of_bytes_is_its_own_pixels() -> None:
    array = noise(30, 20, 5)
    assert np.array_equal(decode(npy(array), FIVE), array)
    head = header(npy(array), FIVE)
    assert (head.format, head.mode, head.size) == ("NPY", "uint8 x 5", (30, 20))
    assert np.array_equal(decode(npy(np.asfortranarray(array)), FIVE), array)


def test_sixteen_bits_and_floats_are_scaled() -> None:
    wide = np.array([0, 128, 257, 32768, 65535], np.uint16).reshape(1, 1, 5)
    assert decode(npy(wide), FIVE).tolist() == [[[0, 0, 1, 128, 255]]]
    assert decode(npy(wide.astype(">u2")), FIVE).tolist() == [[[0, 0, 1, 128, 255]]]
    floats = np.array([0, 0.001, 0.5, 0.999, 1], np.float32).reshape(1, 1, 5)
    assert decode(npy(floats), FIVE).tolist() == [[[0, 0, 128, 255, 255]]]


@pytest.mark.parametrize("shape", [(400, 300, 5), (1, 120_000, 5), (3, 60_000, 5)])
def test_large_arrays_are_converted_in_strips(shape: tuple[int, int, int]) -> None:
    wide = np.random.default_rng(0).integers(0, 65536, shape, dtype=np.uint16)
    assert np.array_equal(decode(npy(wide), FIVE), to_levels(wide))
    assert np.array_equal(decode(tiff(wide, 2, deflate=True), FIVE), to_levels(wide))


def test_a_grey_array_is_repeated_for_colours() -> None:
    grey = noise(30, 20)
    assert np.array_equal(decode(npy(grey)), np.repeat(grey[:, :, None], 3, axis=2))
    assert np.array_equal(decode(npy(grey), DecodeRule(channels=1))[:, :, 0], grey)
    assert decode(npy(grey), DecodeRule(channels=4))[:, :, 3].min() == 255


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (noise(5, 30, 20), r"expected \(height, width, 5\), found \(5, 30, 20\), channels first.*moveaxis"),
        (noise(30, 20, 4), r"expected 5 channels, found an array of 4.*channels 4"),
        (noise(30, 20), r"expected 5 channels, found an array of 1"),
        (noise(2, 3, 4, 5), r"shape \(2, 3, 4, 5\): expected \(height, width\)"),
        (np.zeros((0, 3, 5), np.uint8), "shape"),
        (np.full((3, 3, 5), 1.5, np.float32), r"floats from 0 to 1, found 1.5 to 1.5"),
        (np.full((3, 3, 5), np.nan, np.float32), "found NaN"),
        (np.full((3, 3, 5), -0.1, np.float32), "found -0.1"),
        (np.zeros((3, 3, 5), np.int64), r"type '<i8'.*uint8, uint16"),
        (np.zeros((3, 3, 5), np.float64), r"type '<f8'"),
        (np.zeros((3, 3), [("a", "u1")]), r"type \[\('a', '\|u1'\)\]"),
    ],
)
def test_other_arrays_are_refused_in_a_line(array: Array, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as error:
        decode(npy(array), FIVE)
    assert "\n" not in str(error.value)


def test_python_objects_are_never_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return open, (str(tmp_path / "sprung"), "w")  # type: ignore[return-value]

    file = npy(np.array([[Trap()]], object), allow_pickle=True)
    with pytest.raises(DecodeError, match="Python objects are never loaded"):
        decode(file, FIVE)
    assert not (tmp_path / "sprung").exists()


HEAD = "{'descr': '|u1', 'fortran_order': False, 'shape': %s, }\n"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"\x93NUMPY", "version"),
        (b"\x93NUMPY\x09\x00\x10\x00", "version 09"),
        (npy(noise(30, 20, 5))[:-1], r"promises 3,000 bytes.*has 2,999"),
        (npy(noise(30, 20, 5)) + b"x", r"has 3,001"),
        (npy(noise(30, 20, 5))[:40], "header"),
        (with_header(HEAD % "(9999999999, 9999999999, 5)", b""), "promises"),
        (with_header(HEAD % "(99999999999999999999, 1, 5)", b""), "header"),
        (with_header(HEAD % "(4294967296, 4294967296, 1)", b""), "promises"),  # 2^64 bytes: 0 if it wrapped
        (with_header(HEAD % "(-1, 3, 5)", b""), "header"),
        (with_header(HEAD % "(True, 3)", b""), "header"),
        (with_header("(" * 5000, b"", 2), "header"),
        (with_header("__import__('os').abort()\n", b""), "header"),
        (with_header(HEAD % "(1, 1, 5)", b"12345").replace(b"\x01\x00", b"\x02\x00", 1), "header|promises"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b"{" * 100, "header"),
    ],
)
def test_a_header_that_lies_is_a_bad_file(file: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason) as error:
        decode(file, FIVE)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_a_header_of_many_digits_is_refused_at_once() -> None:
    """In a process of its own: a match that tries every way to cut the digits would never end."""
    file = with_header(HEAD % f"({'1' * 900}x)", b"")
    code = f"from vitkit.data.decode.image import decode; decode({file!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1800)
    assert "DecodeError: the header of this .npy file cannot be read" in done.stderr


@pytest.mark.parametrize("shape", ["(2, 3, 5)", "(2,3,5)", "(2, 3, 5, )", "(2, 3, 5,)"])
def test_shapes_are_read_as_writers_write_them(shape: str) -> None:
    array = noise(2, 3, 5)
    assert np.array_equal(decode(with_header(HEAD % shape, array.tobytes()), FIVE), array)


def test_an_array_too_large_is_refused_before_it_is_converted() -> None:
    file = npy(np.zeros((100, 100, 5), np.uint8))
    with pytest.raises(DecodeError, match="max_pixels"):
        decode(file, DecodeRule(channels=5, max_pixels=9_999))
    wide = npy(np.zeros((4, 4, 1000), np.uint16))
    assert decode(wide, DecodeRule(channels=1000)).shape == (4, 4, 1000)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate"])
def test_pages_are_channels(dtype: type[Any], compression: str | None) -> None:
    levels = noise(30, 20, 5)
    stack = (levels / 255).astype(dtype) if dtype == np.float32 else levels.astype(dtype)
    pixels = decode(pages(stack, compression=compression), FIVE)
    assert np.array_equal(pixels, to_levels(stack))
    assert pixels.std() > 0 or dtype == np.uint16
    assert header(pages(stack), FIVE).size == (30, 20)


def test_pages_are_frames_for_three_channels() -> None:
    stack = noise(30, 20, 3)
    assert np.array_equal(decode(pages(stack))[:, :, 1], stack[:, :, 0])  # the first page, repeated


def next_page(file: bytes, page: int = 0) -> int:
    """The place in a TIFF file where a page points to the next one."""
    at = 4
    for _ in range(page + 1):
        start = struct.unpack_from("<I", file, at)[0]
        at = start + 2 + 12 * struct.unpack_from("<H", file, start)[0]
    return int(at)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_damaged_page_behind_an_image_of_colours_is_never_looked_at(channels: int) -> None:
    file = io.BytesIO()
    colours = noise(30, 20, 4 if channels == 4 else 3)
    Image.fromarray(colours).save(file, "TIFF")
    whole, rule = file.getvalue(), DecodeRule(channels=channels)
    at = next_page(whole)
    for lies in (4, len(whole) - 3, len(whole) + 1000):
        damaged = whole[:at] + struct.pack("<I", lies) + whole[at + 4 :]
        assert np.array_equal(decode(damaged, rule), decode(whole, rule))


def test_pages_are_not_counted_beyond_the_channels() -> None:
    """Files of thousands of pages would be walked through for every image, and a damaged page be met."""
    file = pages(noise(8, 8, 5))
    at = next_page(file, 3)
    damaged = file[:at] + struct.pack("<I", len(file) - 3) + file[at + 4 :]
    with pytest.raises(DecodeError, match="expected 2 channels, found an image of colour mode L"):
        decode(damaged, DecodeRule(channels=2))


def test_pages_are_turned_as_they_say() -> None:
    stack = (noise(600, 500, 5) / 255).astype(np.float32)  # more pixels than are converted at a time
    assert np.array_equal(decode(pages(stack), FIVE), to_levels(stack))
    turned = pages(stack, tiffinfo={274: 6})
    assert np.array_equal(decode(turned, FIVE), np.rot90(to_levels(stack), -1))
    as_stored = DecodeRule(channels=5, apply_exif=False)
    assert np.array_equal(decode(turned, as_stored), to_levels(stack))
    assert header(turned, FIVE).size == (500, 600)


def test_an_opened_image_stays_at_its_page() -> None:
    stack = noise(30, 20, 2)
    for page in (0, 1):
        with Image.open(io.BytesIO(pages(stack))) as image:
            image.seek(page)
            assert np.array_equal(decode_image(image, DecodeRule(channels=2)), stack)
            assert image.tell() == page
            assert np.array_equal(np.asarray(image), stack[:, :, page])


def test_pages_of_other_sizes_and_colours_are_refused() -> None:
    file = io.BytesIO()
    images = [Image.fromarray(noise(30, 20 + (number == 3))) for number in range(5)]
    images[0].save(file, "TIFF", save_all=True, append_images=images[1:])
    with pytest.raises(DecodeError, match=r"page 4 has \(21, 30\) pixels"):
        decode(file.getvalue(), FIVE)
    images = [Image.fromarray(noise(30, 20, 3)) for _ in range(5)]
    images[0].save(file := io.BytesIO(), "TIFF", save_all=True, append_images=images[1:])
    with pytest.raises(DecodeError, match="expected 5 channels, found an array of 3"):
        decode(file.getvalue(), FIVE)
    with pytest.raises(DecodeError, match="expected 6 channels"):
        decode(pages(noise(30, 20, 5)), DecodeRule(channels=6))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize("channels", [2, 4, 5])
@pytest.mark.parametrize("order", ["<", ">"])
def test_samples_are_channels(
    dtype: type[Any], planar: bool, deflate: bool, channels: int, order: Literal["<", ">"]
) -> None:
    levels = noise(30, 20, channels)
    if dtype == np.float32:
        stack = (levels / 255).astype(dtype)
    else:
        stack = levels.astype(dtype) * dtype(np.iinfo(dtype).max // 255)
        if dtype == np.uint16:  # nearly the level: both bytes would be the same in either order
            stack -= dtype(100) * (stack > 0)
    predictor = 2 if deflate and dtype != np.float32 else 1
    file = tiff(stack, 7, planar, deflate, predictor, order)
    assert np.array_equal(decode(file, DecodeRule(channels=channels)), levels)


@pytest.mark.parametrize("order", ["<", ">"])
def test_samples_of_32_bits_that_are_no_floats_are_refused(order: Literal["<", ">"]) -> None:
    with pytest.raises(DecodeError, match="samples of 32 bits: save them as uint8, uint16, or float32"):
        decode(tiff(noise(30, 20, 5).astype(np.uint32), 7, order=order), FIVE)


def test_a_strip_is_not_unpacked_beyond_its_pixels() -> None:
    """200 kB of deflate become 200 MB of zeros, of which the strip has 3,000."""
    small = tiff(np.zeros((30, 20, 5), np.uint8), 30, deflate=True)
    packed = zlib.compress(bytes(3000))
    bomb = zlib.compress(bytes(200_000_000))
    assert small.count(packed) == 1
    entry = struct.pack("<HHII", 279, 4, 1, len(packed))
    data = small.replace(entry, struct.pack("<HHII", 279, 4, 1, len(bomb)))
    # The strip is moved behind the rest of the file.
    place = struct.pack("<HHII", 273, 4, 1, len(data))
    data = data.replace(struct.pack("<HHII", 273, 4, 1, 8), place) + bomb
    tracemalloc.start()
    try:
        assert not decode(data, FIVE).any()
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_a_fourth_sample_that_is_no_alpha_is_kept() -> None:
    """Pillow reads red, green, blue and an unknown fourth as RGB, and drops the fourth."""
    stack = noise(30, 20, 4)
    file = (
        tiff(stack, 30)
        .replace(struct.pack("<HHII", 262, 3, 1, 1), struct.pack("<HHII", 262, 3, 1, 2))
        .replace(struct.pack("<HHI", 338, 3, 3), struct.pack("<HHI", 338, 3, 1))
    )
    file = file.replace(file[file.index(struct.pack("<HHI", 338, 3, 1)) + 8 :][:4], b"\0\0\0\0")
    assert np.array_equal(decode(file)[:, :, :3], stack[:, :, :3])
    assert np.array_equal(decode(file, DecodeRule(channels=4)), stack)


def test_samples_that_cannot_be_read_are_refused_in_a_line() -> None:
    whole = tiff(noise(30, 20, 5), 7)
    strips = tiff(noise(30, 20, 5), 7, deflate=True)
    damaged = strips[:20] + b"\0" * 200 + strips[220:]
    huge = whole.replace(struct.pack("<HHII", 256, 4, 1, 20), struct.pack("<HHII", 256, 4, 1, 2**31))
    lzw = whole.replace(struct.pack("<HHII", 259, 3, 1, 1), struct.pack("<HHII", 259, 3, 1, 5))
    no_rows = whole.replace(struct.pack("<HHII", 278, 4, 1, 7), struct.pack("<HHII", 278, 4, 1, 0))
    fewer = whole.replace(struct.pack("<HHII", 278, 4, 1, 7), struct.pack("<HHII", 278, 4, 1, 2))
    for file in (damaged, huge, lzw, no_rows, fewer, *(whole[:cut] for cut in range(0, len(whole), 97))):
        with pytest.raises(DecodeError) as error:
            decode(file, FIVE)
        assert "\n" not in str(error.value)


def test_rows_that_are_none_are_no_pixels() -> None:
    """A negative number of rows would be a loop over no strip, and pixels be what was in memory."""
    whole = tiff(noise(30, 20, 5), 7)
    for kind, rows in ((9, -7), (9, -(2**31)), (4, 0)):
        file = whole.replace(
            struct.pack("<HHII", 278, 4, 1, 7), struct.pack("<HHIq", 278, kind, 1, rows)[:12]
        )
        for look in (decode, header):
            with pytest.raises(DecodeError, match=f"rowsperstrip={rows} < 1"):
                look(file, FIVE)


def test_a_header_is_read_without_decoding() -> None:
    strips = tiff(noise(30, 20, 5), 7, deflate=True)
    damaged = strips[:20] + b"\0" * 200 + strips[220:]
    head = header(damaged, FIVE)
    assert (head.format, head.mode, head.size) == ("TIFF", "uint8 x 5", (30, 20))
    with pytest.raises(DecodeError):
        decode(damaged, FIVE)


def written(array: Array, **options: Any) -> bytes:
    """A TIFF file as tifffile writes it."""
    file = io.BytesIO()
    tifffile.imwrite(file, array, photometric="minisblack", **options)
    return file.getvalue()


@pytest.mark.parametrize("tile", [None, (16, 32)])
@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("compression", [None, "lzw", "adobe_deflate", "packbits", "zstd"])
def test_tiles_and_strips_of_any_lossless_compression(
    tile: tuple[int, int] | None, planar: str, compression: str | None
) -> None:
    for dtype, predictor in ((np.uint8, 2), (np.uint16, 2), (np.float32, 3)):
        stack = noise(50, 70, 5)
        values = (stack / 255).astype(dtype) if dtype == np.float32 else stack.astype(dtype)
        stored = values if planar == "contig" else np.moveaxis(values, 2, 0)
        options: dict[str, Any] = {"tile": tile, "planarconfig": planar, "compression": compression}
        if compression in ("lzw", "adobe_deflate", "zstd"):
            options["predictor"] = predictor
        for big in (False, True):
            assert np.array_equal(decode(written(stored, bigtiff=big, **options), FIVE), to_levels(values))


def test_a_jpeg_inside_is_refused() -> None:
    file = pages(noise(30, 20, 5), compression="jpeg")
    with pytest.raises(DecodeError, match=r"COMPRESSION.JPEG.*save it with LZW or deflate"):
        decode(file, FIVE)


def test_samples_are_turned_as_they_say() -> None:
    stack = noise(30, 20, 5)
    file = written(stack, planarconfig="contig", extratags=[(274, 3, 1, 6, True)])
    assert header(file, FIVE).size == (20, 30)
    assert np.array_equal(decode(file, FIVE), np.rot90(stack, -1))
    as_stored = DecodeRule(channels=5, apply_exif=False)
    assert header(file, as_stored).size == (30, 20)
    assert np.array_equal(decode(file, as_stored), stack)


def test_pages_whose_white_is_zero_are_read_as_by_pillow() -> None:
    stack = noise(30, 20, 5)
    file = pages(stack)
    assert file.count(entry := struct.pack("<HHII", 262, 3, 1, 1)) == 5
    assert np.array_equal(decode(file.replace(entry, struct.pack("<HHII", 262, 3, 1, 0)), FIVE), 255 - stack)


def ome(shape: tuple[int, ...], axes: str, **options: Any) -> bytes:
    return written(noise(*shape), ome=True, metadata={"axes": axes}, **options)


def test_an_ome_tiff_is_read_by_its_axes() -> None:
    tiles = ome((5, 30, 20), "CYX", tile=(16, 16))
    for file in (ome((5, 30, 20), "CYX"), ome((1, 1, 5, 30, 20), "TZCYX"), tiles):
        assert np.array_equal(decode(file, FIVE), np.moveaxis(noise(5, 30, 20), 0, 2))
    samples = written(noise(30, 20, 5), ome=True, metadata={"axes": "YXS"}, planarconfig="contig")
    assert np.array_equal(decode(samples, FIVE), noise(30, 20, 5))
    # As Bio-Formats writes them: another image may follow.
    two = io.BytesIO()
    with tifffile.TiffWriter(two, ome=True) as writer:
        for size in (30, 8):
            writer.write(noise(5, size, 20), photometric="minisblack", metadata={"axes": "CYX"})
    assert np.array_equal(decode(two.getvalue(), FIVE), np.moveaxis(noise(5, 30, 20), 0, 2))


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (
            ome((5, 30, 20), "ZYX"),
            r"1 channels, 5 planes \(Z\) and 1 times.*save each plane, or",
        ),
        (ome((5, 30, 20), "TYX"), r"1 channels, 1 planes \(Z\) and 5 times"),
        (ome((2, 5, 30, 20), "ZCYX"), r"5 channels, 2 planes"),
        (ome((4, 30, 20), "CYX"), r"4 channels, 1 planes.*expected 5 channels of one plane: give channels"),
        (ome((5, 30, 20), "CYX").replace(b'IFD="0"', b'IFD="1"'), "in other files or another order"),
        (ome((5, 30, 20), "CYX").replace(b"<Pixels", b"<Pixel "), "damaged TIFF file"),
    ],
)
def test_an_ome_tiff_of_other_axes_is_refused(file: bytes, reason: str) -> None:
    for look in (decode, header):
        with pytest.raises(DecodeError, match=reason) as error:
            look(file, FIVE)
        assert "\n" not in str(error.value)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tifffile", None)
    for file, channels in (
        (pages(noise(30, 20, 5)), 5),
        (tiff(noise(30, 20, 5), 30), 5),
        (pages(noise(30, 20, 4)), 4),
    ):
        with pytest.raises(DecodeError, match=r"pip install 'vitkit\[tiff\]', or save .npy"):
            decode(file, DecodeRule(channels=channels))
    # Pillow reads colours and grey as before.
    for stored in (noise(30, 20, 4), noise(30, 20, 3), noise(30, 20)):
        Image.fromarray(stored).save(picture := io.BytesIO(), "TIFF")
        for channels in (1, 3, 4):
            assert decode(picture.getvalue(), DecodeRule(channels=channels)).shape == (30, 20, channels)


def test_damaged_files_write_nothing_to_the_screen(capfd: pytest.CaptureFixture[str]) -> None:
    samples = written(noise(30, 20, 5), planarconfig="contig")
    for whole in (pages(noise(30, 20, 5)), ome((5, 30, 20), "CYX"), samples):
        for cut in range(8, len(whole), 41):
            for damaged in (whole[:cut], whole[: cut - 8] + b"\xff" * 8 + whole[cut:]):
                with suppress(DecodeError):
                    assert decode(damaged, FIVE).shape[2] == 5
    assert capfd.readouterr() == ("", "")


def test_a_predictor_of_uncompressed_strips_is_ignored_as_by_libtiff() -> None:
    stack = noise(30, 20, 5)
    tag = struct.pack("<HHI", 317, 3, 1)
    file = tiff(stack, 7).replace(tag + struct.pack("<I", 1), tag + struct.pack("<I", 2))
    assert np.array_equal(decode(file, FIVE), stack)


def test_folders_of_arrays_are_listed(tmp_path: Path) -> None:
    for name in ("field", "forest"):
        (tmp_path / name).mkdir()
        for number in range(6):
            np.save(tmp_path / name / f"{number}.npy", noise(8, 8, 5) // 2 + number)
    data = open_data(str(tmp_path), Splits(test_fraction=0.3, val_fraction=0), FIVE)
    assert [len(samples) for samples in data.splits.values()] == [8, 4]
    assert data.splits["train"].decode(0).shape == (8, 8, 5)


def test_arrays_beside_images_are_no_images(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.fromarray(noise(8, 8, 3)).save(tmp_path / name / "1.png")
        np.save(tmp_path / name / "1-mask.npy", noise(8, 8))
    data = open_data(str(tmp_path), Splits(test_fraction=0, val_fraction=0))
    assert len(data.splits["train"]) == 2
    assert any("2 files in class folders ignored" in note for note in data.notes)


def test_the_check_says_what_is_converted_and_leaves_arrays_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "arrays" / name).mkdir(parents=True)
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(4):
            np.save(tmp_path / "arrays" / name / f"{number}.npy", noise(40, 40, 5) // 8 + number)
            wide = noise(40, 40).astype(np.uint16) * 256 + number
            Image.fromarray(wide).save(tmp_path / "images" / name / f"{number}.png")

    def warnings(folder: str, channels: int) -> str:
        return " ".join(
            check_data(open_data(str(tmp_path / folder), rule=DecodeRule(channels=channels))).warnings
        )

    assert "converted" not in warnings("arrays", 5)
    assert "are converted to RGB: 8 I;16." in warnings("images", 3)
    assert "are converted to grey: 8 I;16." in warnings("images", 1)
