"""Add images and classes to a model whose head is in closed form, and take them out again, exactly."""

import shlex
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitkit.data import sources
from vitkit.data.config import Splits
from vitkit.data.layouts.image_paths import find_images
from vitkit.data.layouts.repeats import content_digest
from vitkit.errors import VitkitError
from vitkit.evaluation.ridge import RidgeHead
from vitkit.evaluation.statistics import binomial_interval
from vitkit.jobs.options import StrPath, StrPaths, as_names
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.result import Facts, Number, Result, Section, Table, unreadable
from vitkit.runs import closed_form, machine
from vitkit.runs.closed_form import Change, LearnedImages, as_keys
from vitkit.runs.folder import beside, kind_of, lock_folder, refuse_taken
from vitkit.text import join_names, pluralize
from vitkit.weights import loading
from vitkit.weights.formats.native import settle
from vitkit.weights.model_card import card_of, preprocessing_of

CHANGES_SHOWN = 5
"""The last changes of a model that a terminal lists; `--json` has all."""


@dataclass(frozen=True)
class LearnedClass:
    """A class, and how well its images are told by a head that was solved without them."""

    name: str
    images: int
    right: int
    """Images whose class the head without them says."""


@dataclass(frozen=True, repr=False)
class Extended(Result):
    """A head in closed form: what it learned from, and what changed."""

    model: str
    out: Path
    """The folder of the model."""
    images: int
    classes: tuple[LearnedClass, ...]
    added: int
    removed: int
    present: int
    """Images that were handed in and were in already."""
    new_classes: tuple[str, ...]
    removed_classes: tuple[str, ...]
    accuracy: float
    """The fraction of images whose class the head without them says."""
    interval: tuple[float, float]
    """Its 95 % interval, on other images drawn alike."""
    accuracy_before: float
    """The same before the change, on the images that were in then."""
    penalty: float
    temperature: float
    difference: float
    """The largest difference of the stored head before the change from the solution of the images that were
    in, over its largest weight; 0: all bits are equal."""
    images_hash: str
    """The hash of the hashes and classes of all images that are in."""
    changes: tuple[Change, ...]
    looked_up: dict[str, str]
    """Whether each photo of `check` is in."""
    rejects: dict[str, str]
    """Name and reason of every image that could not be read."""
    feature_seconds: float
    head_seconds: float
    """Seconds for all but the features: solving, comparing and writing."""
    remarks: tuple[str, ...] = field(default=())

    def headline(self) -> Sequence[str]:
        """Say what is in, how accurate the head is, and that it is exact."""
        classes = pluralize(len(self.classes), "class", "classes")
        changed = f"{self.added:,} added, {self.removed:,} taken out"
        low, high = self.interval
        before = f", before {self.accuracy_before:.2%}" if self.added or self.removed else ""
        exact = "all bits are equal" if not self.difference else f"difference {self.difference:.1g}"
        lines = [
            f"{pluralize(self.images, 'image')} of {classes} in {self.out}: {changed}.",
            f"Left out in turn, {self.accuracy:.2%} are right (95 % interval {low:.1%} to {high:.1%})"
            f"{before}.",
            f"The head that was there is the solution of the images that were in: {exact}.",
        ]
        if self.added or self.removed:
            seconds = f"{self.head_seconds:.1f} s, and {self.feature_seconds:.1f} s for features"
            lines.append(f"The new head is solved from exactly the images that are in now ({seconds}).")
        return lines

    def sections(self) -> Sequence[Section]:
        """Return the classes, the changes, the photos that were looked up, and what could not be read."""
        rows = tuple(
            (each.name, Number(f"{each.images:,}", each.images), f"{each.right / each.images:.1%}")
            for each in self.classes
        )
        changes = [
            f"{change.date}: {change.added:,} added, {len(change.removed):,} taken out, {change.images:,} in"
            for change in self.changes[-CHANGES_SHOWN:]
        ]
        facts: Sequence[tuple[str, Sequence[str]]] = (
            ("new classes", [join_names(list(self.new_classes))] if self.new_classes else []),
            ("classes gone", [join_names(list(self.removed_classes))] if self.removed_classes else []),
            ("in already", [pluralize(self.present, "image")] if self.present else []),
            ("head", [f"penalty {self.penalty:g}, temperature {self.temperature:.3g}"]),
            ("changes", changes),
            ("images", [f"hash of their hashes and classes: {self.images_hash}"]),
            ("looked up", [f"{name}: {state}" for name, state in self.looked_up.items()]),
        )
        table = Table(("class", "images", "right when left out"), rows)
        unread = unreadable(self.rejects, "were left out")
        return (Section("", (table, Facts(tuple(facts)), *unread, *self.remarks)),)

    def following(self) -> Sequence[str]:
        """Return the commands that use the model."""
        quoted = shlex.quote(str(self.out))
        return f"vitkit predict {quoted} IMAGE", f"vitkit evaluate {quoted} DATA   (images it never saw)"


