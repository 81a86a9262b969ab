"""Safetensors files: written tensor by tensor, read whole.

The library would write without flushing, and cannot be made to fail call by call in a test; reading is the
library's.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from vitkit.durable import replace_file, replace_json
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
