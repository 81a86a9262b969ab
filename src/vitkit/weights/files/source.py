"""A checkpoint on disk: tensors that are read one by one, and the settings beside them.

A file is material from a stranger. Nothing in it is ever executed (arrays without Python objects, PyTorch
files with weights only), no name in it is ever used as a path, and the sizes it claims are compared with the
bytes that are there before memory is set aside.
"""

import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from safetensors import safe_open
from torch import Tensor

from vitkit import durable
from vitkit.config import from_json
from vitkit.data.files import UnreadableFileError, regular_file
from vitkit.errors import VitkitError
from vitkit.text import first_line
from vitkit.weights.files.archives import Opened, open_npz, open_torch
from vitkit.weights.format_names import ENDINGS, TORCH_ENDINGS
from vitkit.weights.published import missing_checkpoint

MAX_HEADER = 100 << 20
"""Bytes of a safetensors header; the largest real ones are a few MB."""

_HEAD = 2048
"""Bytes of a file's beginning by which its kind is recognised."""

MAX_JSON = 16 << 20
"""Bytes of one JSON file beside the weights: ImageNet-21k's class names, which config.json holds twice, are
2 MB."""

LARGEST = 2**20
"""The largest number that a settings file may hold; the sizes of real models stay far below it."""
SETTINGS = ("config.json", "preprocessor_config.json", "model.json")
"""Files beside the weights that describe them: of Hugging Face and timm, and vitkit's own."""

WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "weights.npz",
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
        return self._read_beside("config.json")

    @cached_property
    def preprocessor(self) -> dict[str, Any]:
        """`preprocessor_config.json`, of Hugging Face; empty where there is none."""
        return self._read_beside("preprocessor_config.json")

    def _read_beside(self, name: str) -> dict[str, Any]:
        """Read a JSON file at its use, so that a damaged one that a format does not need harms nothing."""
        file = self.path.with_name(name)
        return read_json_object(file) if file.exists() else {}

    def __contains__(self, key: str) -> bool:
        return key in self.shapes

    def renamed(self, names: Mapping[str, str]) -> "Source":
        """Return the same tensors under other names: `names` maps each new name to the old one."""
        shapes = {new: self.shapes[old] for new, old in names.items()}
        return Source(self.path, shapes, lambda key: self.read(names[key]), self.notes)


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
    try:
        with regular_file(path) as file:
            head = file.read(_HEAD)
    except UnreadableFileError as error:
        raise VitkitError(f"{path} cannot be read as weights: {error}.") from error
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
        data = durable.read_json_once(path, MAX_JSON)
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
        _check_numbers(value, f"{where}: {key}")
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


def _check_numbers(value: Any, where: str) -> None:
    """Refuse numbers that are too large, alone or in lists; objects are checked where they are read."""
    rest = [value]
    while rest:
        part = rest.pop()
        if isinstance(part, list):
            rest += part
        elif (isinstance(part, int) and abs(part) > LARGEST) or (
            isinstance(part, float) and not math.isfinite(part)
        ):
            raise VitkitError(f"{where}: a number of at most {LARGEST} was expected, found {str(part)[:40]}.")


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
    try:
        file = stack.enter_context(safe_open(path, framework="pt"))
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except Exception as error:  # the library's own error type and OSError
        raise VitkitError(
            f"{path} is no whole safetensors file: {first_line(error)}. If it was downloaded, fetch it again."
        ) from error

    def read(key: str) -> Tensor:
        try:
            tensor: Tensor = file.get_tensor(key)
        except Exception as error:
            raise VitkitError(f"{path}: {key} cannot be read: {first_line(error)}.") from error
        return tensor

    return shapes, read
