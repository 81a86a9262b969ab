"""A .zip or .tar of class folders is read as it stands, as the folder is."""

import io
import re
import stat
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

from tests.faults.mutate import mutant
from tests.helpers.refusals import refused, undecodable
from vitkit.data.config import Splits
from vitkit.data.layouts import archives, repeats
from vitkit.data.layouts.archives import list_archive
from vitkit.data.layouts.image_paths import find_images
from vitkit.data.sources import ImageData, open_data
from vitkit.errors import DecodeError, VitkitError
from vitkit.evaluation.features import content_of


def png(level: int) -> bytes:
    pixels = np.random.RandomState(level).randint(0, 256, (8, 8, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(stream := io.BytesIO(), "PNG")
    return stream.getvalue()


PHOTOS = {f"{name}/{folder}{n}.png": png(n + 7 * len(name)) for name in ("cat", "eel", "ox")
          for folder, n in (("", 2), ("", 10), ("b/", 1), ("a/", 3))}  # fmt: skip


def unpacked(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def zipped(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path, files: dict[str, bytes], mode: str = "w", **options: int) -> Path:
    with tarfile.open(path, mode, **options) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def contents(data: ImageData) -> dict[str, list[bytes]]:
    return {
        name: [samples.decode(i).tobytes() for i in range(len(samples))]
        for name, samples in data.splits.items()
    }


WAYS: tuple[tuple[Callable[..., Path], dict[str, bytes], dict[str, int]], ...] = (
    (zipped, dict(reversed(PHOTOS.items())), {}),
    (zipped, PHOTOS, {"method": zipfile.ZIP_STORED}),
    (zipped, {f"My photos/all/{name}": content for name, content in PHOTOS.items()}, {}),
    (zipped, {**PHOTOS, "__MACOSX/cat/._2.png": b"x", "cat/.DS_Store": b"x"}, {}),  # of a Mac
    (tarred, dict(reversed(PHOTOS.items())), {}),
    (tarred, {f"./{name}": content for name, content in PHOTOS.items()}, {}),
)


@pytest.mark.parametrize(("pack", "files", "options"), WAYS)
def test_an_archive_is_the_folder(
    pack: Callable[..., Path], files: dict[str, bytes], options: dict[str, int], tmp_path: Path
) -> None:
    folder = open_data(str(unpacked(tmp_path / "photos", PHOTOS)))
    path = pack(tmp_path / ("photos.zip" if pack is zipped else "photos.tar"), files, **options)
    archive = open_data(str(path))
    assert archive.name == folder.name and archive.class_names == ("cat", "eel", "ox")
    assert archive.fingerprint() == folder.fingerprint()  # names, order, labels and cut
    assert contents(archive) == contents(folder)
    assert archive.splits["train"].files.on_disk(np.arange(3)).tolist() == [0]  # one file holds them all
    assert {*tmp_path.iterdir()} == {tmp_path / "photos", path}  # nothing else


def test_splits_in_an_archive_are_kept(tmp_path: Path) -> None:
    files = {f"{split}/{name}": content for split in ("train", "Test") for name, content in PHOTOS.items()}
    archive = open_data(str(zipped(tmp_path / "photos.zip", files)))
    assert archive.fingerprint() == open_data(str(unpacked(tmp_path / "photos", files))).fingerprint()
    unlabelled = open_data(str(tmp_path / "photos.zip"), labelled=False)
    assert len(unlabelled.splits["test"]) == 12


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../cat/9.png", "leads out of it"),
        ("/cat/9.png", "leads out of it"),
        ("cat/../../9.png", "leads out of it"),
        ("cat\\9.png", "leads out of it"),
        ("cat/9\n.png", r"'cat/9\\x0a.png', which leads out of it or is no plain"),
        ("cat/\x1b[2J/9.png", r"'cat/\\x1b\[2J/9.png'"),
        ("cat/2.png", "two files named 'cat/2.png'"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_lead_elsewhere_are_refused(name: str, said: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(zipped(tmp_path / "a.zip", PHOTOS), "a") as archive:
        archive.writestr(name, b"x")
    refused(said, open_data, str(tmp_path / "a.zip"))
    with tarfile.open(tarred(tmp_path / "a.tar", PHOTOS), "a") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    refused(said, open_data, str(tmp_path / "a.tar"))


def test_links_and_sparse_files_are_not_read(tmp_path: Path) -> None:
    """The bytes of a sparse file in an archive are not the bytes of the file."""
    (tmp_path / "secret.png").write_bytes(png(99))
    target = str(tmp_path / "secret.png")
    kinds = {"soft": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "sparse": tarfile.GNUTYPE_SPARSE}
    with tarfile.open(tarred(tmp_path / "a.tar", PHOTOS), "a") as tar:
        for name, kind in kinds.items():
            info = tarfile.TarInfo(f"cat/{name}.png")
            info.type, info.linkname, info.size = kind, target, len(png(1)) * (name == "sparse")
            tar.addfile(info, io.BytesIO(png(1)))
    with zipfile.ZipFile(zipped(tmp_path / "a.zip", PHOTOS), "a") as archive:
        link = zipfile.ZipInfo("cat/soft.png")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, target)
    notes = (
        "3 links, devices or sparse files in a.tar ignored: cat/soft.png, cat/hard.png, cat/sparse.png.",
        "1 link, device or sparse file in a.zip ignored: cat/soft.png.",
    )
    for path, note in zip(("a.tar", "a.zip"), notes, strict=True):
        for labelled in (True, False):
            data = open_data(str(tmp_path / path), labelled=labelled)
            assert sum(map(len, data.splits.values())) == len(PHOTOS) and note in data.notes


def _offset(archive: Path, number: int) -> int:
    with tarfile.open(archive) as tar:
        return tar.getmembers()[number].offset


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_tar_that_does_not_end_behind_its_last_file_is_refused(kind: int, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    long = "" if kind == tarfile.USTAR_FORMAT else f"cat/{'long' * 40}/"  # a header of its own
    tarred(archive, {"cat/1.png": png(1), f"{long}2.png": png(2), "ox/3.png": png(3)}, format=kind)
    whole, place = archive.read_bytes(), _offset(archive, 1)
    end = _offset(archive, 2) + 1024
    flipped = whole[: place + 148] + bytes([whole[place + 148] ^ 1]) + whole[place + 149 :]
    for start, content in (
        (place, flipped),
        (place, whole[:place] + bytes(512) + whole[place + 512 :]),
        (place, whole[:place]),
        (place, whole[: place + 100]),  # cut in the header
        (end, whole[: end + 512]),  # cut in the end
        (end, whole + whole),
    ):
        archive.write_bytes(content)
        message = rf"a\.tar is damaged or cut at byte {start:,}: expected the header"
        refused(message, list_archive, archive, partial=True)
    archive.write_bytes(whole[: end + 1024])  # and one that ends at once behind the two blocks is whole
    splits = list_archive(archive, True, labelled=False).splits
    assert sum(len(numbers) for numbers, _ in splits.values()) == 3


@pytest.mark.parametrize("kind", ["L", "K", "x", "g"])
def test_a_name_of_4_gib_is_not_read(kind: str, tmp_path: Path) -> None:
    """The bytes are there, in a sparse file."""
    archive = tarred(tmp_path / "a.tar", PHOTOS)
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind.encode(), 4 << 30
    head = info.tobuf(tarfile.GNU_FORMAT)
    with archive.open("r+b") as stream:
        stream.seek(_offset(archive, 11))
        stream.write(head)
        stream.truncate(8 << 30)
    refused("a name or attributes of 4,294,967,296 bytes", open_data, str(archive))


def _edited(archive: Path, name: bytes, place: int, value: bytes) -> Path:
    """Write bytes into the line of a member in the directory of a zip file."""
    content = bytearray(archive.read_bytes())
    at = content.rindex(name) - 46 + place
    content[at : at + len(value)] = value
    archive.write_bytes(content)
    return archive


def edited(folder: Path, place: int, value: bytes) -> Path:
    return _edited(zipped(folder / "a.zip", PHOTOS), b"eel/2.png", place, value)


def unreadable(data: ImageData) -> list[str]:
    """The images that cannot be decoded."""
    keys = []
    for samples in data.splits.values():
        for index in range(len(samples)):
            try:
                samples.decode(index)
            except DecodeError:
                keys.append(samples.key(index))
    return keys


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (16, b"\1\2\3\4"),  # another CRC-32
        (20, b"\1\0\0\0"),  # packed into one byte
        (24, b"\1\0\0\0"),  # of one byte
        (24, b"\xff\xff\xff\x7f"),  # of 2 GiB
        (42, b"\0\0\0\0"),  # the place of another member
        (42, b"\xff\xff\xff\x7f"),  # no place in the file
        (46, b"eel"),  # another class
    ],
)
@pytest.mark.parametrize("compared", ["pixels", "bytes"])
def test_one_bad_image_of_a_zip_is_one_unreadable_image(
    place: int, value: bytes, compared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "MOST_DECODED", 1000 if compared == "pixels" else 1)
    archive = zipped(tmp_path / "a.zip", {**PHOTOS, "cat/b.png": png(51), "cat/c.png": png(51)})
    _edited(archive, b"cat/b.png", place, value)
    data = open_data(str(archive))
    assert unreadable(data) == ["eel/b.png" if place == 46 else "cat/b.png"]
    assert sum(map(len, data.splits.values())) == len(PHOTOS) + 2
    train = data.splits["train"]
    content_of(train, np.arange(len(train)))  # features of it are named by its content
    bad = [image for image in find_images([str(archive)]) if image.path.name == "b.png"]
    undecodable(".", bad[0].content)


def test_a_line_of_the_directory_does_not_swallow_the_lines_behind_it(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", PHOTOS)
    with zipfile.ZipFile(archive, "a") as file:
        file.comment = b"taken in spring"
    assert sum(map(len, open_data(str(archive)).splits.values())) == len(PHOTOS)
    _edited(archive, b"eel/2.png", 32, b"\xff\xff")  # the length of its comment
    refused("its end promises 12 files, and its directory names 5", open_data, str(archive))


@pytest.mark.slow
def test_a_zip_of_more_files_than_its_first_end_can_count_is_read(tmp_path: Path) -> None:
    """The longer end of ZIP64 counts them."""
    names = {f"cat/{i}.txt": b"" for i in range(65_530)}
    archive = zipped(tmp_path / "a.zip", {**names, **PHOTOS}, zipfile.ZIP_STORED)
    assert sum(map(len, open_data(str(archive)).splits.values())) == len(PHOTOS)
    content = bytearray(archive.read_bytes())
    content[content.rindex(b"PK\6\6") + 32] ^= 1
    archive.write_bytes(content)
    refused("its end promises 7 files, and its directory names 65,542", open_data, str(archive))


def test_a_promise_of_more_than_any_disk_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", PHOTOS)
    content = bytearray(archive.read_bytes())
    at, end = content.index(b"PK\1\2"), content.rindex(b"PK\5\6")
    content[end + 12 : end + 16] = (int.from_bytes(content[end + 12 : end + 16], "little") + 12).to_bytes(
        4, "little"
    )
    extra = at + 46 + int.from_bytes(content[at + 28 : at + 30], "little")
    content[extra:extra] = b"\1\0\x08\0" + b"\xff" * 8  # where the size stands: 2^64 - 1
    content[at + 24 : at + 28], content[at + 30 : at + 32] = b"\xff" * 4, b"\x0c\0"
    archive.write_bytes(content)
    refused("promises files larger than any disk", open_data, str(archive))


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zipped(tmp_path / "a.zip", {**PHOTOS, "cat/bomb.png": b"\0" * 5_000_000})
    _edited(bomb, b"cat/bomb.png", 24, (1000).to_bytes(4, "little"))  # its size, which is made a small one
    data = open_data(str(bomb))
    index, samples = next(
        (i, part) for part in data.splits.values() for i in range(len(part)) if "bomb" in part.key(i)
    )
    tracemalloc.start()
    undecodable(r"damaged in a\.zip", samples.decode, index)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000  # of 5,000,000 bytes, no more than the header says
    tracemalloc.stop()
    monkeypatch.setattr(archives, "LARGEST_MEMBER", 999)
    undecodable(r"it has 4,87[0-9] bytes in a\.zip, more than the 999 allowed", samples.decode, index)
    # A size that stands in the directory is refused before any byte is unpacked.
    files = list_archive(
        zipped(tmp_path / "b.zip", {"cat/1.png": bytes(998), "cat/2.png": bytes(1000)}), True
    ).files
    assert files.file(0) == bytes(998)
    undecodable(r"it has 1,000 bytes in b\.zip, more than the 999 allowed in", files.file, 1)


def test_damage_is_named_and_never_read_as_an_image(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", PHOTOS, zipfile.ZIP_STORED)
    data = open_data(str(archive))
    content = bytearray(archive.read_bytes())
    content[content.index(b"IDAT") + 10] ^= 1
    archive.write_bytes(content)
    assert unreadable(data) == [next(iter(PHOTOS))]
    archive.write_bytes(content[: len(content) // 2])
    refused(r"a\.zip cannot be read as an archive", open_data, str(archive))


def test_a_member_of_negative_size_does_not_lead_back_to_itself(tmp_path: Path) -> None:
    archive = tarred(tmp_path / "a.tar", {"cat/1.png": png(1), "ox/1.png": png(2)})
    content = bytearray(archive.read_bytes())
    header = content.index(b"ox/1.png")
    content[header + 124 : header + 136] = (256**12 - 512).to_bytes(12)  # -512, in base 256
    content[header + 148 : header + 156] = b" " * 8  # as the sum of all bytes is counted
    content[header + 148 : header + 156] = b"%06o\0 " % sum(content[header : header + 512])
    archive.write_bytes(content)
    refused("cannot be read as an archive: a member of negative size", open_data, str(archive))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: tarred(folder / "a.tar.gz", PHOTOS, "w:gz"), r"Unpack it \(tar xf\)"),
        (lambda folder: zipped(folder / "a.zip", PHOTOS, zipfile.ZIP_LZMA), "again with deflate"),
        (lambda folder: zipped(folder / "a.zip", {"cat/1.png": png(1)}), "has one class, 'cat'"),
        (lambda folder: zipped(folder / "a.zip", {"cat/1.png": png(1), "ox/a": b""}), "no images in"),
        (lambda folder: zipped(folder / "a.zip", {"1.png": png(1)}), "no class folders"),
        (lambda folder: zipped(folder / "a.zip", {}), "No images in"),
        (lambda folder: edited(folder, 8, b"\1"), "is encrypted: unpack it"),
        *((lambda folder, at=at: edited(folder, at, b"\0"), "is no plain name") for at in (46, 50, 54)),
    ],
)  # fmt: skip
def test_what_is_no_archive_of_class_folders_says_what_to_do(
    make: Callable[[Path], Path], said: str, tmp_path: Path
) -> None:
    refused(said, open_data, str(make(tmp_path)))


IGNORED = re.compile(r"^(?:\w+: )?([0-9,]+) .* ignored")


@pytest.mark.parametrize("count", [40, pytest.param(4000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_damage_anywhere_leaves_each_image_its_own_pixels_or_is_refused(
    pack: Callable[..., Path], count: int, tmp_path: Path
) -> None:
    """And none is missing without a word. A .tar has no check sums of what is in its files, nor of blocks."""
    path = pack(tmp_path / ("a.zip" if pack is zipped else "a.tar"), PHOTOS)
    whole, refusals = path.read_bytes(), 0
    pixels = {name: np.asarray(Image.open(io.BytesIO(content))) for name, content in PHOTOS.items()}
    for number in range(count):
        path.write_bytes(mutant(whole, Random(number)))
        try:
            data = open_data(str(path))
        except VitkitError as error:
            assert not {"\n", "\x1b"} & {*str(error)} and len(str(error)) <= 2000
            refusals += 1
            continue
        ignored = sum(int(said[1].replace(",", "")) for said in map(IGNORED.search, data.notes) if said)
        assert pack is tarred or sum(map(len, data.splits.values())) + ignored >= len(PHOTOS), number
        for samples in data.splits.values():
            for index in range(len(samples)):
                with suppress(DecodeError):
                    image = samples.decode(index)
                    assert pack is tarred or (image == pixels[samples.key(index)]).all(), number
    assert refusals > 5


def test_folders_in_folders_of_an_archive_are_a_tree_as_on_the_disk(tmp_path: Path) -> None:
    files = {f"{name}/{n}.png": png(n + len(name)) for name in ("a/b/c", "a/d", "e") for n in range(2)}
    files |= {"a/notes.txt": b"x"}
    cut = Splits(0, 0, levels=True)
    plain = open_data(str(unpacked(tmp_path / "plain", files)), cut)
    assert plain.class_names == ("a/b/c", "a/d", "e")
    around = {f"photos/{name}": content for name, content in files.items()}
    for packed in (zipped(tmp_path / "x.zip", files), tarred(tmp_path / "y.tar", around)):
        data = open_data(str(packed), cut)
        assert data.class_names == plain.class_names and data.notes == plain.notes
        assert contents(data) == contents(plain)
        assert open_data(str(packed), Splits(0, 0)).class_names == ("a", "e")
