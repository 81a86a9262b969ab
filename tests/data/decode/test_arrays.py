"""Images that are arrays: .npy files, pages and samples of TIFF files, and such as lie."""

import io
import itertools
import re
import struct
import sys
import tracemalloc
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from numpy.typing import NDArray
from PIL import Image

from tests.helpers.refusals import undecodable
from vitkit.data.check import check_data
from vitkit.data.config import DecodeRule, Splits
from vitkit.data.decode.image import decode, decode_image, header, to_levels
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


def values_of(levels: Array, dtype: type[Any]) -> Array:
    """Values of a type that stand for levels; those of two bytes would be other ones in the other order."""
    if dtype == np.float32:
        return (levels / 255).astype(dtype)
    return levels if dtype == np.uint8 else levels.astype(dtype) * dtype(257) - dtype(100) * (levels > 0)


TYPES = (np.uint8, np.uint16, np.float32)


def pages(stack: Array, **options: Any) -> bytes:
    """A TIFF file of a page for each channel of an array (H, W, C)."""
    file = io.BytesIO()
    first, *others = (Image.fromarray(page) for page in np.moveaxis(stack, 2, 0))
    first.save(file, "TIFF", save_all=True, append_images=others, **options)
    return file.getvalue()


def tiff(stack: Array, **options: Any) -> bytes:
    """A TIFF file of several samples a pixel, as scanners of the earth write it, unless options say other."""
    file = io.BytesIO()
    tifffile.imwrite(file, stack, **{"photometric": "minisblack", "planarconfig": "contig", **options})
    return file.getvalue()


def with_tag(file: bytes, tag: int, value: int, kind: int = 4) -> bytes:
    """A TIFF file whose pages have another value of a tag."""
    entry = struct.pack("<HHIq", tag, kind, 1, value)[:12]
    changed, times = re.subn(
        rb"%b[\x03\x04]\x00\x01\x00\x00\x00...." % re.escape(entry[:2]), lambda _: entry, file, flags=re.S
    )
    assert times
    return changed


def test_an_array_is_its_own_levels_whatever_its_type_and_order() -> None:
    array = noise(30, 20, 5)
    head = header(npy(array), FIVE)
    assert (head.format, head.mode, head.size) == ("NPY", "uint8 x 5", (30, 20))
    for same in (array, np.asfortranarray(array)):
        assert np.array_equal(decode(npy(same), FIVE), array)
    wide = np.array([0, 128, 257, 32768, 65535], np.uint16).reshape(1, 1, 5)
    for same in (wide, wide.astype(">u2")):
        assert decode(npy(same), FIVE).tolist() == [[[0, 0, 1, 128, 255]]]
    floats = np.array([0, 0.001, 0.5, 0.999, 1], np.float32).reshape(1, 1, 5)
    assert decode(npy(floats), FIVE).tolist() == [[[0, 0, 128, 255, 255]]]
    for shape in ("(2, 3, 5)", "(2,3,5)", "(2, 3, 5, )", "(2, 3, 5,)"):  # as writers write them
        file = with_header(HEAD % shape, array.tobytes()[:30])
        assert decode(file, FIVE).tobytes() == array.tobytes()[:30]


def test_large_arrays_are_converted_in_strips() -> None:
    for shape in ((400, 300, 5), (1, 120_000, 5), (3, 60_000, 5)):
        wide = np.random.default_rng(0).integers(0, 65536, shape, dtype=np.uint16)
        for file in (npy(wide), tiff(wide, rowsperstrip=2, compression="adobe_deflate")):
            assert np.array_equal(decode(file, FIVE), to_levels(wide))


def test_a_grey_array_is_repeated_for_colours() -> None:
    grey = noise(30, 20)
    assert np.array_equal(decode(npy(grey)), np.repeat(grey[:, :, None], 3, axis=2))
    assert np.array_equal(decode(npy(grey), DecodeRule(channels=1))[:, :, 0], grey)
    assert decode(npy(grey), DecodeRule(channels=4))[:, :, 3].min() == 255


