"""Score a model on a test set with ImageNet's classes, of which several may be right for an image.

`imagenet_classes.txt` has the WordNet ids of the 1,000 classes in their order, as timm 1.0.31 lists them
(Apache-2.0), with the letters a and r after the ids of ImageNet-A and ImageNet-R.

I is the number of images, C that of the classes that the model chooses among, 1,000 or 200.
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
from vitkit.data.listing import Files, Paths, Texts
from vitkit.data.paths import expand_home
from vitkit.errors import VitkitError
from vitkit.evaluation.predictions import Predictions, in_parts, likeliest
from vitkit.evaluation.statistics import binomial_interval, describe_interval
from vitkit.result import Block, Result, Section, Table, Text, unreadable
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
    # A folder named by a number is that class, wherever it stands in the listing.
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
    files = Paths(root, Texts(str(path.relative_to(root)) for path in paths))
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
    whole = "mappings of ObjectNet that agree with each other"
    with damage_explained(mappings, whole, "Unpack the data set again"):
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
    if not (is_scored := np.isin(folder_of, scored)).any():
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


ANCHORS = {0: "tench", 1: "goldfish", 999: "toilet"}
"""Words in the names of three classes, as all lists of ImageNet's class names have them."""

BACKGROUND = 1001
"""Outputs of models of TensorFlow's old tools: a background, which is no class, then the 1,000 classes."""

WORST_SHOWN = 10
"""Classes with the lowest accuracy that are shown."""
TOP = 5
"""Guesses of which any may be right, as in the paper's results on ObjectNet (D.9)."""


@dataclass(frozen=True)
class GroupScore:
    """The accuracy on the images of one of the set's own classes; an image with several labels is in each."""

    name: str
    count: int
    correct: int
    accuracy: float


@dataclass(frozen=True, repr=False)
class ProtocolResult(Result):
    """The numbers of a model on a test set; fractions are from 0 to 1."""

    protocol: ProtocolName
    count: int
    """Images that were scored."""
    candidates: int
    """Classes that the model chose among."""
    correct: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    """95 % interval of the accuracy on other images drawn alike."""
    top5_correct: int
    """Images with a right class among the model's five likeliest."""
    top5_accuracy: float
    top5_accuracy_interval: tuple[float, float]
    unreadable: int
    left_out: Mapping[str, int]
    """Reason -> number of images that were not scored."""
    per_class: tuple[GroupScore, ...]
    """The set's own classes that have images, the worst first."""
    note: str
    """The way in which the model's outputs were matched to ImageNet's classes."""
    rejects: Mapping[str, str] = field(default_factory=dict)
    """Key and reason of every image that could not be read."""

    def summary(self) -> str:
        """State the accuracy with its interval."""
        images = f"{self.count:,} images {describe_interval(self.accuracy_interval)}"
        return f"{self.accuracy:.2%} accuracy by {self.protocol} on {images}"

    def sections(self) -> Sequence[Section]:
        """Return the accuracies, the images that were left out, and the worst classes."""
        left_out = self.left_out.items()
        worst = self.per_class[:WORST_SHOWN]
        rows = tuple((score.name, f"{score.accuracy:.1%}", f"{score.count:,}") for score in worst)
        interval = describe_interval(self.top5_accuracy_interval)
        shown: list[Block] = [
            Text(f"{self.summary()}, choosing among {self.candidates:,} classes", "answer"),
            f"{self.top5_accuracy:.2%} top-5: one of the five likeliest classes is right {interval}",
            *(f"Left out: {pluralize(count, 'image')}, {reason}." for reason, count in left_out),
            *unreadable(self.rejects, "are excluded"),
            f"The {self.note}.",
            Table(("worst classes", "right", "images"), rows),
        ]
        return (Section("", shown),)

    def following(self) -> Sequence[str]:
        """Return the command that shows every class."""
        return ("the same command with --json   (every class)",)


