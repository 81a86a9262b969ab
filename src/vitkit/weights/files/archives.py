"""Archives of weights, read array by array and checked before they are unpacked; `.npz` is written too.

A zip archive holds a CRC-32 of every member. zipfile checks it whenever a member of an `.npz` is read, so
that a damaged array is an error and never other numbers. PyTorch's own files (`.pth`, `.pt`, `.bin`,
`.ckpt`) are zip archives since release 1.6, whose tensors are mapped into memory: PyTorch looks at no CRC-32,
so that all are checked here when a file is opened. Before, they were pickles one after another, which hold no
checksum; they are read with weights only.
"""

import math
import pickletools
import re
import zipfile
from argparse import Namespace
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
            if (key := info.filename.removesuffix(".npy")) in members:
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


AVERAGES = ("state_dict_ema", "model_ema")
WRAPPERS = (*AVERAGES, "state_dict", "model", "model_state_dict")
"""The keys under which training scripts keep the weights, best first: a moving average goes before the
other weights because the scripts evaluate it (timm does)."""

PREFIXES = {
    "module.": "",  # DataParallel
    "_orig_mod.": "",  # torch.compile
    "model.": "every name begins with 'model.', as Lightning writes them: it is taken off",
}
"""The prefixes that wrappers put before every name, and a note for the user where one is due."""

MAX_PICKLE = 4 << 20
"""Bytes of pickle in one file, with the names of the tensors and a script's settings. Real files have some
hundred kilobytes; a megabyte of pickle takes PyTorch more than a second and 70 MiB."""

LEGACY_PICKLES = 5
"""Pickles of a file without a zip archive: magic number, version, system, contents, names of the storages."""


def open_torch(path: Path, notes: list[str]) -> Opened:
    """Read the names and shapes of a PyTorch file's tensors; `notes` receives the choices among its contents.

    Raises:
        VitkitError: it is no such file, is damaged, holds Python objects, or no dictionary of plain tensors.
    """
    try:
        with path.open("rb") as start:
            is_zip = start.read(4) == b"PK\x03\x04"
        stored = False
        if is_zip:
            with zipfile.ZipFile(path) as archive:
                check_archive(archive, path)
                stored = all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
                for info in archive.infolist():
                    if info.filename.endswith("/data.pkl") and info.file_size > MAX_PICKLE:
                        raise ValueError(f"its pickle has {info.file_size:,} bytes; {_PICKLE_BOUND}")
                if all(info.CRC == 0 for info in archive.infolist()):  # set_crc32_options(False)
                    notes.append("its writer left out the archive's checksums: damage would not be noticed")
                elif (damaged := archive.testzip()) is not None:
                    raise ValueError(f"{damaged} is damaged")
        else:
            _check_pickles(path)
        with ExitStack() as stack:
            # The arguments that scripts keep beside the weights.
            stack.enter_context(torch.serialization.safe_globals([Namespace]))
            # By a misleading name PyTorch would take it for safetensors: then it is given the open file.
            misnamed = path.name.endswith(".safetensors")
            file = stack.enter_context(path.open("rb")) if misnamed else path
            mapped = stored and not misnamed
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # pickle, zipfile and torch raise many kinds
        raise VitkitError(f"{path} cannot be read as a PyTorch file of weights: {_explain(error)}") from error
    if not (tensors := _plain(_unwrapped(state, path, notes), notes)):
        names = map(str, list(state)[:8]) if isinstance(state, dict) else [type(state).__name__]
        keys = ", ".join(names) or "an empty one"
        raise VitkitError(
            f"{path}: expected a dictionary of tensors, as model.state_dict() gives it, perhaps under "
            f"{', '.join(WRAPPERS)}; found {keys}. Save the state_dict alone, with torch.save."
        )
    for key, tensor in tensors.items():
        dense = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
        if not dense or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise VitkitError(
                f"{path}: {key} is no plain tensor of {tuple(tensor.shape)} but sparse, quantised or one "
                "value repeated: save the plain weights (of a quantised model, dequantised)."
            )
    shapes = {key: tuple(value.shape) for key, value in tensors.items()}
    return shapes, lambda key: tensors[key].detach().clone()


_PICKLE_BOUND = (
    f"at most {MAX_PICKLE:,} are read, far more than names of tensors and a script's settings need. Save the "
    "weights alone, with torch.save(model.state_dict(), path)"
)


def _check_pickles(path: Path) -> None:
    """Refuse a file without a zip archive whose pickles are larger than any real ones.

    Raises:
        ValueError: they are.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        data = BytesIO(file.read(MAX_PICKLE))
    for _ in range(LEGACY_PICKLES):
        try:
            for _opcode in pickletools.genops(data):
                pass
        except Exception:  # damaged, which PyTorch will report, or cut off here
            if size > MAX_PICKLE and data.tell() >= MAX_PICKLE - 8:
                raise ValueError(
                    f"its pickles have more than {MAX_PICKLE:,} bytes; {_PICKLE_BOUND}"
                ) from None
            return


def _unwrapped(state: Any, path: Path, notes: list[str]) -> Any:
    """Find the dictionary of weights in a training script's checkpoint, at most three dictionaries deep."""
    for _ in range(3):
        if not isinstance(state, dict):
            break
        name = next((name for name in WRAPPERS if isinstance(state.get(name), dict) and state[name]), None)
        reason = ", a moving average, which training scripts evaluate" if name in AVERAGES else ""
        if name is None and not _holds_tensors(state):
            names = [key for key, value in state.items() if isinstance(value, dict) and _holds_tensors(value)]
            if len(names) > 1:
                raise VitkitError(
                    f"{path} holds tensors under {', '.join(repr(name) for name in names[:8])}, and nothing "
                    "says which of them are the weights. Save the weights alone: torch.save(torch.load("
                    f"{path.name!r})[{names[0]!r}], 'weights.pth')."
                )
            name, reason = next(iter(names), None), ", the only dictionary of tensors in it"
        if name is None:
            break
        aside = ", ".join(str(key) for key in state if key != name)
        notes.append(f"the weights are its '{name}'{reason}; left aside: {aside or 'nothing'}")
        state = state[name]
    if isinstance(state, dict):
        aside = ", ".join(str(key) for key, value in state.items() if not isinstance(value, Tensor))
        if aside and _holds_tensors(state):
            notes.append(f"left aside, as they are no tensors: {aside}")
    return state


def _holds_tensors(state: Mapping[Any, Any]) -> bool:
    return any(isinstance(value, Tensor) for value in state.values())


def _plain(state: Any, notes: list[str]) -> dict[str, Tensor]:
    """Return the tensors, without the prefixes that wrappers put before every name."""
    if not isinstance(state, dict):
        return {}
    tensors = {str(key): value for key, value in state.items() if isinstance(value, Tensor)}
    while tensors:
        prefix = next((p for p in PREFIXES if all(k.startswith(p) for k in tensors)), None)
        if prefix is None:
            break
        if PREFIXES[prefix]:
            notes.append(PREFIXES[prefix])
        tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors


def _explain(error: Exception) -> str:
    """Say shortly why PyTorch refuses a file; its own long advice is, in part, to run the file's code."""
    refused = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
    if refused is None and "weights_only" in str(error):
        return "it is no file that torch.save writes of tensors. If it was downloaded, fetch it again."
    if refused is None:
        return f"{first_line(error)}. If it was downloaded, fetch it again."
    return (
        f"beside its weights it holds Python objects ({refused[1]}), which can run any code and are never "
        "loaded. Where you trust it, save its tensors alone, with torch.save(model.state_dict(), path)."
    )
