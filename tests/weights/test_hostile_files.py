"""Checkpoints from strangers: nothing is executed, nothing is believed, and every refusal says what to do."""

import json
import os
import pickle
import random
import resource
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.faults.mutate import mutant
from tests.helpers import refusals
from tests.helpers.random_models import random_model
from tests.helpers.timm_files import TINY as RECTANGULAR
from tests.helpers.weight_files import STATE, array_header, contents, npz_member, refused, write_tensors
from vitkit.errors import VitkitError
from vitkit.weights.files.source import open_source
from vitkit.weights.format_names import Format, LoadOptions
from vitkit.weights.loading import load, save_model


class Payload:
    """An object whose unpickling creates a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self.canary,))


@pytest.mark.parametrize("name", ["x.npz", "x.pth", "x.bin", "bare.pt"])
def test_a_payload_is_not_run(name: str, tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / name
    state = {"a": torch.ones(1), "evil": Payload(canary)}
    if name == "x.npz":
        np.savez(path, a=np.ones(1), evil=np.array([Payload(canary)], dtype=object))
    elif name == "bare.pt":
        path.write_bytes(pickle.dumps(state))
    else:
        write_tensors(path, state)
    refused(path, "cannot be read" if name == "bare.pt" else "Python objects")
    assert not canary.exists()
    pickle.loads(pickle.dumps(Payload(canary)))
    assert canary.exists()  # it would run if it were loaded


LYING_HEADERS = [
    (array_header("(1000000, 1000000, 1000000)"), "claims the shape (1000000, 1000000, 1000000)"),
    (array_header("(3,)"), "in "),
    (array_header("(-1, -2)"), "claims the shape"),
    (array_header("(2,)", "'|O'"), "Python objects"),
    (array_header("(2,)", "'<U1'"), "expected numbers"),
    (array_header("(2,)", "'<c8'"), "expected numbers"),
    (array_header("(2,)", "[('x', '<f4')]"), "expected numbers"),
    (array_header("(2,)", "('<f4', (1,))"), "expected numbers"),
    (array_header("(2,)", length=60_000), "x.npy is no array: EOF: reading array header, expected 60000"),
    (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "expected 4294967295 bytes"),
    (b"\x93NUMPY\x01\x00", "cannot be read"),
    (b"words that are no array", "x.npy is no array"),
    (array_header("__import__('os')"), "cannot be read"),
]


@pytest.mark.parametrize(("header", "message"), LYING_HEADERS)
def test_headers_that_lie(header: bytes, message: str, tmp_path: Path) -> None:
    npz_member(tmp_path / "x.npz", "x.npy", header, bytes(8))
    refused(tmp_path / "x.npz", message)


def test_an_archive_that_unpacks_to_far_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "x.npz", head=np.zeros((1000, 768), np.float32))
    assert contents(tmp_path / "x.npz")["head"].shape == (1000, 768)  # zeros in a small one are no bomb
    monkeypatch.setattr("vitkit.weights.files.source.EXPANSION_ALLOWANCE", 1 << 20)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(8 << 20, np.float32))
    tracemalloc.start()
    try:
        refused(tmp_path / "bomb.npz", "claim 33,554,560 bytes", "more than 100 times")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_of_arrays_are_theirs_alone_and_never_paths(tmp_path: Path) -> None:
    header, path = array_header("(2,)"), tmp_path / "in" / "x.npz"
    path.parent.mkdir()
    for second in ("x.npy", "x"):
        for name in ("x.npy", second):
            npz_member(path, name, header, bytes(8))
        refused(path, "two arrays are named x")
        path.unlink()
    for name in ("../../escaped.npy", "/absolute.npy"):
        npz_member(path, name, header, bytes(8))
    assert contents(path).keys() == {"../../escaped", "/absolute"}
    assert {each.name for each in tmp_path.rglob("*")} == {"in", "x.npz"}


def test_unusual_compression_is_refused(tmp_path: Path) -> None:
    """Members of a PyTorch file are mapped as they lie in it; PyTorch never compresses them."""
    npz_member(tmp_path / "x.npz", "x.npy", array_header("(2,)"), bytes(8), compression=zipfile.ZIP_LZMA)
    refused(tmp_path / "x.npz", "compressed in a way")
    old = zipfile.ZipFile(write_tensors(tmp_path / "old.pth", STATE))
    with old, zipfile.ZipFile(tmp_path / "x.pth", "w", zipfile.ZIP_BZIP2) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    refused(tmp_path / "x.pth", "compressed in a way")


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".pth", ".bin"])
def test_a_file_cut_short(ending: str, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / f"x{ending}", {"x": torch.ones(1000)})
    whole = path.read_bytes()
    for keep in (1, 7, 20, 200, len(whole) - 10):
        path.write_bytes(whole[:keep])
        refused(path, str(path), "etch")


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_safetensors_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    headers: list[dict[str, Any]] = [
        {"a": entry([2], 0, 8), "b": entry([2], 4, 12)},
        {"a": entry([2], 0, 800)},
        {"a": entry([2_000_000_000, 2_000_000_000], 0, 12)},
        {"a": entry([3], 12, 0)},
        {"a": entry([3], 0, 12, "F99")},
    ]
    for header in headers:
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
        refused(path, "cannot be read as a whole safetensors file")
    for length, size in ((2**62, 108), (200 << 20, 300 << 20)):
        path.write_bytes(length.to_bytes(8, "little"))
        os.truncate(path, size)
        refused(path, "cannot be read as a whole safetensors file", "header too large")


@pytest.mark.filterwarnings("ignore:.*parse")
def test_pytorch_files_of_other_things_than_plain_tensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    for tensor, message in (
        (torch.ones(1).expand(1 << 40), "one value repeated"),
        (torch.eye(3).to_sparse(), "sparse"),
    ):
        refused(write_tensors(path, {"x": tensor}), message)
    states: list[Any] = [{}, [torch.ones(1)], {"teacher": {"a": 1}}, 3]
    for state in states:
        torch.save(state, path)
        refused(path, "expected a dictionary of tensors", "found")


@pytest.mark.parametrize("ending", [".npz", ".pth"])
@pytest.mark.parametrize(("offset", "value"), [(6, 255), (46, 0xFF), (8, 0xFF), (10, 97)])
def test_a_directory_that_zipfile_stumbles_over(offset: int, value: int, ending: str, tmp_path: Path) -> None:
    """Version 25.5, a name that is no UTF-8, flags and a compression that nobody knows."""
    path = tmp_path / f"x{ending}"
    if ending == ".pth":
        torch.save(STATE, path)
    else:
        npz_member(path, "é.npy", array_header("(2,)"), bytes(8))  # a name that is marked as UTF-8
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
        refusals.refused(r"cannot be read as an \.npz with a: ", source.read, "a")


# Damaged files of every layout: a model, or words; no other exception, nor memory or time without end

TINY = replace(RECTANGULAR, image_size=(16, 16))
GROWTH = 256 << 20
"""Bytes that all mutants of a layout together may add to the memory of the process."""


def saved(format: Format, suffix: str = "") -> Callable[[Path], Path]:
    return lambda folder: save_model(random_model(TINY), folder / f"model{suffix}", format)


def pickled(zipped: bool) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        weights = torch.load(saved("torchvision", ".pth")(folder), weights_only=True)
        wrapped = {"model": weights, "epoch": 3, "optimizer": {"a": torch.ones(3)}}
        torch.save(wrapped, folder / "wrapped.pth.tar", _use_new_zipfile_serialization=zipped)
        return folder / "wrapped.pth.tar"

    return make


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "vitkit": saved("vitkit"),
    "timm": saved("timm"),
    "huggingface": saved("huggingface"),
    "official": saved("official", ".npz"),
    "big_vision": saved("big_vision", ".npz"),
    "torchvision": saved("torchvision", ".pth"),
    "bin": pickled(zipped=True),
    "legacy": pickled(zipped=False),
}


@pytest.mark.filterwarnings("ignore")  # numpy and torch warn of what they then refuse
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [22, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_file_is_a_model_or_words(layout: str, count: int, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole, options, refusals = (
        LAYOUTS[layout](tmp_path / "whole"),
        LoadOptions(num_heads=4, image_size=(16, 16)),
        0,
    )
    load(whole, options)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(count):
        draw, target = random.Random(seed), tmp_path / f"mutant-{whole.name}"
        if whole.is_dir():
            shutil.copytree(whole, target, dirs_exist_ok=True)
        else:
            shutil.copy(whole, target)
        changed = draw.choice(sorted(target.iterdir())) if whole.is_dir() else target
        changed.write_bytes(mutant(changed.read_bytes(), draw))
        try:
            load(target, options)
        except VitkitError:
            refusals += 1
    assert refusals > 0
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < GROWTH
