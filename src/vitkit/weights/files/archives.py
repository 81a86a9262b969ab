"""`.npz` archives read and written array by array, and the checks that any zip passes before it is unpacked.

A zip archive holds a CRC-32 of every member, which is checked whenever a member is read, so that a damaged
array is an error and never other numbers.
"""

import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.durable import replace_file
from vitkit.errors import VitkitError
from vitkit.text import first_line

MAX_ARRAY_HEADER = 10_000
"""Bytes of one array's header in an .npz, numpy's own bound; real ones have 118."""

MAX_EXPANSION = 100
"""The most that contents may be larger than their archive, as a factor; weights hardly compress at all."""

EXPANSION_ALLOWANCE = 256 << 20
"""Bytes that any archive may unpack to, however small: a few layers of zeros compress a thousandfold."""

Opened = tuple[dict[str, tuple[int, ...]], Callable[[str], Tensor]]
"""Shapes by name, and a function that reads one tensor by name."""


def open_npz(path: Path, stack: ExitStack) -> Opened:
    """Read names and shapes from the arrays' headers; the returned function reads an array.

    Raises:
        VitkitError: it is no archive of plain numbers, or a damaged one.
    """
    members: dict[str, zipfile.ZipInfo] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
        check_archive(archive, path)
        for info in archive.infolist():
            key = info.filename.removesuffix(".npy")
            if key in members:
                raise ValueError(f"two arrays are named {key}")
            members[key] = info
            with archive.open(info) as member:
                shapes[key] = _read_shape(member, info)
    except Exception as error:  # numpy and zipfile raise many kinds for a damaged file
        raise VitkitError(
            f"{path} cannot be read as an .npz of arrays: {first_line(error)}. If it was downloaded, "
            "fetch it again."
        ) from error

    def read(key: str) -> Tensor:
        try:
            with archive.open(members[key]) as member:
                array: NDArray[Any] = np.lib.format.read_array(
                    member, allow_pickle=False, max_header_size=MAX_ARRAY_HEADER
                )
        except Exception as error:
            raise VitkitError(
                f"{path} is damaged: {key} cannot be read ({first_line(error)}). Fetch or write it again."
            ) from error
        if array.dtype == np.dtype("V2"):  # how numpy keeps bfloat16, which it does not know
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))

    return shapes, read


def check_archive(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse an archive that would unpack to far more than its size, before any of it is unpacked.

    Raises:
        ValueError: its members claim sizes that they cannot have, or an unusual compression.
    """
    infos = archive.infolist()
    claimed, size = sum(info.file_size for info in infos), path.stat().st_size
    if claimed > MAX_EXPANSION * size + EXPANSION_ALLOWANCE:
        raise ValueError(
            f"its {len(infos)} members claim {claimed:,} bytes unpacked, in an archive of {size:,}; weights "
            f"hardly compress, and more than {MAX_EXPANSION} times is not read"
        )
    for info in infos:
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise ValueError(f"{info.filename} is compressed in a way that no writer of weights uses")
        if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
            raise ValueError(
                f"{info.filename} claims {info.file_size:,} bytes, where {info.compress_size:,} are"
            )


def _read_shape(member: IO[bytes], info: zipfile.ZipInfo) -> tuple[int, ...]:
    """Read an array's shape from its header, if it holds plain numbers and agrees with the member's size."""
    name = info.filename
    head = BytesIO(member.read(MAX_ARRAY_HEADER))  # numpy would read a header of any length
    formats = np.lib.format
    try:
        version = formats.read_magic(head)
        parse = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
        shape, _, dtype = parse(head, max_header_size=MAX_ARRAY_HEADER)
    except ValueError as error:
        raise ValueError(f"{name} is no array: {first_line(error)}") from error
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which are never loaded")
    number = (dtype.kind in "fiub" and dtype.itemsize <= 8) or dtype == np.dtype("V2")
    if not number or dtype.subdtype is not None:
        raise ValueError(f"{name} is of type {dtype}; expected numbers of up to 64 bits")
    expected = head.tell() + math.prod(shape) * dtype.itemsize
    if any(side < 0 for side in shape) or expected != info.file_size:
        raise ValueError(
            f"{name} claims the shape {tuple(shape)}, which takes {expected:,} bytes, in {info.file_size:,}"
        )
    return tuple(shape)


_EPOCH = (1980, 1, 1, 0, 0, 0)  # no clock in the file: the same weights are the same bytes


def npz_chunks(arrays: Mapping[str, Tensor]) -> Iterator[bytes]:
    """Yield an `.npz` of float32 arrays as `numpy.savez` writes it, one array at a time."""
    pieces: list[bytes] = []

    def write(data: bytes | memoryview) -> int:
        pieces.append(bytes(data))
        return len(pieces[-1])

    pipe: Any = SimpleNamespace(write=write, flush=lambda: None)
    with ZipFile(pipe, "w", ZIP_STORED) as archive:
        for name, tensor in arrays.items():
            array = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
            with archive.open(ZipInfo(f"{name}.npy", _EPOCH), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
            yield from pieces
            pieces.clear()
    yield from pieces


def write_npz(path: Path, arrays: Mapping[str, Tensor]) -> Path:
    """Put an `.npz` of these arrays at `path`, which is given the ending, at one instant."""
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    replace_file(path, npz_chunks(arrays))
    return path
