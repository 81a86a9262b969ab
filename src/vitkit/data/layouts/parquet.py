"""Read images and labels from Parquet files in the layout of Hugging Face data sets.

A few kilobytes of Parquet can become gigabytes: pages are unpacked, and a value that is stored once may stand
in many rows. So columns are read in batches of bounded size, by what the metadata say of a column's unpacked
bytes, and what was read is counted. Metadata that lie cost at most the 2 GiB that Arrow allows a page.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.files import UnreadableFileError, read_unchanged_file, regular_file
from vitkit.data.layouts.tables import (
    LABEL_COLUMNS,
    by_split,
    check_label,
    find_column,
    find_group_column,
    named_by_value,
    plain_name,
)
from vitkit.data.listing import SPLIT_NAMES, Listing, SplitListing, number_groups
from vitkit.errors import DecodeError, VitkitError
from vitkit.text import join_names, pluralize, visible

_PARQUET_IMAGE_COLUMNS = (
    *("image", "img", "images", "image_bytes", "image_data", "pixel_values", "picture", "photo", "bytes"),
    *("jpg", "jpeg", "png", "webp"),  # the names in shards of WebDataset, whose label is "cls"
)
_PARQUET_LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "cls", *LABEL_COLUMNS)
_PARQUET_IN_MEMORY = 2 << 30
"""Bytes of encoded images that are read into memory at once; more are read by row group, which is slower."""
_ROWS_OF_ANY_FILE = 1 << 20
"""Rows that a file of any size may promise. One that promises more must have a byte for each."""
_BATCH_BYTES = 64 << 20  # of a batch, unless a single value is larger
_BATCH_ROWS = 1 << 16  # of a batch, at most: labels are small
_GROUP_BYTES = 256 << 20
"""Bytes of a row group that stay in memory when the files do not: a group of a Hugging Face data set fits."""
_LARGEST_CARD = 16 << 20  # bytes of README.md


@dataclass(frozen=True)
class _File:
    """A Parquet file and its metadata."""

    path: Path
    metadata: Any
    """A pyarrow FileMetaData."""
    schema: Any
    """A pyarrow Schema."""

    def shown_type(self, column: str) -> str:
        """Return the type of a column for a message, cut short: a nested type may be long."""
        return visible(str(self.schema.field(column).type)[:80])

    @property
    def groups(self) -> range:
        return range(self.metadata.num_row_groups)

    def rows(self, group: int) -> int:
        return int(self.metadata.row_group(group).num_rows)

    def chunks(self, leaf: str, groups: Sequence[int]) -> list[Any]:
        """Return pyarrow's metadata of a column in some row groups, which need not be true."""
        schema = self.metadata.schema
        index = next(index for index in range(len(schema)) if schema.column(index).path == leaf)
        return [self.metadata.row_group(group).column(index) for group in groups]

    def values(self, leaf: str, groups: Sequence[int]) -> Iterator[Any]:
        """Yield the values of a column in some row groups, one a row; None for an empty cell.

        Args:
            leaf: the path of the column: "label", "image.bytes".
            groups: the row groups, in order.

        Raises:
            VitkitError: the file is damaged.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        expected = sum(self.rows(group) for group in groups)
        with _explained(self.path):
            chunks = self.chunks(leaf, groups)
            # A value is no larger than its column, so a batch has at most `_BATCH_BYTES`, or one value.
            is_bytes = any(chunk.physical_type == "BYTE_ARRAY" for chunk in chunks)
            largest = max((chunk.total_uncompressed_size for chunk in chunks), default=0) if is_bytes else 0
            size = min(_BATCH_ROWS, max(1, _BATCH_BYTES // max(1, largest)))
            # Read through a buffer, so that the packed column is not in memory too.
            file = pq.ParquetFile(self.path, metadata=self.metadata, buffer_size=1 << 20, pre_buffer=False)
        with file:
            # One thread: Arrow's own would not survive the fork of a worker process.
            reader = file.iter_batches(size, list(groups), [leaf], use_threads=False)
            while True:
                with _explained(self.path):  # not around `yield`: the caller's errors are not the file's
                    batch = next(reader, None)
                    if batch is None:
                        break
                    column = batch.column(0)
                    if pa.types.is_struct(column.type):  # only `leaf` of it was read
                        column = column.field(0)
                    values = column.to_pylist()
                expected -= len(values)
                yield from values
        if expected:
            raise VitkitError(
                f"{self.path}: the column {leaf} has {abs(expected):,} values too "
                f"{'few' if expected > 0 else 'many'}. The file is damaged: download or write it again."
            )


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn every exception of Arrow about a file into a VitkitError: for damage it raises OSError,
    ValueError, KeyError, NotImplementedError, UnicodeDecodeError, OverflowError and more."""
    try:
        yield
    except MemoryError as error:
        raise VitkitError(f"{path} cannot be read: there is not enough memory.") from error
    except Exception as error:
        # Our own errors name the file already, but for an UnreadableFileError, which is the reason alone.
        if isinstance(error, VitkitError) and not isinstance(error, UnreadableFileError):
            raise
        reason = visible(str(error)[:300] or type(error).__name__).rstrip(".")
        raise VitkitError(
            f"{path} cannot be read as Parquet: {reason}. Download or write it again."
        ) from error


