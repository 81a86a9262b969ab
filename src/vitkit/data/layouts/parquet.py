"""Read images and labels from Parquet files in the layout of Hugging Face data sets.

A few kilobytes of Parquet can become gigabytes: pages are unpacked, and a value that is stored once may stand
in many rows. So columns are read in batches of bounded size, by the sizes that the file's metadata promise.
"""

import json
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.files import damage_explained, read_unchanged_file, regular_file
from vitkit.data.layouts import tables
from vitkit.data.listing import SPLIT_NAMES, Listing, by_split, number_groups
from vitkit.errors import DecodeError, VitkitError
from vitkit.text import format_bytes, join_names, pluralize, visible

_PARQUET_IMAGE_COLUMNS = (
    *("image", "img", "images", "image_bytes", "image_data", "pixel_values", "picture", "photo", "bytes"),
    *("jpg", "jpeg", "png", "webp"),  # the names in shards of WebDataset, whose label is "cls"
)
_PARQUET_LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target", "cls", *tables.LABEL_COLUMNS)
_PARQUET_IN_MEMORY = 2 << 30
"""Bytes of encoded images that are read into memory at once; more are read by row group, which is slower."""
_LARGEST_COLUMN = 128 << 20
"""Bytes of a column of a row group, unpacked, that are always read. A larger one is read too, unless it is
much smaller in the file: images are compressed already, so that a column of images hardly shrinks."""
_LARGEST_RATIO = 16
"""The most unpacked bytes of such a larger column for each of its bytes in the file."""
_ROWS_OF_ANY_FILE = 1 << 20
"""Rows that a file of any size may promise. One that promises more must have a byte for each."""
_BATCH_BYTES = 64 << 20  # of a batch, unless a single value is larger
_GROUP_BYTES = 256 << 20
"""Bytes of a row group that stay in memory when the files do not: a group of a Hugging Face data set fits."""
_LARGEST_CARD = 16 << 20  # bytes of README.md
_LABEL_TYPES = {
    "text": r"(large_)?string(_view)?",
    "truth values": "bool",
    "numbers": r"u?int\d+|halffloat|float|double",
    "none": "null",
}
"""Kinds of labels, and the names of Arrow's types that hold them; "none": all of them are null."""


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
    def rows(self) -> list[int]:
        """The rows of each row group."""
        groups = range(self.metadata.num_row_groups)
        return [int(self.metadata.row_group(group).num_rows) for group in groups]

    def chunks(self, leaf: str, groups: Sequence[int]) -> list[Any]:
        """Return the metadata of a column in some row groups, which need not be true."""
        with _explained(self.path):
            schema = self.metadata.schema
            index = next(index for index in range(len(schema)) if schema.column(index).path == leaf)
            return [self.metadata.row_group(group).column(index) for group in groups]

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
            size = min(most_rows, self._largest_batch(leaf, groups))
            # Read through a buffer, so that the packed column is not in memory too.
            file = pq.ParquetFile(self.path, metadata=self.metadata, buffer_size=1 << 20, pre_buffer=False)
        with file:
            # One thread: Arrow's own would not survive the fork of a worker process.
            reader = file.iter_batches(size, list(groups), [leaf], use_threads=False)
            while True:
                with _explained(self.path):  # not around `yield`: the caller's errors are not the file's
                    if (batch := next(reader, None)) is None:
                        return
                    column = batch.column(0)
                    if pa.types.is_struct(column.type):  # only `leaf` of it was read
                        column = column.field(0)
                yield column

    def _largest_batch(self, leaf: str, groups: Sequence[int]) -> int:
        """Return the rows of a batch that has at most `_BATCH_BYTES`, unless a single value is larger.

        Any value may stand in every row, so that no row counts less than its whole column in a row group.

        Raises:
            VitkitError: the column is too large when it is unpacked.
        """
        largest = 1
        for chunk in self.chunks(leaf, groups):
            unpacked, packed = chunk.total_uncompressed_size, chunk.total_compressed_size
            if unpacked > max(_LARGEST_COLUMN, _LARGEST_RATIO * packed):
                raise VitkitError(
                    f"{self.path}: {format_bytes(packed)} of the column {leaf} become "
                    f"{format_bytes(unpacked)}, more than is read at a time. If that is right, write the "
                    "file again with smaller row groups."
                )
            largest = max(largest, unpacked)
        return max(1, _BATCH_BYTES // largest)


def _explained(path: Path) -> AbstractContextManager[None]:
    """Explain every exception of Arrow about a file."""
    return damage_explained(path, "Parquet", "Download or write it again")


class _ParquetRows:
    """Encoded images in a column of Parquet files: all in memory, or some rows of a group, which move on."""

    def __init__(self, root: Path, files: Sequence[_File], leaf: str) -> None:
        self.files = tuple(files)
        self.names = tuple(file.path.relative_to(root).as_posix() for file in files)
        self.leaf = leaf
        counts = [file.rows for file in files]
        self.groups = [(file, group) for file, rows in enumerate(counts) for group in range(len(rows))]
        self.group_starts = np.cumsum([0, *(rows for file in counts for rows in file)])
        self.file_starts = np.cumsum([0, *map(sum, counts)])
        chunks = (chunk for file in files for chunk in file.chunks(leaf, range(len(file.rows))))
        self.in_memory = sum(max(0, chunk.total_uncompressed_size) for chunk in chunks) <= _PARQUET_IN_MEMORY
        self._open(0)
        # Read before worker processes start, which then use the same memory; by row group after all, if
        # images take more memory than the metadata promised.
        while self.in_memory and self._read_on():
            if self.bytes > _PARQUET_IN_MEMORY:
                self.in_memory = False
                self._open(0)

    def _open(self, group: int) -> None:
        """Begin to read at a row group, of those of all files; no row is in memory then."""
        self.group, self.process = group, os.getpid()  # the process that reads `batches`
        self.batches = self._batches(group)
        self.first = int(self.group_starts[group])  # the first row in memory
        self.parts: list[Any] = []  # the batches in memory
        self.ends: list[int] = []  # for each of them, the row after its last one
        self.bytes = 0

    def _batches(self, start: int) -> Iterator[Any]:
        """Yield the images from a row group on, as pyarrow arrays."""
        for (file, group), end in zip(self.groups[start:], self.group_starts[start + 1 :], strict=True):
            # Larger batches than 64 images gain no speed, because images are large.
            yield from self.files[file].batches(self.leaf, [group], 64)
            if self.end != end:
                raise VitkitError(
                    f"{self.files[file].path} has not the rows of a row group that it promises: download or "
                    "write it again."
                )

    def __getstate__(self) -> dict[str, Any]:
        # Each process reads by itself: readers cannot be pickled.
        return vars(self) | {"batches": None, "parts": [], "ends": [], "process": -1}

    @property
    def end(self) -> int:
        """The row after the last one in memory."""
        return self.ends[-1] if self.ends else self.first

    def _read_on(self) -> bool:
        """Read the next batch, and drop earlier ones where they are too large together; False at the end."""
        if (part := next(self.batches, None)) is None:
            return False
        self.bytes += part.nbytes
        if not self.in_memory and self.bytes > _GROUP_BYTES:
            self.first, self.bytes = self.end, part.nbytes
            self.parts, self.ends = [], []
        self.parts.append(part)
        self.ends.append(self.end + len(part))
        return True

    def _file_of(self, number: int) -> int:
        return int(np.searchsorted(self.file_starts, number, side="right")) - 1

    def key(self, number: int) -> str:
        file = self._file_of(number)
        return f"{self.names[file]} row {number - self.file_starts[file]}"

    def file(self, number: int) -> bytes:
        """Return an encoded image; no bytes for an empty cell."""
        group = 0 if self.in_memory else int(np.searchsorted(self.group_starts, number, side="right")) - 1
        # Opened anew too for a row that was dropped, and for one still to be read in a forked process, which
        # would share the open file with the other.
        elsewhere = number >= self.end and self.process != os.getpid()
        if group != self.group or number < self.first or elsewhere:
            self._open(group)
        try:
            while number >= self.end and self._read_on():
                pass
        except VitkitError as error:
            self._open(group)  # the reader stands in the middle of the group
            raise DecodeError(str(error).rstrip(".")) from error
        index = bisect_right(self.ends, number)
        part = self.parts[index]
        value = part[number - (self.ends[index] - len(part))].as_py()
        return value if isinstance(value, bytes) else b""

    def on_disk(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        files = np.searchsorted(self.file_starts, numbers, side="right")
        return numbers[np.sort(np.unique(files, return_index=True)[1])]

    def path(self, number: int) -> Path:
        return self.files[self._file_of(number)].path


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
    columns = {tables.plain_name(name): name for name in header} | {name: name for name in header}
    image_column = tables.find_column(paths[0], columns, _PARQUET_IMAGE_COLUMNS, "image")
    needed, label_column = [image_column], None
    if labelled:
        label_column = tables.find_column(paths[0], columns, _PARQUET_LABEL_COLUMNS, "label")
        needed.append(label_column)
    for file in files:
        if not all(file.schema.names.count(name) == 1 for name in needed):
            raise VitkitError(
                f"{file.path} lacks the columns {' and '.join(needed)} that {paths[0].name} has, or has one "
                f"twice; found {join_names(file.schema.names, 30)}. Keep one data set in a folder."
            )
    if len(leaves := {_image_leaf(file, image_column) for file in files}) > 1:
        raise VitkitError(
            f"{root}: expected the images of all files in one column, found them in "
            f"{join_names(sorted(leaves))}. Write all files with the same columns."
        )
    rows = _ParquetRows(root, files, leaves.pop())
    split_of = np.repeat(split_of_file or _parquet_splits(root, paths), np.diff(rows.file_starts))
    notes = []
    if not rows.in_memory:
        notes.append("The Parquet files are read by row group: in shuffled order that is slow.")

    groups = None if group is None else number_groups(_group_names(files, group))
    if label_column is None:
        no_labels = np.zeros((len(split_of), 0), dtype=bool)
        return Listing("Parquet", (), rows, by_split(split_of, no_labels), tuple(notes), groups)
    declared = _declared_names(root, files, label_column)
    values = _read_labels(files, label_column)
    # Null is no label, nor is -1, which many published test splits have in its place.
    unlabelled = np.array([value is None or value == -1 for value in values], dtype=bool)
    splits = by_split(np.where(unlabelled, "", split_of), values)
    if unlabelled.any():
        notes.append(f"{pluralize(int(unlabelled.sum()), 'row')} without a label ignored.")
    if not splits:
        raise VitkitError(
            f"{root}: expected labels in the column {label_column}, found none in "
            f"{pluralize(len(paths), 'Parquet file')}. Fill that column, or give other files."
        )
    declared = declared or class_names
    if declared is None or any(isinstance(value, str) for value in values):
        names, listed = tables.named_by_value(root, splits)
    else:
        names = declared
        numbers = {int(label) for _, labels in splits.values() for label in labels}
        if min(numbers) < 0 or max(numbers) >= len(names):
            raise VitkitError(
                f"{root}: expected labels from 0 to {len(names) - 1} for the class names "
                f"({join_names(names)}), found {min(numbers)} to {max(numbers)}. Correct the labels, or the "
                "names."
            )
        listed = {split: (rows, labels.astype(np.int64)) for split, (rows, labels) in splits.items()}
        if absent := [name for number, name in enumerate(names) if number not in numbers]:
            count = pluralize(len(absent), "class", "classes")
            notes.append(f"{count} without images: {join_names(absent)}.")
    return Listing("Parquet", names, rows, listed, tuple(notes), groups)


def _group_names(files: Sequence[_File], group: str) -> Iterator[str]:
    """Yield the name of the group of each row, the value of a column: a group stays in one split."""
    for file in files:
        columns = {name.lower(): name for name in file.schema.names}
        column = tables.find_group_column(file.path, columns, group)
        for row, value in enumerate(_values(file, column)):
            if not (name := ("" if value is None else str(value)).strip()):
                raise VitkitError(f"{file.path} row {row}: {group} is empty. Fill it.")
            yield name


def _values(file: _File, column: str) -> Iterator[Any]:
    """Yield the values of a column, one a row; None where there is none."""
    import pyarrow as pa

    if pa.types.is_nested(_value_type(file.schema.field(column).type)):
        raise VitkitError(
            f"{file.path}: the column {column} holds {file.shown_type(column)}, expected one value a row. "
            "Write the names of the groups as text or numbers."
        )
    count = 0
    for batch in file.batches(column, range(len(file.rows)), 1 << 16):
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
    if len(different := sorted({*kinds} - {"none"})) > 1:
        raise VitkitError(
            f"The column {column} holds {join_names(different)} in different Parquet files. Keep one data "
            "set in a folder."
        )
    values, stored = list[Any](), dict[str, str]()
    for file, kind in zip(files, kinds, strict=True):
        for row, value in enumerate(_values(file, column)):
            if isinstance(value, str):
                if value not in stored:
                    tables.check_label(f"{file.path} row {row}, column {column}", value)
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
    """Name the kind of the labels of a file, one of `_LABEL_TYPES`.

    Raises:
        VitkitError: the column has no type of labels.
    """
    plain = str(_value_type(file.schema.field(column).type))
    for kind, types in _LABEL_TYPES.items():
        if re.fullmatch(types, plain):
            return kind
    hint = "Write the labels as numbers or names."
    if "list" in plain.partition("<")[0]:
        hint = (
            "If an image has several labels, list them in a .csv or in text files, and give --task "
            "multi-label."
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
        rows, promised = file.rows, file.metadata.num_rows
        # A value that all rows have is stored once, so that a small file could promise any number of rows.
        if min(rows, default=0) < 0 or sum(rows) != promised or promised > max(size, _ROWS_OF_ANY_FILE):
            raise ValueError(f"it promises {promised:,} rows in {size:,} bytes")
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
    if unknown := [path.name for path, split in zip(paths, splits, strict=True) if split is None]:
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
    declared = dict[tuple[str, ...], Path]()
    for file in files:
        if (names := _names_in_metadata(file, column)) is not None:
            declared.setdefault(names, file.path)
    if len(declared) > 1:
        (names, path), (others, other), *_ = declared.items()
        raise VitkitError(
            f"{other} and {path.name} name other classes in their metadata ({join_names(others, 5)}; "
            f"{join_names(names, 5)}). Keep one data set in a folder."
        )
    return next(iter(declared), None) or _names_in_readme(root, column)


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
        tables.check_label(f"{file.path}, the names of the classes in its metadata", name)
    return tuple(names) or None


def _names_in_readme(root: Path, column: str) -> tuple[str, ...] | None:
    """Read class names from the `dataset_info` block of a data set card, line by line: `'0': airplane`."""
    cards = (folder / "README.md" for folder in (root, root.parent))
    if (card := next((card for card in cards if card.is_file()), None)) is None:
        return None
    with damage_explained(card, "a data set's card", "Write it again, or remove it"):
        text = read_unchanged_file(card, _LARGEST_CARD).decode("utf-8", "replace")
    names, feature = dict[int, str](), ""
    for number, line in enumerate(text.split("\n"), start=1):
        if match := re.fullmatch(r"\s*- name: (\S+)\s*", line):
            feature = match[1]
        elif feature == column and (match := re.fullmatch(r"\s*['\"]?([0-9]{1,7})['\"]?: (.+?)\s*", line)):
            name = match[2].strip("'\"")
            tables.check_label(f"{card} line {number}", name)
            names.setdefault(int(match[1]), name)
    if sorted(names) != list(range(len(names))):
        raise VitkitError(
            f"{card}: the names of the classes of {column} are not numbered from 0 without a gap. Correct "
            "the numbers."
        )
    return tuple(names[number] for number in sorted(names)) if names else None
