"""A checkpoint on disk: tensors that are read one by one, settings beside them; and files to write,
`.npz` and safetensors. The library of the latter would not flush, nor could it be made to fail call by call.

A file is material from a stranger. Nothing in it is ever executed (arrays without Python objects, PyTorch
files with weights only), no name in it is ever used as a path, and the sizes it claims are compared with the
bytes that are there before memory is set aside.

A zip archive holds a CRC-32 of every member. zipfile checks it whenever a member of an `.npz` is read, so
that a damaged array is an error and never other numbers. PyTorch's own files (`.pth`, `.pt`, `.bin`,
`.ckpt`) are zip archives since release 1.6, whose tensors are mapped into memory: PyTorch looks at no CRC-32,
so that all are checked here when a file is opened. Before, they were pickles one after another, which hold no
checksum; they are read with weights only.
"""

import json
import math
import pickletools
import re
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from vitkit import durable
from vitkit.config import from_json, write
from vitkit.data.files import damage_explained, regular_file
from vitkit.errors import VitkitError
from vitkit.text import first_line
from vitkit.weights.format_names import ENDINGS, TORCH_ENDINGS
from vitkit.weights.published import missing_checkpoint

AGAIN = "If it was downloaded, fetch it again"
"""The advice about a damaged file."""
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
    members, shapes = dict[str, zipfile.ZipInfo](), dict[str, tuple[int, ...]]()
    with damage_explained(path, "an .npz of arrays", AGAIN):
        archive = stack.enter_context(zipfile.ZipFile(path))
        check_archive(archive, path)
        for info in archive.infolist():
            if (key := info.filename.removesuffix(".npy")) in members:
                raise ValueError(f"two arrays are named {key}")
            members[key] = info
            with archive.open(info) as member:
                shapes[key] = _read_shape(member, info)

    def read(key: str) -> Tensor:
        with damage_explained(path, f"an .npz with {key}", AGAIN), archive.open(members[key]) as member:
            array: NDArray[Any] = np.lib.format.read_array(
                member, allow_pickle=False, max_header_size=MAX_ARRAY_HEADER
            )
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
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in arrays.items():
            array = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
            with archive.open(zipfile.ZipInfo(f"{name}.npy", _EPOCH), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
            yield from pieces
            pieces.clear()
    yield from pieces


def write_npz(path: Path, arrays: Mapping[str, Tensor]) -> Path:
    """Put an `.npz` of these arrays at `path`, which is given the ending, at one instant."""
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    durable.replace_file(path, npz_chunks(arrays))
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
            # PyTorch takes a file of this name for safetensors, but not an open file.
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
                raise ValueError(f"its pickles have over {MAX_PICKLE:,} bytes; {_PICKLE_BOUND}") from None
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


MAX_HEADER = 100 << 20
"""Bytes of a safetensors header; the largest real ones are a few MB."""

_HEAD = 2048
"""Bytes of a file's beginning by which its kind is recognised."""

MAX_JSON = 16 << 20
"""Bytes of one JSON file beside the weights: ImageNet-21k's class names, which config.json holds twice, are
2 MB."""

LARGEST = 2**20
"""The largest number that a settings file may hold; the sizes of real models stay far below it."""
SETTINGS = ("config.json", "preprocessor_config.json", "model.json", "open_clip_config.json")
"""Files beside the weights that describe them: of Hugging Face and timm, vitkit's own, and of open_clip."""

WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json", "weights.npz"),
)
"""The names that a folder's weights may have, the preferred one first."""

T = TypeVar("T")


FileState = tuple[int, ...]
"""Numbers that differ once a file is replaced or written to."""


def file_states(files: Iterable[Path]) -> tuple[FileState, ...]:
    """Return the state of each file: device, inode, size and time of the last change."""
    statuses = [file.stat() for file in files]
    return tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in statuses)