HEAD = "{'descr': '|u1', 'fortran_order': False, 'shape': %s, }\n"


LYING_HEADERS = [
    (npy(noise(5, 30, 20)), r"\(height, width, 5\), found \(5, 30, 20\), channels first.*moveaxis"),
    (npy(noise(30, 20, 4)), r"expected 5 channels, found an array of 4.*channels 4"),
    (npy(noise(30, 20)), r"expected 5 channels, found an array of 1"),
    (npy(noise(2, 3, 4, 5)), r"shape \(2, 3, 4, 5\): expected \(height, width\)"),
    (npy(np.zeros((0, 3, 5), np.uint8)), "shape"),
    (npy(np.full((3, 3, 5), 1.5, np.float32)), r"floats from 0 to 1, found 1.5 to 1.5"),
    (npy(np.full((3, 3, 5), np.nan, np.float32)), "found NaN"),
    (npy(np.full((3, 3, 5), -0.1, np.float32)), "found -0.1"),
    (npy(np.zeros((3, 3, 5), np.int64)), r"type '<i8'.*uint8, uint16"),
    (npy(np.zeros((3, 3), [("a", "u1")])), r"type \[\('a', '\|u1'\)\]"),
    (b"\x93NUMPY", "version"),
    (b"\x93NUMPY\x09\x00\x10\x00", "version 09"),
    (npy(noise(30, 20, 5))[:-1], r"promises 3,000 bytes.*has 2,999"),
    (npy(noise(30, 20, 5)) + b"x", r"has 3,001"),
    (npy(noise(30, 20, 5))[:40], "header"),
    (with_header(HEAD % "(9999999999, 9999999999, 5)", b""), "promises"),
    (with_header(HEAD % "(99999999999999999999, 1, 5)", b""), "header"),
    (with_header(HEAD % "(4294967296, 4294967296, 1)", b""), "promises"),  # 2^64 bytes: 0 if it wrapped
    (with_header(HEAD % "(-1, 3, 5)", b""), "header"),
    (with_header(HEAD % f"({'1' * 900}x)", b""), "header"),  # many ways to cut the digits
    (with_header("(" * 5000, b"", 2), "header"),
    (with_header("__import__('os').abort()\n", b""), "header"),
    (with_header(HEAD % "(1, 1, 5)", b"12345").replace(b"\x01\x00", b"\x02\x00", 1), "header|promises"),
    (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b"{" * 100, "header"),
]


@pytest.mark.parametrize(("file", "reason"), LYING_HEADERS)
def test_other_arrays_and_headers_that_lie_are_refused_in_a_line(file: bytes, reason: str) -> None:
    said = undecodable(reason, decode, file, FIVE)
    assert "\n" not in said and len(said) < 300


def test_python_objects_are_never_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return open, (str(tmp_path / "sprung"), "w")  # type: ignore[return-value]

    trapped = npy(np.array([[Trap()]], object), allow_pickle=True)
    undecodable("Python objects are never loaded", decode, trapped, FIVE)
    assert not (tmp_path / "sprung").exists()


def test_an_array_too_large_is_refused_before_it_is_converted() -> None:
    rule = DecodeRule(channels=5, max_pixels=9_999)
    undecodable("max_pixels", decode, npy(np.zeros((100, 100, 5), np.uint8)), rule)
    wide = npy(np.zeros((4, 4, 1000), np.uint16))
    assert decode(wide, DecodeRule(channels=1000)).shape == (4, 4, 1000)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate"])
def test_pages_are_channels(dtype: type[Any], compression: str | None) -> None:
    levels = noise(30, 20, 5)
    file = pages(values_of(levels, dtype), compression=compression)
    assert np.array_equal(decode(file, FIVE), levels)
    assert header(file, FIVE).size == (30, 20)


