"""Test sets with ImageNet's classes: their files, and the classes that are right for each of them.

`imagenet_classes.txt` has the WordNet ids of the 1,000 classes in their order, as timm 1.0.31 lists them
(Apache-2.0), with the letters a and r after the ids of ImageNet-A and ImageNet-R. I is the number of images.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit import durable
from vitkit.data.config import PROTOCOLS, ProtocolName
from vitkit.data.files import damage_explained
from vitkit.data.layouts.folders import image_files, list_folders
from vitkit.data.listing import Files, Paths
from vitkit.data.paths import expand_home
from vitkit.errors import VitkitError
from vitkit.text import join_names, pluralize

VALIDATION_IMAGES = 50_000  # of ILSVRC 2012
_NUMBERED = re.compile(r"ILSVRC2012_val_(\d{8})(?!\d)")
_WNID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class LabelledImages:
    """The images of a test set that are scored, and the classes that are right for each."""

    files: Files
    numbers: NDArray[np.int64]
    """(I,) numbers of the images among `files`."""
    groups: tuple[str, ...]
    """The names of the set's own classes."""
    accepted: tuple[tuple[int, ...], ...]
    """The ImageNet classes, from 0 to 999, that are right for the images of each group."""
    members: tuple[tuple[int, ...], ...]
    """The groups that each image belongs to: several where it has several labels."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of images that are there and not scored."""

    def right(self, image: int) -> frozenset[int]:
        """Return the ImageNet classes that are right for an image."""
        return frozenset(label for group in self.members[image] for label in self.accepted[group])


@cache
def imagenet_wnids(mark: str = "") -> tuple[str, ...]:
    """Return the WordNet ids of ImageNet's classes in their order; with a mark, of the marked classes alone.

    Args:
        mark: "a" for ImageNet-A's 200, "r" for ImageNet-R's 200, "" for all 1,000.
    """
    lines = Path(__file__).with_name("imagenet_classes.txt").read_text().splitlines()
    rows = [line.split() for line in lines]
    return tuple(wnid for wnid, *marks in rows if not mark or mark in marks)


def list_labelled(name: ProtocolName, spec: str, labels: str | None = None) -> LabelledImages:
    """List the images of a test set and the classes that are right for each; nothing is decoded.

    Args:
        name: the protocol.
        spec: the folder of the images.
        labels: real.json, or ObjectNet's folder of mappings; left out, they are beside the images.

    Raises:
        VitkitError: the folder is not laid out as that test set is, or its labels are missing or damaged.
    """
    root, protocol = expand_home(spec), PROTOCOLS[name]
    if not root.is_dir():
        raise VitkitError(f"Expected the folder of the images of {name}, found no folder at {spec}.")
    if protocol.layout == "class folders":
        if labels is not None:
            raise VitkitError(f"{name} has its labels in the names of its folders: leave --labels out.")
        return _class_folders(name, root, imagenet_wnids(protocol.mark))
    if protocol.layout == "objectnet":
        return _objectnet(root, labels)
    return _validation_numbers(root, labels)


def _class_folders(name: str, root: Path, allowed: Sequence[str]) -> LabelledImages:
    """List folders that are named by WordNet ids, or by class numbers."""
    folders, files, numbers, folder_of = _folders(root)
    wnids = imagenet_wnids()
    # int, because sorted as text "10" and "100" stand before "2".
    numbered = re.compile(r"\d{1,3}")
    classes = [
        int(text) if numbered.fullmatch(text) else wnids.index(text) if text in wnids else -1
        for text in folders
    ]
    wrong = [folder for folder, i in zip(folders, classes, strict=True) if i < 0 or wnids[i] not in allowed]
    if wrong:
        raise VitkitError(
            f"{root}: expected folders of {name}, named by the WordNet ids of its {len(allowed):,} classes "
            f"such as {allowed[0]}, or by class numbers from 0 to 999; found {join_names(wrong, 5)}. Give "
            "the folder that holds the class folders."
        )
    if len(set(classes)) < len(classes):
        raise VitkitError(f"{root} has two folders of one class: one by WordNet id and one by number.")
    accepted = tuple((i,) for i in classes)
    members = tuple((label,) for label in folder_of)
    return LabelledImages(files, numbers, tuple(wnids[i] for i in classes), accepted, members)


def _validation_numbers(root: Path, labels: str | None) -> LabelledImages:
    """List validation images of ImageNet by the numbers in their names, with the labels of real.json."""
    real = _read_real(_beside(root, "real.json", labels))
    wnids, left_out = imagenet_wnids(), dict[str, int]()
    numbers, members, seen = [], [], set[int]()
    paths = image_files(root)
    for number, path in enumerate(paths):
        match = _NUMBERED.search(path.name)
        # Counted from 1 as in the file's name, although the README of the labels counts otherwise.
        image = int(match[1]) if match else 0
        reason = ""
        if not 1 <= image <= VALIDATION_IMAGES:
            reason = "not named as a validation image of ImageNet is, ILSVRC2012_val_00000001.JPEG"
        elif image in seen:
            reason = "a second file of an image that is counted already"
        elif not real[image - 1]:
            reason = "no label fits, as ReaL's raters found"
        seen.add(image)
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
        else:
            numbers.append(number)
            members.append(tuple(dict.fromkeys(real[image - 1])))
    if not numbers:
        raise VitkitError(
            f"{root}: expected validation images of ImageNet, named ILSVRC2012_val_00000001.JPEG and so on, "
            f"found {pluralize(len(paths), 'image')} and none that can be scored."
        )
    files = Paths(root, (str(path.relative_to(root)) for path in paths))
    accepted = tuple((i,) for i in range(len(wnids)))
    return LabelledImages(files, np.array(numbers), wnids, accepted, tuple(members), left_out)


