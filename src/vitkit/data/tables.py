"""Read lists of images from tables: CSV, and Parquet in the layout of Hugging Face data sets."""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.decode import DecodeError
from vitkit.data.files import UnreadableFileError, regular_file
from vitkit.data.listing import (
    SPLIT_NAMES,
    SPLITS,
    Listing,
    Paths,
    SplitListing,
    join_names,
    number_groups,
    pluralize,
)
from vitkit.errors import VitkitError

_PATH_COLUMNS = ("path", "image", "file", "filename", "image_path")
_LABEL_COLUMNS = ("label", "class", "target")
_LABEL_SET_COLUMNS = ("labels", "classes", "tags", "targets")
_SPLIT_COLUMNS = ("split", "set")
_PARQUET_IMAGE_COLUMNS = ("image", "img", "images")
_PARQUET_LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")
_PARQUET_IN_MEMORY = 2 << 30  # bytes of Parquet files


@dataclass(frozen=True)
class CsvRows:
    """The lines of a CSV, column by column."""

    paths: list[str]
    cells: list[str]
    """The contents of the column of labels."""
    lines: list[int]
    """Line numbers, pluralize from 1, which is the header."""
    split_of: NDArray[Any]
    """`(N,)` of "train", "val" and "test"."""
    groups: NDArray[np.int64] | None = None
    """`(N,)` of the column of groups, where one was asked for."""

    def files(self, path: Path) -> Paths:
        """Return the image files, whose paths are below the folder of the CSV at `path`."""
        return Paths(path.parent, self.paths, (f"{path.name} line {line}: " for line in self.lines))


def list_csv(path: Path, group: str | None = None) -> Listing:
    """List the images of a CSV: a header, then one image a line with path, label and perhaps split.

    Paths are below the folder of the CSV.
    """
    rows = read_csv(path, group=group)
    splits = _by_split(rows.split_of, np.array(rows.cells))
    names, labelled = _named_by_value(path, splits)
    return Listing("CSV", names, rows.files(path), labelled, groups=rows.groups)


