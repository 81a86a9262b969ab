"""A .zip or .tar of class folders is read as it stands, as the folder is."""

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitkit
from vitkit.data.layouts import archives
from vitkit.data.sources import ImageData, open_data
from vitkit.errors import DecodeError, VitkitError


def png(level: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.RandomState(level).randint(0, 256, (8, 8, 3)).astype(np.uint8)).save(
        stream, "PNG"
    )
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


def tarred(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
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


WAYS: dict[str, Callable[[Path], Path]] = {
    "zip": lambda folder: zipped(folder / "photos.zip", dict(reversed(PHOTOS.items()))),
    "zip, stored": lambda folder: zipped(folder / "photos.zip", PHOTOS, zipfile.ZIP_STORED),
    "zip with a folder around": lambda folder: zipped(
        folder / "photos.zip", {f"My photos/all/{name}": content for name, content in PHOTOS.items()}
    ),
    "zip of a mac": lambda folder: zipped(
        folder / "photos.zip", {**PHOTOS, "__MACOSX/cat/._2.png": b"x", "cat/.DS_Store": b"x"}
    ),
    "tar": lambda folder: tarred(folder / "photos.tar", dict(reversed(PHOTOS.items()))),
    "tar of .": lambda folder: tarred(
        folder / "photos.tar", {f"./{name}": content for name, content in PHOTOS.items()}
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_archive_is_the_folder(way: str, tmp_path: Path) -> None:
    folder = open_data(str(unpacked(tmp_path / "photos", PHOTOS)))
    archive = open_data(str(WAYS[way](tmp_path)))
    assert archive.name == folder.name and archive.class_names == ("cat", "eel", "ox")
    assert archive.fingerprint() == folder.fingerprint()  # names, order, labels and cut
    assert contents(archive) == contents(folder)
    assert {path.name for path in tmp_path.iterdir()} == {"photos", WAYS[way](tmp_path).name}  # nothing else


def test_splits_in_an_archive_are_kept(tmp_path: Path) -> None:
    files = {f"{split}/{name}": content for split in ("train", "Test") for name, content in PHOTOS.items()}
    archive = open_data(str(zipped(tmp_path / "photos.zip", files)))
    assert archive.fingerprint() == open_data(str(unpacked(tmp_path / "photos", files))).fingerprint()
    unlabelled = open_data(str(tmp_path / "photos.zip"), labelled=False)
    assert len(unlabelled.splits["test"]) == 12


@pytest.mark.usefixtures("without_report")
def test_a_run_trains_on_an_archive_and_goes_on_with_it(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "photos.zip", PHOTOS)
    options: dict[str, Any] = {
        "model": "ViT-16x1x2/4",
        "image_size": 8,
        "batch_size": 4,
        "steps": 2,
        "workers": 1,
    }
    folder = vitkit.train(data=str(archive), out=tmp_path / "run", **options)
    assert vitkit.evaluate(folder).result.count > 0
    assert vitkit.train(data=str(archive), out=tmp_path / "run", **options) == folder


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../cat/9.png", "leads out of it"),
        ("/cat/9.png", "leads out of it"),
        ("cat/../../9.png", "leads out of it"),
        ("cat/2.png", "two files named 'cat/2.png'"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_lead_elsewhere_are_refused(name: str, said: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(zipped(tmp_path / "a.zip", PHOTOS), "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(VitkitError, match=said):
        open_data(str(tmp_path / "a.zip"))
    with tarfile.open(tarred(tmp_path / "a.tar", PHOTOS), "a") as tar:
        tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    with pytest.raises(VitkitError, match=said):
        open_data(str(tmp_path / "a.tar"))


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(99))
    target = str(tmp_path / "secret.png")
    with tarfile.open(tarred(tmp_path / "a.tar", PHOTOS), "a") as tar:
        for kind, name in ((tarfile.SYMTYPE, "cat/soft.png"), (tarfile.LNKTYPE, "cat/hard.png")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, target
            tar.addfile(link)
    with zipfile.ZipFile(zipped(tmp_path / "a.zip", PHOTOS), "a") as archive:
        info = zipfile.ZipInfo("cat/soft.png")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, target)
    for name in ("a.tar", "a.zip"):
        data = open_data(str(tmp_path / name))
        assert sum(map(len, data.splits.values())) == len(PHOTOS)


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zipped(tmp_path / "a.zip", {**PHOTOS, "cat/bomb.png": b"\0" * 5_000_000})
    content = bytearray(bomb.read_bytes())
    place = content.rindex(b"cat/bomb.png") - 46  # its line in the directory, whose size is made a small one
    content[place + 24 : place + 28] = (1000).to_bytes(4, "little")
    bomb.write_bytes(content)
    data = open_data(str(bomb))
    samples = next(s for s in data.splits.values() for i in range(len(s)) if "bomb" in s.key(i))
    index = next(i for i in range(len(samples)) if "bomb" in samples.key(i))
    with pytest.raises(DecodeError, match=r"damaged in a\.zip"):
        samples.decode(index)
    monkeypatch.setattr(archives, "LARGEST_MEMBER", 999)
    with pytest.raises(DecodeError, match="more than the 999 allowed"):
        samples.decode(index)


def test_damage_is_named_and_never_read_as_an_image(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", PHOTOS, zipfile.ZIP_STORED)
    data = open_data(str(archive))
    content = bytearray(archive.read_bytes())
    content[content.index(b"IDAT") + 10] ^= 1
    archive.write_bytes(content)
    broken = [s.key(i) for s in data.splits.values() for i in range(len(s)) if not _can_be_read(s, i)]
    assert broken == [next(iter(PHOTOS))]
    archive.write_bytes(content[: len(content) // 2])
    with pytest.raises(VitkitError, match=r"a\.zip cannot be read as an archive"):
        open_data(str(archive))


def _can_be_read(samples: object, index: int) -> bool:
    try:
        samples.decode(index)  # type: ignore[attr-defined]
    except DecodeError:
        return False
    return True


def test_a_member_of_negative_size_does_not_lead_back_to_itself(tmp_path: Path) -> None:
    archive = tarred(tmp_path / "a.tar", {"cat/1.png": png(1), "ox/1.png": png(2)})
    content = bytearray(archive.read_bytes())
    header = content.index(b"ox/1.png")
    content[header + 124 : header + 136] = (256**12 - 512).to_bytes(12)  # -512, in base 256
    content[header + 148 : header + 156] = b" " * 8  # as the sum of all bytes is counted
    content[header + 148 : header + 156] = b"%06o\0 " % sum(content[header : header + 512])
    archive.write_bytes(content)
    with pytest.raises(VitkitError, match="cannot be read as an archive: a member of negative size"):
        open_data(str(archive))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: tarred(folder / "a.tar.gz", PHOTOS, "w:gz"), r"Unpack it \(tar xf\)"),
        (lambda folder: tarred(folder / "a.tgz", PHOTOS, "w:gz"), r"Unpack it \(tar xf\)"),
        (lambda folder: zipped(folder / "a.zip", PHOTOS, zipfile.ZIP_LZMA), "again with deflate"),
        (lambda folder: zipped(folder / "a.zip", {"cat/1.png": png(1)}), "has one class, 'cat'"),
        (lambda folder: zipped(folder / "a.zip", {"cat/1.png": png(1), "ox/a": b""}), "no images in"),
        (lambda folder: zipped(folder / "a.zip", {"1.png": png(1)}), "no class folders"),
        (lambda folder: zipped(folder / "a.zip", {}), "No images in"),
    ],
)  # fmt: skip
def test_what_is_no_archive_of_class_folders_says_what_to_do(
    make: Callable[[Path], Path], said: str, tmp_path: Path
) -> None:
    with pytest.raises(VitkitError, match=said):
        open_data(str(make(tmp_path)))


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    archive = zipped(tmp_path / "a.zip", PHOTOS)
    content = bytearray(archive.read_bytes())
    place = content.index(b"PK\1\2")
    content[place + 8] |= 1  # the flag of the first line of the directory
    archive.write_bytes(content)
    with pytest.raises(VitkitError, match="is encrypted: unpack it"):
        open_data(str(archive))
