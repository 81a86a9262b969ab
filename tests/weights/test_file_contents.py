"""The numbers of a file: checksums of archives, memory that is mapped, tensors that are read one by one."""

import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fixture_files import write_npz
from tests.helpers.random_models import same_bits
from tests.helpers.weight_files import STATE, array_header, assert_is_state, contents, notes_of, refused
from vitkit import load_model
from vitkit.errors import VitkitError
from vitkit.weights.create import create_model
from vitkit.weights.files.source import open_source
from vitkit.weights.saving import save_model


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.arange(10_000.0))
    data = bytearray(path.read_bytes())
    data[40_000] ^= 1
    path.write_bytes(data)
    with open_source(path) as source, pytest.raises(VitkitError, match="is damaged: x cannot be read"):
        source.read("x")


def test_a_flip_anywhere_in_a_pytorch_file_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    """Every byte of the numbers and of the pickle that names them, and every ninth of the rest."""
    path = tmp_path / "x.pth"
    torch.save(STATE, path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if "/data" in info.filename]
        within = {info.filename: whole.index(archive.read(info)) for info in infos}
        checked = {
            i for info in infos for i in range(within[info.filename], within[info.filename] + info.file_size)
        }
    noticed = 0
    for place in sorted(checked | set(range(0, len(whole), 9))):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            assert_is_state(path)
        except VitkitError:
            noticed += 1
        else:
            assert place not in checked
    assert noticed >= len(checked)


def test_tensors_that_share_memory_are_read(tmp_path: Path) -> None:
    whole = torch.arange(12.0)
    tensors = {"first": whole[:4], "all": whole, "again": whole.view(3, 4).T, "none": torch.ones(0, 3)}
    torch.save(tensors, tmp_path / "x.pth")
    loaded = contents(tmp_path / "x.pth")
    assert all(torch.equal(loaded[key], tensor) for key, tensor in tensors.items())


def test_an_archive_without_checksums_is_read_and_said_to_have_none(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(STATE, tmp_path / "x.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    assert_is_state(tmp_path / "x.pth")
    assert "left out the archive's checksums" in notes_of(tmp_path / "x.pth")
    torch.save(STATE, tmp_path / "y.pth")
    assert notes_of(tmp_path / "y.pth") == ""


def test_numbers_of_the_other_byte_order_are_checked_as_a_whole(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "little.pth")
    path = tmp_path / "big.pth"
    with zipfile.ZipFile(tmp_path / "little.pth") as little, zipfile.ZipFile(path, "w") as big:
        for info in little.infolist():
            data = little.read(info)
            if "/data/" in info.filename:
                data = np.frombuffer(data, ">f4").astype("<f4").tobytes()
            big.writestr(info.filename, b"big" if info.filename.endswith("byteorder") else data)
    assert_is_state(path)
    data = path.read_bytes()
    path.write_bytes(
        data.replace(np.arange(6, dtype=">f4").tobytes(), np.arange(1, 7, dtype=">f4").tobytes())
    )
    assert path.read_bytes() != data
    refused(path, "is damaged")


def test_arrays_are_private_whatever_their_alignment(tmp_path: Path) -> None:
    """Stored members begin anywhere in the file; what is written to a tensor never reaches it."""
    path = tmp_path / "x.npz"
    for name in ("n", "nn", "nnn", "nnnn"):
        write_npz(path, {name: np.arange(1000, dtype=np.float32)})
        before = path.read_bytes()
        with open_source(path) as source:
            tensor = source.read(name)
        assert torch.equal(tensor, torch.arange(1000.0))  # after the file was closed
        tensor.zero_()
        assert path.read_bytes() == before


def test_weights_begin_at_multiples_of_their_size(tmp_path: Path) -> None:
    """An archive's comment or another name before them moves its arrays by any number of bytes."""
    model, path = create_model("ViT-16x2x2/8", 3, 16), tmp_path / "x.npz"
    save_model(model, tmp_path / "y.npz", "official")
    for padding in range(4):
        with zipfile.ZipFile(tmp_path / "y.npz") as saved, zipfile.ZipFile(path, "w") as archive:
            for name in saved.namelist():
                info = zipfile.ZipInfo(name)
                info.extra = b"\xff\xff" + bytes([padding, 0]) + bytes(padding)  # a field that nobody knows
                archive.writestr(info, saved.read(name))
        loaded = load_model(path, num_heads=2)
        assert all(tensor.data_ptr() % 4 == 0 for tensor in loaded.state_dict().values())
        assert same_bits(loaded, model)


def sparse_npz(path: Path, size: int) -> None:
    """An archive with one stored array of `size` float32 zeros, without writing them: a hole in the file."""
    header = array_header(f"({size},)")
    count = len(header) + 4 * size
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, 0, 0, 0, 0x21, 0, 2**32 - 1, 2**32 - 1, 5, 20)
    local += b"x.npy" + struct.pack("<HHQQ", 1, 16, count, count)
    entry = struct.pack(
        "<IHHHHHHIIIHHHHHII",
        *(0x02014B50, 45, 45, 0, 0, 0, 0x21, 0, 2**32 - 1, 2**32 - 1, 5, 20, 0, 0, 0, 0, 0),
    )
    entry += b"x.npy" + struct.pack("<HHQQ", 1, 16, count, count)
    at = len(local) + count
    end64 = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 1, 1, len(entry), at)
    end64 += struct.pack("<IIQI", 0x07064B50, 0, at + len(entry), 1)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 1, 1, len(entry), 2**32 - 1, 0)
    with path.open("wb") as file:
        file.write(local + header)
        file.seek(at)
        file.write(entry + end64 + end)


def test_shapes_come_without_the_data(tmp_path: Path) -> None:
    sparse_npz(tmp_path / "x.npz", 8 << 30)  # 32 GiB
    tracemalloc.start()
    try:
        with open_source(tmp_path / "x.npz") as source:
            assert source.shapes == {"x": (8 << 30,)}
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_tensors_are_read_one_at_a_time(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **{f"a{i}": np.ones(1 << 20, np.float32) for i in range(8)})  # type: ignore[arg-type]
    tracemalloc.start()
    with open_source(tmp_path / "x.npz") as source:
        for key in source.shapes:
            source.read(key)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20  # one array of 4 MiB and a buffer


def test_the_archive_made_by_hand_is_one(tmp_path: Path) -> None:
    """The sparse archive above could be read, were its checksum right."""
    sparse_npz(tmp_path / "x.npz", 4)
    refused(tmp_path / "x.npz", "CRC")
    data = (tmp_path / "x.npz").read_bytes()
    crc = struct.pack("<I", zlib.crc32(array_header("(4,)") + bytes(16)))
    for at in (14, data.index(b"PK\x01\x02") + 16):
        data = data[:at] + crc + data[at + 4 :]
    (tmp_path / "x.npz").write_bytes(data)
    assert contents(tmp_path / "x.npz")["x"].tolist() == [0, 0, 0, 0]
