"""Open a data set: one string names the images and labels, whatever their layout.

Opening lists files with labels, class names and splits; an image is decoded when it is read.
"""

import gzip
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from vitkit.data import config
from vitkit.data.decode.image import Header, decode, header
from vitkit.data.layouts import archives, cutting, folders, parquet, repeats, split_lists, tables
from vitkit.data.listing import LABELS, SPLITS, Files, Labels, Listing, Targets, files_below
from vitkit.data.paths import LAYOUTS, existing_path
from vitkit.errors import DecodeError, VitkitError
from vitkit.text import join_names, pluralize, tree_levels


@dataclass
class Shared:
    """Digests, pixels and repeats of the images of a listing, which all of its cuts share."""

    digests: repeats.Digests = field(default_factory=dict)
    """Hashes of the images that were decoded to be compared with others."""
    repeats: list[NDArray[np.int64] | None] = field(default_factory=list)
    """The numbers of equal images, once they were compared; None where there are too many."""
    statistics: dict[
        tuple[config.Splits, config.Preprocessing], tuple[tuple[float, ...], tuple[float, ...]]
    ] = field(default_factory=dict)
    """Mean and standard deviation of the pixels of training images, where they were measured."""
    room: int = 0
    """Bytes left for images that were decoded to be compared, until they are read; below 0, none is kept."""
    pixels: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    """These images, `(H, W, C)`, by the number of the file, where all of them fit into memory."""


@dataclass(frozen=True)
class ImageData:
    """A data set whose files are listed and not yet decoded.

    name: a short name, used for run folders.
    spec: what the user wrote, a path or "digits".
    kind: the layout, such as "folder of class folders".
    splits: "train", then "val" and "test" where the data has them.
    notes: sentences for the first screen and the report: what was cut, ignored or missing.
    listing, rule: what the splits are cut from, and how its files are decoded.
    shared: what all cuts of the listing have in common.
    fold_of: (N,) the fold of each training image before any cut; None where no folds are cut.
    same: for the images of each split that was compared with the others when they were cut, the number of the
        first image with the same pixels.
    seed: of the order in which parts of splits are taken.
    """

    name: str
    spec: str
    kind: str
    class_names: tuple[str, ...]
    listing: Listing
    rule: config.DecodeRule
    shared: Shared = field(default_factory=Shared, compare=False, repr=False)
    splits: "Mapping[str, Samples]" = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    fold_of: NDArray[np.int64] | None = None
    same: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    seed: int = 0

    def cut(self, splits: config.Splits) -> "ImageData":
        """Cut the listing anew into the splits that the data has and those that it lacks.

        Args:
            splits: fractions or folds; groups and labels stay as they were listed.

        Raises:
            VitkitError: as `open_data`.
        """
        listing = self.listing
        listed, notes, fold_of, same = cutting.with_missing_splits(listing, splits, self._repeats)
        present = [split for split in SPLITS if split in listed]
        samples = {split: Samples(listing.files, *listed[split], self.rule, self.shared) for split in present}
        notes = [*listing.notes, *notes]
        if splits.subset is not None and "train" in samples:
            train = samples["train"]
            seed = splits.seed if splits.subset_seed is None else splits.subset_seed
            rows = _rows_of(config.parse_subset(splits.subset), train.labels, seed)
            samples["train"] = train.take(rows)
            same = {**same, "train": same["train"][rows]} if "train" in same else same
            notes.append(
                f"train: {len(rows):,} of {pluralize(len(train), 'image')}, of each class the same fraction, "
                f"seed {seed} (subset {splits.subset})."
            )
            names = listing.class_names
            before = tables.count_labels(train.labels, len(names))
            after = tables.count_labels(samples["train"].labels, len(names))
            counts = zip(names, before, after, strict=True)
            if lost := [name for name, images, left in counts if images and not left]:
                count = pluralize(len(lost), "class has", "classes have")
                notes.append(f"{count} no image in it: {join_names(lost)}.")
        return replace(self, splits=samples, notes=tuple(notes), fold_of=fold_of, same=same, seed=splits.seed)

    def _repeats(self) -> NDArray[np.int64] | None:
        """Return the number of the first equal image of each training image; compared once, for all cuts."""
        if not self.shared.repeats:
            numbers, labels = self.listing.splits["train"]
            train = Samples(self.listing.files, numbers, labels, self.rule, self.shared, compared=True)
            self.shared.repeats.append(repeats.find_repeats([train], self.shared.digests))
        return self.shared.repeats[0]

    def with_part(self, name: str) -> "ImageData":
        """Add a part of a split, such as "test[:10%]", as a split of that name.

        The images of a part are taken in the order of `spread_order`, which `Splits.subset` follows as well.
        Nothing is added where the data has no such split.

        Raises:
            VitkitError: the split has no such part.
        """
        split, part = config.parse_split(name)
        samples = self.splits.get(split)
        if part is None or samples is None:
            return self
        rows = _rows_of(part, samples.labels, self.seed)
        same = {**self.same, name: self.same[split][rows]} if split in self.same else self.same
        return replace(self, splits={**self.splits, name: samples.take(rows)}, same=same)

    def seen_by(self, rule: config.DecodeRule, class_names: tuple[str, ...]) -> "ImageData":
        """Return the same images, decoded by another rule and with their classes in another order."""
        number_of = {name: number for number, name in enumerate(class_names)}
        order = np.array([number_of[name] for name in self.class_names], dtype=np.int64)
        splits = {
            split: replace(
                samples,
                labels=_reordered(samples.labels, order, len(order)),
                rule=rule,
                # Pixels that were decoded by another rule are not handed out.
                shared=samples.shared if samples.rule == rule else Shared(),
                held=samples.held if samples.rule == rule else None,
            )
            for split, samples in self.splits.items()
        }
        return replace(self, class_names=class_names, splits=splits)

    @property
    def multi_label(self) -> bool:
        """Whether an image has several labels, or none."""
        return any(samples.labels.ndim == 2 for samples in self.splits.values())

    def fingerprint(self) -> str:
        """Hash the listing (SHA-256): class names, keys and labels of every split. Pixels are not read."""
        digest = hashlib.sha256(json.dumps(self.class_names).encode())
        for name, samples in self.splits.items():
            digest.update(json.dumps([name, len(samples)]).encode())
            for index in range(len(samples)):
                digest.update(samples.key(index).encode() + b"\0")
            labels = samples.labels
            digest.update((np.packbits(labels) if labels.ndim == 2 else labels.astype("<i8")).tobytes())
        return digest.hexdigest()


