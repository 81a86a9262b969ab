"""Files are whole or absent."""

import errno
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.refusals import refused
from vitkit import durable
from vitkit.config import write


def test_a_file_is_written_with_its_hash_in_however_many_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: original(descriptor, data[:3]))
    size, digest = durable.write_file(tmp_path / "file", [b"hello ", memoryview(b"world"), b""])
    assert (tmp_path / "file").read_bytes() == b"hello world"
    assert (size, digest) == (11, hashlib.sha256(b"hello world").hexdigest())
    with pytest.raises(FileExistsError):
        durable.write_file(tmp_path / "file", [b"new"])


def fail(*arguments: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failed_replacement_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file"
    write(path, {"old": "é"})

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space"):
            durable.replace_file(path, [b"new"])
    assert "é" in path.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [path]


def test_a_replacement_is_flushed_before_its_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut there is the old file or the new one, and the new one where the call had ended."""
    made: list[str] = []
    flush, rename = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        made.append("flush the folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "flush the file")
        flush(descriptor)

    def replace(old: Path, new: Path) -> None:
        made.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    durable.replace_file(tmp_path / "file", [b"new"])
    assert made == ["flush the file", "rename", "flush the folder"]


def test_json_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write(path, {"é": [1, None]})
    assert durable.read_json(path) == {"é": [1, None]}
    path.write_bytes(b"\xef\xbb\xbf[1]")  # as some editors save it
    assert durable.read_json(path) == [1]
    with pytest.raises(FileNotFoundError):
        durable.read_json(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "no JSON"),
        (b"", "no JSON"),
        (b'{"a": "\xff"}', "UTF-8 .*byte 0xff in position 7"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a":' * 100_000, "nested too deep"),
        (b"1" * 5000, "no JSON"),
        (b" " * 5001 + b"1", "at most 5,000 bytes"),
    ],
)
def test_damaged_json_is_said_in_words(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    limit = 5000 if b" " in content else 10**6
    refused(f"{re.escape(str(path))}.*{message}", durable.read_json, path, limit=limit)


def test_only_regular_files_of_a_disk_that_reads_are_read_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "device.json").symlink_to("/dev/zero")
    (tmp_path / "loop.json").symlink_to("loop.json")
    for name in ("pipe", "folder", "device", "loop"):
        refused(f"{name}.json cannot be read", durable.read_json, tmp_path / f"{name}.json")
    refused("cannot be read", durable.read_json, tmp_path / "pipe.json" / "below.json")
    (tmp_path / "file.json").write_text("{}")
    monkeypatch.setattr(os, "read", fail)
    refused("cannot be read: No space left on device", durable.read_json, tmp_path / "file.json")


def test_a_pipe_is_not_appended_to(tmp_path: Path) -> None:
    """Opening it would wait for a reader for ever."""
    os.mkfifo(tmp_path / "pipe")
    refused("expected a regular file, found a pipe", durable.open_to_append, tmp_path / "pipe")
    refused("found a pipe, a socket or a device", durable.open_to_append, Path("/dev/null"))
    for line in ("a\n", "b\n"):
        with durable.open_to_append(tmp_path / "log") as file:
            file.write(line)
    assert (tmp_path / "log").read_text() == "a\nb\n"


def test_leftovers_of_killed_processes_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".ended.json.123.tmp", ".x.tmp", "ended.json", ".lock", ".a.12x.tmp"):
        (tmp_path / name).touch()
    (tmp_path / ".folder.1.tmp").mkdir()
    durable.remove_leftovers(tmp_path)
    durable.remove_leftovers(tmp_path / "none")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {".x.tmp", "ended.json", ".lock", ".a.12x.tmp", ".folder.1.tmp"}


def test_a_link_that_leads_out_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run" / "inside").mkdir(parents=True)
    (tmp_path / "run-2").mkdir()
    (tmp_path / "run" / "best").symlink_to("inside")
    (tmp_path / "run" / "loop").symlink_to("loop")
    (tmp_path / "link").symlink_to("run")
    durable.refuse_links(tmp_path / "run")
    durable.refuse_links(tmp_path / "link")
    for target in ("../run-2", "/nowhere", tmp_path / "run-2", ".."):
        (tmp_path / "run" / "out").symlink_to(target)
        refused("run/out is a link that leads out", durable.refuse_links, tmp_path / "run")
        (tmp_path / "run" / "out").unlink()


def test_a_name_from_a_file_is_no_path() -> None:
    assert all(map(durable.is_file_name, ("a", "model.safetensors", "..a", "é b", "a..")))
    wrong = ("", ".", "..", "/a", "a/b", "../a", "a\\b", "C:a", "a\0b", "a/")
    assert not any(map(durable.is_file_name, wrong))
