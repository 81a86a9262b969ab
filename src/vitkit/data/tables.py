"""Read lists of images from CSV files, and name splits, columns and classes of tables of every kind."""

import csv
import io
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.data.files import UnreadableFileError, regular_file
from vitkit.data.listing import (
    SPLIT_NAMES,
    SPLITS,
    Listing,
    Paths,
    SplitListing,
    join_names,
    number_groups,
)
from vitkit.errors import VitkitError

_PATH_COLUMNS = ("path", "image", "file", "filename", "image_path")
_LABEL_COLUMNS = ("label", "class", "target")
_LABEL_SET_COLUMNS = ("labels", "classes", "tags", "targets")
_SPLIT_COLUMNS = ("split", "set")


@dataclass(frozen=True)
class CsvRows:
    """The lines of a CSV, column by column."""

    paths: list[str]
    cells: list[str]
    """The contents of the column of labels."""
    lines: list[int]
    """Line numbers, counted from 1, which is the header."""
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
    splits = by_split(rows.split_of, np.array(rows.cells))
    names, labelled = named_by_value(path, splits)
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
            path_column = find_column(path, columns, _PATH_COLUMNS, "path")
            label_column = _label_column(path, columns, several_labels)
            group_column = None if group is None else find_group_column(path, columns, group)
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


def find_group_column(path: Path, columns: dict[str, str], group: str) -> str:
    if group.lower() not in columns:
        raise VitkitError(
            f"{path} has no column {group!r} to keep groups together by (--splits.group), only "
            f"{', '.join(columns)}."
        )
    return columns[group.lower()]


def _label_column(path: Path, columns: dict[str, str], several_labels: bool) -> str:
    if several_labels:
        return find_column(path, columns, (*_LABEL_SET_COLUMNS, *_LABEL_COLUMNS), "label")
    if not columns.keys() & {*_LABEL_COLUMNS} and columns.keys() & {*_LABEL_SET_COLUMNS}:
        raise VitkitError(
            f"{path}: no label column. Expected one of {', '.join(_LABEL_COLUMNS)} in the header line, found "
            f"{', '.join(columns)}. If an image has several labels, give --task multi-label."
        )
    return find_column(path, columns, _LABEL_COLUMNS, "label")


def find_column(path: Path, columns: dict[str, str], wanted: tuple[str, ...], what: str) -> str:
    for name in wanted:
        if name in columns:
            return columns[name]
    raise VitkitError(
        f"{path}: no {what} column. Expected one of {', '.join(wanted)} in the header line, "
        f"found {', '.join(map(str, columns)) or 'nothing'}."
    )


def by_split(
    split_of: NDArray[Any], values: NDArray[Any]
) -> dict[str, tuple[NDArray[np.int64], NDArray[Any]]]:
    """Group the numbers of files and the values of labels by split."""
    numbers = {split: np.flatnonzero(split_of == split) for split in SPLITS}
    return {split: (where, values[where]) for split, where in numbers.items() if len(where)}


def named_by_value(
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