class UnfitDataError(VitkitError):
    """Images that can be listed, but that no training may begin with.

    Args:
        problems: sentences that say why, and what to do.
        listed: the images, in no splits yet.
    """

    def __init__(self, problems: Sequence[str], listed: ImageData) -> None:
        super().__init__("\n".join(problems))
        self.problems, self.listed = tuple(problems), listed


def open_data(
    spec: str,
    splits: config.Splits = config.DEFAULT_SPLITS,
    rule: config.DecodeRule = config.DEFAULT_RULE,
    class_names: Sequence[str] | None = None,
    multi_label: bool = False,
    labelled: bool = True,
    new_classes: bool = False,
) -> ImageData:
    """List the data that `spec` names: "digits", a folder, a .csv, a .parquet or a folder of Parquet files.

    Args:
        spec: the name of the data.
        splits: how splits are cut that the data lacks.
        rule: how image files are decoded.
        class_names: the classes of a trained model. Labels are then mapped to them by name; a class that the
            model lacks is an error, a class without images is not.
        multi_label: whether an image has several labels, or none: labels are then (N, K) bool.
        labelled: whether images need labels; if not, a folder may hold images alone, and labels are left out.
        new_classes: whether a class that the model lacks is appended to `class_names`.

    Raises:
        VitkitError: there is no such data, or it has no images.
        UnfitDataError: it has an empty class, a single class or nothing to train on, or its splits disagree
            about the classes; all of that is said at once.
    """
    if splits.label_separator is not None and not multi_label:
        raise VitkitError(
            "label_separator separates several labels of an image: give --task multi-label, or leave it out."
        )
    if splits.levels and (multi_label or not labelled):
        raise VitkitError(
            "levels (--levels) makes a tree of the classes of images that have one class each: leave it out, "
            "or give --task classification."
        )
    short_name, listing = _list(spec, splits, multi_label, class_names is not None, labelled)
    problems = list(listing.problems)
    if not labelled:
        # Labels `(N, 0)`, on which cutting, fingerprints and the search for repeats work unchanged.
        bare = {
            split: (numbers, np.zeros((len(numbers), 0), dtype=bool))
            for split, (numbers, _) in listing.splits.items()
        }
        listing = replace(listing, class_names=(), splits=bare)
    elif class_names is not None:
        new = [name for name in listing.class_names if new_classes and name not in class_names]
        listing = _renamed(listing, (*class_names, *new))
    elif multi_label and "train" in listing.splits:
        tables.refuse_single_labels(spec, listing)
    elif len(listing.class_names) < 2 and "train" in listing.splits:
        problems.append(
            f"{spec} has one class, {listing.class_names[0]!r}; a classifier needs at least two. {LAYOUTS}"
        )
    if class_names is None and "train" not in listing.splits:
        problems.append(f"{spec} has only {', '.join(listing.splits)}, no images to train on. {LAYOUTS}")
    # Labels are matched by name and written as text.
    if twice := sorted({name for name in listing.class_names if listing.class_names.count(name) > 1}):
        names = join_names(twice)
        raise VitkitError(f"{spec} has several classes of the same name: {names}. Give each its own.")
    for name in listing.class_names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise VitkitError(
                f"{spec}: the class name {name!a} is no valid UTF-8. Rename it; or, where only this process "
                f"has file names in {sys.getfilesystemencoding()}, set LC_ALL=C.UTF-8 and run it again."
            ) from None
    if splits.levels and class_names is None:
        listing = replace(listing, notes=(*listing.notes, _describe_levels(spec, listing.class_names)))
    if splits.group is not None and listing.groups is None:
        raise VitkitError(
            f"{spec}: --splits.group takes a column of a .csv or .parquet, or a level of folders below class "
            f"folders; this is {listing.kind}. Leave it out, or list the images in a .csv."
        )
    listed = ImageData(short_name, spec, listing.kind, listing.class_names, listing, rule)
    if problems:
        raise UnfitDataError(problems, listed)
    return listed.cut(splits)