@dataclass(frozen=True)
class Source:
    """The tensors of a checkpoint by name, and the settings beside them."""

    path: Path
    """The file of weights."""
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of each tensor by its name."""
    read: Callable[[str], Tensor]
    """One tensor by name, writable, in memory of its own or mapped from the file (changes stay in memory,
    and its first number may be at any byte); bfloat16 and float16 as they are."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user, each a clause after the file's path: readers add to them, loading shows them."""
    files: tuple[Path, ...] = ()
    """The files that hold the tensors, an index of shards first."""
    states: tuple[FileState, ...] = ()
    """The state of each of these files when it was opened."""

    @cached_property
    def config(self) -> dict[str, Any]:
        """`config.json`, of Hugging Face and timm; empty where there is none."""
        return self.read_beside("config.json")

    @cached_property
    def preprocessor(self) -> dict[str, Any]:
        """`preprocessor_config.json`, of Hugging Face; empty where there is none."""
        return self.read_beside("preprocessor_config.json")

    def read_beside(self, name: str) -> dict[str, Any]:
        """Read a JSON file beside the weights, empty where there is none.

        It is read at its use, so that a damaged one that a format does not need harms nothing.
        """
        file = self.path.with_name(name)
        return read_json_object(file) if file.exists() else {}

    def __contains__(self, key: str) -> bool:
        return key in self.shapes

    def renamed(self, names: Mapping[str, str]) -> "Source":
        """Return the same tensors under other names: `names` maps each new name to the old one."""
        shapes = {new: self.shapes[old] for new, old in names.items()}
        return replace(self, shapes=shapes, read=lambda key: self.read(names[key]))


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Open a checkpoint: a folder with weights in it, or a file of one of the kinds in `ENDINGS`.

    A file's tensors can be read until the context ends. Names and shapes come from headers; only a PyTorch
    file of the time before 1.6 (no zip archive) is read whole at once.

    Raises:
        VitkitError: there is no such file; or it is no checkpoint, is damaged, or claims impossible sizes.
    """
    if path.is_dir():
        names = [entry.name for entry in path.iterdir()]
        if (chosen := choose_weights(names)) is None:
            raise _no_weights(path, names)
        path = path / chosen
    if not path.exists():
        raise missing_checkpoint(path)
    notes: list[str] = []
    with ExitStack() as stack:
        if path.name.endswith(".index.json"):
            shapes, read, files = _open_shards(path, stack, notes)
        elif path.name.endswith(ENDINGS):
            (shapes, read), files = _open_file(path, stack, notes), (path,)
        else:
            raise VitkitError(
                f"{path} is no checkpoint: expected a run folder, a folder of timm or Hugging Face, or "
                f"a file that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}."
            )
        yield Source(path, shapes, read, notes, files, file_states(files))


def choose_weights(names: Iterable[str]) -> str | None:
    """Choose the weight file of a folder: the first of the usual names, or the only file of its kind.

    None where there is none, or where several have an equal claim: `weight_names` lists them.
    """
    names = set(names)
    if (usual := next((name for name in WEIGHTS if name in names), None)) is not None:
        return usual
    for endings in (".safetensors", ".npz", TORCH_ENDINGS):
        if matches := [name for name in weight_names(names) if name.endswith(endings)]:
            return matches[0] if len(matches) == 1 else None
    return None


def weight_names(names: Iterable[str]) -> list[str]:
    """Return the names in a folder that end as files of weights do."""
    return sorted(name for name in names if name.endswith(ENDINGS))


def read_head(path: Path) -> tuple[bytes, str | None]:
    """Read the first bytes of a file with the name of weights.

    Returns:
        The bytes; and why it holds no weights, and what to do: None if it may hold some.

    Raises:
        VitkitError: it cannot be read, or is no regular file: a pipe or a device might never end.
    """
    with damage_explained(path, "weights", "Give a file that may be read"), regular_file(path) as file:
        head = file.read(_HEAD)
    reason = None
    if not head:
        reason = "it is empty, as a broken download leaves it: fetch it again"
    elif head.startswith(b"version https://git-lfs"):
        reason = (
            "it is a Git LFS pointer, a few lines that stand for the weights: fetch the weights themselves "
            "with 'git lfs pull', or with the download button of the site"
        )
    elif head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype html", b"<html", b"<?xml")):
        reason = (
            "it is a web page or a server's message saved under this name, not the weights: open it in a "
            "browser to see what it says, and fetch the weights again"
        )
    elif path.stat().st_size == len(head):  # read to its end
        with suppress(UnicodeDecodeError):
            text = head.decode()
            if all(char.isprintable() or char in "\r\n\t" for char in text):
                reason = f"it is a text ('{text[:80].strip()}'), not the weights: fetch them again"
    return head, reason


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        VitkitError: it is absent, damaged, larger than 16 MiB, no regular file, or something else.
    """
    try:
        data = durable.read_json(path, MAX_JSON)
    except FileNotFoundError:
        raise VitkitError(f"{path} cannot be read: there is no such file.") from None
    if not isinstance(data, dict):
        raise VitkitError(f"{path} is no JSON object.")
    return data


