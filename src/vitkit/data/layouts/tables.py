"""Read lists of images with a label each, or with several or none: from the cells of CSV files, or from text
files, one for each image; and name columns and classes of tables of every kind.

A table may come from a stranger: its paths stay below its folder, and its labels are short names.

Several labels of N images, of K names, are an array `(N, K)` of bool.
"""

import csv
import io
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from vitkit.data import listing
from vitkit.data.files import UnreadableFileError, damage_explained, read_unchanged_file, regular_file
from vitkit.data.layouts import folders
from vitkit.errors import VitkitError
from vitkit.text import join_names, pluralize, read_csv_cell, visible

_PATH_COLUMNS = (
    *("path", "image", "file", "filename", "image_path", "file_name", "filepath", "file_path"),
    *("img", "img_path", "image_file", "image_name", "image_filename"),
)
LABEL_COLUMNS = (
    *("label", "class", "target", "class_name", "label_name", "category", "category_name"),
    *("classname", "class_label"),
)
_LABEL_SET_COLUMNS = ("labels", "classes", "tags", "targets", "categories")
_SPLIT_COLUMNS = ("split", "set")
_BOX_COLUMNS = {"bbox", "box", "boxes", "xmin", "ymin", "xmax", "ymax", "x_min", "y_min", "x_max", "y_max"}
"""Columns of lists for detection."""
LONGEST_LABEL = 1000
"""Characters of a label. A longer one is no name: a quotation mark is open, or this is another column."""
_LONGEST_LINE = 1 << 20
"""Characters of a line of a CSV; a file without line breaks would fill the memory."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # C0, DEL and C1, line breaks and tabs among them


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
    """`(N,)` numbers of groups; None where no column of groups was given."""
    notes: tuple[str, ...] = ()
    """Sentences about how the paths and columns were read."""

    def files(self, path: Path) -> listing.Paths:
        """Return the image files, whose paths are below the folder of the CSV at `path`."""
        prefixes = listing.Texts(f"{path.name} line {line}: " for line in self.lines)
        return listing.Paths(path.parent, listing.Texts(self.paths), prefixes)


def list_csv(path: Path, group: str | None = None, labelled: bool = True) -> listing.Listing:
    """List the images of a CSV: a header, then one image a line with path, label and perhaps split.

    Paths are below the folder of the CSV. Unless `labelled`, no labels are read, and all are the same.
    """
    rows = read_csv(path, group=group, labelled=labelled)
    # Not as an array of text, in which every cell would be as wide as the longest.
    splits = listing.by_split(rows.split_of, np.array(rows.cells, dtype=object))
    names, numbered = named_by_value(path, splits)
    return listing.Listing("CSV", names, rows.files(path), numbered, rows.notes, rows.groups)


def check_label(where: str, label: str, longest: int = LONGEST_LABEL) -> None:
    """Refuse a label that cannot be a name.

    Args:
        where: the file and the line or row, for the message.
        label: from a table or a text file.
        longest: the most characters that it may have.

    Raises:
        VitkitError: it is longer, or holds a control character.
    """
    if (control := _CONTROL.search(label)) is None and len(label) <= longest:
        return
    shown = visible(label[:40])
    if control is not None and control[0] in "\r\n":
        raise VitkitError(
            f"{where}: a line break within the label '{shown}'. A quotation mark (\") that is not closed "
            "takes the lines behind it into its cell: close it, or remove it."
        )
    if control is not None:
        raise VitkitError(
            f"{where}: the label '{shown}' holds a control character ({visible(control[0])}). Remove it."
        )
    raise VitkitError(
        f"{where}: a label of {len(label):,} characters, which begins with '{shown}'; expected at most "
        f'{longest:,}. Is a quotation mark (") left open before it, or is this another column?'
    )


def read_csv(
    path: Path, several_labels: bool = False, group: str | None = None, labelled: bool = True
) -> CsvRows:
    """Read the lines of a CSV of images.

    Args:
        path: the file.
        several_labels: whether a cell holds several labels, or none; its column may then have a name in the
            plural.
        group: the column that says what an image belongs to; None: there is none.
        labelled: whether a column of labels is read.

    Raises:
        VitkitError: it is no CSV in UTF-8, lacks a column or has one twice, has an empty path or label, a
            path out of its folder, or an unknown split. With several labels also: a line has more cells than
            the header, as where labels are separated by the delimiter of the cells.
    """
    table, split_of, groups = CsvRows([], [], [], np.empty(0)), list[str](), list[str]()
    slashes, tall, line = 0, list[int](), 1
    try:
        with regular_file(path) as file, io.TextIOWrapper(file, newline="", encoding="utf-8-sig") as stream:
            first = stream.readline(_LONGEST_LINE)
            delimiter = max(",;\t", key=first.count)
            stream.seek(0)
            # Strict, so that a quotation mark that is not closed is an error and not the rest of the file.
            rows = csv.reader(_lines(path, stream), delimiter=delimiter, strict=True)
            header = next(rows, [])
            columns = _columns(path, header)
            path_at = header.index(find_column(path, columns, _PATH_COLUMNS, "path"))
            label_at = None
            if labelled:
                names = (*_LABEL_SET_COLUMNS, *LABEL_COLUMNS) if several_labels else LABEL_COLUMNS
                several = bool(columns.keys() & {*_LABEL_SET_COLUMNS})
                label_at = header.index(find_column(path, columns, names, "label", several))
            split_at = next((header.index(columns[name]) for name in _SPLIT_COLUMNS if name in columns), None)
            group_at = None if group is None else header.index(find_group_column(path, columns, group))
            line, prefix, folder = rows.line_num + 1, f"{path} line ", path.parent
            for row in rows:
                where = f"{prefix}{line}"
                if rows.line_num > line:  # a cell holds line breaks
                    tall.append(line)
                line = rows.line_num + 1
                if not row:  # a blank line
                    continue
                name, label = _cell(row, path_at), "" if label_at is None else _cell(row, label_at)
                if not name or not (label or several_labels or not labelled):
                    raise VitkitError(f"{where}: path or label is empty. Fill it or remove it.")
                check_label(where, label, csv.field_size_limit() if several_labels else LONGEST_LABEL)
                if several_labels and len(row) > len(header):
                    raise VitkitError(
                        f"{where}: expected {len(header)} cells as in the header, found {len(row)}. Put the "
                        "labels of an image into one cell, and separate them by another character than "
                        f"{delimiter!r}, or quote them."
                    )
                if group_at is not None:
                    groups.append(_cell(row, group_at))
                    if not groups[-1]:
                        raise VitkitError(f"{where}: {group} is empty. Fill it.")
                below = _path_below(where, folder, name)
                slashes += below != name
                table.paths.append(below)
                table.cells.append(label)
                table.lines.append(rows.line_num)
                split_of.append("train" if split_at is None else _cell(row, split_at).lower())
    except UnreadableFileError as error:
        raise VitkitError(f"{path} cannot be read as a CSV: {error}.") from error
    except UnicodeDecodeError as error:
        raise VitkitError(f"{path} is not a CSV in UTF-8: {error}. Save it again as CSV UTF-8.") from error
    except csv.Error as error:
        raise VitkitError(
            f'{path} line {line}: the cells cannot be told apart ({error}). A quotation mark (") that '
            "begins a cell has to end it, and one within is written twice: correct this line."
        ) from error
    if not table.paths:
        raise VitkitError(f"{path} has a header but no lines: there are no images.")
    if unknown := sorted(set(split_of) - set(listing.SPLIT_NAMES)):
        shown = join_names([visible(name[:40]) for name in unknown])
        raise VitkitError(f"{path}: unknown split {shown}; expected train, val or test.")
    notes = []
    for place, usual, what in ((path_at, _PATH_COLUMNS, "paths"), (label_at, LABEL_COLUMNS, "labels")):
        read = None if place is None else header[place]
        others = [columns[name] for name in usual if name in columns and columns[name] != read]
        if read is not None and others:
            notes.append(f"The {what} are read from the column {read}; not read: {join_names(others)}.")
    if boxes := [name for plain, name in columns.items() if plain in _BOX_COLUMNS]:
        notes.append(
            f"Columns of boxes are not read ({join_names(boxes)}): one label for a whole image is learned. "
            "Cut the boxes out into images of their own where each has a label."
        )
    if slashes:
        notes.append(f"{pluralize(slashes, 'path')} with \\ read with /, as the files are named here.")
    if tall:
        lines = pluralize(len(tall), "image of several lines", "images of several lines each")
        notes.append(f'{lines}, the first in line {tall[0]}: is a quotation mark (") left open there?')
    named = np.array([listing.SPLIT_NAMES[name] for name in split_of])
    numbered = None if group is None else listing.number_groups(groups)
    return replace(table, split_of=named, groups=numbered, notes=tuple(notes))


def _cell(row: Sequence[str], place: int) -> str:
    """Return a cell of a row; an empty one where the row is too short."""
    return read_csv_cell(row[place].strip()) if place < len(row) else ""


def _lines(path: Path, stream: TextIO) -> Iterator[str]:
    """Yield the lines of a CSV. Raises VitkitError for a line that is too long."""
    number = 0
    while line := stream.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise VitkitError(
                f"{path} line {number} has more than {_LONGEST_LINE:,} characters: this is no CSV of images."
            )
        yield line


def _columns(path: Path, header: Sequence[str]) -> dict[str, str]:
    """Return the names of the columns as the file has them, by their plain names."""
    plain = [plain_name(name) for name in header]
    if twice := sorted({name for name in plain if name and plain.count(name) > 1}):
        raise VitkitError(
            f"{path}: the header has several columns of the name "
            f"{join_names([visible(name[:80]) for name in twice])}. Rename or remove all but one of each."
        )
    return dict(zip(plain, header, strict=True))


def _path_below(where: str, folder: Path, name: str) -> str:
    """Return a path of a table, with / in place of backslashes where only that file exists."""
    if "\0" in name or "\n" in name or "\r" in name:
        raise VitkitError(
            f"{where}: the path '{visible(name[:80])}' holds a zero byte or a line break. Is a quotation "
            'mark (") left open?'
        )
    listing.check_below(where, folder, name)
    if "\\" not in name or os.path.lexists(folder / name):
        return name
    slashed = name.replace("\\", "/")
    listing.check_below(where, folder, slashed)
    return slashed if os.path.lexists(folder / slashed) else name


def plain_name(name: str) -> str:
    """Return the name of a column in lower case and with underscores: "File Name" is "file_name"."""
    return re.sub(r"[ -]", "_", name.strip().lower())


def find_group_column(path: Path, columns: dict[str, str], group: str) -> str:
    name = next((name for name in (group.lower(), plain_name(group)) if name in columns), None)
    if name is None:
        raise VitkitError(
            f"{path} has no column {group!r} to keep groups together by (--splits.group), only "
            f"{_shown(columns)}."
        )
    return columns[name]


def _shown(columns: Mapping[str, str]) -> str:
    return join_names([visible(name[:80]) for name in columns], 30)


def find_column(
    path: Path, columns: dict[str, str], names: tuple[str, ...], what: str, several: bool = False
) -> str:
    """Return the first column that has one of these names.

    Raises:
        VitkitError: there is none; where `several`, one that may hold several labels an image.
    """
    for name in names:
        if name in columns:
            return columns[name]
    raise VitkitError(
        f"{path}: no {what} column. Expected one of {', '.join(dict.fromkeys(names))}, found "
        f"{_shown(columns) or 'nothing'}. "
        + (
            "If an image has several labels, give --task multi-label."
            if several
            else f"Rename the {what} column."
        )
    )


def named_by_value(
    path: Path, splits: dict[str, tuple[NDArray[np.int64], NDArray[Any]]]
) -> tuple[tuple[str, ...], dict[str, listing.SplitListing]]:
    """Make class names of the values of the labels, and number the labels by them."""
    names = name_labels(path, {split: set(map(str, labels)) for split, (_, labels) in splits.items()})
    number_of = {name: number for number, name in enumerate(names)}
    return names, {
        split: (rows, np.array([number_of[str(label)] for label in labels], dtype=np.int64))
        for split, (rows, labels) in splits.items()
    }


def name_labels(path: Path, values: Mapping[str, Set[str]]) -> tuple[str, ...]:
    """Sort the labels of all splits: as numbers if all are whole numbers, else as text.

    Raises:
        VitkitError: a split has labels that the training images lack, if there are training images.
    """
    every = set().union(*values.values())
    numeric = all(re.fullmatch(r"[+-]?\d+", value) for value in every)
    names = tuple(sorted(every, key=lambda name: (int(name), name)) if numeric else sorted(every))
    for split in values:
        unknown = [name for name in names if name in values[split] and name not in values.get("train", every)]
        if unknown:
            raise VitkitError(
                f"{path}: {split} has labels that train lacks: {join_names(unknown)}. "
                "Add training images of these classes, or remove the lines."
            )
    return names


LAYOUTS = (
    'Several labels an image come from a .csv with columns path and labels ("cat;dog"; an empty cell: none), '
    "or from a folder with a text file for each image (x.jpg and x.txt beside it, or images/x.jpg and "
    "labels/x.txt), one label a line."
)
SEPARATORS = (";", "|")
"""Separators that are detected; commas and spaces occur within many labels and have to be given."""
_LARGEST_LABEL_FILE = 1 << 20  # bytes
_BOX = re.compile(r"\S+(\s+[\d.eE+-]+){4,}")  # a line of YOLO: class, then the corners of a box


def count_labels(labels: NDArray[np.int64] | NDArray[np.bool_], classes: int) -> list[int]:
    """Count the images of each class.

    Args:
        labels: `(N,)` class numbers, or `(N, K)` where an image has several.
        classes: K.
    """
    return list(map(int, labels.sum(0) if labels.ndim == 2 else np.bincount(labels, minlength=classes)))


def list_csv_of_sets(path: Path, separator: str | None, group: str | None = None) -> listing.Listing:
    """List the images of a CSV: a header, then one image a line with path, labels and perhaps split.

    Paths are below the folder of the CSV.

    Args:
        path: the file.
        separator: the text between the labels of a cell; None: whichever of `SEPARATORS` the cells hold.
        group: the column of the images' groups; None: there is none.

    Raises:
        VitkitError: it cannot be read, names an image twice, has both separators, or no label.
    """
    rows = read_csv(path, several_labels=True, group=group)
    line_of: dict[str, int] = {}
    for name, line in zip(rows.paths, rows.lines, strict=True):
        if (before := line_of.setdefault(posixpath.normpath(name), line)) != line:
            raise VitkitError(
                f"{path}: {name} is listed twice, in lines {before} and {line}. Put all labels of an image "
                'into one cell ("cat;dog"), and list it once.'
            )
    notes = list(rows.notes)
    if separator is None:
        present = [mark for mark in SEPARATORS if any(mark in cell for cell in rows.cells)]
        if len(present) > 1:
            raise VitkitError(
                f"{path}: cells of labels hold both {' and '.join(map(repr, present))}. Say which character "
                f"separates labels, with --splits.label-separator {present[0]!r}."
            )
        if present:
            separator = present[0]
            notes.append(f"Labels are separated by {separator!r}, which the cells hold.")
    sets = [_without_empty(cell.split(separator) if separator else [cell]) for cell in rows.cells]
    for line, labels in zip(rows.lines, sets, strict=True):
        for label in labels:
            check_label(f"{path} line {line}", label)
    kind = "CSV with several labels an image"
    listed = _listing(path, kind, rows.files(path), sets, rows.split_of, notes)
    return replace(listed, groups=rows.groups)


def list_label_files(root: Path, separator: str | None) -> listing.Listing:
    """List images with a text file each: beside them, or in a folder `labels` parallel to theirs.

    Folders train, val and test, at the top or below `images`, are splits. Images without a text file are left
    out, as their labels are unknown; an empty file stands for no labels.

    Args:
        root: the folder.
        separator: the text between the labels of a line; None: a line is a label.

    Raises:
        VitkitError: no image has a text file, or one cannot be read or holds boxes.
    """
    images = [path.relative_to(root).as_posix() for path in folders.image_files(root)]
    text_files = listing.files_below(root, lambda name: name.endswith(".txt"))
    texts = {path.relative_to(root).as_posix() for path in text_files}
    pairs = [(image, text) for image in images if (text := _text_of(image, texts)) is not None]
    if not pairs:
        raise VitkitError(
            f"{root}: none of {pluralize(len(images), 'image')} has a text file with its labels. {LAYOUTS}"
        )
    notes = []
    if without := len(images) - len(pairs):
        notes.append(
            f"{pluralize(without, 'image')} without a file of labels ignored (an image without labels needs "
            "an empty file)."
        )
    if spare := texts - {text for _, text in pairs}:
        unused, names = pluralize(len(spare), "text file"), join_names(sorted(spare), 3)
        notes.append(f"{unused} without an image ignored: {names}.")
    above = [posixpath.dirname(image.lower().removeprefix("images/")) for image, _ in pairs]
    split_of = np.array([listing.SPLIT_NAMES.get(folder.partition("/")[0], "") for folder in above])
    if (outside := int((split_of == "").sum())) == len(pairs):  # no folder names a split
        split_of = np.full(len(pairs), "train")
    elif outside:
        notes.append(f"{pluralize(outside, 'image')} outside train/, val/ and test/ ignored.")
    sets = [_read_labels(root / text, separator) for _, text in pairs]
    suspects = [mark for mark in SEPARATORS if any(mark in label for labels in sets for label in labels)]
    if suspects:
        notes.append(
            f"Some labels hold {' and '.join(map(repr, suspects))}: if that separates labels, give it with "
            "--splits.label-separator."
        )
    files = listing.Paths(root, listing.Texts(image for image, _ in pairs))
    return _listing(root, "folder of images with label files", files, sets, split_of, notes)


def refuse_single_labels(spec: str, listed: listing.Listing) -> None:
    """Refuse training images that have exactly one label each.

    Raises:
        VitkitError: each image has one label; this is ordinary classification.
    """
    labels = np.concatenate([labels for _, labels in listed.splits.values()])
    if (labels.sum(1) != 1).any():
        return
    hint = ""
    names = listed.class_names
    if marks := [mark for mark in (*SEPARATORS, ",", "/", " ") if any(mark in name for name in names)]:
        hint = f" If a character separates labels, name it, say --splits.label-separator {marks[0]!r}."
    raise VitkitError(
        f"{spec}: every image has a single label, such as {names[0]!r}; expected some images with several "
        f"labels, or with none. This is ordinary classification: leave out --task multi-label.{hint}"
    )


def _without_empty(labels: Sequence[str]) -> list[str]:
    """Strip labels, and drop empty ones, such as the one after a last separator."""
    return [stripped for label in labels if (stripped := label.strip())]


def _text_of(image: str, texts: set[str]) -> str | None:
    """Find the text file of an image.

    It is beside the image, in `labels` below or beside its folder, or in a folder `labels` in the place
    of the folder `images` that the image is in.
    """
    beside = PurePosixPath(image).with_suffix(".txt")
    candidates = [beside, beside.parent / "labels" / beside.name]
    if len(beside.parts) > 1:
        candidates.append(beside.parent.parent / "labels" / beside.name)
    if "images" in beside.parts[:-1]:
        at = beside.parts.index("images")
        candidates.append(PurePosixPath(*beside.parts[:at], "labels", *beside.parts[at + 1 :]))
    return next((text for candidate in candidates if (text := candidate.as_posix()) in texts), None)


def _read_labels(path: Path, separator: str | None) -> list[str]:
    with damage_explained(path, "a text of labels", "Save it again as UTF-8"):
        text = read_unchanged_file(path, _LARGEST_LABEL_FILE).decode("utf-8-sig")
    labels = list[str]()
    # Not by splitlines, which also ends a line at characters that may stand within a name (U+2028).
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        of_line = _without_empty(line.split(separator) if separator else [line])
        for label in of_line:
            check_label(f"{path} line {number}", label)
        labels += of_line
    if (boxes := next((label for label in labels if _BOX.fullmatch(label)), None)) is not None:
        raise VitkitError(
            f"{path} holds boxes ({boxes[:60]!r}), as for detection; expected one label a line. Write "
            "the names of the classes alone."
        )
    return labels


def _listing(
    path: Path,
    kind: str,
    files: listing.Files,
    sets: list[list[str]],
    split_of: NDArray[np.str_],
    notes: list[str],
) -> listing.Listing:
    """Number the labels, and put the rows of each split together."""
    numbers = {split: rows for split, (rows, _) in listing.by_split(split_of, split_of).items()}
    values = {name: {each for row in rows.tolist() for each in sets[row]} for name, rows in numbers.items()}
    if not (names := name_labels(path, values)):
        raise VitkitError(f"{path}: no image has a label, so there is nothing to learn. {LAYOUTS}")
    number_of = {name: number for number, name in enumerate(names)}
    labels = np.zeros((len(sets), len(names)), dtype=bool)
    for row, image_labels in enumerate(sets):
        labels[row, [number_of[label] for label in image_labels if label in number_of]] = True
    if repeated := sum(len(image_labels) != len(set(image_labels)) for image_labels in sets):
        notes.append(f"{pluralize(repeated, 'image')} with a label twice: it counts once.")
    used = labels[np.concatenate(list(numbers.values()))]
    none = int((~used.any(1)).sum())
    notes.append(
        f"{used.sum() / len(used):.2f} labels an image"
        + (f"; {pluralize(none, 'image has', 'images have')} none." if none else ".")
    )
    splits = {split: (rows, labels[rows]) for split, rows in numbers.items()}
    return listing.Listing(kind, names, files, splits, tuple(notes))