def _list(
    spec: str, splits: config.Splits, multi_label: bool, partial: bool, labelled: bool
) -> tuple[str, Listing]:
    """List the data of `spec` and name it; with `partial`, classes may be missing. The first layout wins."""
    if spec == "digits":
        if multi_label:
            raise VitkitError(f"digits has one label an image. {tables.LAYOUTS}")
        return "digits", _list_digits()
    path, group = existing_path(spec), splits.group
    ending = path.suffix.lower()
    try:
        stage = split_lists.list_of(path)
        folder = path.parent if stage is not None and ending == ".parquet" else path
        is_list = ending != ".parquet" and (stage is not None or split_lists.holds_lists(path))
        parquets = list[Path]()
        if multi_label or not is_list:
            parquets = sorted(files_below(folder, lambda name: name.endswith(".parquet")))
        task = path if stage is None else path.parent  # a list of a task is named as the task
        name = task.resolve().stem if task.is_file() else task.resolve().name
        if multi_label:
            if ending == ".csv":
                return name, tables.list_csv_of_sets(path, splits.label_separator, group)
            if parquets or ending == ".parquet":
                raise VitkitError(
                    f"{path}: of Parquet files a single label an image is read. {tables.LAYOUTS}"
                )
            if not path.is_dir():
                raise VitkitError(f"{path} is a single file of another kind. {tables.LAYOUTS}")
            return name, tables.list_label_files(path, splits.label_separator)
        if ending == ".csv":
            return name, tables.list_csv(path, group, labelled)
        if ending == ".parquet" and stage is None:
            return name, parquet.list_parquet(path.parent, [path], group=group, labelled=labelled)
        if ending == ".parquet":
            return name, split_lists.list_split_parquets(folder, parquets, stage, group)
        if is_list:
            return name, split_lists.list_split_lists(task, stage)
        if path.name.lower().endswith(archives.ARCHIVE_ENDINGS):
            return name, archives.list_archive(path, partial, group, labelled, splits.levels)
        if not path.is_dir():
            raise VitkitError(f"{path} is a single file of another kind. {LAYOUTS}")
        if not parquets:
            if not labelled:
                return name, folders.list_images(path)
            return name, folders.list_folders(path, partial, group, splits.levels)
        if split_lists.holds_split_parquets(parquets):
            return name, split_lists.list_split_parquets(path, parquets, group=group)
        return name, parquet.list_parquet(path, parquets, group=group, labelled=labelled)
    except OSError as error:
        raise VitkitError(f"{spec} cannot be listed: {error}. Is it whole, and may it be read?") from error


