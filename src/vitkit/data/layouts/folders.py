"""List folders of class folders, alone or below train/, val/ and test/."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from vitkit.data import listing
from vitkit.data.paths import LAYOUTS
from vitkit.errors import VitkitError
from vitkit.text import join_names, pluralize

# TGA cannot be decoded, nor HEIC without its extra; they are listed, to be reported as bad files.
IMAGE_SUFFIXES = frozenset({
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".gif", ".bmp", ".dib", ".tif", ".tiff",
    ".ppm", ".pgm", ".pbm", ".pnm", ".pfm", ".jp2", ".j2k", ".jpx", ".avif", ".ico", ".qoi", ".sgi", ".rgb",
    ".heic", ".heif", ".tga",
})  # fmt: skip

TABLE_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")


def list_folders(
    root: Path, partial: bool, group: str | None = None, levels: bool = False
) -> listing.Listing:
    """List class folders, or split folders (train/, val/, test/) of class folders.

    Args:
        root: the folder.
        partial: whether the classes are a trained model's, so that some of them, or train/, may be missing.
        group: the level of folders below the class folders that keeps images together: "1", "2".
        levels: whether the folder that holds an image is its class, named by its path, "birds/petrel"; else
            the topmost folder is.
    """
    folders = next(os.walk(root, onerror=_refuse))[1]
    roots, not_splits = split_roots(root, sorted(name for name in folders if not listing.is_ignored(name)))
    scans = {split: _scan_class_folders(folder, levels) for split, folder in roots.items()}
    kind, files = "folder of class folders", lambda paths: listing.Paths(root, listing.Texts(paths))
    return list_classes(root, kind, scans, not_splits, files, partial, group)


def split_roots(root: Path, folders: list[str]) -> tuple[dict[str, Path], list[str]]:
    """Tell the folders of splits in the root from its other folders.

    Returns:
        The folder of each split, and the names of the other folders.
    """
    splits = listing.SPLIT_NAMES
    split_folders = {splits[name.lower()]: name for name in folders if name.lower() in splits}
    if "train" in split_folders or (split_folders and len(split_folders) == len(folders)):
        roots = {split: root / split_folders[split] for split in listing.SPLITS if split in split_folders}
        return roots, [name for name in folders if name not in split_folders.values()]
    return {"train": root}, []


def list_classes(
    root: Path,
    kind: str,
    scans: "Mapping[str, ClassImages]",
    not_splits: list[str],
    files_of: Callable[[list[str]], listing.Files],
    partial: bool,
    group: str | None,
) -> listing.Listing:
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
    paths, groups, splits = list[str](), list[str](), dict[str, listing.SplitListing]()
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
        count = pluralize(len(not_splits), "folder")
        notes.append(f"{count} beside train/ ignored: {join_names(not_splits)}.")
    for split, scan in scans.items():
        notes += (f"{split}: {note}" if len(scans) > 1 else note for note in scan.notes())
    numbers = None if group is None else listing.number_groups(groups)
    return listing.Listing(kind, class_names, files_of(paths), splits, tuple(notes), numbers, problems)


def list_images(root: Path) -> listing.Listing:
    """List every image below a folder, or below train/, val/ and test/ in it, without labels."""
    names = [str(path.relative_to(root)) for path in image_files(root)]
    return without_labels(
        root, "folder of images", names, lambda names: listing.Paths(root, listing.Texts(names))
    )


def without_labels(
    path: Path, kind: str, names: Sequence[str], files_of: Callable[[list[str]], listing.Files]
) -> listing.Listing:
    """List images without labels, in the splits that the first folders of their names say, if any is train.

    Raises:
        VitkitError: there are none.
    """
    if not names:
        raise VitkitError(f"No images in {path}. Expected image files, in folders or not.")
    folders = [name.partition("/")[0].lower() if "/" in name else "" for name in names]
    split_of = [listing.SPLIT_NAMES.get(folder) for folder in folders]
    if "train" not in split_of:
        split_of = ["train"] * len(names)
    splits = listing.by_split(np.array(split_of), np.zeros((len(names), 0), dtype=bool))
    return listing.Listing(kind, (), files_of(list(names)), splits)


def _group_of(folder: Path, file: str, level: str) -> str:
    """Return the folders down to a level below the class folder, which name the group of a file."""
    if not level.isdecimal() or int(level) < 1:
        raise VitkitError(
            f"Of class folders --splits.group is a level of folders below them, from 1 (the p7 of "
            f"cats/p7/1.jpg), found {level!r}. A column is named where the data is a .csv."
        )
    if len(folders := file.split("/")[:-1]) < int(level):
        raise VitkitError(
            f"{folder / file} has {pluralize(len(folders), 'folder')} below its class folder, and "
            f"--splits.group {level} needs {level}. Move it into the folder of its group."
        )
    return "/".join(folders[: int(level)])


@dataclass
class ClassImages:
    """The images of each class of one split, by paths below its class folder, and the files passed over."""

    root: Path
    images: dict[str, list[str]] = field(default_factory=dict)
    hidden: int = 0
    """Files and folders."""
    other: int = 0
    """Files in class folders that are no images."""
    loose: int = 0
    """Images outside of class folders."""
    tables: list[str] = field(default_factory=list)
    """Files beside the class folders that may hold labels."""
    upward: list[str] = field(default_factory=list)
    """Links to a folder above."""
    results: list[str] = field(default_factory=list)
    """Folders of features or predictions."""

    def take(self, files: Mapping[str, list[str]]) -> None:
        """Take the images of class folders, given all files in them.

        Arrays beside images are masks, say; where there are no images, the arrays are the images.
        """
        fits = is_image if any(is_image(file) for inside in files.values() for file in inside) else is_array
        for name in sorted(files):
            self.images[name] = sorted(filter(fits, files[name]))
            self.other += len(files[name]) - len(self.images[name])

    def notes(self) -> Iterator[str]:
        if self.hidden:
            yield f"{pluralize(self.hidden, 'hidden file or folder', 'hidden files or folders')} ignored."
        if self.other:
            yield f"{pluralize(self.other, 'file')} in class folders ignored: not images by their names."
        if self.loose:
            yield f"{pluralize(self.loose, 'image')} outside any class folder ignored."
        if self.tables:
            yield f"The folders' names are the classes; not read: {join_names(self.tables)}."
        if self.results:
            count = pluralize(len(self.results), "folder")
            yield f"{count} of features or predictions ignored: {join_names(self.results)}."
        if self.upward:
            links = [os.fsencode(link).decode("utf-8", "backslashreplace") for link in sorted(self.upward)]
            yield f"{pluralize(len(links), 'link')} to a folder above not followed: {join_names(links)}."


def _scan_class_folders(root: Path, levels: bool) -> ClassImages:
    """Find the images of each class folder on the disk.

    Links to folders are followed, but not those to a folder above, whose images would come twice or under
    another class.
    """
    scan, files = ClassImages(root), dict[str, list[str]]()
    above = {root: (*root.resolve().parents, root.resolve())}
    for place, folders, names in os.walk(root, followlinks=True, onerror=_refuse):
        folder, below = Path(place), os.path.relpath(place, root)
        chain = above.pop(folder)
        if below != "." and listing.PARTS_RECORD in names:
            scan.results.append(f"{below}/")
            folders.clear()
            continue
        inside = [name for name in names if not listing.is_ignored(name)]
        entered = sorted(name for name in folders if not listing.is_ignored(name))
        scan.hidden += len(names) - len(inside) + len(folders) - len(entered)
        folders.clear()
        for name in entered:
            path = folder / name
            target = path.resolve() if path.is_symlink() else chain[-1] / name
            if target in chain:
                scan.upward.append(os.path.normpath(f"{below}/{name}"))
            else:
                folders.append(name)
                above[path] = (*chain, target)
        if below == ".":
            files = {} if levels else {name: [] for name in folders}
            scan.loose += sum(map(is_image, inside))
            scan.tables = sorted(name for name in inside if name.endswith(TABLE_SUFFIXES))
            continue
        class_name, _, prefix = (below, "/", "") if levels else f"{below}/".partition("/")
        fitting = [f"{prefix}{name}" for name in inside if is_image(name) or is_array(name)]
        if fitting or not folders:  # with levels a folder of nothing but folders is no class
            files.setdefault(class_name, []).extend(fitting)
        scan.other += len(inside) - len(fitting)
    # A folder that holds results alone, such as features/ of `vitkit embed`, is no empty class.
    with_results = {result.partition("/")[0] for result in scan.results}
    scan.take({name: inside for name, inside in files.items() if inside or name not in with_results})
    return scan


def _refuse(error: OSError) -> NoReturn:
    """Raise the error of a folder that cannot be listed, which `os.walk` would pass over."""
    raise error


def image_files(root: Path) -> list[Path]:
    """List every image below a folder in the order of `files_below`; if none, every array (.npy)."""
    return listing.files_below(root, is_image) or listing.files_below(root, is_array)


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
        if empty := [name for name, files in scan.images.items() if not files]:
            where = f"{root} ({split})" if len(scans) > 1 else f"{root}"
            noun = "folder" if len(empty) == 1 else "folders"
            text = " If it holds text files of labels, give --task multi-label."
            several = text if "labels" in empty else ""
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
