"""Read images and labels from Parquet files in the layout of Hugging Face data sets.

A few kilobytes of Parquet can become gigabytes: pages are unpacked, and a value that is stored once may stand
in many rows. So columns are read in batches of bounded size, and their unpacked bytes are counted.
"""

import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.files import UnreadableFileError, damage_explained, read_unchanged_file, regular_file
from vitkit.data.layouts.parquet_pages import page_sizes
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
from vitkit.text import format_bytes, join_names, pluralize, visible

_PARQUET_IMAGE_COLUMNS = (
    *("image", "img", "images", "image_bytes", "image_data", "pixel_values", "picture", "photo", "bytes"),
    *("jpg", "jpeg", "png", "webp"),  # the names in shards of WebDataset, whose label is "cls"
)
_PARQUET_LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "cls", *LABEL_COLUMNS)
_PARQUET_IN_MEMORY = 2 << 30
"""Bytes of encoded images that are read into memory at once; more are read by row group, which is slower."""
_LARGEST_PAGE = 128 << 20
"""Bytes of an unpacked page that is always read. Writers aim at 1 MB, but pyarrow looks at the size only
after 1,024 images. A larger page is read too, unless it is much smaller in the file: images are compressed
already, so that a page of images hardly shrinks."""
_LARGEST_RATIO = 16
"""The most unpacked bytes of such a larger page for each of its bytes in the file."""
_ROWS_OF_ANY_FILE = 1 << 20
"""Rows that a file of any size may promise. One that promises more must have a byte for each."""
_BATCH_BYTES = 64 << 20  # of a batch, unless a single value is larger
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

    def unpacked(self, leaf: str) -> int:
        """Return the bytes of a column, unpacked, by the metadata, which need not be true."""
        with _explained(self.path):
            index = self._index(leaf)
            chunks = (self.metadata.row_group(group).column(index) for group in self.groups)
            return sum(max(0, chunk.total_uncompressed_size) for chunk in chunks)

    def batches(self, leaf: str, groups: Sequence[int], most_rows: int) -> Iterator[Any]:
        """Yield a column of some row groups, as pyarrow arrays of bounded size.

        Args:
            leaf: the path of the column: "label", "image.bytes".
            groups: the row groups, in order.
            most_rows: rows of a batch, at most.

        Raises:
            VitkitError: the file is damaged, or the column is too large when it is unpacked.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        with _explained(self.path):
            largest = self._largest_page(leaf, groups)
            # No value is larger than the largest page, so a batch has at most `_BATCH_BYTES`, or one value.
            size = min(most_rows, max(1, _BATCH_BYTES // max(1, largest)))
            # Read through a buffer, so that the packed column is not in memory too.
            file = pq.ParquetFile(self.path, metadata=self.metadata, buffer_size=1 << 20, pre_buffer=False)
        with file:
            # One thread: Arrow's own would not survive the fork of a worker process.
            reader = file.iter_batches(size, list(groups), [leaf], use_threads=False)
            while True:
                with _explained(self.path):  # not around `yield`: the caller's errors are not the file's
                    batch = next(reader, None)
                    if batch is None:
                        return
                    column = batch.column(0)
                    if pa.types.is_struct(column.type):  # only `leaf` of it was read
                        column = column.field(0)
                yield column

    def _index(self, leaf: str) -> int:
        """Return the index of a column in a row group."""
        schema = self.metadata.schema
        return next(index for index in range(len(schema)) if schema.column(index).path == leaf)

    def _largest_page(self, leaf: str, groups: Sequence[int]) -> int:
        """Return the bytes of the largest page of a column, unpacked. Raises VitkitError: it is too large."""
        index, largest = self._index(leaf), 0
        with regular_file(self.path) as stream:
            size = stream.seek(0, os.SEEK_END)
            for group in groups:
                chunk = self.metadata.row_group(group).column(index)
                start = chunk.data_page_offset
                # A dictionary stands before the data; an offset of 0 would be the beginning of the file.
                if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
                    start = chunk.dictionary_page_offset
                if start < 0 or not 0 <= chunk.total_compressed_size <= size - start:
                    raise ValueError(f"row group {group} lies outside of the file")
                for unpacked, packed in page_sizes(
                    stream, start, chunk.total_compressed_size, self.rows(group)
                ):
                    if unpacked > max(_LARGEST_PAGE, _LARGEST_RATIO * packed):
                        raise VitkitError(
                            f"{self.path}: {format_bytes(packed)} of the column {leaf} become "
                            f"{format_bytes(unpacked)}, more than is read at a time. If that is right, write "
                            "the file again with smaller pages (write_batch_size=1 of pyarrow)."
                        )
                    largest = max(largest, unpacked)
        return largest


def _explained(path: Path) -> AbstractContextManager[None]:
    """Explain every exception of Arrow about a file."""
    return damage_explained(path, "Parquet", "Download or write it again")


class _OpenGroup:
    """The images of a row group that have been read so far. Rows are counted from the group's first."""

    def __init__(self, batches: Iterator[Any], keep: int | None) -> None:
        self.batches = batches
        self.keep = keep  # bytes that stay in memory; None: all
        self.process = os.getpid()  # the process that reads `batches`
        self.first = 0  # the first row in memory
        self.parts: list[Any] = []  # the batches in memory
        self.ends: list[int] = []  # for each of them, the row after its last one
        self.bytes = 0

    @property
    def end(self) -> int:
        """The row after the last one in memory."""
        return self.ends[-1] if self.ends else self.first

    def read_on(self) -> bool:
        """Read the next batch, and drop earlier ones where they are too large together; False at the end."""
        part = next(self.batches, None)
        if part is None:
            return False
        self.bytes += part.nbytes
        if self.keep is not None and self.bytes > self.keep:
            self.first, self.bytes = self.end, part.nbytes
            self.parts, self.ends = [], []
        self.parts.append(part)
        self.ends.append(self.end + len(part))
        return True

    def cell(self, row: int) -> bytes:
        """Return the encoded image of a row that is in memory or comes later; no bytes for an empty cell."""
        while row >= self.end:
            if not self.read_on():
                raise VitkitError(f"the file has no row {row} of a row group, which it promises.")
        index = bisect_right(self.ends, row)
        part = self.parts[index]
        value = part[row - (self.ends[index] - len(part))].as_py()
        return value if isinstance(value, bytes) else b""