def with_next_page(file: bytes, page: int, place: int) -> bytes:
    """A TIFF file in which a page points to a next one at another place."""
    at = 4
    for _ in range(page + 1):
        start = struct.unpack_from("<I", file, at)[0]
        at = start + 2 + 12 * struct.unpack_from("<H", file, start)[0]
    return file[:at] + struct.pack("<I", place) + file[at + 4 :]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_damaged_page_behind_an_image_of_colours_is_never_looked_at(channels: int) -> None:
    Image.fromarray(noise(30, 20, 4 if channels == 4 else 3)).save(file := io.BytesIO(), "TIFF")
    whole, rule = file.getvalue(), DecodeRule(channels=channels)
    for lies in (4, len(whole) - 3, len(whole) + 1000):
        assert np.array_equal(decode(with_next_page(whole, 0, lies), rule), decode(whole, rule))


def test_pages_are_counted_up_to_the_channels_alone() -> None:
    """Files of thousands of pages would be walked through for every image, and a damaged page be met."""
    file = pages(noise(8, 8, 5))
    damaged = with_next_page(file, 3, len(file) - 3)
    undecodable("2 channels, found an image of colour mode L", decode, damaged, DecodeRule(channels=2))
    frames = pages(noise(30, 20, 3))  # pages are frames for three channels
    assert np.array_equal(decode(frames)[:, :, 1], noise(30, 20, 3)[:, :, 0])  # the first, repeated


def test_pages_and_samples_are_turned_as_they_say() -> None:
    large = noise(600, 500, 5)  # more pixels than are converted at a time
    for file, stack in (
        (pages(values_of(large, np.float32), tiffinfo={274: 6}), large),
        (tiff(large[:30, :20], extratags=[(274, 3, 1, 6, True)]), large[:30, :20]),
    ):
        assert np.array_equal(decode(file, FIVE), np.rot90(stack, -1))
        assert header(file, FIVE).size == stack.shape[1::-1]
        as_stored = DecodeRule(channels=5, apply_exif=False)
        assert np.array_equal(decode(file, as_stored), stack)
        assert header(file, as_stored).size == stack.shape[:2]


def test_an_opened_image_stays_at_its_page() -> None:
    stack = noise(30, 20, 2)
    for page in (0, 1):
        with Image.open(io.BytesIO(pages(stack))) as image:
            image.seek(page)
            assert np.array_equal(decode_image(image, DecodeRule(channels=2)), stack)
            assert image.tell() == page
            assert np.array_equal(np.asarray(image), stack[:, :, page])


def test_pages_of_other_sizes_and_colours_are_refused() -> None:
    for images, reason in (
        ([noise(30, 20)] * 3 + [noise(30, 21)] * 2, r"page 4 has \(21, 30\) pixels"),
        ([noise(30, 20, 3)] * 5, "expected 5 channels, found an array of 3"),
        ([noise(30, 20)] * 4, "expected 5 channels, found an image"),
    ):
        first, *others = map(Image.fromarray, images)
        first.save(file := io.BytesIO(), "TIFF", save_all=True, append_images=others)
        undecodable(reason, decode, file.getvalue(), FIVE)


@pytest.mark.parametrize("stored", [{"rowsperstrip": 7}, {"tile": (16, 32)}])
@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("compression", [None, "lzw", "adobe_deflate", "packbits", "zstd"])
def test_samples_of_strips_and_tiles_of_any_lossless_compression_are_channels(
    stored: dict[str, Any], planar: str, compression: str | None
) -> None:
    for (dtype, predictor), (channels, order, big) in itertools.product(
        zip(TYPES, (2, 2, 3), strict=True), [(2, "<", False), (4, ">", False), (4, "<", True), (5, ">", True)]
    ):
        levels = noise(50, 70, channels)
        values = values_of(levels, dtype)
        options = stored | {
            "planarconfig": planar,
            "compression": compression,
            "byteorder": order,
            "bigtiff": big,
        }
        if compression in ("lzw", "adobe_deflate", "zstd"):
            options["predictor"] = predictor
        file = tiff(values if planar == "contig" else np.moveaxis(values, 2, 0), **options)
        assert np.array_equal(decode(file, DecodeRule(channels=channels)), levels)


