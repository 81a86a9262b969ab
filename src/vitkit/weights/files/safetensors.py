"""Safetensors files, written tensor by tensor and read whole, and the checksum of a file of weights.

The library would write without flushing, and cannot be made to fail call by call in a test; reading is the
library's.

`model.json` carries the checksum, so that damage is noticed. Two hashes are taken while the file is written.
XXH3 (128 bits) is held against the file whenever it is opened, which takes less time than reading the
weights. SHA-256 is a record of where weights come from: it identifies the file to other programs, and is not
computed when a model is loaded. Of a ViT-B/16 the first takes a tenth of a second, the other a second.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import safe_open
from torch import Tensor

from vitkit.durable import hash_file, replace_file, replace_json
from vitkit.errors import VitkitError

_SAFETENSORS_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def safetensors_chunks(
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    read: Callable[[Tensor], Tensor] = Tensor.detach,
) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file tensor by tensor, so that writing needs no second copy of the weights.

    The header is padded to eight bytes, as the library's own writer does.

    Args:
        tensors: by name.
        metadata: goes into the header.
        read: gives the numbers of a tensor when it is written.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        dtype = _SAFETENSORS_NAMES[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield len(encoded).to_bytes(8, "little")
    yield encoded
    for tensor in tensors.values():
        if (flat := read(tensor).detach().cpu().contiguous().flatten()).numel():
            yield flat.view(torch.uint8).numpy().data


def write_folder(
    path: Path,
    tensors: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write `model.safetensors` of these tensors, and JSON files by name beside it; return the folder.

    Raises:
        VitkitError: a model of vitkit's own format is there.
    """
    if (path / "model.json").exists():
        raise VitkitError(f"{path} holds a model of vitkit's own format: choose another folder.")
    path.mkdir(parents=True, exist_ok=True)
    replace_file(path / "model.safetensors", safetensors_chunks(tensors, metadata))
    for name, fields in settings.items():
        replace_json(path / name, fields)
    return path


def read_safetensors(
    path: Path, take: Callable[[str, Tensor], Tensor] = lambda name, tensor: tensor
) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file.

    Args:
        path: of the file.
        take: makes the tensor to return of each name and tensor, before the next tensor is read.

    Raises:
        VitkitError: the file is absent or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {key: take(key, file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except FileNotFoundError:
        raise VitkitError(f"No file at {path}.") from None
    except Exception as error:  # the library's own error type and OSError
        raise VitkitError(f"{path} is no whole safetensors file: {error}") from error


@dataclass(frozen=True)
class Checksum:
    """Size and hashes of a file."""

    bytes: int
    xxh3_128: str
    """XXH3 of 128 bits as 32 hexadecimal digits, the canonical form that `xxhsum -H2` prints."""
    sha256: str


def write_hashed(path: Path, chunks: Iterable[bytes | memoryview]) -> Checksum:
    """Replace or make a file at one instant, as `replace_file` does; return its size and hashes."""
    xxh3 = xxhash.xxh3_128()

    def passing() -> Iterator[memoryview]:
        for chunk in chunks:
            data = memoryview(chunk).cast("B")
            xxh3.update(data)
            yield data

    size, sha256 = replace_file(path, passing())
    return Checksum(size, xxh3.hexdigest(), sha256)


def checksum_of(path: Path) -> Checksum:
    """Return the size and hashes of a file."""
    size, sha256 = hash_file(path)
    return Checksum(size, _xxh3_of(path), sha256)


def _xxh3_of(path: Path) -> str:
    # Mapping the file would be no faster, and would crash if it became shorter.
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def verify(path: Path, expected: Checksum) -> None:
    """Refuse a file of weights that its description was not written for.

    Raises:
        VitkitError: its size or its XXH3 differs from the record.
    """
    size = path.stat().st_size
    actual = f"{size:,} bytes"
    recorded = f"{expected.bytes:,} bytes"
    if size == expected.bytes:
        if (digest := _xxh3_of(path)) == expected.xxh3_128:
            return
        actual, recorded = f"XXH3 {digest}", f"XXH3 {expected.xxh3_128}"
    raise VitkitError(
        f"{path} is not the file that model.json beside it describes: expected {recorded}, found {actual}. "
        "It was damaged or replaced, or a program was stopped between writing the two files. In a run "
        f"folder, remove {path.name} and run the same vitkit train command again: it writes both anew from "
        "its last checkpoint. Elsewhere, fetch or copy both files again. If you replaced it on purpose, "
        'remove the key "weights" from model.json.'
    )