def outputs_of_classes(
    path: str, outputs: int, class_names: Sequence[str], given: Sequence[str] | None = None
) -> tuple[NDArray[np.int64], str]:
    """Find the output of a model that stands for each of ImageNet's 1,000 classes.

    Args:
        path: of the model, for errors.
        outputs: K, the number of its logits.
        class_names: the class names in its card: WordNet ids, English names, or none.
        given: the WordNet ids of its outputs in the user's list; None without one.

    Returns:
        `(1000,)` numbers of outputs, and a clause that says how they were matched.

    Raises:
        VitkitError: the model has other classes, or nothing states the classes of its outputs.
    """
    wnids, names = imagenet_wnids(), given
    if given is not None and len(given) != outputs:
        raise VitkitError(
            f"{path} has {outputs:,} outputs, and --wnids lists {len(given):,} classes. List the WordNet id "
            "of every output, in the order of the outputs."
        )
    if names is None and class_names and all(map(is_wnid, class_names)):
        names = class_names
    if names is not None:
        output_of = {name: number for number, name in enumerate(names)}
        if missing := [wnid for wnid in wnids if wnid not in output_of]:
            raise VitkitError(
                f"{path}: expected a model with all 1,000 classes of ImageNet, found a model without "
                f"{len(missing):,} of them, {missing[0]} first. Choose another model, or correct the list "
                "that --wnids gives."
            )
        return np.array([output_of[wnid] for wnid in wnids]), "outputs are matched to classes by WordNet ids"
    if outputs not in (len(wnids), BACKGROUND):
        raise VitkitError(
            f"{path} has {outputs:,} outputs: expected the 1,000 classes of ImageNet (or 1,001 with a "
            "background before them). For another model that has them among its classes, list the WordNet "
            "ids of its outputs in a file and give it with --wnids; for ImageNet-21k's 21,843 classes it is "
            "imagenet21k_goog_synsets.txt in timm/data/_info."
        )
    first = outputs - len(wnids)
    if class_names:
        if wrong := [i for i, word in ANCHORS.items() if word not in class_names[first + i].lower()]:
            raise VitkitError(
                f"{path}: expected ImageNet's classes in their usual order, where class {wrong[0]} is "
                f"{ANCHORS[wrong[0]]}, found {class_names[first + wrong[0]]!r}. Give the WordNet ids of its "
                "outputs with --wnids."
            )
        reason = "as the names of three of them confirm"
    else:
        reason = "because it names no classes"
    order = "in the order of WordNet ids" + (", after a background" if first else "")
    return np.arange(first, outputs), f"outputs are taken for ImageNet's classes {order}, {reason}"


def five_likeliest(predictions: Predictions) -> NDArray[np.int64]:
    """Return the five classes with the largest logits of each image, `(N, 5)`, the largest first."""
    # The logits are mapped from a file where there are many: some rows at a time.
    parts = (likeliest(rows, TOP) for (rows,) in in_parts(predictions.logits))
    return np.concatenate([np.empty((0, TOP), np.int64), *parts])


def count_right(
    protocol: ProtocolName,
    images: LabelledImages,
    ids: NDArray[np.int64],
    guesses: NDArray[np.int64],
    candidates: NDArray[np.int64],
    note: str,
    class_names: Sequence[str] = (),
) -> ProtocolResult:
    """Count the images on which a model is right.

    Args:
        protocol: the test set.
        images: the right classes of each of its images.
        ids: the images that could be read.
        guesses: `(N, 5)` their likeliest classes, the likeliest first, numbers among the candidates.
        candidates: `(C,)` ImageNet classes that the model chose among.
        note: how the model's outputs were matched to classes.
        class_names: the model's names of the 1,000 classes, shown beside WordNet ids.

    Raises:
        VitkitError: there are no images that could be read.
    """
    if not len(ids):
        raise VitkitError("None of the images could be read: there is nothing to count. Check their folder.")
    counts, hits = np.zeros((2, len(images.groups)), np.int64)
    correct = top5 = 0
    for image, chosen in zip(ids.tolist(), candidates[guesses].tolist(), strict=True):
        right = {label for group in images.members[image] for label in images.accepted[group]}
        is_right = chosen[0] in right
        correct += is_right
        top5 += not right.isdisjoint(chosen)
        for group in images.members[image]:
            counts[group] += 1
            hits[group] += is_right
    name_of = dict(zip(imagenet_wnids(), class_names, strict=True)) if class_names else {}
    scores = [
        GroupScore(f"{name} ({name_of[name]})" if name in name_of else name, count, hit, hit / count)
        for name, count, hit in zip(images.groups, counts.tolist(), hits.tolist(), strict=True)
        if count
    ]
    return ProtocolResult(
        protocol=protocol,
        count=len(ids),
        candidates=len(candidates),
        correct=correct,
        accuracy=correct / len(ids),
        accuracy_interval=binomial_interval(correct, len(ids)),
        top5_correct=top5,
        top5_accuracy=top5 / len(ids),
        top5_accuracy_interval=binomial_interval(top5, len(ids)),
        unreadable=len(images.members) - len(ids),
        left_out=images.left_out,
        per_class=tuple(sorted(scores, key=lambda score: (score.accuracy, -score.count, score.name))),
        note=note,
    )