def read_fields(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """Read the fields of the dataclass `kind` from a JSON object; null is the same as absent.

    Raises:
        VitkitError: a value of another type, or a number above `LARGEST`.
    """
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    present = {key: value for key, value in values.items() if key in names and value is not None}
    for key, value in present.items():
        rest = [value]  # in lists too; objects are checked where they are read
        while rest:
            part = rest.pop()
            if isinstance(part, list):
                rest += part
            elif (isinstance(part, int) and abs(part) > LARGEST) or (
                isinstance(part, float) and not math.isfinite(part)
            ):
                raise VitkitError(
                    f"{where}: {key}: a number of at most {LARGEST} was expected, found {str(part)[:40]}."
                )
    return from_json(kind, present, where)


def _no_weights(folder: Path, names: Sequence[str]) -> VitkitError:
    """Make the error for a folder in which no weights are, or in which several have an equal claim."""
    if several := weight_names(names):
        return VitkitError(
            f"{folder} holds several files of weights and none of the usual names ({', '.join(WEIGHTS)}): "
            f"give the path of a file, one of {', '.join(several[:8])}."
        )
    if "checkpoints" in names:
        return VitkitError(
            f"No model.safetensors in {folder}: this run has not finished. Continue it with "
            f"vitkit train --resume {folder}"
        )
    return VitkitError(
        f"No weights in {folder}: expected one of {', '.join(WEIGHTS)}, found "
        f"{', '.join(sorted(names)[:5]) or 'nothing'}. Images are given with --data, or after the model."
    )


def _open_file(path: Path, stack: ExitStack, notes: list[str]) -> Opened:
    head, reason = read_head(path)
    if reason:
        raise VitkitError(f"{path} holds no weights: {reason}.")
    # By its first bytes, else by its name: many files are renamed on their way.
    if head[:4] == b"PK\x03\x04":
        # zipfile raises many kinds for a damaged archive; opening it will say which.
        members = list[str]()
        with suppress(Exception), zipfile.ZipFile(path) as archive:
            members = archive.namelist()
        if any(name.endswith("/data.pkl") for name in members):
            return open_torch(path, notes)
        if any(name.endswith(".npy") for name in members):
            return open_npz(path, stack)
    # A safetensors file begins with the header's length in 8 bytes, and the header.
    elif head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= MAX_HEADER:
        return _open_safetensors(path, stack)
    if path.name.endswith(".npz"):
        return open_npz(path, stack)
    return _open_safetensors(path, stack) if path.name.endswith(".safetensors") else open_torch(path, notes)


def _open_shards(
    index: Path, stack: ExitStack, notes: list[str]
) -> tuple[Mapping[str, tuple[int, ...]], Callable[[str], Tensor], tuple[Path, ...]]:
    """Open several files as one: `weight_map` of the index names the file beside it that holds a tensor."""
    files = read_json_object(index).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise VitkitError(f"{index}: expected a 'weight_map' of tensor names to file names, found none.")
    shapes: dict[str, tuple[int, ...]] = {}
    readers: dict[str, Callable[[str], Tensor]] = {}
    names = sorted(set(files.values()))
    for name in names:
        if not durable.is_file_name(name) or not name.endswith(ENDINGS):
            raise VitkitError(
                f"{index} points to {name!r}: expected the name of a file of weights in the same folder. "
                "Other places are never read; get the index from where it was published."
            )
        if not index.with_name(name).is_file():
            raise VitkitError(f"{index} needs the file {name}, which is not beside it: fetch it as well.")
        shard, read = _open_file(index.with_name(name), stack, notes)
        if repeated := sorted(shard.keys() & shapes.keys()):
            raise VitkitError(f"{index}: two of its files hold a tensor named {repeated[0]}.")
        shapes |= shard
        readers |= dict.fromkeys(shard, read)
    if absent := [f"{key} ({name})" for key, name in files.items() if key not in shapes]:
        raise VitkitError(
            f"{index}: {len(absent)} tensors are not in the files it names, first {absent[0]}: these are not "
            "the files that belong to it; fetch them again."
        )
    return shapes, lambda key: readers[key](key), (index, *map(index.with_name, names))


def _open_safetensors(path: Path, stack: ExitStack) -> Opened:
    """Open a safetensors file.

    The library checks the header's length before memory is set aside for it, and that the tensors fill the
    file.

    Raises:
        VitkitError: it is damaged, or its header claims an impossible length.
    """
    with damage_explained(path, "a whole safetensors file", AGAIN):
        file = stack.enter_context(safe_open(path, framework="pt"))
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 (no mapping)

    def read(key: str) -> Tensor:
        with damage_explained(path, f"safetensors with {key}", AGAIN):
            tensor: Tensor = file.get_tensor(key)
        return tensor

    return shapes, read


_SAFETENSORS_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


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
    durable.replace_file(path / "model.safetensors", safetensors_chunks(tensors, metadata))
    for name, written in settings.items():
        write(path / name, written)
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
    with ExitStack() as stack:
        shapes, read = _open_safetensors(path, stack)
        return {key: take(key, read(key)) for key in shapes}
