"""List folders of class folders, alone or below train/, val/ and test/."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitkit.data.listing import (
    PARTS_RECORD,
    SPLIT_NAMES,
    SPLITS,
    Files,
    Listing,
    Paths,
    SplitListing,
    files_below,
    is_ignored,
    number_groups,
)
from vitkit.data.paths import LAYOUTS
from vitkit.errors import VitkitError
from vitkit.text import join_names, pluralize

# TGA cannot be decoded, nor HEIC without its extra; they are listed, to be reported as bad files.
IMAGE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff",
    ".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".jp2", ".j2k", ".jpx", ".avif", ".ico", ".qoi", ".sgi", ".rgb",
    ".heic", ".heif", ".tga",
})  # fmt: skip


def list_folders(root: Path, partial: bool, group: str | None = None) -> Listing:
    """List class folders, or split folders (train/, val/, test/) of class folders.

    Args:
        root: the folder.
        partial: whether the classes are a trained model's, so that some of them, or train/, may be missing.
        group: the level of folders below the class folders that keeps images together: "1", "2".
    """
    with os.scandir(root) as entries:
        folders = sorted(entry.name for entry in entries if _is_folder(entry) and not is_ignored(entry.name))
    roots, not_splits = split_roots(root, folders)
    scans = {split: _ClassFolders(folder) for split, folder in roots.items()}
    kind, files = "folder of class folders", lambda paths: Paths(root, paths)
    return list_classes(root, kind, scans, not_splits, files, partial, group)


def split_roots(root: Path, folders: list[str]) -> tuple[dict[str, Path], list[str]]:
    """Tell the folders of splits in the root from its other folders.

    Returns:
        The folder of each split, and the names of the other folders.
    """
    split_folders = {SPLIT_NAMES[name.lower()]: name for name in folders if name.lower() in SPLIT_NAMES}
    if "train" in split_folders or (split_folders and len(split_folders) == len(folders)):
        roots = {split: root / split_folders[split] for split in SPLITS if split in split_folders}
        return roots, [name for name in folders if name not in split_folders.values()]
    return {"train": root}, []


def list_classes(
    root: Path,
    kind: str,
    scans: "Mapping[str, ClassImages]",
    not_splits: list[str],
    files_of: Callable[[list[str]], Files],
    partial: bool,
    group: str | None,
) -> Listing:
    """List the images of class folders that were scanned, each split's in order.

    Args:
        root: the folder, for messages.
        kind: the layout, such as "folder of class folders".
        scans: the images of each split.
        not_splits: the folders that are no splits.
        files_of: makes the files of the paths of all images.
        partial, group: as for `list_folders`.

    Returns:
        The listing. Its problems are empty classes, and splits that are empty or disagree about the classes.

    Raises:
        VitkitError: there are no images.
    """
    class_names, problems = _agreed_classes(root, scans, partial)
    number_of = {name: number for number, name in enumerate(class_names)}
    paths: list[str] = []
    groups: list[str] = []
    splits: dict[str, SplitListing] = {}
    for split, scan in scans.items():
        above = "" if scan.root == root else f"{scan.root.name}/"
        start = len(paths)
        labels: list[int] = []
        for name, files in scan.images.items():
            if not files:  # a problem, but of a trained model's classes
                continue
            paths += (f"{above}{name}/{file}" for file in files)
            labels += [number_of[name]] * len(files)
            if group is not None:
                groups += (_group_of(root / f"{above}{name}", file, group) for file in files)
        if labels:
            splits[split] = (np.arange(start, len(paths)), np.array(labels, dtype=np.int64))
    notes = []
    if not_splits:
        notes.append(
            f"{pluralize(len(not_splits), 'folder')} beside train/ ignored: {join_names(not_splits)}."
        )
    for split, scan in scans.items():
        notes += (f"{split}: {note}" if len(scans) > 1 else note for note in scan.notes())
    numbers = None if group is None else number_groups(groups)
    return Listing(kind, class_names, files_of(paths), splits, tuple(notes), numbers, problems)


def list_images(root: Path) -> Listing:
    """List every image below a folder, or below train/, val/ and test/ in it, without labels."""
    names = [str(path.relative_to(root)) for path in image_files(root)]
    return without_labels(root, "folder of images", names, lambda names: Paths(root, names))


def without_labels(
    path: Path, kind: str, names: Sequence[str], files_of: Callable[[list[str]], Files]
) -> Listing:
    """List images without labels, in the splits that the first folders of their names say, if any is train.

    Raises:
        VitkitError: there are none.
    """
    if not names:
        raise VitkitError(f"No images in {path}. Expected image files, in folders or not.")
    folders = [name.partition("/")[0].lower() if "/" in name else "" for name in names]
    split_of = [SPLIT_NAMES.get(folder) for folder in folders]
    if "train" not in split_of:
        split_of = ["train"] * len(names)
    splits: dict[str, SplitListing] = {}
    for split in SPLITS:
        numbers = np.flatnonzero(np.array(split_of) == split)
        if len(numbers):
            splits[split] = (numbers, np.zeros((len(numbers), 0), dtype=bool))
    return Listing(kind, (), files_of(list(names)), splits)


def _group_of(folder: Path, file: str, level: str) -> str:
    """Return the folders down to a level below the class folder, which name the group of a file."""
    if not level.isdecimal() or int(level) < 1:
        raise VitkitError(
            f"Of class folders --splits.group is a level of folders below them, from 1 (the p7 of "
            f"cats/p7/1.jpg), found {level!r}. A column is named where the data is a .csv."
        )
    folders = file.split("/")[:-1]
    if len(folders) < int(level):
        raise VitkitError(
            f"{folder / file} has {pluralize(len(folders), 'folder')} below its class folder, and "
            f"--splits.group {level} needs {level}. Move it into the folder of its group."
        )
    return "/".join(folders[: int(level)])


class ClassImages:
    """The images of each class of one split, by paths below its class folder, and the files passed over."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.images: dict[str, list[str]] = {}
        self.hidden = 0  # files and folders
        self.other = 0  # files in class folders that are no images
        self.loose = 0  # images outside of class folders
        self.upward: list[str] = []  # links to a folder above
        self.results: list[str] = []  # folders of features or predictions

    def notes(self) -> Iterator[str]:
        if self.hidden:
            yield f"{pluralize(self.hidden, 'hidden file or folder', 'hidden files or folders')} ignored."
        if self.other:
            yield f"{pluralize(self.other, 'file')} in class folders ignored: not images by their names."
        if self.loose:
            yield f"{pluralize(self.loose, 'image')} outside any class folder ignored."
        if self.results:
            count = pluralize(len(self.results), "folder")
            yield f"{count} of features or predictions ignored: {join_names(self.results)}."
        if self.upward:
            links = [os.fsencode(link).decode("utf-8", "backslashreplace") for link in sorted(self.upward)]
            yield f"{pluralize(len(links), 'link')} to a folder above not followed: {join_names(links)}."


