"""Add images and classes to a model whose head is in closed form, and take them out again, exactly."""

import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitkit.data import sources
from vitkit.data.config import Splits
from vitkit.data.layouts.image_paths import find_images
from vitkit.data.layouts.repeats import content_digest
from vitkit.errors import VitkitError
from vitkit.evaluation.statistics import binomial_interval, describe_interval
from vitkit.jobs.options import StrPath, StrPaths, as_names
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.result import Cell, Facts, Result, Section, table_of, unreadable
from vitkit.runs import closed_form, machine
from vitkit.runs.closed_form import Change, LearnedImages, as_keys
from vitkit.runs.folder import kind_of, lock_folder
from vitkit.tasks.page import count_cell, fraction_cell
from vitkit.text import join_names, pluralize
from vitkit.weights.model_card import card_of, preprocessing_of

CHANGES_SHOWN = 5
"""The last changes of a model that a terminal lists; `--json` has all."""


@dataclass(frozen=True, repr=False)
class Extended(Result):
    """A head in closed form: what it learned from, and what changed."""

    model: str
    images: int
    classes: dict[str, int]
    """The number of images of each class."""
    right: dict[str, int]
    """Images of each class whose class the head without them says."""
    added: int
    removed: int
    present: int
    """Images that were handed in and were in already."""
    new_classes: tuple[str, ...]
    removed_classes: tuple[str, ...]
    accuracy: float
    """The fraction of images whose class the head without them says."""
    accuracy_before: float
    """The same before the change, on the images that were in then."""
    difference: float
    """The largest difference of the stored head before the change from the solution of the images that were
    in, over its largest weight; 0: all bits are equal."""
    changes: tuple[Change, ...]
    looked_up: dict[str, str]
    """Whether each photo of `check` is in."""
    rejects: dict[str, str]
    """Name and reason of every image that could not be read."""

    def headline(self) -> Sequence[str]:
        """Say what is in, how accurate the head is, and that it is exact."""
        classes = pluralize(len(self.classes), "class", "classes")
        interval = describe_interval(binomial_interval(sum(self.right.values()), self.images))
        exact = "all bits are equal" if not self.difference else f"difference {self.difference:.1g}"
        return (
            f"{pluralize(self.images, 'image')} of {classes} in {self.model}: {self.added:,} added, "
            f"{self.removed:,} taken out.",
            f"Left out in turn, {self.accuracy:.2%} are right {interval}, before {self.accuracy_before:.2%}.",
            f"The head that was there is the solution of the images that were in: {exact}.",
        )

    def sections(self) -> Sequence[Section]:
        """Return the classes, the changes, the photos that were looked up, and what could not be read."""
        columns: dict[str, Callable[[str], Cell]] = {
            "class": lambda name: name,
            "images": lambda name: count_cell(self.classes[name]),
            "right when left out": lambda name: fraction_cell(self.right[name] / self.classes[name]),
        }
        facts = {
            "new classes": [join_names(self.new_classes)] if self.new_classes else [],
            "classes gone": [join_names(self.removed_classes)] if self.removed_classes else [],
            "in already": [pluralize(self.present, "image")] if self.present else [],
            "changes": [
                f"{each.date}: {each.added:,} added, {len(each.removed):,} taken out, {each.images:,} in"
                for each in self.changes[-CHANGES_SHOWN:]
            ],
            "images": [f"hash of their hashes and classes: {self.changes[-1].images_hash}"],
            "looked up": [f"{name}: {state}" for name, state in self.looked_up.items()],
        }
        unread = unreadable(self.rejects, "were left out")
        return (Section("", (table_of(self.classes, columns), Facts(tuple(facts.items())), *unread)),)

    def following(self) -> Sequence[str]:
        """Return the commands that use the model."""
        quoted = shlex.quote(self.model)
        return f"vitkit predict {quoted} IMAGE", f"vitkit evaluate {quoted} DATA   (images it never saw)"


