"""A checkpoint on disk: tensors that are read when they are asked for, and the settings beside them.

A file is material from a stranger. Nothing in it is ever executed (arrays without Python objects, PyTorch
files with weights only), no name in it is ever used as a path, and what it claims to hold is held against the
bytes that are there before memory is set aside for it.
"""

import json
import logging
import math
import re
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from vitkit.errors import VitkitError

MAX_HEADER = 100 << 20
"""Bytes of a safetensors header; the largest real ones are a few MB."""

MAX_ARRAY_HEADER = 10_000
"""Bytes of one array's header in an .npz, numpy's own bound; real ones have 118."""

MAX_EXPANSION = 100
"""How many times an archive's size its contents may be; weights hardly compress at all."""

EXPANSION_ALLOWANCE = 256 << 20
"""Bytes that any archive may unpack to, however small: a few layers of zeros compress a thousandfold."""

SETTINGS = ("config.json", "preprocessor_config.json", "model.json")
"""Files beside the weights that say what they are: of Hugging Face and timm, and our own."""

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "weights.npz",
)
"""What a folder's weights may be called, best first."""

TORCH_ENDINGS = (".pth", ".pt", ".bin", ".ckpt", ".pth.tar")
ENDINGS = (".safetensors", ".npz", *TORCH_ENDINGS)

WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model", "model_state_dict")
"""Under what training scripts keep the weights, best first: where there is a moving average, it is what they
evaluate (timm does)."""

_log = logging.getLogger("vitkit")


@dataclass(frozen=True)
class Source:
    """The tensors of a checkpoint by name, and what stands beside them."""

    path: Path
    """The file of weights."""
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Tensor]
    """One tensor by name, writable, in memory of its own or mapped from the file (changes stay in memory);
    bfloat16 and float16 as they are."""
    settings: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """JSON files beside the weights, by file name."""

    @property
    def config(self) -> dict[str, Any]:
        """`config.json`, of Hugging Face and timm; empty where there is none."""
        return self.settings.get("config.json", {})

    @property
    def preprocessor(self) -> dict[str, Any]:
        """`preprocessor_config.json`, of Hugging Face; empty where there is none."""
        return self.settings.get("preprocessor_config.json", {})

    def __contains__(self, key: str) -> bool:
        return key in self.shapes

    def renamed(self, names: Mapping[str, str]) -> "Source":
        """The same tensors under other names: `names` gives each new name's old one."""
        shapes = {new: self.shapes[old] for new, old in names.items()}
        return Source(self.path, shapes, lambda key: self.read(names[key]), self.settings)


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Open a checkpoint: a folder with weights in it, or a file of any kind we know.

    A file's tensors can be read until the context ends. Names and shapes come from headers; only a PyTorch
    file of the time before 1.6 (no zip archive) is read whole at once.

    Raises:
        VitkitError: nothing there, nothing we can read, or a damaged or lying file.
    """
    if path.is_dir():
        path = path / _weights_of(path)
    if not path.exists():
        hub = re.fullmatch(r"[\w-]+/[\w.-]+", str(path)) and not path.parent.exists()
        hint = f" On the hub it may be hf:{path}." if hub else ""
        raise VitkitError(f"No checkpoint at {path}.{hint}")
    settings = {name: read_json(path.with_name(name)) for name in SETTINGS if path.with_name(name).exists()}
    with ExitStack() as stack:
        if path.name.endswith(".index.json"):
            shapes, read = _open_shards(path, stack)
        elif path.name.endswith(ENDINGS):
            shapes, read = _open_file(path, stack)
        else:
            raise VitkitError(
                f"{path} is none of the checkpoints known: a run folder, a folder of timm or Hugging Face, "
                f"or a file that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}."
            )
        yield Source(path, shapes, read, settings)


def choose_weights(names: Iterable[str]) -> str | None:
    """The file of weights among a folder's names: one of the usual names, or the only one of its kind.

    None where there is none, or where several have an equal claim: `weight_names` lists them.
    """
    names = set(names)
    usual = next((name for name in WEIGHTS if name in names), None)
    if usual is not None:
        return usual
    for endings in (".safetensors", ".npz", TORCH_ENDINGS):
        found = [name for name in weight_names(names) if name.endswith(endings)]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def weight_names(names: Iterable[str]) -> list[str]:
    """Those of a folder's names that end as weights do."""
    return sorted(name for name in names if name.endswith(ENDINGS))


