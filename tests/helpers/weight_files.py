"""Files of weights made by hand, whole or lying, and the checks of their contents."""

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.helpers import refusals
from vitkit.weights.files.source import open_source

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.tensor([1.0, -1.0])}


def write_tensors(path: Path, tensors: Mapping[str, Any], zipped: bool = True) -> Path:
    """Write a file of the kind that its name says; `.bin` as PyTorch wrote before it wrote archives."""
    if path.suffix == ".npz":
        np.savez(path, **{key: tensor.numpy() for key, tensor in tensors.items()})
    elif path.suffix == ".safetensors":
        save_file(dict(tensors), path)
    else:
        torch.save(dict(tensors), path, _use_new_zipfile_serialization=zipped and path.suffix != ".bin")
    return path


def contents(path: Path) -> dict[str, Tensor]:
    with open_source(path) as source:
        return {key: source.read(key) for key in source.shapes}


def assert_is_state(path: Path) -> None:
    tensors = contents(path)
    assert tensors.keys() == STATE.keys()
    for key, tensor in STATE.items():
        assert torch.equal(tensors[key], tensor)


def refused(path: Path, *parts: str) -> None:
    message = refusals.refused(".", contents, path)
    assert [part for part in parts if part not in message] == [], message


def npz_member(path: Path, name: str, header: bytes, data: bytes, compression: int = 0) -> None:
    with zipfile.ZipFile(path, "a", compression) as archive:
        archive.writestr(name, header + data)


def array_header(shape: str, descr: str = "'<f4'", length: int | None = None) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) if length is None else length) + text


def notes_of(path: Path) -> str:
    with open_source(path) as source:
        return "; ".join(source.notes)
