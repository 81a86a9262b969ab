"""The listing that the reader of a data layout returns: files, labels, class names, splits; nothing decoded.

The index is kept in flat arrays, so that a million files cost little and worker processes share the memory
instead of copying it.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import VitkitError
from vitkit.text import visible

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

SPLITS = ("train", "val", "test")
SPLIT_NAMES = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
PARTS_RECORD = "_parts.json"
"""The record of a folder of rows that vitkit computed of images; readers of tables pass over names that begin
with an underscore."""
_IGNORED_NAMES = frozenset({"__MACOSX", "Thumbs.db", "desktop.ini"})


class Files(Protocol):
    """The images of a data set by number, before they are split."""

    def key(self, number: int) -> str:
        """Return the name of an image for messages: its path below the root, or file and row."""

    def file(self, number: int) -> bytes | Path:
        """Return the encoded image: its bytes, or the path of its file."""

    def on_disk(self, numbers: Integers) -> Integers:
        """Pick the first of these images in each file on the disk, in their order.

        A Parquet file holds many images, an image file one, the built-in digits are in no file.
        """
        return numbers[:0]

    def path(self, number: int) -> Path:
        """Return the file on the disk that holds an image."""
        raise LookupError(f"{self.key(number)} is in no file.")


Labels = Integers | Flags
"""(N,) class numbers; or, where an image has several labels or none, (N, K) bool, where K = 0 if the
images have no labels at all."""

LABELS = "labels"
"""The name of the target of images that have labels."""
Targets = Mapping[str, NDArray[Any]]
"""The targets of the images of a split by name, `(N, ...)` each."""

# A split as listed: numbers of its files, and their labels.
SplitListing = tuple[Integers, Labels]


@dataclass(frozen=True)
class Listing:
    """A data set as the reader of its layout lists it."""

    kind: str
    class_names: tuple[str, ...]
    files: Files
    splits: dict[str, SplitListing]
    notes: tuple[str, ...] = ()
    groups: Integers | None = None
    """(F,) number of each file's group; None without groups."""
    problems: tuple[str, ...] = ()
    """Sentences about what has to be mended before anything is trained on it."""


class Texts:
    """Many short strings in two flat arrays: a list of a million Python strings would be copied into every
    worker process as soon as its reference counts are touched."""

    def __init__(self, texts: Iterable[str]) -> None:
        encoded = [os.fsencode(text) for text in texts]
        self.ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        self.data = b"".join(encoded)

    def __getitem__(self, number: int) -> str:
        return os.fsdecode(self.data[self.ends[number] : self.ends[number + 1]])


@dataclass(frozen=True, eq=False)
class Paths:
    """Image files below a root folder; `prefixes` are put before their names in messages."""

    root: Path
    paths: Texts
    prefixes: Texts | None = None

    def key(self, number: int) -> str:
        prefix = "" if self.prefixes is None else self.prefixes[number]
        # A name that is no valid UTF-8 must still be printable.
        return prefix + os.fsencode(self.paths[number]).decode("utf-8", "backslashreplace")

    def file(self, number: int) -> Path:
        return self.root / self.paths[number]

    def on_disk(self, numbers: Integers) -> Integers:
        return numbers

    def path(self, number: int) -> Path:
        return self.file(number)


# Paths without any of these stay below, on every system; looked for first, as tables have a million lines.
_LEADS_OUT = re.compile(r"^[/\\]|\.\.|:")


def check_below(where: str, root: Path, name: str) -> None:
    """Refuse a path of a table that leads out of the table's folder; links in the folder are followed.

    A table may come from anybody, whereas only the owner of the disk can make a link.

    Args:
        where: the table and the line, for the message.
        root: the folder of the table.
        name: a path, absolute or below `root`.

    Raises:
        VitkitError: it is not below `root`: a table must not make us read any file on the disk.
    """
    if not _LEADS_OUT.search(name):
        return
    plain = os.path.normpath(name)
    if Path(name).is_absolute():
        here = Path(os.path.normpath(root.absolute()))
        inside = Path(plain).is_relative_to(here) or Path(plain).is_relative_to(root.resolve())
    else:
        inside = plain.split(os.sep, 1)[0] != os.pardir
    if not inside:
        raise VitkitError(
            f"{where}: {visible(name[:200])} is not below {root}, the folder of the table, and nothing "
            "else is read. Put the table into a folder above all of its images, and write their paths from "
            "there."
        )


def by_split(split_of: NDArray[Any], values: NDArray[Any]) -> dict[str, tuple[Integers, NDArray[Any]]]:
    """Group the numbers of files and the values of labels by split."""
    numbers = {split: np.flatnonzero(split_of == split) for split in SPLITS}
    return {split: (rows, values[rows]) for split, rows in numbers.items() if len(rows)}


def number_groups(names: Iterable[str]) -> Integers:
    """Number names of groups in the order in which they come."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def is_ignored(name: str) -> bool:
    """Whether a file or folder is hidden, or left behind by an operating system."""
    return name.startswith(".") or name in _IGNORED_NAMES


def files_below(root: Path, fits: Callable[[str], bool]) -> list[Path]:
    """List the files below a folder whose names fit, each folder's in order.

    Hidden files and folders are passed over, and so are folders of rows that vitkit computed.
    """
    files: list[Path] = []
    for folder, folders, names in os.walk(root):  # Path.rglob would make a Path of each of a million images
        if PARTS_RECORD in names:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not is_ignored(name))
        files += [Path(folder, name) for name in sorted(names) if fits(name) and not is_ignored(name)]
    return files


def class_numbers(labels: Labels) -> Integers:
    """Return labels of one class for each image as they are.

    Args:
        labels: `(N,)` class numbers.

    Raises:
        VitkitError: they are sets of labels, `(N, K)` bool.
    """
    if labels.dtype == np.bool_:
        raise VitkitError(
            "Expected one class for each image, found images with several labels each: this is defined "
            "for classes that exclude each other alone. Give data of class folders, or of a single label."
        )
    return labels.astype(np.int64, copy=False)


def names_of(label: NDArray[Any], class_names: Sequence[str]) -> list[str]:
    """Return the names of the labels of an image, a class number or `(K,)` bool."""
    numbers = [int(label)] if label.ndim == 0 else np.flatnonzero(label).tolist()
    return [class_names[number] for number in numbers]