def extend(
    model: StrPath,
    data: StrPath | None = None,
    *,
    without: StrPaths = (),
    check: StrPaths = (),
    out: StrPath | None = None,
    workers: int = 0,
    device: str = "auto",
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
) -> Extended:
    """Add images and classes to a model whose head is in closed form, or take them out, in seconds.

    The head is then, bit for bit, the head of training on exactly the images that are in. Without images to
    add or take out, it is compared with the solution, and what is in is listed.

    Args:
        model: the folder of a model that `vitkit finetune --freeze backbone` made.
        data: images with labels to add, as for `vitkit.train`; a class that the model lacks is appended. Of
            data with splits, the training images are added.
        without: what is taken out: photos, folders or archives of photos, whose files are handed in again, or
            the name of a class. A class goes with its last image.
        check: photos that are looked up: whether each is in.
        out: folder for the new model; left out, it takes the place of the old one, at one instant.
        workers: processes that decode images; with 0 the main process decodes.
        device: where features are computed: auto (a GPU if there is one), cpu, gpu or cuda:1.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.

    Returns:
        What is in, what changed, and the accuracy on images that the head was solved without.

    Raises:
        VitkitError: the head of the model was trained by gradient descent, or its images are missing or
            damaged; a photo that is to be taken out is not in, or the backbone itself was trained on it; an
            image is in under another class; fewer than two classes would be left.

    Unstable: its parameters and what it returns may change in any release.
    """
    listener, place = hushed(listener, quiet), kind_of(model)
    folder, target = place.path, place.path if out is None else Path(out)
    if not (folder / "model.json").is_file():
        raise VitkitError(
            f"{model} is no folder of a model with {closed_form.FILE}: expected one that vitkit finetune "
            "START DATA --freeze backbone made."
        )
    if out is not None:
        refuse_taken(target)
    leaving, changes = as_names(without), bool(data) or bool(as_names(without))
    with ExitStack() as stack:
        if out is None and changes:
            stack.enter_context(lock_folder(folder))
            settle(folder)
        with listener.progress("reading the model"):
            begun = time.monotonic()
            before = loading.load(folder).model
            images, names = closed_form.read_images(folder, before), before.card.class_names
            former = closed_form.refit(images, len(names))
        difference = closed_form.difference_of(before, former)
        if difference > closed_form.TOLERANCE:
            raise VitkitError(
                f"The head of {folder} is not the solution of the images in {closed_form.FILE}: the largest "
                f"difference is {difference:.1g} of its largest weight. One of them was changed: put both "
                "back."
            )
        solving = time.monotonic() - begun
        gone = _choose(images, names, leaving)
        closed_form.require_removable(images, gone)
        left, added = images.take(~gone), images.take(np.zeros(len(images), bool))
        rejects, remarks, computing, present = dict[str, str](), list[str](), 0.0, 0
        all_names = names
        if data:
            begun = time.monotonic()
            rule = preprocessing_of(before).decode
            splits = Splits(0, 0, levels=before.card.levels is not None)
            opened = sources.open_data(str(data), splits, rule, names, new_classes=True)
            if (samples := opened.splits.get("train")) is None:
                raise VitkitError(f"{data} has only {join_names([*opened.splits])}, no images to learn from.")
            if others := [split for split in opened.splits if split != "train"]:
                remarks.append(
                    f"Of {data} the training images are learned, not those of {join_names(others)}."
                )
            keys = zip(as_keys(left.hashes).tolist(), left.labels.tolist(), strict=True)
            extract = partial(closed_form.make_extractor, before, machine.find_device(device), workers)
            new, rejects, twice = closed_form.compute_images(samples, extract, listener, dict(keys))
            if twice:
                listener.warn(closed_form.describe_twice(twice))
            present = len(samples) - len(new) - len(rejects)
            added = replace(added, rows=new.rows, hashes=new.hashes, labels=new.labels) if len(new) else added
            all_names, computing = opened.class_names, time.monotonic() - begun
        begun = time.monotonic()
        after = left.add(added)
        # A class goes with its last image, and the others move up.
        counts = after.counts(len(all_names))
        numbers = np.cumsum(np.array(counts) > 0) - 1
        after = replace(after, labels=numbers[after.labels])
        now_names = tuple(name for name, count in zip(all_names, counts, strict=True) if count)
        head = former
        if len(added) or gone.any():
            head = closed_form.refit(after, len(now_names))
            if now_names != names:  # its splits have other classes, and evaluating it would not find them
                before.card = replace(card_of(before), data=None)
            made = closed_form.with_head(before, head, after, now_names)
            if place.config is not None and out is None:
                shutil.rmtree(folder / "evaluation", ignore_errors=True)
                (folder / "report.html").unlink(missing_ok=True)
                remarks.append("The report and the evaluations of the former head are removed.")
            removed = images.take(gone).hashes
            if out is None:
                after = closed_form.keep(folder, made, after, len(added), removed, replaces=True)
            else:
                with beside(target) as temporary:
                    after = closed_form.keep(temporary / "model", made, after, len(added), removed)
                    (temporary / "model").rename(target)
            solving += time.monotonic() - begun
        elif out is not None:
            raise VitkitError(f"Nothing is added or taken out, so that {out} would be a copy of {folder}.")
    return Extended(
        model=str(model),
        out=target,
        images=len(after),
        classes=_count_classes(head, now_names),
        added=len(added),
        removed=int(gone.sum()),
        present=present,
        new_classes=tuple(name for name in now_names if name not in names),
        removed_classes=tuple(name for name in names if name not in now_names),
        accuracy=head.right / len(after),
        interval=binomial_interval(head.right, len(after)),
        accuracy_before=former.right / len(images),
        penalty=head.penalty,
        temperature=1 / head.scale,
        difference=difference,
        images_hash=after.hash(now_names),
        changes=after.record.changes,
        looked_up=_look_up(after, now_names, as_names(check)),
        rejects=rejects,
        feature_seconds=computing,
        head_seconds=solving,
        remarks=tuple(remarks),
    )