def _describe_levels(spec: str, names: tuple[str, ...]) -> str:
    """Say how many levels a tree of classes has, and how many classes each.

    Raises:
        VitkitError: the names make no tree, or images of a class lie beside folders of classes within it.
    """
    levels = [set(level) for level in tree_levels(names)]
    if len(levels) < 2:
        raise VitkitError(
            f"{spec} has no classes within classes, such as birds/petrel/1.jpg, found "
            f"{join_names(names)}: leave levels (--levels) out."
        )
    if len(levels[0]) == 1:
        raise VitkitError(
            f"All classes of {spec} are within one, {names[0].partition('/')[0]}: give its folder as the "
            "data, or leave levels (--levels) out."
        )
    above = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    if both := sorted(above.intersection(names)):
        raise VitkitError(
            f"{spec} has images of {join_names(both)} itself beside classes within it: a tree has images at "
            f"its ends alone. Move them into classes of their own, such as {both[0]}/other."
        )
    return f"Levels: {', then '.join(pluralize(len(level), 'class', 'classes') for level in levels)}."


@dataclass(frozen=True)
class Held:
    """The pixels of the images of a split, in memory.

    They are in one flat array, because images differ in size: a million small arrays of their own would take
    more memory than their pixels.
    """

    pixels: NDArray[np.uint8]
    """(sum of H * W * C,)"""
    starts: NDArray[np.int64]
    """(N,) the index of each image's first value in `pixels`."""
    sizes: NDArray[np.int64]
    """(N, 2) height and width; 0 where the file could not be read."""
    bad: dict[int, str]
    """Index -> the reason why the file could not be read, which is raised again whenever it is read."""
    channels: int

    def size(self, index: int) -> tuple[int, int]:
        """Return (height, width) of the pixels. Raises DecodeError."""
        if index in self.bad:
            raise DecodeError(self.bad[index])
        height, width = self.sizes[index].tolist()
        return height, width

    def image(self, index: int) -> NDArray[np.uint8]:
        """Return the pixels of an image (H, W, C), as a view. Raises DecodeError."""
        height, width = self.size(index)
        start, shape = int(self.starts[index]), (height, width, self.channels)
        return self.pixels[start : start + math.prod(shape)].reshape(shape)