class _Window:
    """The images of consecutive rows, as far as they have been read and are still in memory."""

    def __init__(self, images: Iterator[Any], first: int, stop: int, keep: int) -> None:
        self.images = images
        self.first = first  # the first row in memory
        self.stop = stop  # the row after the last one that `images` gives
        self.keep = keep  # bytes that stay in memory
        self.process = os.getpid()  # the process that reads `images`
        self.cells: list[bytes] = []
        self.bytes = 0

    @property
    def end(self) -> int:
        """The row after the last one in memory."""
        return self.first + len(self.cells)

    def reaches(self, row: int) -> bool:
        """Whether a row is in memory, or still to be read.

        A forked process does not read on where another was: the open file would be the same for both.
        """
        return self.first <= row < (self.stop if self.process == os.getpid() else self.end)

    def read_on(self) -> None:
        """Read the next row, and drop the earlier ones where they are too large together."""
        value = next(self.images)
        cell = value if isinstance(value, bytes) else b""
        self.bytes += len(cell)
        if self.bytes > self.keep and self.cells:
            self.first, self.cells, self.bytes = self.end, [], len(cell)
        self.cells.append(cell)

    def cell(self, row: int) -> bytes:
        """Return the encoded image of a row that this window reaches; no bytes for an empty cell."""
        while row >= self.end:
            self.read_on()
        return self.cells[row - self.first]