def read_csv(path: Path, several_labels: bool = False, group: str | None = None) -> CsvRows:
    """Read the lines of a CSV of images.

    Args:
        path: the file.
        several_labels: whether a cell holds several labels, or none; its column may then have a name in the
            plural.
        group: the column that says what an image belongs to; None: there is none.

    Raises:
        VitkitError: it is no CSV in UTF-8, lacks a column, has an empty cell where there may be none, or
            names a split that is none. With several labels also: a line has more cells than the header,
            which loses labels where the separator of the cells separates labels.
    """
    found, split_of, groups = CsvRows([], [], [], np.empty(0)), list[str](), list[str]()
    try:
        with (
            regular_file(path) as file,
            io.TextIOWrapper(file, newline="", encoding="utf-8-sig") as stream,
        ):
            first = stream.readline()
            delimiter = max(",;\t", key=first.count)
            stream.seek(0)
            rows = csv.DictReader(stream, delimiter=delimiter)
            columns = {(name or "").strip().lower(): name for name in rows.fieldnames or ()}
            path_column = _column(path, columns, _PATH_COLUMNS, "path")
            label_column = _label_column(path, columns, several_labels)
            group_column = None if group is None else _group_column(path, columns, group)
            split_column = next((columns[name] for name in _SPLIT_COLUMNS if name in columns), None)
            for row in rows:
                cells = {name: (row[name] or "").strip() for name in (path_column, label_column)}
                where = f"{path} line {rows.line_num}"
                if not cells[path_column] or not (cells[label_column] or several_labels):
                    raise VitkitError(f"{where}: path or label is empty. Fill it or remove it.")
                if several_labels and None in row:
                    raise _too_many_cells(where, len(columns), len(row[None]), delimiter)
                if group_column is not None:
                    groups.append((row[group_column] or "").strip())
                    if not groups[-1]:
                        raise VitkitError(f"{where}: {group} is empty. Fill it.")
                found.paths.append(cells[path_column])
                found.cells.append(cells[label_column])
                found.lines.append(rows.line_num)
                split = "train" if split_column is None else row[split_column] or ""
                split_of.append(split.strip().lower())
    except UnreadableFileError as error:
        raise VitkitError(f"{path} cannot be read as a CSV: {error}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise VitkitError(f"{path} is not a CSV in UTF-8: {error}. Save it again as CSV UTF-8.") from error
    if not found.paths:
        raise VitkitError(f"{path} has a header but no lines: there are no images.")
    unknown = sorted(set(split_of) - set(SPLIT_NAMES))
    if unknown:
        raise VitkitError(f"{path}: unknown split {join_names(unknown)}; expected train, val or test.")
    return replace(
        found,
        split_of=np.array([SPLIT_NAMES[name] for name in split_of]),
        groups=None if group is None else number_groups(groups),
    )


def _too_many_cells(where: str, expected: int, surplus: int, delimiter: str) -> VitkitError:
    return VitkitError(
        f"{where}: expected {expected} cells as in the header, found {expected + surplus}. Put the labels of "
        f"an image into one cell, and separate them by another character than {delimiter!r}, or quote them."
    )


def _group_column(path: Path, columns: dict[str, str], group: str) -> str:
    if group.lower() not in columns:
        raise VitkitError(
            f"{path} has no column {group!r} to keep groups together by (--splits.group), only "
            f"{', '.join(columns)}."
        )
    return columns[group.lower()]


def _label_column(path: Path, columns: dict[str, str], several_labels: bool) -> str:
    if several_labels:
        return _column(path, columns, (*_LABEL_SET_COLUMNS, *_LABEL_COLUMNS), "label")
    if not columns.keys() & {*_LABEL_COLUMNS} and columns.keys() & {*_LABEL_SET_COLUMNS}:
        raise VitkitError(
            f"{path}: no label column. Expected one of {', '.join(_LABEL_COLUMNS)} in the header line, found "
            f"{', '.join(columns)}. If an image has several labels, give --task multi-label."
        )
    return _column(path, columns, _LABEL_COLUMNS, "label")


def _column(path: Path, columns: dict[str, str], wanted: tuple[str, ...], what: str) -> str:
    for name in wanted:
        if name in columns:
            return columns[name]
    raise VitkitError(
        f"{path}: no {what} column. Expected one of {', '.join(wanted)} in the header line, "
        f"found {', '.join(map(str, columns)) or 'nothing'}."
    )


def _by_split(
    split_of: NDArray[Any], values: NDArray[Any]
) -> dict[str, tuple[NDArray[np.int64], NDArray[Any]]]:
    """Group the numbers of files and the values of labels by split."""
    numbers = {split: np.flatnonzero(split_of == split) for split in SPLITS}
    return {split: (where, values[where]) for split, where in numbers.items() if len(where)}


def _named_by_value(
    path: Path, splits: dict[str, tuple[NDArray[np.int64], NDArray[Any]]]
) -> tuple[tuple[str, ...], dict[str, SplitListing]]:
    """Make class names of the values of the labels, and number the labels by them."""
    names = name_labels(
        path, {split: {str(value) for value in found} for split, (_, found) in splits.items()}
    )
    number_of = {name: number for number, name in enumerate(names)}
    return names, {
        split: (where, np.array([number_of[str(value)] for value in found], dtype=np.int64))
        for split, (where, found) in splits.items()
    }


def name_labels(path: Path, values: Mapping[str, Set[str]]) -> tuple[str, ...]:
    """Put the labels of all splits in order: whole numbers as numbers, everything else as text.

    Raises:
        VitkitError: a split has labels that the training images, where there are any, have not.
    """
    every = set().union(*values.values())
    numeric = all(re.fullmatch(r"[+-]?\d+", value) for value in every)
    names = tuple(sorted(every, key=lambda name: (int(name), name)) if numeric else sorted(every))
    for split in values:
        unknown = [name for name in names if name in values[split] and name not in values.get("train", every)]
        if unknown:
            raise VitkitError(
                f"{path}: {split} has labels that train has not: {join_names(unknown)}. "
                "Add training images of these classes, or remove the lines."
            )
    return names


class _ParquetRows:
    """Encoded images in a column of Parquet files: all in memory, or read by row group when asked for."""

    def __init__(self, root: Path, paths: Sequence[Path], column: str, in_memory: bool) -> None:
        import pyarrow.parquet as pq

        self.paths = tuple(paths)
        self.names = tuple(path.relative_to(root).as_posix() for path in paths)
        self.column = column
        counts = [
            [file.row_group(group).num_rows for group in range(file.num_row_groups)]
            for file in map(pq.read_metadata, paths)
        ]
        self.groups = [(number, group) for number, rows in enumerate(counts) for group in range(len(rows))]
        self.group_starts = np.cumsum([0, *(rows for file in counts for rows in file)])
        self.file_starts = np.cumsum([0, *map(sum, counts)])
        # Two groups held: neighbours in evaluation share one; a shuffled order reads anew nearly every time.
        self.read = lru_cache(maxsize=None if in_memory else 2)(self._read)
        if in_memory:  # now, so that worker processes share it
            for number in range(len(self.groups)):
                self.read(number)

    def __len__(self) -> int:
        return int(self.file_starts[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "read"} | {
            "held": self.read.cache_parameters()["maxsize"]
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        held = state.pop("held")
        vars(self).update(state)
        self.read = lru_cache(maxsize=held)(self._read)

    def key(self, number: int) -> str:
        file = int(np.searchsorted(self.file_starts, number, side="right")) - 1
        return f"{self.names[file]} row {number - self.file_starts[file]}"

    def file(self, number: int) -> bytes:
        group = int(np.searchsorted(self.group_starts, number, side="right")) - 1
        cell = self.read(group)[number - int(self.group_starts[group])].as_py()
        if isinstance(cell, dict):
            cell = cell.get("bytes")
        return cell if isinstance(cell, bytes) else b""

    def on_disk(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        files = np.searchsorted(self.file_starts, numbers, side="right")
        return numbers[np.sort(np.unique(files, return_index=True)[1])]

    def path(self, number: int) -> Path:
        return self.paths[int(np.searchsorted(self.file_starts, number, side="right")) - 1]

    def _read(self, number: int) -> Any:  # a pyarrow array, one element a row
        import pyarrow.parquet as pq

        file, group = self.groups[number]
        try:
            # One thread: Arrow's own would not survive the fork of a worker process.
            with pq.ParquetFile(self.paths[file]) as opened:
                table = opened.read_row_group(group, columns=[self.column], use_threads=False)
        except OSError as error:  # Arrow's word for a damaged page, too
            raise DecodeError(f"row group {group} of {self.names[file]} cannot be read: {error}") from error
        return table.column(self.column).combine_chunks()


def list_parquet(
    root: Path,
    paths: list[Path],
    split_of_file: Sequence[str] | None = None,
    class_names: tuple[str, ...] | None = None,
    group: str | None = None,
) -> Listing:
    """List images in the layout of Hugging Face data sets: a column of encoded images and one of labels.

    The split of each file is read from its name, and class names from the files, where they are not given.
    `group` is the name of a column that says which images stay in one split.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    _check_regular(paths)
    try:
        schemas = [pq.read_schema(path) for path in paths]
    except (pa.ArrowException, OSError) as error:
        raise VitkitError(f"A Parquet file in {root} cannot be read: {error}. Download it again.") from error
    columns = {name: name for name in schemas[0].names}
    image_column = _column(paths[0], columns, _PARQUET_IMAGE_COLUMNS, "image")
    label_column = _column(paths[0], columns, _PARQUET_LABEL_COLUMNS, "label")
    for path, schema in zip(paths, schemas, strict=True):
        if not {image_column, label_column} <= set(schema.names):
            raise VitkitError(
                f"{path} lacks the columns {image_column} and {label_column} that {paths[0].name} has; "
                f"found {', '.join(schema.names)}. Keep one data set in a folder."
            )
    in_memory = sum(path.stat().st_size for path in paths) <= _PARQUET_IN_MEMORY
    rows = _ParquetRows(root, paths, image_column, in_memory)
    tables = [pq.read_table(path, columns=[label_column], use_threads=False) for path in paths]
    values = np.concatenate([np.array(table.column(0).to_pylist(), dtype=object) for table in tables])
    split_of = np.repeat(split_of_file or _parquet_splits(root, paths), np.diff(rows.file_starts))
    notes = []
    if not in_memory:
        notes.append("The Parquet files are read by row group: in shuffled order that is slow.")

    groups = None if group is None else _parquet_groups(paths, group)
    splits, unlabelled = _labelled(split_of, values)
    if unlabelled:
        notes.append(f"{pluralize(unlabelled, 'row')} without a label ignored.")
    if not splits:
        raise VitkitError(f"{root}: no labelled images in {pluralize(len(paths), 'Parquet file')}.")
    declared = _names_in_metadata(schemas[0].metadata, label_column) or _names_in_readme(root, label_column)
    declared = declared or class_names
    if declared is None or any(isinstance(value, str) for value in values):
        names, listed = _named_by_value(root, splits)
        return Listing("Parquet", names, rows, listed, tuple(notes), groups)
    listed = {split: (where, found.astype(np.int64)) for split, (where, found) in splits.items()}
    labels = np.concatenate([labels for _, labels in listed.values()])
    if labels.min() < 0 or labels.max() >= len(declared):
        raise VitkitError(
            f"{root}: labels from {labels.min()} to {labels.max()}, but {len(declared)} class names "
            f"({join_names(declared)}). The metadata does not belong to these files."
        )
    present = set(labels.tolist())
    absent = [name for number, name in enumerate(declared) if number not in present]
    if absent:
        notes.append(f"{pluralize(len(absent), 'class', 'classes')} without images: {join_names(absent)}.")
    return Listing("Parquet", declared, rows, listed, tuple(notes), groups)


def _parquet_groups(paths: Sequence[Path], group: str) -> NDArray[np.int64]:
    """Number the groups of all rows by the values of a column."""
    import pyarrow.parquet as pq

    names: list[str] = []
    for path in paths:
        column = _group_column(path, {name.lower(): name for name in pq.read_schema(path).names}, group)
        for row, value in enumerate(pq.read_table(path, columns=[column], use_threads=False)[column]):
            names.append(str(value.as_py() if value.is_valid else "").strip())
            if not names[-1]:
                raise VitkitError(f"{path} row {row}: {group} is empty. Fill it.")
    return number_groups(names)


def _labelled(
    split_of: NDArray[Any], values: NDArray[Any]
) -> tuple[dict[str, tuple[NDArray[np.int64], NDArray[Any]]], int]:
    """Group the rows that have a label by split; returns also the number of those without."""
    unlabelled = np.array([value is None or value == -1 for value in values], dtype=bool)
    splits = {
        split: (where, values[where])
        for split, (numbers, _) in _by_split(split_of, values).items()
        for where in [numbers[~unlabelled[numbers]]]
        if len(where)
    }
    return splits, int(unlabelled.sum())


def _check_regular(paths: list[Path]) -> None:
    """Refuse a pipe or a device, which Arrow would wait for."""
    for path in paths:
        try:
            with regular_file(path):
                pass
        except UnreadableFileError as error:
            raise VitkitError(f"{path} cannot be read as Parquet: {error}.") from error


def _parquet_splits(root: Path, paths: list[Path]) -> list[str]:
    """Return the split of each file, from its name (train-00000-of-00004.parquet) or a folder above it."""
    found: list[str | None] = []
    for path in paths:
        words = re.split(r"[-_.]", path.stem.lower())
        folders = [part.lower() for part in reversed(path.relative_to(root).parts[:-1])]
        found.append(next((SPLIT_NAMES[word] for word in (*words, *folders) if word in SPLIT_NAMES), None))
    if not any(found):
        return ["train"] * len(paths)
    unknown = [path.name for path, split in zip(paths, found, strict=True) if split is None]
    if unknown:
        raise VitkitError(
            f"{root}: no split in the name of {join_names(unknown)}. Begin names with train-, "
            "validation- or test-."
        )
    return [split for split in found if split is not None]


def _names_in_metadata(metadata: dict[bytes, bytes] | None, column: str) -> tuple[str, ...] | None:
    """Read class names as the `datasets` library writes them into the schema."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[column]["names"]))
    except (KeyError, TypeError, ValueError):
        return None


def _names_in_readme(root: Path, column: str) -> tuple[str, ...] | None:
    """Read class names from the `dataset_info` block of a data set card, line by line: `'0': airplane`."""
    card = next(
        (folder / "README.md" for folder in (root, root.parent) if (folder / "README.md").is_file()), None
    )
    if card is None:
        return None
    names: dict[int, str] = {}
    feature = ""
    for line in card.read_text(encoding="utf-8", errors="replace").splitlines():
        if match := re.fullmatch(r"\s*- name: (\S+)\s*", line):
            feature = match[1]
        elif feature == column and (match := re.fullmatch(r"\s*['\"]?(\d+)['\"]?: (.+?)\s*", line)):
            names.setdefault(int(match[1]), match[2].strip("'\""))
    return tuple(names[number] for number in sorted(names)) if names else None