def test_a_strip_is_not_unpacked_beyond_its_pixels() -> None:
    """50 kB of deflate become 50 MB of zeros, of which the strip has 3,000."""
    small = tiff(np.zeros((30, 20, 5), np.uint8), compression="adobe_deflate")
    bomb = zlib.compress(bytes(50_000_000))
    data = with_tag(with_tag(small, 279, len(bomb)), 273, len(small)) + bomb
    tracemalloc.start()
    try:
        assert not decode(data, FIVE).any()
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_a_fourth_sample_that_is_no_alpha_is_kept() -> None:
    """Pillow reads red, green, blue and an unknown fourth as RGB, and drops the fourth."""
    stack = noise(30, 20, 4)
    file = tiff(stack, photometric="rgb", extrasamples=["unspecified"])
    assert np.array_equal(decode(file)[:, :, :3], stack[:, :, :3])
    assert np.array_equal(decode(file, DecodeRule(channels=4)), stack)


def test_samples_that_cannot_be_read_are_refused_in_a_line() -> None:
    whole = tiff(noise(30, 20, 5), rowsperstrip=7)
    packed = tiff(noise(30, 20, 5), rowsperstrip=7, compression="adobe_deflate")
    damaged = packed[:-400] + b"\0" * 200 + packed[-200:]
    head = header(damaged, FIVE)  # which is read without decoding
    assert (head.format, head.mode, head.size) == ("TIFF", "uint8 x 5", (30, 20))
    for file, reason in (
        (damaged, "damaged TIFF"),
        (with_tag(whole, 256, 2**31), "pixels"),
        (with_tag(whole, 259, 5, 3), "damaged TIFF"),  # no LZW
        (with_tag(whole, 278, 2), "5 strips, expected 15"),
        *((tiff(noise(30, 20, 5).astype(np.uint32), byteorder=order), "samples of 32") for order in "<>"),
        (pages(noise(30, 20, 5), compression="jpeg"), r"COMPRESSION.JPEG.*save it with LZW or deflate"),
        *((whole[:cut], ".") for cut in range(0, len(whole), 97)),
    ):
        assert "\n" not in undecodable(reason, decode, file, FIVE)


def test_odd_tags_are_understood_as_by_pillow_and_libtiff() -> None:
    stack = noise(30, 20, 5)
    white_is_zero = with_tag(pages(stack), 262, 0, 3)
    assert np.array_equal(decode(white_is_zero, FIVE), 255 - stack)
    # A predictor of strips that are not compressed is ignored.
    file = tiff(stack, extratags=[(65000, 3, 1, 2, True)])
    file = file.replace(struct.pack("<HHII", 65000, 3, 1, 2), entry := struct.pack("<HHII", 317, 3, 1, 2))
    assert entry in file and np.array_equal(decode(file, FIVE), stack)


def ome(shape: tuple[int, ...], axes: str, **options: Any) -> bytes:
    return tiff(noise(*shape), **{"ome": True, "metadata": {"axes": axes}, "planarconfig": None, **options})