def disguise(path: Path) -> str | None:
    """What a file is that only bears the name of weights, and what to do; None if it may be weights."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(2048)
    if not head:
        return "it is empty, as a broken download leaves it: fetch it again"
    if head.startswith(b"version https://git-lfs"):
        return (
            "it is a Git LFS pointer, a few lines that stand for the weights: fetch the weights themselves "
            "with 'git lfs pull', or with the download button of the site"
        )
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype html", b"<html", b"<?xml")):
        return (
            "it is a web page or a server's message saved under this name, not the weights: open it in a "
            "browser to see what it says, and fetch the weights again"
        )
    if size < len(head) + 1 and _is_text(head):
        start = head.decode()[:80].strip()
        return f"it is a text ('{start}'), not the weights: fetch them again"
    return None


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object.

    Raises:
        VitkitError: it is absent, damaged or something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise VitkitError(f"{path} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise VitkitError(f"{path} is no JSON object.")
    return data


def _weights_of(folder: Path) -> str:
    names = [entry.name for entry in folder.iterdir()]
    chosen = choose_weights(names)
    if chosen is not None:
        return chosen
    several = weight_names(names)
    if several:
        raise VitkitError(
            f"{folder} holds several files of weights and none of the usual names ({', '.join(WEIGHTS)}): "
            f"give the one you mean, one of {', '.join(several[:8])}."
        )
    if "checkpoints" in names:
        raise VitkitError(
            f"No model.safetensors in {folder}: this run has not finished. Continue it with "
            f"vitkit train --resume {folder}"
        )
    raise VitkitError(
        f"No weights in {folder}: expected one of {', '.join(WEIGHTS)}, found "
        f"{', '.join(sorted(names)[:5]) or 'nothing'}."
    )


_Opened = tuple[dict[str, tuple[int, ...]], Callable[[str], Tensor]]


def _open_file(path: Path, stack: ExitStack) -> _Opened:
    if not path.is_file():
        raise VitkitError(f"No file at {path}.")
    words = disguise(path)
    if words:
        raise VitkitError(f"{path} holds no weights: {words}.")
    kind = _kind(path)
    if kind == ".npz":
        return _open_npz(path, stack)
    if kind == ".safetensors":
        return _open_safetensors(path, stack)
    return _open_torch(path)


def _kind(path: Path) -> str:
    """What a file is by its contents, where they tell; else by its name. Many are renamed on their way."""
    with path.open("rb") as file:
        head = file.read(9)
    if head[:4] == b"PK\x03\x04":
        with suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            if any(name.endswith("/data.pkl") for name in members):
                return ".pth"
            if any(name.endswith(".npy") for name in members):
                return ".npz"
    elif len(head) == 9 and head[8:] == b"{" and int.from_bytes(head[:8], "little") <= MAX_HEADER:
        return ".safetensors"
    return next((ending for ending in (".npz", ".safetensors") if path.name.endswith(ending)), ".pth")


def _open_shards(index: Path, stack: ExitStack) -> _Opened:
    """Several files as one: `weight_map` of the index says which tensor is in which file beside it."""
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where or not all(isinstance(name, str) for name in where.values()):
        raise VitkitError(f"{index}: expected a 'weight_map' of tensor names to file names, found none.")
    shapes: dict[str, tuple[int, ...]] = {}
    readers: dict[str, Callable[[str], Tensor]] = {}
    for name in sorted(set(where.values())):
        if re.search(r"[/\\:\0]", name) or not name.endswith(ENDINGS):
            raise VitkitError(
                f"{index} points to {name!r}: expected the name of a file of weights in the same folder. "
                "Other places are never read; get the index from where it was published."
            )
        if not index.with_name(name).is_file():
            raise VitkitError(f"{index} needs the file {name}, which is not beside it: fetch it as well.")
        found, read = _open_file(index.with_name(name), stack)
        twice = sorted(found.keys() & shapes.keys())
        if twice:
            raise VitkitError(f"{index}: two of its files hold a tensor named {twice[0]}.")
        shapes |= found
        readers |= dict.fromkeys(found, read)
    absent = [f"{key} ({name})" for key, name in where.items() if key not in shapes]
    if absent:
        raise VitkitError(
            f"{index}: {len(absent)} tensors are not in the files it names, first {absent[0]}: these are not "
            "the files that belong to it; fetch them again."
        )
    return shapes, lambda key: readers[key](key)


def _open_npz(path: Path, stack: ExitStack) -> _Opened:
    """Names and shapes from the arrays' headers; each array is read when it is asked for."""
    members: dict[str, zipfile.ZipInfo] = {}
    shapes = {}
    try:
        archive = stack.enter_context(zipfile.ZipFile(path))
        _check_archive(archive, path)
        for info in archive.infolist():
            key = info.filename.removesuffix(".npy")
            if key in members:
                raise ValueError(f"two arrays are named {key}")
            members[key] = info
            with archive.open(info) as member:
                shapes[key] = _array_shape(member, info)
    except Exception as error:  # numpy and zipfile raise many kinds for a damaged file
        raise VitkitError(
            f"{path} cannot be read as an .npz of arrays: {_first_line(error)}. If it was downloaded, "
            "fetch it again."
        ) from error

    def read(key: str) -> Tensor:
        try:
            with archive.open(members[key]) as member:
                array = np.lib.format.read_array(member, allow_pickle=False, max_header_size=MAX_ARRAY_HEADER)
        except Exception as error:
            raise VitkitError(
                f"{path} is damaged: {key} cannot be read ({_first_line(error)}). Fetch or write it again."
            ) from error
        if array.dtype == np.dtype("V2"):  # how numpy keeps bfloat16, which it does not know
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))

    return shapes, read


