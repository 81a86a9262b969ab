"""Read lists of images with class numbers, the layout in which VTAB-1k is passed around.

A folder holds train800.txt, val200.txt, train800val200.txt (both together) and test.txt, with lines such as
`images/train800/000000.jpg 7` (NOAH `data/vtab-source/get_vtab1k.py`); or Parquet files of these names. The
folder stands for 800 training, 200 validation and the test images. The path of train800val200.txt in it
stands for all 1,000 training images and the test images, that of train800.txt for 800 and 200 images without
the test images, which a search for options must not see.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vitkit.data.files import UnreadableFileError, regular_file
from vitkit.data.layouts import parquet, vtab_tasks
from vitkit.data.listing import SPLIT_NAMES, Listing, Paths, SplitListing, Texts, check_below
from vitkit.errors import VitkitError

LISTS = ("train800", "val200", "train800val200", "test")
_STAGES = {
    "train800": {"train": "train800", "val": "val200"},
    "train800val200": {"train": "train800val200", "test": "test"},
    "val200": {"val": "val200"},
    "test": {"test": "test"},
}
"""The splits that the path of a list stands for, and the list of each."""
_LINE = "a path and a class number with a space between, such as images/train800/000000.jpg 7"
_LARGEST_LABEL = 1 << 20
"""The largest class number: the largest data sets have some tens of thousands of classes."""


def list_of(path: Path) -> str | None:
    """Return the name of the list that a file holds, such as "train800"; None if it holds no list.

    A test.txt or test.parquet is a list only beside a training list. The name of a text file must be that of
    a list; the name of a Parquet file begins with it.
    """
    if path.is_dir():
        return None
    name, kind = _list_name(path), path.suffix.lower()
    if name is not None and kind == ".txt":
        return name if path.name == f"{name}.txt" and holds_lists(path.parent) else None
    may_be = name is not None and kind == ".parquet"
    return name if may_be and holds_split_parquets(tuple(path.parent.glob("*.parquet"))) else None


def holds_lists(folder: Path) -> bool:
    """Whether a folder holds a list of training images as text."""
    return any((folder / f"{name}.txt").is_file() for name in ("train800", "train800val200"))


def holds_split_parquets(paths: Sequence[Path]) -> bool:
    """Whether Parquet files hold the splits of VTAB-1k, by their names."""
    return not {"train800", "train800val200"}.isdisjoint(map(_list_name, paths))


def find_lists(folder: Path) -> dict[str, Path]:
    """Return the lists of a folder by name: text files in it, or else the first Parquet file of each."""
    texts = {name: folder / f"{name}.txt" for name in LISTS if os.path.lexists(folder / f"{name}.txt")}
    if texts:
        return texts
    files = dict[str, Path]()
    for path in sorted((*folder.glob("*.parquet"), *folder.glob("data/*.parquet"))):
        if (name := _list_name(path)) is not None:
            files.setdefault(name, path)
    return files


def find_usual_splits(folder: Path) -> set[str]:
    """Return the splits of Parquet files with the usual names, train-, validation- or val-, and test-."""
    paths = (*folder.glob("*.parquet"), *folder.glob("data/*.parquet"))
    prefixes = {re.split(r"[-_.]", path.name.lower())[0] for path in paths}
    return {SPLIT_NAMES[prefix] for prefix in prefixes if prefix in SPLIT_NAMES}


def list_split_lists(folder: Path, stage: str | None = None) -> Listing:
    """List the images of a folder of lists.

    Args:
        folder: holds the lists; the paths in them are below it.
        stage: the list whose path was given; None: the folder's path was.

    Raises:
        VitkitError: a list is missing or malformed; the error names file and line.
    """
    lists = {name: _read_list(path) for name, path in find_lists(folder).items()}
    _refuse_shared_images(folder, lists)
    _refuse_missing_images(folder, lists)
    names, notes = _class_names(folder, lists), list[str]()
    paths, splits = list[str](), dict[str, SplitListing]()
    for split, name in _splits(stage, lists).items():
        labels = [label for label, _ in lists[name].values()]
        splits[split] = (np.arange(len(paths), len(paths) + len(labels)), np.array(labels, np.int64))
        paths += lists[name]
        if (shown := len(set(labels))) < len(names) and split == "train":
            notes.append(f"{name}.txt has images of {shown:,} of {len(names):,} classes.")
    return Listing("lists of images", names, Paths(folder, Texts(paths)), splits, tuple(notes))


def list_split_parquets(
    folder: Path, paths: Sequence[Path], stage: str | None = None, group: str | None = None
) -> Listing:
    """List the images of Parquet files whose names begin with the name of a list.

    Args:
        folder: above the files; it may have the name of a task of VTAB-1k.
        paths: files; those that hold no list are passed over.
        stage: the list of the file whose path was given; None: the folder's path was.
        group: a column that says which images stay in one split, where one has to be cut.
    """
    of_list = {name: [path for path in paths if _list_name(path) == name] for name in LISTS}
    lists = {name: files for name, files in of_list.items() if files}
    files = [(path, split) for split, name in _splits(stage, lists).items() for path in lists[name]]
    here = folder.resolve()  # "." has no name
    task = vtab_tasks.task_of_folder(here.name) or vtab_tasks.task_of_folder(here.parent.name)
    names = None if task is None else tuple(map(str, range(task.classes)))
    parquets, split_of = [path for path, _ in files], [split for _, split in files]
    return parquet.list_parquet(folder, parquets, split_of, names, group)


def _list_name(path: Path) -> str | None:
    """Return the name of a list that a file name begins with: train800-00000-of-00001.parquet is train800."""
    word = re.split(r"[-_.]", path.name.lower())[0]
    return word if word in LISTS else None


def _splits(stage: str | None, lists: Mapping[str, object]) -> dict[str, str]:
    """Choose, among existing `lists`, the list of each split that a folder or a list's path stands for."""
    chosen = dict(_STAGES[stage or ("train800" if "train800" in lists else "train800val200")])
    if stage is None:  # the path of train800.txt stands for a search, which must not see the test images
        chosen["test"] = "test"
    return {split: name for split, name in chosen.items() if name in lists}


