"""Read images and labels from Parquet files in the layout of Hugging Face data sets."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.decode import DecodeError
from vitkit.data.files import UnreadableFileError, regular_file
from vitkit.data.listing import (
    SPLIT_NAMES,
    Listing,
    SplitListing,
    join_names,
    number_groups,
    pluralize,
)
from vitkit.data.tables import by_split, find_column, find_group_column, named_by_value
from vitkit.errors import VitkitError

_PARQUET_IMAGE_COLUMNS = ("image", "img", "images")
_PARQUET_LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")
_PARQUET_IN_MEMORY = 2 << 30  # bytes of Parquet files


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
    image_column = find_column(paths[0], columns, _PARQUET_IMAGE_COLUMNS, "image")
    label_column = find_column(paths[0], columns, _PARQUET_LABEL_COLUMNS, "label")
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
    """Take the labels of each split for numbers of classes.

    Raises:
        VitkitError: there are not as many names.
    """
    listed: dict[str, SplitListing] = {
        split: (where, found.astype(np.int64)) for split, (where, found) in splits.items()
    }
    labels = np.concatenate([labels for _, labels in listed.values()])
    if labels.min() < 0 or labels.max() >= len(names):
        raise VitkitError(
            f"{root}: labels from {labels.min()} to {labels.max()}, but {len(names)} class names "
            f"({join_names(names)}). The metadata does not belong to these files."
        )
    return listed


def _parquet_groups(paths: Sequence[Path], group: str) -> NDArray[np.int64]:
    """Number the groups of all rows by the values of a column."""
    import pyarrow.parquet as pq

    names: list[str] = []
    for path in paths:
        column = find_group_column(path, {name.lower(): name for name in pq.read_schema(path).names}, group)
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
        for split, (numbers, _) in by_split(split_of, values).items()
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
