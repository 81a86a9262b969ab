"""Advice on a data set before training: read every file, for sizes, bad files, duplicates and leaks."""

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vitkit.data.layouts import repeats, tables
from vitkit.data.listing import names_of
from vitkit.data.sources import ImageData, Samples, some_headers
from vitkit.errors import DecodeError
from vitkit.text import join_names, pluralize

FEW_IMAGES = 2_000
FEW_PER_CLASS = 100
"""Training images, in all and of each class, below which to start from a checkpoint: rules of thumb of this
project. The paper's smallest training set from scratch has 1.3 million images, and a ViT does worse there
than a ResNet (Figure 3); its tasks of 1,000 images (VTAB) are all learned from a checkpoint."""
SMALL_SIDE = 64
"""Pixels: images up to this size are pictures for the recipe small-images, larger ones are photos."""
LOOKED_AT = 500
"""The most headers that are read to learn the sizes of images."""
LIKE_CIFAR = range(24, 49)
"""Pixels: images of about 32, on which small-images-conv was measured (CIFAR-10: 84.2 % in an hour of one
core; small-images: 50 % in ten minutes of two)."""


def advise_on_start(spec: str, count: int, classes: int) -> str:
    """Say that a training set is too small to train from scratch; empty if it is not.

    Args:
        spec: the name of the data, as it is given to `--data`. The built-in digits are a demonstration that
            needs no advice.
        count: training images.
        classes: of the training images.
    """
    if spec == "digits" or count >= max(FEW_IMAGES, FEW_PER_CLASS * classes):
        return ""
    per_class = "" if count < FEW_IMAGES else f" of {classes:,} classes, {count / classes:.0f} of each"
    return (
        f"{pluralize(count, 'training image')}{per_class}: do not train from scratch; start from a "
        f"checkpoint (vitkit finetune {shlex.quote(spec)} chooses one)."
    )


def where_to_ask(spec: str) -> str:
    """Name the command that says which start to take for these images, and how long that takes here.

    It stands last and without a full stop, which would be copied as a part of the path.
    """
    return f"Which one, and how long it takes here: vitkit advise {shlex.quote(spec)}"


def suggest_recipe(sizes: Sequence[tuple[int, int]], has_model: bool = False) -> str:
    """Name the recipe that fits the median of these image sizes, (height, width) in pixels.

    Args:
        sizes: of some images.
        has_model: whether a model is chosen already, which the model of small-images-conv would replace.
    """
    if (side := usual_side(sizes)) in LIKE_CIFAR and not has_model:
        return "small-images-conv"
    return "small-images" if 0 < side <= SMALL_SIDE else "photos"


def sample_sizes(samples: Samples) -> list[tuple[int, int]]:
    """Read the sizes (height, width) of some images, evenly spread; unreadable ones are skipped."""
    return [head.size for head in some_headers(samples, LOOKED_AT)]