def _check_archive(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse what would unpack to far more than there is, before any of it is unpacked."""
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


def _array_shape(member: IO[bytes], info: zipfile.ZipInfo) -> tuple[int, ...]:
    """The shape in an array's header, if it is that of plain numbers and agrees with the member's size."""
    name = info.filename
    start = member.read(8)
    if start[:6] != b"\x93NUMPY":
        raise ValueError(f"{name} is no array")
    width = 2 if start[6] == 1 else 4  # bytes of the header's length, in versions 1 and 2 of the format
    count = member.read(width)
    length = int.from_bytes(count, "little")
    if length > MAX_ARRAY_HEADER:
        raise ValueError(f"{name} claims a header of {length:,} bytes; at most {MAX_ARRAY_HEADER:,} are read")
    parse = np.lib.format.read_array_header_1_0 if width == 2 else np.lib.format.read_array_header_2_0
    shape, _, dtype = parse(BytesIO(count + member.read(length)), max_header_size=MAX_ARRAY_HEADER)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which are never loaded")
    number = (dtype.kind in "fiub" and dtype.itemsize <= 8) or dtype == np.dtype("V2")
    if not number or dtype.subdtype is not None:
        raise ValueError(f"{name} is of type {dtype}; expected numbers of up to 64 bits")
    expected = 8 + width + length + math.prod(shape) * dtype.itemsize
    if any(side < 0 for side in shape) or expected != info.file_size:
        raise ValueError(
            f"{name} claims the shape {tuple(shape)}, which takes {expected:,} bytes, in {info.file_size:,}"
        )
    return tuple(shape)


def _open_safetensors(path: Path, stack: ExitStack) -> _Opened:
    """The library checks that the tensors lie side by side and fill the file; we, the header's length."""
    try:
        with path.open("rb") as raw:
            start = raw.read(8)
        length, size = int.from_bytes(start, "little"), path.stat().st_size
        if len(start) < 8 or length > size - 8:
            raise ValueError(f"its {size:,} bytes are fewer than its header needs")
        if length > MAX_HEADER:
            raise ValueError(f"its header claims {length:,} bytes; at most {MAX_HEADER:,} are read")
        file = stack.enter_context(safe_open(path, framework="pt"))
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except Exception as error:  # the library's own error type and OSError
        raise VitkitError(
            f"{path} is no whole safetensors file: {_first_line(error)}. If it was downloaded, fetch it "
            "again."
        ) from error
    return shapes, lambda key: file.get_tensor(key)


def _open_torch(path: Path) -> _Opened:
    """The tensors of a PyTorch file, mapped into memory where the file is a zip archive."""
    try:
        with path.open("rb") as start:
            is_zip = start.read(4) == b"PK\x03\x04"  # since PyTorch 1.6; pickles one after another before
        if is_zip:
            with zipfile.ZipFile(path) as archive:
                _check_archive(archive, path)
        with ExitStack() as stack:
            # The arguments that scripts keep beside the weights.
            stack.enter_context(torch.serialization.safe_globals([Namespace]))
            # By a misleading name PyTorch would take it for safetensors: then it is given the open file.
            misnamed = path.name.endswith(".safetensors")
            file = stack.enter_context(path.open("rb")) if misnamed else path
            mapped = is_zip and not misnamed
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # pickle, zipfile and torch raise many kinds
        raise VitkitError(
            f"{path} cannot be read as a PyTorch file of weights: {_torch_words(error)}"
        ) from error
    tensors = _plain(_unwrapped(state, path))
    if not tensors:
        names = map(str, list(state)[:8]) if isinstance(state, dict) else [type(state).__name__]
        found = ", ".join(names) or "an empty one"
        raise VitkitError(
            f"{path}: expected a dictionary of tensors, as model.state_dict() gives it, perhaps under "
            f"{', '.join(WRAPPERS)}; found {found}. Save the state_dict alone, with torch.save."
        )
    for key, tensor in tensors.items():
        dense = tensor.layout == torch.strided and not tensor.is_quantized
        if not dense or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise VitkitError(
                f"{path}: {key} is no plain tensor of {tuple(tensor.shape)} but sparse, quantised or one "
                "value repeated: save the plain weights."
            )
    return {
        key: tuple(value.shape) for key, value in tensors.items()
    }, lambda key: tensors[key].detach().clone()


def _unwrapped(state: Any, path: Path) -> Any:
    """The dictionary of weights among what a training script keeps, at most three dictionaries deep."""
    for _ in range(3):
        if not isinstance(state, dict):
            break
        wrapper = next((name for name in WRAPPERS if isinstance(state.get(name), dict)), None)
        if wrapper is None:
            break
        aside = ", ".join(str(key) for key in state if key != wrapper)
        _log.info("%s: the weights are its '%s'; left aside: %s", path, wrapper, aside or "nothing")
        state = state[wrapper]
    if isinstance(state, dict):
        aside = ", ".join(str(key) for key, value in state.items() if not isinstance(value, Tensor))
        if aside:
            _log.info("%s: left aside, no tensors: %s", path, aside)
    return state


def _plain(state: Any) -> dict[str, Tensor]:
    """The tensors, without the prefix that DataParallel or torch.compile puts before every name."""
    if not isinstance(state, dict):
        return {}
    tensors = {str(key): value for key, value in state.items() if isinstance(value, Tensor)}
    while tensors:
        prefix = next((p for p in ("module.", "_orig_mod.") if all(k.startswith(p) for k in tensors)), None)
        if prefix is None:
            break
        tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors


def _torch_words(error: Exception) -> str:
    """PyTorch's long advice, of which one part is to run the file's code, in our words."""
    refused = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
    if refused is None and "weights_only" in str(error):
        return "it is no file that torch.save writes of tensors. If it was downloaded, fetch it again."
    if refused is None:
        return f"{_first_line(error)}. If it was downloaded, fetch it again."
    return (
        f"beside its weights it holds Python objects ({refused[1]}), which can run any code and are never "
        "loaded. Where you trust it, save its tensors alone, with torch.save(model.state_dict(), path)."
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _is_text(data: bytes) -> bool:
    try:
        return all(char.isprintable() or char in "\r\n\t" for char in data.decode())
    except UnicodeDecodeError:
        return False