def _read_real(path: Path) -> list[list[int]]:
    """Read the labels of ReaL: a list of class numbers for each of the 50,000 validation images."""
    rows: Any = durable.read_json(path)
    whole = isinstance(rows, list) and len(rows) == VALIDATION_IMAGES
    if not whole or not all(
        isinstance(row, list) and all(type(label) is int and 0 <= label < 1000 for label in row)
        for row in rows
    ):
        raise VitkitError(
            f"{path}: expected the labels of ReaL, a list of 50,000 lists of class numbers from 0 to 999, "
            "found something else. Get real.json from https://github.com/google-research/reassessed-imagenet."
        )
    labels: list[list[int]] = rows
    return labels


def _objectnet(root: Path, labels: str | None) -> LabelledImages:
    """List the images of the classes that ObjectNet has in common with ImageNet (113 of 313).

    Four files lead from a folder to classes: folder -> label of ObjectNet -> labels of ImageNet, joined by
    semicolons -> line of ImageNet's list of labels -> class number.
    """
    images = root / "images" if (root / "images").is_dir() else root
    mappings = _beside(images, "mappings", labels)
    label_of_folder = _read_mapping(mappings / "folder_to_objectnet_label.json")
    names_of_label = _read_mapping(mappings / "objectnet_to_imagenet_1k.json")
    line_of_class = _read_mapping(mappings / "pytorch_to_imagenet_2012_id.json")
    with damage_explained(
        mappings, "mappings of ObjectNet that agree with each other", "Unpack the data set again"
    ):
        text = durable.read_regular_file(mappings / "imagenet_to_label_2012_v2", 1 << 20)
        lines = text.decode("utf-8").splitlines()
        class_at = {int(line): int(number) for number, line in line_of_class.items()}
        class_of = {line.strip(): class_at[i] for i, line in enumerate(lines) if line.strip()}
        accepted_of = {
            label: tuple(sorted({class_of[name] for name in names.split("; ")}))
            for label, names in names_of_label.items()
        }
        if not all(isinstance(label, str) for label in label_of_folder.values()):
            raise ValueError("labels are texts")
        if not all(0 <= number < 1000 for number in class_at.values()):
            raise ValueError("class numbers are from 0 to 999")
    folders, files, numbers, folder_of = _folders(images)
    if unknown := [folder for folder in folders if folder not in label_of_folder]:
        raise VitkitError(
            f"{images}: expected the class folders of ObjectNet, found {join_names(unknown, 5)}, which "
            f"{mappings / 'folder_to_objectnet_label.json'} does not name."
        )
    names = [label_of_folder[folder] for folder in folders]
    scored = [group for group, name in enumerate(names) if name in accepted_of]
    is_scored = np.isin(folder_of, scored)
    if not is_scored.any():
        raise VitkitError(f"{images} has no images of the classes common to ObjectNet and ImageNet.")
    place = {group: position for position, group in enumerate(scored)}
    return LabelledImages(
        files,
        numbers[is_scored],
        tuple(names[group] for group in scored),
        tuple(accepted_of[names[group]] for group in scored),
        tuple((place[group],) for group in folder_of[is_scored].tolist()),
        {"of classes that ImageNet does not have": int((~is_scored).sum())},
    )


def _folders(root: Path) -> tuple[tuple[str, ...], Files, NDArray[np.int64], NDArray[np.int64]]:
    """List class folders: their names, the files, the numbers of the images and their folders (both (I,))."""
    listing = list_folders(root, partial=True)
    if len(listing.splits) > 1:
        raise VitkitError(f"{root} has {' and '.join(listing.splits)}: give the folder of one of them.")
    ((numbers, folders),) = listing.splits.values()
    return listing.class_names, listing.files, numbers, folders.astype(np.int64, copy=False)


def _beside(folder: Path, name: str, given: str | None) -> Path:
    """Return the path of the labels: the given one, or `name` beside the images or beside their folder."""
    places = [expand_home(given)] if given is not None else [folder / name, folder.resolve().parent / name]
    for place in places:
        if place.exists():
            return place
    raise VitkitError(
        f"Expected the labels in {' or '.join(map(str, places))}, found nothing there. Give their place with "
        "--labels."
    )


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        mapping = durable.read_json(path)
    except FileNotFoundError:
        raise VitkitError(f"{path} is missing: it comes with ObjectNet, in its folder mappings.") from None
    if not isinstance(mapping, dict):
        raise VitkitError(f"{path}: expected a JSON object, found something else. Unpack the data set again.")
    return mapping


def read_wnids(spec: str) -> tuple[str, ...]:
    """Read WordNet ids in the order of a model's outputs: the first word of each line of a file, or the
    sorted names of class folders.

    Raises:
        VitkitError: it cannot be read, or names are no WordNet ids, or occur twice.
    """
    path = expand_home(spec)
    try:
        if path.is_dir():
            names = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and is_wnid(entry.name))
        else:
            text = durable.read_regular_file(path, 1 << 24).decode("utf-8")
            names = [line.split()[0] for line in text.splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise VitkitError(f"{spec} cannot be read as a list of WordNet ids: {error}.") from error
    wrong = [name for name in names if not is_wnid(name)]
    if wrong or not names or len(set(names)) < len(names):
        raise VitkitError(
            f"{spec}: expected a WordNet id such as n01440764 at the beginning of each line, each once; "
            f"found {join_names(wrong, 3) or 'no id, or an id twice'}."
        )
    return tuple(names)


def is_wnid(name: str) -> bool:
    """Whether a name is a WordNet id of a noun."""
    return _WNID.fullmatch(name) is not None