def _count_classes(head: RidgeHead, names: Sequence[str]) -> tuple[LearnedClass, ...]:
    """Count the images of each class, and those that are right when they are left out."""
    right = head.logits_without.argmax(1) == head.labels
    counts, rights = (np.bincount(head.labels, weights, len(names)) for weights in (None, right))
    return tuple(map(LearnedClass, names, map(int, counts), map(int, rights)))


def _hash_photos(name: str) -> dict[str, bytes]:
    """Hash the photos that a person names, by the places where they are.

    Raises:
        VitkitError: there is none, or one cannot be read.
    """
    hashes = {}
    for image in find_images([name]):
        try:
            hashes[str(image.path)] = content_digest(image.content())
        except OSError as error:
            reason = error.strerror or error
            raise VitkitError(f"{image.path} cannot be read ({reason}): give the photo's file.") from error
    return hashes


def _choose(images: LearnedImages, names: Sequence[str], leaving: Sequence[str]) -> NDArray[np.bool_]:
    """Choose the images that are taken out, `(N,)` bool; a name that is a class's means the class.

    Raises:
        VitkitError: none of the photos under a name is in.
    """
    gone, keys = np.zeros(len(images), bool), as_keys(images.hashes)
    for name in leaving:
        if name in names:
            gone |= images.labels == list(names).index(name)
            continue
        if not Path(name).exists():
            raise VitkitError(
                f"{name} is no class of the model ({join_names(list(names))}), and there is no such photo or "
                "folder. A photo is taken out by its file, which is handed in again."
            )
        hashes = np.frombuffer(b"".join(_hash_photos(name).values()), np.uint8).reshape(-1, 32)
        chosen = np.isin(keys, as_keys(hashes))
        if not chosen.any():
            states = set(_look_up(images, names, [name]).values())
            raise VitkitError(
                f"{name} {states.pop() if len(states) == 1 else 'holds no photo that is in'}: nothing was "
                "changed. A photo counts by the bytes of its file; one that was saved anew is another."
            )
        gone |= chosen
    return gone


def _look_up(images: LearnedImages, names: Sequence[str], photos: Sequence[str]) -> dict[str, str]:
    """Say of each photo whether it is in, or when it was taken out."""
    labels = dict(zip(as_keys(images.hashes).tolist(), images.labels.tolist(), strict=True))
    removed = {row: change.date for change in images.record.changes for row in change.removed}
    states = {}
    for path, key in (pair for name in photos for pair in _hash_photos(name).items()):
        if key in labels:
            states[path] = f"is in, as {names[labels[key]]}"
        else:
            on = f", and was taken out on {removed[key.hex()]}" if key.hex() in removed else ""
            states[path] = f"is not in{on}"
    return states
