"""Checkpoints from strangers: nothing is executed, nothing is believed, and every refusal says what to do."""

import io
import json
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.helpers.weight_files import STATE, array_header, contents, npz_member, refused
from vitkit.errors import VitkitError
from vitkit.weights.files.source import open_source


class Payload:
    """An object whose unpickling creates a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self.canary,))


@pytest.mark.parametrize("name", ["x.npz", "x.pth", "x.bin", "legacy.pth", "bare.pt"])
def test_a_payload_is_not_run(name: str, tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / name
    state = {"a": torch.ones(1), "evil": Payload(canary)}
    if name == "x.npz":
        np.savez(path, a=np.ones(1), evil=np.array([Payload(canary)], dtype=object))
    elif name == "bare.pt":
        path.write_bytes(pickle.dumps(state))
    else:
        torch.save(state, path, _use_new_zipfile_serialization=name != "legacy.pth")
    refused(path, "cannot be read" if name == "bare.pt" else "Python objects")
    assert not canary.exists()


def test_the_payload_would_run_if_it_were_loaded(tmp_path: Path) -> None:
    """The canary sings: the test above can fail."""
    pickle.loads(pickle.dumps(Payload(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (array_header("(1000000, 1000000, 1000000)"), "claims the shape (1000000, 1000000, 1000000)"),
        (array_header("(3,)"), "in "),
        (array_header("(-1, -2)"), "claims the shape"),
        (array_header("(2,)", "'|O'"), "Python objects"),
        (array_header("(2,)", "'<U1'"), "expected numbers"),
        (array_header("(2,)", "'<c8'"), "expected numbers"),
        (array_header("(2,)", "[('x', '<f4')]"), "expected numbers"),
        (array_header("(2,)", "('<f4', (1,))"), "expected numbers"),
        (
            array_header("(2,)", length=60_000),
            "x.npy is no array: EOF: reading array header, expected 60000",
        ),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "expected 4294967295 bytes"),
        (b"\x93NUMPY\x01\x00", "cannot be read"),
        (b"words that are no array", "x.npy is no array"),
        (array_header("__import__('os')"), "cannot be read"),
    ],
)
def test_headers_that_lie(header: bytes, message: str, tmp_path: Path) -> None:
    npz_member(tmp_path / "x.npz", "x.npy", header, bytes(8))
    refused(tmp_path / "x.npz", message)


def test_an_archive_that_unpacks_to_far_more_than_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitkit.weights.files.archives.EXPANSION_ALLOWANCE", 1 << 20)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(8 << 20, np.float32))
    tracemalloc.start()
    try:
        refused(tmp_path / "bomb.npz", "claim 33,554,560 bytes", "more than 100 times")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_zeros_in_a_small_archive_are_no_bomb(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", head=np.zeros((1000, 768), np.float32))
    assert contents(tmp_path / "x.npz")["head"].shape == (1000, 768)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("x.npy", "x.npy"), ("x.npy", "x")])
def test_two_arrays_of_one_name(names: tuple[str, str], tmp_path: Path) -> None:
    for name in names:
        npz_member(tmp_path / "x.npz", name, array_header("(2,)"), bytes(8))
    refused(tmp_path / "x.npz", "two arrays are named x")


def test_names_are_never_paths(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    npz_member(folder / "x.npz", "../../escaped.npy", array_header("(2,)"), bytes(8))
    npz_member(folder / "x.npz", "/absolute.npy", array_header("(2,)"), bytes(8))
    assert contents(folder / "x.npz").keys() == {"../../escaped", "/absolute"}
    assert {path.name for path in tmp_path.rglob("*")} == {"in", "x.npz"}


def test_unusual_compression_is_refused(tmp_path: Path) -> None:
    npz_member(tmp_path / "x.npz", "x.npy", array_header("(2,)"), bytes(8), compression=zipfile.ZIP_LZMA)
    refused(tmp_path / "x.npz", "compressed in a way")


@pytest.mark.parametrize("keep", [1, 7, 20, 200])
@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".pth", ".bin"])
def test_a_file_cut_short(ending: str, keep: int, tmp_path: Path) -> None:
    path = tmp_path / f"x{ending}"
    if ending == ".npz":
        np.savez(path, x=np.ones(1000))
    elif ending == ".safetensors":
        save_file({"x": torch.ones(1000)}, path)
    else:
        torch.save({"x": torch.ones(1000)}, path, _use_new_zipfile_serialization=ending == ".pth")
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, str(path), "etch")


def lying_safetensors(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(
    "header",
    [
        {
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        },
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]}},
        {"a": {"dtype": "F32", "shape": [2000000000, 2000000000], "data_offsets": [0, 12]}},
        {"a": {"dtype": "F32", "shape": [3], "data_offsets": [12, 0]}},
        {"a": {"dtype": "F99", "shape": [3], "data_offsets": [0, 12]}},
    ],
)
def test_safetensors_that_lie(header: dict[str, Any], tmp_path: Path) -> None:
    lying_safetensors(tmp_path / "x.safetensors", header, bytes(12))
    refused(tmp_path / "x.safetensors", "no whole safetensors file")


def test_a_safetensors_header_of_absurd_length(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((2**62).to_bytes(8, "little") + bytes(100))
    refused(path, "no whole safetensors file", "header too large")
    with path.open("wb") as file:
        file.write((200 << 20).to_bytes(8, "little"))
        file.truncate(300 << 20)
    refused(path, "no whole safetensors file", "header too large")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(1).expand(1 << 40), "one value repeated"),
        (torch.eye(3).to_sparse(), "sparse"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*parse")
def test_tensors_that_are_no_plain_ones(tensor: Tensor, message: str, tmp_path: Path) -> None:
    torch.save({"x": tensor}, tmp_path / "x.pth")
    refused(tmp_path / "x.pth", message)


@pytest.mark.parametrize("state", [{}, [torch.ones(1)], {"teacher": {"a": 1}}, 3])
def test_a_pytorch_file_without_a_dictionary(state: Any, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "x.pth")
    refused(tmp_path / "x.pth", "expected a dictionary of tensors", "found")


def test_a_compressed_pytorch_file_is_refused(tmp_path: Path) -> None:
    """Its members are mapped as they lie in the file; PyTorch never compresses them."""
    buffer = io.BytesIO()
    torch.save(STATE, buffer)
    with (
        zipfile.ZipFile(buffer) as old,
        zipfile.ZipFile(tmp_path / "x.pth", "w", zipfile.ZIP_BZIP2) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    refused(tmp_path / "x.pth", "compressed in a way")


@pytest.mark.parametrize("ending", [".npz", ".pth"])
@pytest.mark.parametrize(("offset", "value"), [(6, 255), (46, 0xFF), (8, 0xFF), (10, 97)])
def test_a_directory_that_zipfile_stumbles_over(offset: int, value: int, ending: str, tmp_path: Path) -> None:
    """Version 25.5, a name that is no UTF-8, flags and a compression that nobody knows."""
    path = tmp_path / f"x{ending}"
    if ending == ".pth":
        torch.save(STATE, path)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            info = zipfile.ZipInfo("é.npy")  # a name that is marked as UTF-8
            archive.writestr(info, array_header("(2,)") + bytes(8))
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + offset] = value
    path.write_bytes(data)
    refused(path, "cannot be read as")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_larger_than_any_real_one_is_refused_unread(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    log = [float(i) for i in range(700_000)]  # nine bytes each
    torch.save({**STATE, "log": log}, path, _use_new_zipfile_serialization=zipped)
    refused(path, "at most 4,194,304 are read", "Save the weights alone")


def test_large_tensors_in_an_old_file_are_no_pickle(tmp_path: Path) -> None:
    tensors = {f"a{i}": torch.full((1 << 20,), float(i)) for i in range(3)}
    torch.save(tensors, tmp_path / "x.pth", _use_new_zipfile_serialization=False)
    loaded = contents(tmp_path / "x.pth")
    assert all(torch.equal(loaded[key], tensor) for key, tensor in tensors.items())


def test_a_member_that_the_file_does_not_hold_whole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.arange(100_000, dtype=np.float32))
    content = path.read_bytes()
    with open_source(path) as source:
        path.write_bytes(content[: len(content) // 2])  # cut while it is open
        with pytest.raises(VitkitError, match="is damaged: a cannot be read"):
            source.read("a")
