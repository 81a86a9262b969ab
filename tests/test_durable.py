"""Files are whole or absent."""

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from vitkit.durable import replace_file, replace_json, write_file


def test_a_file_is_written_with_its_hash_in_however_many_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: original(descriptor, data[:3]))
    size, digest = write_file(tmp_path / "file", [b"hello ", memoryview(b"world"), b""])
    assert (tmp_path / "file").read_bytes() == b"hello world"
    assert (size, digest) == (11, hashlib.sha256(b"hello world").hexdigest())


def test_an_existing_file_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "file", [b"new"])


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failed_replacement_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file"
    replace_json(path, {"old": "é"})

    def refuse(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(OSError, match="No space"):
            replace_file(path, [b"new"])
    assert "é" in path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]
