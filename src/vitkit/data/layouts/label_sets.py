"""List images with several labels each, or none: from the cells of a CSV, or from a text file per image.

The labels of N images and K names are an array `(N, K)` of bool.
"""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from vitkit.data.files import damage_explained, read_unchanged_file
from vitkit.data.layouts import folders, tables
from vitkit.data.listing import SPLIT_NAMES, Files, Listing, Paths, files_below
from vitkit.errors import VitkitError
from vitkit.text import join_names, pluralize

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
    counts = labels.sum(0) if labels.ndim == 2 else np.bincount(labels, minlength=classes)
    return list(map(int, counts))


def list_csv_of_sets(path: Path, separator: str | None, group: str | None = None) -> Listing:
    """List the images of a CSV: a header, then one image a line with path, labels and perhaps split.

    Paths are below the folder of the CSV.

    Args:
        path: the file.
        separator: the text between the labels of a cell; None: whichever of `SEPARATORS` the cells hold.
        group: the column of the images' groups; None: there is none.

    Raises:
        VitkitError: it cannot be read, names an image twice, has both separators, or no label.
    """
    rows = tables.read_csv(path, several_labels=True, group=group)
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
            tables.check_label(f"{path} line {line}", label)
    listing = _listing(path, "CSV with several labels an image", rows.files(path), sets, rows.split_of, notes)
    return replace(listing, groups=rows.groups)


def list_label_files(root: Path, separator: str | None) -> Listing:
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
    text_files = files_below(root, lambda name: name.endswith(".txt"))
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
        notes.append(
            f"{pluralize(len(spare), 'text file')} without an image ignored: {join_names(sorted(spare), 3)}."
        )
    above = [posixpath.dirname(image.lower().removeprefix("images/")) for image, _ in pairs]
    split_of = np.array([SPLIT_NAMES.get(folder.partition("/")[0], "") for folder in above])
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
    files = Paths(root, (image for image, _ in pairs))
    return _listing(root, "folder of images with label files", files, sets, split_of, notes)


def refuse_single_labels(spec: str, listing: Listing) -> None:
    """Refuse training images that have exactly one label each.

    Raises:
        VitkitError: each image has one label; this is ordinary classification.
    """
    labels = np.concatenate([labels for _, labels in listing.splits.values()])
    if (labels.sum(1) != 1).any():
        return
    hint = ""
    names = listing.class_names
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
            tables.check_label(f"{path} line {number}", label)
        labels += of_line
    if (boxes := next((label for label in labels if _BOX.fullmatch(label)), None)) is not None:
        raise VitkitError(
            f"{path} holds boxes ({boxes[:60]!r}), as for detection; expected one label a line. Write "
            "the names of the classes alone."
        )
    return labels


def _listing(
    path: Path, kind: str, files: Files, sets: list[list[str]], split_of: NDArray[np.str_], notes: list[str]
) -> Listing:
    """Number the labels, and put the rows of each split together."""
    numbers = {split: rows for split, (rows, _) in tables.by_split(split_of, split_of).items()}
    values = {
        split: {label for row in rows.tolist() for label in sets[row]} for split, rows in numbers.items()
    }
    if not (names := tables.name_labels(path, values)):
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
    return Listing(kind, names, files, splits, tuple(notes))