class _ParquetRows:
    """Encoded images in a column of Parquet files: all in memory, or read by row group on demand."""

    def __init__(self, root: Path, files: Sequence[_File], leaf: str) -> None:
        self.files = tuple(files)
        self.names = tuple(file.path.relative_to(root).as_posix() for file in files)
        self.leaf = leaf
        counts = [[file.rows(group) for group in file.groups] for file in files]
        self.groups = [(file, group) for file, rows in enumerate(counts) for group in range(len(rows))]
        self.group_starts = np.cumsum([0, *(rows for file in counts for rows in file)])
        self.file_starts = np.cumsum([0, *map(sum, counts)])
        self.opened: dict[int, _OpenGroup] = {}
        self.in_memory = sum(file.unpacked(leaf) for file in files) <= _PARQUET_IN_MEMORY
        total = 0
        # Read before worker processes start, which then use the same memory; by row group after all, if
        # images take more memory than the metadata promised.
        for index in range(len(self.groups) if self.in_memory else 0):
            group = self.opened[index] = self._open(index)
            while total + group.bytes <= _PARQUET_IN_MEMORY and group.read_on():
                pass
            total += group.bytes
            if total > _PARQUET_IN_MEMORY:
                self.in_memory, self.opened = False, {}
                break

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"opened": {}}  # each process opens groups itself: readers cannot be pickled

    def _file_of(self, number: int) -> int:
        return int(np.searchsorted(self.file_starts, number, side="right")) - 1

    def key(self, number: int) -> str:
        file = self._file_of(number)
        return f"{self.names[file]} row {number - self.file_starts[file]}"

    def file(self, number: int) -> bytes:
        index = int(np.searchsorted(self.group_starts, number, side="right")) - 1
        row = number - int(self.group_starts[index])
        group = self.opened.get(index)
        # Opened anew too for a row that was dropped, and for one still to be read in a forked process, which
        # would share the open file with the other.
        if group is None or row < group.first or (row >= group.end and group.process != os.getpid()):
            if not self.in_memory:  # one group at a time
                self.opened.clear()
            group = self.opened[index] = self._open(index)
        try:
            return group.cell(row)
        except VitkitError as error:
            del self.opened[index]  # its reader stands in the middle of the group
            raise DecodeError(str(error).rstrip(".")) from error

    def on_disk(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        files = np.searchsorted(self.file_starts, numbers, side="right")
        return numbers[np.sort(np.unique(files, return_index=True)[1])]

    def path(self, number: int) -> Path:
        return self.files[self._file_of(number)].path

    def _open(self, index: int) -> _OpenGroup:
        file, group = self.groups[index]
        # Larger batches than 64 images gain no speed, because images are large.
        batches = self.files[file].batches(self.leaf, [group], 64)
        return _OpenGroup(batches, None if self.in_memory else _GROUP_BYTES)


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
    """Yield the values of a column, one a row; None where there is none."""
    import pyarrow as pa

    if pa.types.is_nested(_value_type(file.schema.field(column).type)):
        raise VitkitError(
            f"{file.path}: the column {column} holds {file.shown_type(column)}, expected one value a row. "
            "Write the names of the groups as text or numbers."
        )
    count = 0
    for batch in file.batches(column, file.groups, 1 << 16):
        with _explained(file.path):
            values = batch.to_pylist()
        count += len(values)
        yield from values
    if count != file.metadata.num_rows:
        raise VitkitError(
            f"{file.path}: {count:,} values in the column {column}, expected {file.metadata.num_rows:,}. The "
            "file is damaged: download or write it again."
        )


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
    if str(plain) in ("string", "large_string", "string_view"):
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
    if str(_value_type(kind)) not in ("binary", "large_binary", "binary_view"):
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

    with _explained(path):
        with regular_file(path) as stream:  # never a pipe or a device, which Arrow would wait for
            size = stream.seek(0, os.SEEK_END)
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
