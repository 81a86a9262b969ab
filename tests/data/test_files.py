"""Files that are none, or too large, or change: a reason at once, never a hang."""

import errno
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from PIL import Image, ImageFile

from vitkit.data.config import DecodeRule
from vitkit.data.decode.image import decode, header
from vitkit.data.files import UnreadableFileError, read_unchanged_file, regular_file
from vitkit.errors import DecodeError, VitkitError

pytestmark = pytest.mark.timeout(600)


def a_socket(path: Path) -> None:
    if len(str(path)) > 100:
        pytest.skip("the temporary folder has too long a name for a socket")
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (os.mkfifo, "a pipe, a socket or a device, not a regular file"),
    "link to endless zeros": (lambda path: path.symlink_to("/dev/zero"), "a device, not a regular file"),
    "socket": (a_socket, "cannot be read|a socket"),
    "folder": (lambda path: path.mkdir(), "a folder, not a regular file"),
    "link to itself": (lambda path: path.symlink_to(path), "cannot be read: .*symbolic links"),
    "missing": (lambda path: None, "no such file"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_regular_file_is_a_bad_image(name: str, tmp_path: Path) -> None:
    make, reason = ODD[name]
    make(tmp_path / "x.png")
    for look in (decode, header):
        with pytest.raises(DecodeError, match=reason):
            look(tmp_path / "x.png")
    (tmp_path / "link").symlink_to("x.png")
    with pytest.raises(UnreadableFileError, match=reason), regular_file(tmp_path / "link"):
        pass


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("x")
    assert read_unchanged_file(tmp_path / "link", 5) == b"12345"
    with regular_file(tmp_path / "x") as stream:
        assert stream.read() == b"12345"
    (tmp_path / "empty").touch()
    assert read_unchanged_file(tmp_path / "empty", 5) == b""


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "x.png").open("wb") as stream:
        stream.truncate(40 << 30)  # without a single block on the disk
    with pytest.raises(DecodeError, match=r"42,949,672,960 bytes, more than the 528,000,000 allowed"):
        decode(tmp_path / "x.png")
    with pytest.raises(UnreadableFileError, match="more than the 4 allowed"):
        read_unchanged_file(tmp_path / "x.png", 4)
    assert DecodeRule(max_pixels=1).max_bytes == 144_000_000


@pytest.mark.parametrize("change", [b"longer than before", b"cut", b"same!"])
def test_a_file_that_changes_while_it_is_read(
    change: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(b"12345")
    os.utime(path, (1, 1))
    read = os.read

    def read_and_change(descriptor: int, count: int) -> bytes:
        path.write_bytes(change)
        return read(descriptor, count)

    monkeypatch.setattr(os, "read", read_and_change)
    with pytest.raises(DecodeError, match="changed while it was read: 5 bytes at first"):
        decode(path)
    path.write_bytes(b"12345")
    monkeypatch.setattr(os, "read", Mock(side_effect=MemoryError))
    with pytest.raises(DecodeError, match="not enough memory to read its 5 bytes"):
        decode(path)
    monkeypatch.undo()
    Image.new("RGB", (2, 2)).save(path)
    monkeypatch.setattr(ImageFile.ImageFile, "load", Mock(side_effect=MemoryError))
    with pytest.raises(DecodeError, match="not enough memory to decode this PNG file"):
        decode(path)


@pytest.mark.skipif(sys.platform != "linux", reason="open files are listed on Linux only")
def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    folder = Path("/proc/self/fd")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "words.png").write_bytes(b"words")
    before = len(list(folder.iterdir()))
    for name in ("pipe.png", "words.png", "gone.png"):
        with pytest.raises(DecodeError):
            decode(tmp_path / name)
    assert len(list(folder.iterdir())) == before


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_is_not_the_fault_of_an_image(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted as a bad file, a good image would silently be left out of training."""
    path = tmp_path / "a.png"
    Image.new("RGB", (2, 2)).save(path)

    monkeypatch.setattr(os, "open", Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(VitkitError, match="ulimit") as raised:
        decode(path)
    assert not isinstance(raised.value, DecodeError)