def usual_side(sizes: Sequence[tuple[int, int]]) -> int:
    """Return the median of the longer sides of images, in pixels; 0 where there are none."""
    longer = sorted(max(size) for size in sizes)
    return longer[len(longer) // 2] if longer else 0


# Limits of warnings.
_TINY_SIDE = 32  # pixels
_FEW_IMAGES = 10  # training images of a class
_IMBALANCE = 10  # most frequent class / rarest class
# By the number of channels: the colour modes that need no conversion (images of other numbers of channels are
# never converted), and what images of other modes are converted to.
_PLAIN_MODES = {1: ("L",), 3: ("RGB", "L"), 4: ("RGBA",)}
_CONVERTED_TO = {1: "grey", 3: "RGB", 4: "RGB and alpha"}


@dataclass(frozen=True)
class BadFile:
    """A file that cannot be read, by its place in the data."""

    split: str
    key: str
    reason: str


@dataclass(frozen=True)
class Copy:
    """One of several files with the same pixels, by its place in the data."""

    split: str
    key: str
    label: str


@dataclass(frozen=True)
class ImageSizes:
    """Sizes in pixels of the images that can be read."""

    smallest: tuple[int, int]
    """(height, width): the least height and the least width, not necessarily of one image."""
    median: tuple[int, int]
    largest: tuple[int, int]
    common: tuple[tuple[tuple[int, int], int], ...]
    """The five most frequent sizes and how many images have each."""


@dataclass(frozen=True)
class DataCheck:
    """The result of `check_data`: plain data, to be printed or written as JSON."""

    name: str
    kind: str
    counts: dict[str, dict[str, int]]
    """Split -> class name -> number of files, bad ones included."""
    sizes: ImageSizes | None
    """None if no image can be read."""
    images: dict[str, int]
    """Split -> number of files, bad ones included: fewer than labels where a file has several."""
    formats: dict[str, int]
    """File format -> number of images, most frequent first."""
    modes: dict[str, int]
    """Pillow's colour mode -> number of images, most frequent first."""
    bad: tuple[BadFile, ...]
    duplicates: tuple[tuple[Copy, ...], ...]
    """Groups of files with equal pixels, within a split or across splits."""
    leaks: dict[str, int]
    """"train-test", say -> number of images of the second split that are in the first one too."""
    contradictions: tuple[tuple[Copy, ...], ...]
    """The groups of duplicates whose labels differ."""
    warnings: tuple[str, ...]
    """Sentences about defects to look at before training."""
    notes: tuple[str, ...] = ()
    """Sentences about how the data set was opened: the splits that were cut, say."""
    advice: tuple[str, ...] = ()
    """Sentences about how to train on it."""
    recipe: str = ""
    """Name of the recipe that fits its images."""
    problems: tuple[str, ...] = ()
    """Sentences about what has to be mended before training, which refuses the data as it is."""

    def to_json(self) -> dict[str, Any]:
        """Return the result as dictionaries, lists, strings and numbers."""
        return asdict(self)


def bad_files_allowed(count: int, bad_quota: float) -> int:
    """Count how many of `count` training files may be unreadable before training stops."""
    return math.ceil(bad_quota * count)


def check_data(
    data: ImageData, progress: Callable[[int, int], None] = lambda done, total: None, bad_quota: float = 0.05
) -> DataCheck:
    """Decode every file of a data set once and report sizes, bad files, duplicates and leaks.

    Args:
        data: the data set.
        progress: called as `progress(done, total)` after each file.
        bad_quota: fraction of the training files that may be unreadable before training stops; the default
            is as in training, 5 %.
    """
    counts, images = dict[str, dict[str, int]](), dict[str, int]()
    sizes, formats, modes = list[tuple[int, int]](), Counter[str](), Counter[str]()
    bad, same = list[BadFile](), dict[bytes, list[Copy]]()
    channels, done, total = 3, 0, sum(map(len, data.splits.values()))
    for split, samples in data.splits.items():
        images[split] = len(samples)
        per_class = tables.count_labels(samples.labels, len(data.class_names))
        counts[split] = dict(zip(data.class_names, per_class, strict=True))
        for index in range(len(samples)):
            key = samples.key(index)
            try:
                head, pixels = samples.header(index), samples.decode(index)
            except DecodeError as error:
                bad.append(BadFile(split, key, str(error)))
            else:
                formats[head.format] += 1
                modes[head.mode] += 1
                height, width, channels = pixels.shape
                sizes.append((height, width))
                label = ", ".join(names_of(samples.labels[index], data.class_names))
                same.setdefault(repeats.pixel_digest(pixels), []).append(Copy(split, key, label))
            done += 1
            progress(done, total)
    duplicates = tuple(tuple(group) for group in same.values() if len(group) > 1)
    contradictions = tuple(group for group in duplicates if len({copy.label for copy in group}) > 1)
    leaks = _leaks(duplicates, tuple(data.splits))
    start = ""
    if data.class_names:  # advice is about classes
        start = advise_on_start(data.spec, images.get("train", 0), len(data.class_names))
    warnings = [
        *_about_bad_files(bad, images, bad_quota),
        *_about_images(sizes, modes, channels),
        *_about_classes(counts, data.multi_label),
        *_about_duplicates(duplicates, contradictions, leaks),
    ]
    summary, both = None, np.array(sizes)  # (N, 2)
    if sizes:
        extremes = (both.min(0), np.median(both, 0), both.max(0))
        smallest, median, largest = ((int(height), int(width)) for height, width in extremes)
        summary = ImageSizes(smallest, median, largest, tuple(Counter(sizes).most_common(5)))
    return DataCheck(
        name=data.name,
        kind=data.kind,
        counts=counts,
        images=images,
        sizes=summary,
        formats=dict(formats.most_common()),
        modes=dict(modes.most_common()),
        bad=tuple(bad),
        duplicates=duplicates,
        leaks=leaks,
        contradictions=contradictions,
        warnings=tuple(warnings),
        notes=tuple(data.notes),
        advice=(start, where_to_ask(data.spec)) if start else (),
        recipe=suggest_recipe(sizes),
    )


def _leaks(duplicates: tuple[tuple[Copy, ...], ...], splits: tuple[str, ...]) -> dict[str, int]:
    leaks = {}
    for number, first in enumerate(splits):
        for second in splits[number + 1 :]:
            shared = (group for group in duplicates if any(copy.split == first for copy in group))
            if count := sum(copy.split == second for group in shared for copy in group):
                leaks[f"{first}-{second}"] = count
    return leaks


def _about_bad_files(bad: list[BadFile], images: dict[str, int], bad_quota: float) -> list[str]:
    """Warn of files that cannot be read, and say what quota lets training begin in spite of them."""
    total = sum(images.values())
    train = images.get("train", 0)
    bad_train = sum(file.split == "train" for file in bad)
    allowed = bad_files_allowed(train, bad_quota)
    unread = f"{len(bad):,} of {pluralize(total, 'file')} cannot be read"
    if bad_train > allowed:
        quota = math.ceil(100 * bad_train / train) / 100  # rounded up to a whole percentage
        return [
            f"{unread}, {bad_train:,} of them among the {train:,} to train on, more than the {allowed:,} "
            f"allowed: vitkit train will stop. Repair or remove them, or raise --bad-quota to {quota:g}."
        ]
    return [f"{unread}; training and evaluation leave them out."] if bad else []


def _about_images(sizes: list[tuple[int, int]], modes: Counter[str], channels: int) -> Iterator[str]:
    if small := sum(min(size) < _TINY_SIDE for size in sizes):
        are = "image is" if small == 1 else "images are"
        yield f"{small:,} {are} smaller than {_TINY_SIDE} pixels on one side."
    plain = _PLAIN_MODES.get(channels, tuple(modes))
    # Arrays, "uint16 x 4", are never colours.
    converted = {mode: count for mode, count in modes.items() if mode not in plain and " x " not in mode}
    if converted:
        listed = ", ".join(f"{count:,} {mode}" for mode, count in converted.items())
        yield f"Images in other colour modes are converted to {_CONVERTED_TO[channels]}: {listed}."


def _about_classes(counts: dict[str, dict[str, int]], multi_label: bool) -> Iterator[str]:
    classes, look = "classes", "Look at the accuracy of each class, not only at the mean."
    if multi_label:
        classes, look = "labels", "Look at the average precision of each label, not only at the mean."
    train = counts.get("train", {})
    if few := [f"{name} ({count})" for name, count in train.items() if count < _FEW_IMAGES]:
        yield f"{classes.capitalize()} with fewer than {_FEW_IMAGES} training images: {join_names(few)}."
    folded = Counter(map(str.casefold, train))
    if alike := [name for name in train if folded[name.casefold()] > 1]:
        yield f"Names of {classes} differ in upper and lower case alone: {join_names(alike)}."
    if present := {name: count for name, count in train.items() if count}:
        most, least = max(present, key=present.__getitem__), min(present, key=present.__getitem__)
        if present[most] > _IMBALANCE * present[least]:
            yield (
                f"The {classes} are unbalanced: {present[most]:,} training images of {most}, "
                f"{present[least]:,} of {least}, {present[most] / present[least]:.0f} to 1. {look}"
            )


def _about_duplicates(
    duplicates: tuple[tuple[Copy, ...], ...],
    contradictions: tuple[tuple[Copy, ...], ...],
    leaks: dict[str, int],
) -> Iterator[str]:
    for pair, count in leaks.items():
        first, second = pair.split("-")
        yield (
            f"Leak: {pluralize(count, f'image of {second} is', f'images of {second} are')} in {first} too, "
            f"pixel for pixel; remove {'it' if count == 1 else 'them'} from {first} or the figures for "
            f"{second} are too good."
        )
    for split in sorted({copy.split for group in duplicates for copy in group}):
        inside = (sum(copy.split == split for copy in group) for group in duplicates)
        if spare := sum(count - 1 for count in inside if count > 1):
            repeat = pluralize(spare, f"image of {split} repeats", f"images of {split} repeat")
            yield f"{repeat} another image of {split}, pixel for pixel."
    if contradictions:
        many = len(contradictions)
        groups = pluralize(many, "group of equal images carries", "groups of equal images carry")
        yield f"{groups} different labels: some of them are wrong."