class _ParquetRows:
    """Encoded images in a column of Parquet files: all in memory, or read by row group on demand."""

    def __init__(self, root: Path, files: Sequence[_File], leaf: str) -> None:
        self.files = tuple(files)
        self.names = tuple(file.path.relative_to(root).as_posix() for file in files)
        self.leaf = leaf
        self.groups = [(file, group) for file in files for group in file.groups]
        self.group_starts = np.cumsum([0, *(file.rows(group) for file, group in self.groups)])
        self.file_starts = np.cumsum([0, *(file.metadata.num_rows for file in files)])
        promised = 0
        for file in files:
            with _explained(file.path):
                chunks = file.chunks(leaf, file.groups)
                promised += sum(max(0, chunk.total_uncompressed_size) for chunk in chunks)
        self.in_memory = promised <= _PARQUET_IN_MEMORY
        self.window: _Window | None = None
        if self.in_memory:  # read before worker processes start, which then use the same memory
            self.window = window = self._open(0)
            while self.in_memory and window.end < window.stop:
                window.read_on()
                self.in_memory = window.first == 0  # they take more memory than the metadata promised
            if not self.in_memory:
                self.window = None

    def __len__(self) -> int:
        return int(self.file_starts[-1])

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"window": None}  # each process reads itself: readers cannot be pickled

    def _file_of(self, number: int) -> int:
        return int(np.searchsorted(self.file_starts, number, side="right")) - 1

    def key(self, number: int) -> str:
        file = self._file_of(number)
        return f"{self.names[file]} row {number - self.file_starts[file]}"

    def file(self, number: int) -> bytes:
        if self.window is None or not self.window.reaches(number):
            self.window = self._open(number)
        try:
            return self.window.cell(number)
        except VitkitError as error:
            self.window = None  # its reader stands in the middle of a group
            raise DecodeError(str(error).rstrip(".")) from error

    def on_disk(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        files = np.searchsorted(self.file_starts, numbers, side="right")
        return numbers[np.sort(np.unique(files, return_index=True)[1])]

    def path(self, number: int) -> Path:
        return self.files[self._file_of(number)].path

    def _open(self, number: int) -> _Window:
        """Begin to read all rows, or the row group of one."""
        index = int(np.searchsorted(self.group_starts, number, side="right")) - 1
        begin, end = (0, len(self.groups)) if self.in_memory else (index, index + 1)
        images = (
            image for file, group in self.groups[begin:end] for image in file.values(self.leaf, [group])
        )
        keep = _PARQUET_IN_MEMORY if self.in_memory else _GROUP_BYTES
        return _Window(images, int(self.group_starts[begin]), int(self.group_starts[end]), keep)


def list_parquet(
    root: Path,
    paths: list[Path],
    split_of_file: Sequence[str] | None = None,
    class_names: tuple[str, ...] | None = None,
    group: str | None = None,
    labelled: bool = True,
) -> Listing:
    """List images in the layout of Hugging Face data sets: a column of encoded images and one of labels.

    Args:
        root: the folder of the files, whose README.md may name the classes.
        paths: the files.
        split_of_file: the split of each file; left out, its name says it.
        class_names: the names of the classes where the files have none.
        group: the column whose equal values keep images in one split.
        labelled: whether labels are read; if not, rows without a label count like all others.

    Raises:
        VitkitError: a file is damaged, columns or labels are missing or differ between files, or a label has
            no name.
    """
    files = [_read_metadata(path) for path in paths]
    header = files[0].schema.names
    # Columns are found by plain names. "label" wins over "Label", whose plain name is the same.
    columns = {plain_name(name): name for name in header} | {name: name for name in header}
    image_column = find_column(paths[0], columns, _PARQUET_IMAGE_COLUMNS, "image")
    label_column = find_column(paths[0], columns, _PARQUET_LABEL_COLUMNS, "label") if labelled else None
    needed = [column for column in (image_column, label_column) if column is not None]
    for file in files:
        if not all(file.schema.names.count(name) == 1 for name in needed):
            raise VitkitError(
                f"{file.path} lacks the columns {' and '.join(needed)} that {paths[0].name} has, or has one "
                f"twice; found {join_names(file.schema.names, 30)}. Keep one data set in a folder."
            )
    leaves = {_image_leaf(file, image_column) for file in files}
    if len(leaves) > 1:
        raise VitkitError(
            f"{root}: expected the images of all files in one column, found them in "
            f"{join_names(sorted(leaves))}. Write all files with the same columns."
        )
    rows = _ParquetRows(root, files, leaves.pop())
    split_of = np.repeat(split_of_file or _parquet_splits(root, paths), np.diff(rows.file_starts))
    notes = []
    if not rows.in_memory:
        notes.append("The Parquet files are read by row group: in shuffled order that is slow.")

    groups = None if group is None else _parquet_groups(files, group)
    if label_column is None:
        no_labels = np.zeros((len(split_of), 0), dtype=bool)
        return Listing("Parquet", (), rows, by_split(split_of, no_labels), tuple(notes), groups)
    declared = _declared_names(root, files, label_column)
    values = _read_labels(files, label_column)
    splits, unlabelled = _labelled(split_of, values)
    if unlabelled:
        notes.append(f"{pluralize(unlabelled, 'row')} without a label ignored.")
    if not splits:
        raise VitkitError(
            f"{root}: expected labels in the column {label_column}, found none in "
            f"{pluralize(len(paths), 'Parquet file')}. Fill that column, or give other files."
        )
    declared = declared or class_names
    if declared is None or any(isinstance(value, str) for value in values):
        names, listed = named_by_value(root, splits)
    else:
        names, listed = declared, _numbered(root, splits, declared)
        present = {label for _, labels in listed.values() for label in labels.tolist()}
        absent = [name for number, name in enumerate(declared) if number not in present]
        if absent:
            count = pluralize(len(absent), "class", "classes")
            notes.append(f"{count} without images: {join_names(absent)}.")
    return Listing("Parquet", names, rows, listed, tuple(notes), groups)


def _numbered(
    root: Path, splits: Mapping[str, tuple[NDArray[np.int64], NDArray[Any]]], names: Sequence[str]
) -> dict[str, SplitListing]:
    """Read the labels of each split as numbers of classes.

    Raises:
        VitkitError: a number is below 0 or has no name.
    """
    numbers = [int(label) for _, labels in splits.values() for label in labels]
    if min(numbers) < 0 or max(numbers) >= len(names):
        raise VitkitError(
            f"{root}: expected labels from 0 to {len(names) - 1} for the class names ({join_names(names)}), "
            f"found {min(numbers)} to {max(numbers)}. Correct the labels, or the names."
        )
    return {split: (rows, labels.astype(np.int64)) for split, (rows, labels) in splits.items()}


def _parquet_groups(files: Sequence[_File], group: str) -> NDArray[np.int64]:
    """Number the groups of images that stay in one split, for all rows, by the values of a column."""
    names: list[str] = []
    for file in files:
        column = find_group_column(file.path, {name.lower(): name for name in file.schema.names}, group)
        stored: dict[str, str] = {}  # each name once in memory, however many rows have it
        for row, value in enumerate(_values(file, column)):
            name = ("" if value is None else str(value)).strip()
            if not name:
                raise VitkitError(f"{file.path} row {row}: {group} is empty. Fill it.")
            names.append(stored.setdefault(name, name))
    return number_groups(names)


def _values(file: _File, column: str) -> Iterator[Any]:
    """Yield the values of a column that is no list or structure, one a row; None where there is none."""
    import pyarrow as pa

    if pa.types.is_nested(_value_type(file.schema.field(column).type)):
        raise VitkitError(
            f"{file.path}: the column {column} holds {file.shown_type(column)}, expected one value a row. "
            "Write the names of the groups as text or numbers."
        )
    return file.values(column, file.groups)


def _value_type(kind: Any) -> Any:
    """Return the type of a column's values, where Arrow may store each value once in a dictionary."""
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _read_labels(files: Sequence[_File], column: str) -> NDArray[Any]:
    """Read the labels of all files: text, whole numbers or truth values; None for a row without a label.

    Raises:
        VitkitError: they are of another type, or of several.
    """
    kinds = [_label_kind(file, column) for file in files]
    different = sorted({*kinds} - {"none"})
    if len(different) > 1:
        raise VitkitError(
            f"The column {column} holds {join_names(different)} in different Parquet files. Keep one data "
            "set in a folder."
        )
    values, stored = list[Any](), dict[str, str]()
    for file, kind in zip(files, kinds, strict=True):
        for row, value in enumerate(_values(file, column)):
            if isinstance(value, str):
                if value not in stored:
                    check_label(f"{file.path} row {row}, column {column}", value)
                value = stored.setdefault(value, value)  # once in memory, however many rows have it
            elif kind == "numbers" and value is not None and not isinstance(value, int):
                if not float(value).is_integer():
                    raise VitkitError(
                        f"{file.path} row {row}: the label in the column {column} is {value} "
                        f"({file.shown_type(column)}), expected a whole number or a name. Write the "
                        "labels as such, and null where there is none."
                    )
                value = int(value)
            values.append(value)
    return np.array(values, dtype=object)


def _label_kind(file: _File, column: str) -> str:
    """Name the kind of the labels of a file: "text", "truth values" or "numbers"; "none" if all are null.

    Raises:
        VitkitError: the column has no type of labels.
    """
    import pyarrow as pa

    plain, types = _value_type(file.schema.field(column).type), pa.types
    if types.is_null(plain):
        return "none"
    if types.is_string(plain) or types.is_large_string(plain) or types.is_string_view(plain):
        return "text"
    if types.is_boolean(plain):
        return "truth values"
    if types.is_integer(plain) or types.is_floating(plain):
        return "numbers"
    is_list = types.is_nested(plain) and not types.is_struct(plain)
    hint = (
        "If an image has several labels, list them in a .csv or in text files, and give --task multi-label."
        if is_list
        else "Write the labels as numbers or names."
    )
    raise VitkitError(
        f"{file.path}: the column {column} holds {file.shown_type(column)}, expected whole numbers or text, "
        f"one label a row. {hint}"
    )


def _image_leaf(file: _File, column: str) -> str:
    """Return the path of the encoded images: the column itself, or `bytes` in it.

    Raises:
        VitkitError: the column holds neither.
    """
    import pyarrow as pa

    kind, leaf = file.schema.field(column).type, column
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind, leaf = kind.field("bytes").type, f"{column}.bytes"
    plain, types = _value_type(kind), pa.types
    if not (types.is_binary(plain) or types.is_large_binary(plain) or types.is_binary_view(plain)):
        raise VitkitError(
            f"{file.path}: the column {column} holds {file.shown_type(column)}, expected the bytes of an "
            "image file (binary), alone or as `bytes` beside a path. Write the files themselves into it."
        )
    return leaf


def _labelled(
    split_of: NDArray[Any], values: NDArray[Any]
) -> tuple[dict[str, tuple[NDArray[np.int64], NDArray[Any]]], int]:
    """Group the rows that have a label by split, and count the rows without one.

    Null is no label, nor is -1, which many published test splits have in its place.
    """
    unlabelled = np.array([value is None or value == -1 for value in values], dtype=bool)
    splits = {}
    for split, (numbers, _) in by_split(split_of, values).items():
        rows = numbers[~unlabelled[numbers]]
        if len(rows):
            splits[split] = (rows, values[rows])
    return splits, int(unlabelled.sum())


def _read_metadata(path: Path) -> _File:
    """Read the metadata of a file.

    Raises:
        VitkitError: it is no Parquet file, is damaged, or promises more rows than can be in it.
    """
    import pyarrow.parquet as pq

    try:
        with regular_file(path) as stream:  # never a pipe or a device, which Arrow would wait for
            size = stream.seek(0, os.SEEK_END)
    except UnreadableFileError as error:
        raise VitkitError(f"{path} cannot be read as Parquet: {error}.") from error
    with _explained(path):
        with pq.ParquetFile(path, pre_buffer=False) as opened:
            file = _File(path, opened.metadata, opened.schema_arrow)
        rows = [file.rows(group) for group in file.groups]
        # A value that all rows have is stored once, so that a small file could promise any number of rows.
        if (
            min(rows, default=0) < 0
            or sum(rows) != file.metadata.num_rows
            or sum(rows) > max(size, _ROWS_OF_ANY_FILE)
        ):
            raise ValueError(f"it promises {file.metadata.num_rows:,} rows in {size:,} bytes")
    return file


def _parquet_splits(root: Path, paths: list[Path]) -> list[str]:
    """Return the split of each file, from its name (train-00000-of-00004.parquet) or a folder above it."""
    splits: list[str | None] = []
    for path in paths:
        parts = re.split(r"[-_.]", path.stem.lower())
        folders = [part.lower() for part in reversed(path.relative_to(root).parts[:-1])]
        splits.append(next((SPLIT_NAMES[part] for part in (*parts, *folders) if part in SPLIT_NAMES), None))
    if not any(splits):
        return ["train"] * len(paths)
    unknown = [path.name for path, split in zip(paths, splits, strict=True) if split is None]
    if unknown:
        raise VitkitError(
            f"{root}: no split in the name of {join_names(unknown)}. Begin names with train-, "
            "validation- or test-."
        )
    return [split for split in splits if split is not None]


def _declared_names(root: Path, files: Sequence[_File], column: str) -> tuple[str, ...] | None:
    """Read the names of the classes from the metadata of the files, or else from the card beside them.

    Raises:
        VitkitError: they are no texts, or differ between files.
    """
    names_of = {file.path: names for file in files if (names := _names_in_metadata(file, column)) is not None}
    if not names_of:
        return _names_in_readme(root, column)
    path, names = next(iter(names_of.items()))
    other = next((other for other in names_of if names_of[other] != names), None)
    if other is not None:
        raise VitkitError(
            f"{other} and {path.name} name other classes in their metadata "
            f"({join_names(names_of[other], 5)}; {join_names(names, 5)}). Keep one data set in a folder."
        )
    return names


def _names_in_metadata(file: _File, column: str) -> tuple[str, ...] | None:
    """Read class names as the `datasets` library writes them into the schema; None where there are none."""
    try:
        features = json.loads((file.schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[column]["names"]
    except RecursionError:
        raise VitkitError(
            f"{file.path}: the metadata `huggingface` is nested too deeply. Write the file again without it."
        ) from None
    except (KeyError, TypeError, ValueError):
        return None
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise VitkitError(
            f"{file.path}: the metadata names the classes of {column} {visible(repr(names)[:80])}, expected "
            "a list of texts. Correct it, or write the file again without it."
        )
    for name in names:
        check_label(f"{file.path}, the names of the classes in its metadata", name)
    return tuple(names) or None


def _names_in_readme(root: Path, column: str) -> tuple[str, ...] | None:
    """Read class names from the `dataset_info` block of a data set card, line by line: `'0': airplane`."""
    card = next(
        (folder / "README.md" for folder in (root, root.parent) if (folder / "README.md").is_file()), None
    )
    if card is None:
        return None
    try:
        text = read_unchanged_file(card, _LARGEST_CARD).decode("utf-8", "replace")
    except UnreadableFileError as error:
        raise VitkitError(f"{card}: the names of the classes cannot be read: {error}.") from error
    names: dict[int, str] = {}
    feature = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if match := re.fullmatch(r"\s*- name: (\S+)\s*", line):
            feature = match[1]
        elif feature == column and (match := re.fullmatch(r"\s*['\"]?([0-9]{1,7})['\"]?: (.+?)\s*", line)):
            name = match[2].strip("'\"")
            check_label(f"{card} line {number}", name)
            names.setdefault(int(match[1]), name)
    if sorted(names) != list(range(len(names))):
        raise VitkitError(
            f"{card}: the names of the classes of {column} are not numbered from 0 without a gap. Correct "
            "the numbers."
        )
    return tuple(names[number] for number in sorted(names)) if names else None