_List = dict[str, tuple[int, int]]
"""The lines of a list: the class number and the number of the line of each image, by its path."""


def _read_list(path: Path) -> _List:
    """Read a list. Raises VitkitError: it cannot be read, is empty or has a malformed line."""
    entries = _List()
    try:
        with regular_file(path) as file:
            for number, content in enumerate(file, start=1):
                where = f"{path} line {number}"
                try:
                    line = content.decode("utf-8-sig")  # Windows puts a byte order mark before the first one
                except UnicodeDecodeError as error:
                    raise VitkitError(
                        f"{where} is no text in UTF-8: {error}. Save the list again as UTF-8."
                    ) from error
                if not line.strip():
                    continue
                name, label = _parsed(where, path.parent, line)
                if name in entries:
                    raise VitkitError(
                        f"{where}: {name} is in line {entries[name][1]} already. Remove one of the two lines."
                    )
                entries[name] = label, number
    except UnreadableFileError as error:
        raise VitkitError(f"{path} cannot be read as a list of images: {error}.") from error
    if not entries:
        raise VitkitError(f"{path} is empty: expected lines of {_LINE}.")
    return entries


def _parsed(where: str, folder: Path, line: str) -> tuple[str, int]:
    """Return path and class number of a line; the path, below the folder, may hold spaces."""
    parts = line.rsplit(maxsplit=1)
    if len(parts) != 2 or "\0" in line:  # no path has a zero byte, and the system would not say which line
        raise VitkitError(f"{where}: expected {_LINE}, found {line.strip()[:80]!r}.")
    name, label = parts[0].strip(), parts[1]
    if not re.fullmatch(r"[0-9]{1,7}", label) or int(label) > _LARGEST_LABEL:
        raise VitkitError(
            f"{where}: expected a class number, a whole number from 0, after the path, found {label[:40]!r}. "
            "Correct the line."
        )
    check_below(where, folder, name)
    return os.path.normpath(name), int(label)


def _refuse_shared_images(folder: Path, lists: Mapping[str, _List]) -> None:
    """Refuse an image that is both trained on and tested on. train800val200 repeats two other lists."""
    for trained, other in (("train800", "val200"), *((name, "test") for name in LISTS[:3])):
        for name, (_, line) in lists.get(other, {}).items():
            if name in lists.get(trained, {}):
                raise VitkitError(
                    f"{folder / other}.txt line {line}: {name} is in {trained}.txt line "
                    f"{lists[trained][name][1]} too, so that {other} images would be trained on. Remove it "
                    "from one of the two lists."
                )


def _refuse_missing_images(folder: Path, lists: Mapping[str, _List]) -> None:
    """Refuse the first line whose image is missing."""
    for list_name, entries in lists.items():
        for path, (_, line) in entries.items():
            if not os.path.lexists(folder / path):
                raise VitkitError(
                    f"{folder / list_name}.txt line {line}: there is no image {folder / path}. Paths are "
                    "below the folder of the list: unpack the images there."
                )


def _class_names(folder: Path, lists: Mapping[str, _List]) -> tuple[str, ...]:
    """Name the classes by their numbers, and refuse numbers that no class can have.

    VTAB's tasks have a given number of classes, and their 1,000 images lack some classes. Elsewhere the
    numbers of all lists together must have no gap, which would be a class without images.
    """
    task = vtab_tasks.task_of_folder(folder.resolve().name)
    first = dict[int, str]()
    for name, entries in lists.items():
        for label, line in entries.values():
            first.setdefault(label, f"{folder / name}.txt line {line}")
    largest = max(first)
    if task is not None:
        if largest >= task.classes:
            raise VitkitError(
                f"{first[largest]}: the class number is {largest}, but {task.title} has {task.classes} "
                f"classes, from 0 to {task.classes - 1}. Correct the line, or rename the folder if it holds "
                "other images."
            )
        return tuple(map(str, range(task.classes)))
    if (gap := next((label for label in range(largest + 1) if label not in first), None)) is not None:
        above = min(label for label in first if label > gap)
        raise VitkitError(
            f"{first[above]}: the class number is {above}, but no line of the lists has {gap}. Number the "
            "classes from 0 without a gap."
        )
    return tuple(map(str, range(largest + 1)))