class _ClassFolders(ClassImages):
    """The images of each class folder on the disk."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        # Arrays beside images are masks, say; where there are no images, the arrays are the images.
        arrays: dict[str, list[str]] = {}
        where = root.resolve()
        above = frozenset(map(_identity, (where, *where.parents)))
        with os.scandir(root) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
        for entry in ordered:
            if is_ignored(entry.name):
                self.hidden += 1
            elif _is_folder(entry):
                if _identity(root / entry.name) in above:
                    self.upward.append(entry.name)
                else:
                    files = sorted(self._below(root / entry.name, f"{entry.name}/", "", above))
                    if not files and any(name.startswith(f"{entry.name}/") for name in self.results):
                        continue  # the folder features/ that `vitkit embed` makes
                    self.images[entry.name] = [file for file in files if not is_array(file)]
                    arrays[entry.name] = [file for file in files if is_array(file)]
            elif is_image(entry.name):
                self.loose += 1
        if any(self.images.values()):
            self.other += sum(map(len, arrays.values()))
        elif any(arrays.values()):
            self.images = arrays

    def _below(
        self, folder: Path, name: str, prefix: str, above: frozenset[tuple[int, int]]
    ) -> Iterator[str]:
        """Yield the paths of images and arrays relative to the class folder.

        Links to folders are followed, but not those to a folder above, whose images would come twice or
        under another class.
        """
        identity = _identity(folder)
        if identity in above:
            self.upward.append((name + prefix).rstrip("/"))
            return
        if (folder / PARTS_RECORD).exists():
            self.results.append(name + prefix)
            return
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_ignored(entry.name):
                    self.hidden += 1
                elif _is_folder(entry):
                    below = f"{prefix}{entry.name}/"
                    yield from self._below(folder / entry.name, name, below, above | {identity})
                elif is_image(entry.name) or is_array(entry.name):
                    yield prefix + entry.name
                else:
                    self.other += 1


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one; a link to itself is neither."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def image_files(root: Path) -> list[Path]:
    """List every image below a folder in the order of `files_below`; if none, every array (.npy)."""
    return files_below(root, is_image) or files_below(root, is_array)


def _agreed_classes(
    root: Path, scans: Mapping[str, ClassImages], partial: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the class names of all splits, and the problems; no images at all are an error."""
    problems = []
    filled = {split: scan for split, scan in scans.items() if any(scan.images.values())}
    for split, scan in scans.items():
        if split in filled:
            continue
        problem = f"No images in {scan.root}. {LAYOUTS}"
        if scan.loose and not scan.images:
            problem = (
                f"{scan.root} holds {pluralize(scan.loose, 'image')} but no class folders, so there are "
                f"no labels. Put the images of each class into a folder of its name. {LAYOUTS}"
            )
        if partial or not filled:
            raise VitkitError(problem)
        problems.append(problem)
    names = sorted({name for scan in scans.values() for name in scan.images})
    if partial:
        return tuple(name for name in names if any(scan.images.get(name) for scan in scans.values())), ()
    for split, scan in filled.items():
        empty = [name for name, files in scan.images.items() if not files]
        if empty:
            where = f"{root} ({split})" if len(scans) > 1 else f"{root}"
            noun = "folder" if len(empty) == 1 else "folders"
            several = (
                " If it holds text files of labels, give --task multi-label." if "labels" in empty else ""
            )
            problems.append(
                f"{where}: no images in the class {noun} {join_names(empty)}. Add images, or remove the "
                f"folder.{several}"
            )
    for split, scan in filled.items() if "train" in filled else ():
        missing = [name for name in scans["train"].images if name not in scan.images]
        unknown = [name for name in scan.images if name not in scans["train"].images]
        if missing or unknown:
            sides = [f"only in train: {', '.join(missing)}"] if missing else []
            sides += [f"only in {split}: {', '.join(unknown)}"] if unknown else []
            problems.append(
                f"{root}: the classes of train and {split} differ ({'; '.join(sides)}). The class folders of "
                "all splits must have the same names: rename or remove the odd ones."
            )
    return tuple(names), tuple(problems)


def is_image(name: str) -> bool:
    """Whether a file is an image by its name."""
    stem, dot, suffix = name.rpartition(".")
    return bool(stem) and dot + suffix.lower() in IMAGE_SUFFIXES


def is_array(name: str) -> bool:
    """Whether a file is an array of numpy by its name."""
    return name.lower().endswith(".npy")