def test_an_ome_tiff_is_read_by_its_axes() -> None:
    # As Bio-Formats writes them: another image may follow.
    two = io.BytesIO()
    with tifffile.TiffWriter(two, ome=True) as writer:
        for size in (30, 8):
            writer.write(noise(5, size, 20), photometric="minisblack", metadata={"axes": "CYX"})
    tiles = ome((5, 30, 20), "CYX", tile=(16, 16))
    for file in (ome((5, 30, 20), "CYX"), ome((1, 1, 5, 30, 20), "TZCYX"), tiles, two.getvalue()):
        assert np.array_equal(decode(file, FIVE), np.moveaxis(noise(5, 30, 20), 0, 2))
    samples = ome((30, 20, 5), "YXS", planarconfig="contig")
    assert np.array_equal(decode(samples, FIVE), noise(30, 20, 5))


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (ome((5, 30, 20), "ZYX"), r"1 channels, 5 planes \(Z\) and 1 times.*save each plane, or"),
        (ome((5, 30, 20), "TYX"), r"1 channels, 1 planes \(Z\) and 5 times"),
        (ome((2, 5, 30, 20), "ZCYX"), r"5 channels, 2 planes"),
        (ome((4, 30, 20), "CYX"), r"4 channels, 1 planes.*expected 5 channels of one plane: give channels"),
        (ome((5, 30, 20), "CYX").replace(b'IFD="0"', b'IFD="1"'), "in other files or another order"),
        (ome((5, 30, 20), "CYX").replace(b"<Pixels", b"<Pixel "), "damaged TIFF file"),
        # A negative number of rows would be a loop over no strip, and pixels be what was in memory.
        *(
            (with_tag(tiff(noise(30, 20, 5), rowsperstrip=7), 278, rows, kind), f"rowsperstrip={rows} < 1")
            for kind, rows in ((9, -7), (9, -(2**31)), (4, 0))
        ),
    ],
)
def test_an_ome_tiff_of_other_axes_and_rows_that_are_none_are_refused(file: bytes, reason: str) -> None:
    for look in (decode, header):
        assert "\n" not in undecodable(reason, look, file, FIVE)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [(pages(noise(30, 20, count)), count) for count in (4, 5)] + [(tiff(noise(30, 20, 5)), 5)]
    monkeypatch.setitem(sys.modules, "tifffile", None)
    for file, channels in files:
        undecodable(r"install 'vitkit\[tiff\]', or save .npy", decode, file, DecodeRule(channels=channels))
    # Pillow reads colours and grey as before.
    for stored in (noise(30, 20, 4), noise(30, 20, 3), noise(30, 20)):
        Image.fromarray(stored).save(picture := io.BytesIO(), "TIFF")
        for channels in (1, 3, 4):
            assert decode(picture.getvalue(), DecodeRule(channels=channels)).shape == (30, 20, channels)


def test_damaged_files_write_nothing_to_the_screen(capfd: pytest.CaptureFixture[str]) -> None:
    for whole in (pages(noise(30, 20, 5)), ome((5, 30, 20), "CYX"), tiff(noise(30, 20, 5))):
        for cut in range(8, len(whole), 41):
            for damaged in (whole[:cut], whole[: cut - 8] + b"\xff" * 8 + whole[cut:]):
                with suppress(DecodeError):
                    assert decode(damaged, FIVE).shape[2] == 5
    assert capfd.readouterr() == ("", "")


def test_folders_of_arrays_are_listed_and_arrays_beside_images_are_none(tmp_path: Path) -> None:
    for name in ("field", "forest"):
        (tmp_path / "arrays" / name).mkdir(parents=True)
        for number in range(6):
            np.save(tmp_path / "arrays" / name / f"{number}.npy", noise(40, 40, 5) // 2 + number)
        (tmp_path / "images" / name).mkdir(parents=True)
        np.save(tmp_path / "images" / name / "0-mask.npy", noise(8, 8))
        for number in range(4):
            wide = noise(40, 40).astype(np.uint16) * 256 + number
            Image.fromarray(wide).save(tmp_path / "images" / name / f"{number}.png")
    data = open_data(str(tmp_path / "arrays"), Splits(test_fraction=0.3, val_fraction=0), FIVE)
    assert [len(samples) for samples in data.splits.values()] == [8, 4]
    assert data.splits["train"].decode(0).shape == (40, 40, 5)
    assert "converted" not in " ".join(check_data(data).warnings)
    for channels, said in ((3, "are converted to RGB: 8 I;16."), (1, "are converted to grey: 8 I;16.")):
        data = open_data(str(tmp_path / "images"), Splits(0, 0), DecodeRule(channels=channels))
        assert len(data.splits["train"]) == 8
        assert any("2 files in class folders ignored" in note for note in data.notes)
        assert said in " ".join(check_data(data).warnings)