def extend(
    model: StrPath,
    data: StrPath | None = None,
    *,
    without: StrPaths = (),
    check: StrPaths = (),
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
    folder, leaving = place.path, as_names(without)
    with lock_folder(folder) if folder.is_dir() and (data or leaving) else nullcontext():
        with listener.progress("reading the model"):
            before, images = closed_form.read_model(folder)
            names = before.card.class_names
            former = closed_form.refit(images, len(names))
        difference = closed_form.difference_of(before, former)
        if difference > closed_form.TOLERANCE:
            raise VitkitError(
                f"The head of {folder} is not the solution of the images in {closed_form.FILE}: the largest "
                f"difference is {difference:.1g} of its largest weight. One of them was changed: put both "
                "back."
            )
        gone = _choose(images, names, leaving)
        closed_form.require_removable(images, gone)
        left, rejects, present, all_names = images.take(~gone), dict[str, str](), 0, names
        new = left.take(np.arange(0))
        if data:
            rule = preprocessing_of(before).decode
            splits = Splits(0, 0, levels=before.card.levels is not None)
            opened = sources.open_data(str(data), splits, rule, names, new_classes=True)
            if (samples := opened.splits.get("train")) is None:
                raise VitkitError(f"{data} has only {join_names([*opened.splits])}, no images to learn from.")
            place_of = machine.find_device(device)
            computed = closed_form.compute_images(samples, before, place_of, workers, listener, left)
            (new, rejects, present), all_names = computed, opened.class_names
        # A class goes with its last image, and the others move up.
        after = left.add(new)
        is_in = np.array(after.counts(len(all_names))) > 0
        after = replace(after, labels=(np.cumsum(is_in) - 1)[after.labels])
        now_names = tuple(compress(all_names, is_in))
        head = former
        if len(new) or gone.any():
            head = closed_form.refit(after, len(now_names))
            # Splits of other classes are not its own any more, and evaluating it would not find them.
            card = card_of(before) if now_names == names else replace(card_of(before), data=None)
            before.card = replace(card, class_names=now_names)
            if place.config is not None:  # they are of the former head
                shutil.rmtree(folder / "evaluation", ignore_errors=True)
                (folder / "report.html").unlink(missing_ok=True)
            removed = images.take(gone).hashes
            _, after = closed_form.write_model(folder, before, head, after, len(new), removed)
    right = after.take(head.logits_without.argmax(1) == head.labels).counts(len(now_names))
    return Extended(
        model=str(model),
        images=len(after),
        classes=dict(zip(now_names, after.counts(len(now_names)), strict=True)),
        right=dict(zip(now_names, right, strict=True)),
        added=len(new),
        removed=int(gone.sum()),
        present=present,
        new_classes=tuple(name for name in now_names if name not in names),
        removed_classes=tuple(name for name in names if name not in now_names),
        accuracy=head.right / len(after),
        accuracy_before=former.right / len(images),
        difference=difference,
        changes=after.record.changes,
        looked_up=_look_up(after, now_names, as_names(check)),
        rejects=rejects,
    )


def _hash_photos(name: str) -> dict[str, bytes]:
    """Hash the photos that a person names, by the places where they are."""
    return {str(image.path): content_digest(image.content()) for image in find_images([name])}


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
        chosen = np.isin(keys, as_keys(closed_form.as_hashes([*_hash_photos(name).values()])))
        if not chosen.any():
            raise VitkitError(
                f"No photo of {name} is in: nothing was changed. A photo counts by the bytes of its file; "
                "one that was saved anew is another. --check says when one was taken out."
            )
        gone |= chosen
    return gone


def _look_up(images: LearnedImages, names: Sequence[str], photos: Sequence[str]) -> dict[str, str]:
    """Say of each photo whether it is in, or when it was taken out."""
    states = {
        bytes.fromhex(row): f"is not in, and was taken out on {change.date}"
        for change in images.record.changes
        for row in change.removed
    }
    states |= {key: f"is in, as {names[label]}" for key, label in images.classes_by_hash().items()}
    hashes = (pair for name in photos for pair in _hash_photos(name).items())
    return {path: states.get(key, "is not in") for path, key in hashes}