@dataclass(eq=False)
class Samples:
    """The images of one split with their labels; each is decoded when it is read, unless it is in memory."""

    files: Files
    numbers: NDArray[np.int64]
    """(N,) of the images among `files`."""
    labels: Labels
    """(N,) class numbers; (N, K) bool where an image has several labels, or none."""
    rule: config.DecodeRule
    shared: Shared = field(default_factory=Shared)
    compared: bool = False
    """Whether images are decoded to be compared with one another, and kept for the next reader."""
    border: int = 0
    """Pixels at each side of every image that are cut off when it is decoded; headers have the whole size."""
    held: Held | None = None
    """The pixels of all images, where they are in memory."""

    @property
    def targets(self) -> Targets:
        """The arrays that a loader cuts the targets of its batches from."""
        return {} if self.labels.shape[1:] == (0,) else {LABELS: self.labels}

    def take(self, rows: NDArray[np.int64]) -> "Samples":
        """Give some of the images, which are not in memory: `rows` are their indices."""
        return replace(self, numbers=self.numbers[rows], labels=self.labels[rows], held=None)

    def spread(self, most: int) -> NDArray[np.int64]:
        """Return the numbers of `most` samples that are spread evenly; of all where there are fewer."""
        return np.unique(np.linspace(0, len(self) - 1, min(most, len(self))).astype(np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def key(self, index: int) -> str:
        """Return the name of an image for messages: the path below the data's root, or file and row."""
        return self.files.key(int(self.numbers[index]))

    def file(self, index: int) -> bytes | Path:
        """Return the encoded image: its bytes, or the path of its file."""
        return self.files.file(int(self.numbers[index]))

    def decode(self, index: int) -> NDArray[np.uint8]:
        """Decode an image to (H, W, C) uint8, C = 3 unless the rule says otherwise. Raises DecodeError."""
        if self.held is not None:
            return self.held.image(index)
        number, shared, border = int(self.numbers[index]), self.shared, self.border
        # Handed out once, so that an image is not held twice.
        if (image := shared.pixels.pop(number, None)) is None:
            image = decode(self.files.file(number), self.rule)
        if self.compared:
            shared.room -= image.nbytes
            if shared.room >= 0:
                shared.pixels[number] = image
            else:  # a part of a split saves little, and may be in the way of another split
                shared.pixels.clear()
        if border and min(image.shape[:2]) <= 2 * border:
            raise DecodeError(f"nothing is left of it without its border of {border} pixels")
        return image[border:-border, border:-border] if border else image

    def header(self, index: int) -> Header:
        """Read format, colour mode and size, without decoding. Raises DecodeError."""
        return header(self.file(index), self.rule)


def some_headers(samples: Samples, most: int) -> Iterator[Header]:
    """Yield headers of at most so many images, evenly spread over a split; unreadable ones are skipped."""
    for index in samples.spread(most).tolist():
        with suppress(DecodeError):
            yield samples.header(index)


_PART_STREAM = 2**32
"""The stream of the draws of `spread_order`, far above the streams of splits and folds, which are their
numbers."""


def _rows_of(part: config.Slice, labels: Labels, seed: int) -> NDArray[np.int64]:
    """Choose the images of a part of a split; returns their indices, ascending."""
    first, last = part.of(len(labels))
    return np.sort(cutting.spread_order(labels, seed, _PART_STREAM)[first:last])


def _list_digits() -> Listing:
    """List the 1797 handwritten digits of 8 x 8 pixels that come with scikit-learn."""
    spec = find_spec("sklearn")  # its file is read by itself: to import it takes a second
    assert spec is not None and spec.origin is not None  # vitkit needs it
    table = gzip.decompress((Path(spec.origin).parent / "datasets/data/digits.csv.gz").read_bytes())
    # 64 levels and a label each
    rows = np.array([line.split(b",") for line in table.split()], dtype=np.int64)
    labels = rows[:, 64]
    grey = np.round(rows[:, :64].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # levels 0 to 16
    names = tuple("0123456789")
    return Listing("built-in digits", names, _Digits(grey), {"train": (np.arange(len(labels)), labels)})


class _Digits(Files):
    def __init__(self, grey: NDArray[np.uint8]) -> None:
        self.grey = grey  # (N, 8, 8)

    def key(self, number: int) -> str:
        return f"digit {number:04d}"

    def file(self, number: int) -> bytes:
        # As a binary PGM, which is a header and the levels, it is decoded like any other image file.
        return b"P5 8 8 255\n" + bytes(self.grey[number])


def _renamed(listing: Listing, class_names: tuple[str, ...]) -> Listing:
    """Renumber the labels of a listing in the order of a trained model's classes."""
    number_of = {name: number for number, name in enumerate(class_names)}
    labels = np.concatenate([labels for _, labels in listing.splits.values()])
    used = np.flatnonzero(tables.count_labels(labels, len(listing.class_names)))
    unknown = [listing.class_names[label] for label in used if listing.class_names[label] not in number_of]
    if unknown:
        raise VitkitError(
            f"The data has {pluralize(len(unknown), 'class', 'classes')} that the model does not know: "
            f"{join_names(unknown)}. It knows {join_names(class_names)}. Rename these classes, or leave "
            "them out."
        )
    present = {listing.class_names[label] for label in used}
    absent = [name for name in class_names if name not in present]
    order = np.array([number_of.get(name, -1) for name in listing.class_names], dtype=np.int64)
    splits = {
        split: (numbers, _reordered(labels, order, len(class_names)))
        for split, (numbers, labels) in listing.splits.items()
    }
    count = pluralize(len(absent), "class of the model has", "classes of the model have")
    notes = (*listing.notes, f"{count} no images here: {join_names(absent)}.") if absent else listing.notes
    return replace(listing, class_names=class_names, splits=splits, notes=notes)


def _reordered(labels: Labels, order: NDArray[np.int64], count: int) -> Labels:
    """Renumber labels: class i becomes `order[i]` of `count`; -1 stands for a class without images."""
    if labels.ndim == 1:
        return order[labels]
    moved = np.zeros((len(labels), count), dtype=bool)
    moved[:, order[order >= 0]] = labels[:, order >= 0]
    return moved


def keep_in_memory(
    samples: Samples,
    limit_bytes: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    header_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Samples:
    """Decode a split into memory if its pixels fit into `limit_bytes`, else return the split as given.

    The headers decide before anything is decoded. A file whose pixels are of another size than its header
    said a moment ago is a bad file.

    Args:
        samples: the split.
        limit_bytes: largest size of all its pixels, a byte for each channel.
        progress: called as `progress(done, total)` after each decoded image.
        header_progress: called in the same way after each header; all headers are read first.

    Raises:
        VitkitError: this machine does not have that memory.
    """
    total, channels = len(samples), samples.rule.channels
    sizes = np.zeros((total, 2), dtype=np.int64)
    bad, needed = dict[int, str](), 0
    for index in range(total):
        try:
            sizes[index] = samples.header(index).size
        except DecodeError as error:
            bad[index] = str(error)
        header_progress(index + 1, total)
        needed += channels * int(sizes[index].prod())  # a bad file has size 0 x 0 and needs nothing
        if needed > limit_bytes:
            return samples
    lengths = channels * sizes.prod(axis=1)
    starts = np.cumsum(lengths) - lengths  # the end of each image less its length
    try:
        pixels = np.empty(needed, dtype=np.uint8)
    except MemoryError as error:
        raise VitkitError(
            f"There is not enough memory for {needed / 1e6:,.0f} MB of decoded images. Give a lower "
            "--memory-gib: with 0 they are read as they are needed."
        ) from error
    for index in range(total):
        if index not in bad:
            try:
                image = samples.decode(index)
                height, width = sizes[index].tolist()
                if image.shape[:2] != (height, width):
                    raise DecodeError(
                        f"the file changed while it was read: its header said {height} x {width} pixels "
                        f"(height x width), its image has {image.shape[0]} x {image.shape[1]}"
                    )
                pixels[starts[index] : starts[index] + image.size] = image.reshape(-1)
            except DecodeError as error:
                bad[index] = str(error)
        progress(index + 1, total)
    held = copy(samples)
    held.held = Held(pixels, starts, sizes, bad, channels)
    return held


def largest_decoding(samples: Samples, look_at: int = 200) -> int:
    """Estimate the bytes of memory that decoding the most demanding image takes, from headers.

    At most `look_at` headers, evenly spread over the split, are read: a million would take minutes, and this
    is only for a warning.
    """
    return max((head.decoding_bytes for head in some_headers(samples, look_at)), default=0)


def check_decode_memory(largest: int, workers: int, available: int | None) -> str | None:
    """Return a warning if so many workers may need more memory for decoding than there is.

    Args:
        largest: bytes that decoding one image may take, by `largest_decoding`.
        workers: processes that decode at the same time; 0: this process alone.
        available: bytes that the machine can still give; None if it is unknown.
    """
    together = largest * max(1, workers)
    if available is None or together <= available:
        return None
    return (
        f"Decoding may take {together / 1e6:,.0f} MB of memory at a time ({max(1, workers)} x "
        f"{largest / 1e6:,.0f} MB for the largest images), but {available / 1e6:,.0f} MB are free. "
        "Give fewer --workers, or leave the largest images out with --max-pixels."
    )
