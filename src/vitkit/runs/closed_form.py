"""Keep what a head in closed form learned from beside its model, so that images are added and taken out.

features.safetensors, images in the order of their hashes:

rows       (N, D) float32: their features
hashes     (N, 32) uint8: SHA-256 of the bytes of the image file, or of the encoded image where an archive or
           a Parquet file holds it
labels     (N,) int64: the numbers of their classes
backbone   (M, 32) uint8: hashes of the images that the backbone itself was trained on, where it is a run's
record     JSON as uint8: the head that was solved, and the changes

Pictures are in no file: a removal needs a photo's hash, which whoever has the photo can compute.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from vitkit._version import __version__
from vitkit.config import Count, from_json, to_json
from vitkit.data.layouts.repeats import bytes_digest
from vitkit.data.listing import class_numbers
from vitkit.data.sources import Samples
from vitkit.durable import json_bytes, parse_json, replace_file
from vitkit.errors import VitkitError
from vitkit.evaluation.features import FeatureExtractor
from vitkit.evaluation.refusal import FEWEST, MOST_HELD_OUT, count_refused, count_unseen, cross_calibrate
from vitkit.evaluation.ridge import RidgeHead, solve_head
from vitkit.listener import Listener
from vitkit.models.config import Refusal
from vitkit.models.image_model import ImageModel
from vitkit.models.novelty import Novelty
from vitkit.runs import machine, trained_model
from vitkit.tasks import answering_of
from vitkit.text import join_names, pluralize
from vitkit.weights import loading
from vitkit.weights.files.source import read_safetensors, safetensors_chunks
from vitkit.weights.formats.native import replace_native, waiting
from vitkit.weights.model_card import Described, card_of, preprocessing_of

FILE = "features.safetensors"
BATCH = 32
"""Images at a time. Features of another batch differ in their last digits, so that all have this size: 32
rows of a batch have the same bits wherever they stand in it and whatever stands beside them."""
HEAD = "head"
"""The entry of a card's origin that says what a head in closed form was solved from."""
TOLERANCE = 1e-5
"""The largest difference of a stored head from the solution, over its largest weight: float32 rounds by 6e-8,
and another processor's last digits add to that."""

Hashes = NDArray[np.uint8]
NOTHING: Hashes = np.zeros((0, 32), np.uint8)


@dataclass(frozen=True)
class Change:
    """Images that were added or taken out."""

    date: str
    """In UTC."""
    added: Count
    """The number of images."""
    removed: tuple[str, ...]
    """The hashes of images that were taken out, which prove that they are not in any more."""
    images: Count
    """The number of images after it."""
    images_hash: str
    """The hash of the hashes and classes of all images after it."""


@dataclass(frozen=True)
class Record:
    """The contents of `features.safetensors` beside its arrays of images."""

    head: str = ""
    """SHA-256 of the weights of the head that was solved from the rows."""
    unseen: tuple[str, ...] = ()
    """Data that the backbone was trained on and whose images are not known, because they were not at hand."""
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, eq=False)
class LearnedImages:
    """The images that a head in closed form learned from: the arrays of `features.safetensors`."""

    rows: NDArray[np.float32]
    hashes: Hashes
    labels: NDArray[np.int64]
    backbone: Hashes
    record: Record = field(default_factory=Record)

    def __len__(self) -> int:
        return len(self.rows)

    def counts(self, classes: int) -> list[int]:
        """Count the images of each class."""
        counts: list[int] = np.bincount(self.labels, minlength=classes).tolist()
        return counts

    def classes_by_hash(self) -> dict[bytes, int]:
        """Return the number of each image's class by its hash."""
        return dict(zip(as_keys(self.hashes).tolist(), self.labels.tolist(), strict=True))

    def hash(self, class_names: Sequence[str]) -> str:
        """Hash the set of images with their classes by name."""
        digest = hashlib.sha256()
        for row, label in zip(self.hashes, self.labels.tolist(), strict=True):
            digest.update(row.tobytes() + class_names[label].encode() + b"\0")
        return digest.hexdigest()

    def take(self, rows: NDArray[Any]) -> "LearnedImages":
        """Return some of the images."""
        return replace(self, rows=self.rows[rows], hashes=self.hashes[rows], labels=self.labels[rows])

    def add(self, others: "LearnedImages") -> "LearnedImages":
        """Return these images and others, in the order of the hashes."""
        names = ("rows", "hashes", "labels")
        arrays: Any = {name: np.concatenate([getattr(self, name), getattr(others, name)]) for name in names}
        both = replace(self, **arrays)
        return both.take(np.argsort(as_keys(both.hashes)))


def as_keys(hashes: Hashes) -> NDArray[np.void]:
    """View hashes `(N, 32)` as N values that are compared and sorted whole, as bytes."""
    keys: NDArray[np.void] = np.ascontiguousarray(hashes).view("V32").reshape(-1)
    return keys


def as_hashes(keys: Sequence[bytes]) -> Hashes:
    """Put hashes into an array `(N, 32)`."""
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 32)


def refit(images: LearnedImages, classes: int) -> RidgeHead:
    """Solve the head of exactly these images: weights, penalty and temperature, and whatever else is
    calibrated by the scores of images that the head was solved without.

    Raises:
        VitkitError: fewer than two classes have images.
    """
    # One thread adds up in one order, however many the machine has. Beside other work it is the fastest too,
    # because threads of OpenBLAS wait in loops: 2,000 rows of 384 took 0.3 s in place of 1.1 s.
    with threadpool_limits(1, "blas"):
        return solve_head(images.rows, images.labels, classes)


def compute_images(
    samples: Samples,
    model: ImageModel,
    device: torch.device,
    workers: int,
    listener: Listener,
    others: LearnedImages | None = None,
) -> tuple[LearnedImages, dict[str, str], int]:
    """Hash images and compute their features, each once; an image in two classes is left out of both.

    Features depend on nothing but the image and the machine: they are computed in float32, and always of a
    batch of one size.

    Args:
        samples: with a class each.
        model: computes the features.
        device: where.
        workers: processes that decode images.
        listener: hears the progress, and the names of images in two classes.
        others: images that are in already, which are passed over.

    Returns:
        The images; name and reason of each that cannot be read; the number of images that are in already.

    Raises:
        VitkitError: an image is in already under another class.
    """
    copies, rejects, labels = dict[bytes, list[int]](), dict[str, str](), class_numbers(samples.labels)
    for index, digest in enumerate(hash_images(samples, listener)):
        if digest is None:
            rejects[samples.key(index)] = "the file cannot be read"
        else:
            copies.setdefault(digest, []).append(index)
    classes = {key: set(labels[indices].tolist()) for key, indices in copies.items()}
    present = {} if others is None else others.classes_by_hash()
    if moved := [key for key, those in classes.items() if not {present.get(key)} <= {None, *those}]:
        raise VitkitError(
            f"{pluralize(len(moved), 'image is', 'images are')} in already under another class, the first "
            f"{samples.key(copies[moved[0]][0])}. To move images to another class, take them out in the same "
            "command: --without with their files."
        )
    if twice := [samples.key(copies[key][0]) for key, those in classes.items() if len(those) > 1]:
        images = pluralize(len(twice), "image")
        listener.warn(f"{images} in two classes, left out of both: {join_names(twice[:5])}.")
    new = sorted(key for key, those in classes.items() if len(those) == 1 and key not in present)
    indices = np.array([copies[key][0] for key in new], np.int64)
    rows, readable = np.zeros((0, model.state_dict()["head.weight"].shape[1]), np.float32), np.zeros(0, bool)
    if new:
        model.to(device).eval()
        machine.prepare(model, "float32", False, "evaluation", machine.hash_weights(model))
        extractor = FeatureExtractor(model, preprocessing_of(model), device, "float32", BATCH, workers)
        # Filled up to whole batches, so that no row is of a shorter one.
        filled = np.concatenate([indices, np.repeat(indices[:1], -len(indices) % BATCH)])
        with listener.progress("features", len(filled)) as progress:
            computed = extractor.compute(samples, filled, progress)
        readable = computed.readable[: len(new)]
        rows = computed.rows[: int(readable.sum())]
        bad = indices[~readable].tolist()
        rejects |= {samples.key(index): reason for index, reason in zip(bad, computed.reasons, strict=False)}
    learned = LearnedImages(rows, as_hashes(new)[readable], labels[indices][readable], NOTHING)
    return learned, rejects, sum(len(copies[key]) for key in copies if key in present)


def hash_images(samples: Samples, listener: Listener) -> Iterator[bytes | None]:
    """Hash each image; None where it cannot be read."""
    with listener.progress("hashing images", len(samples)) as progress:
        for index in range(len(samples)):
            yield bytes_digest(samples, index)
            progress(index + 1)


def backbone_images(model: Described, listener: Listener) -> tuple[Hashes, tuple[str, ...]]:
    """Find the images that a backbone was trained on, as far as its card and the disk tell.

    Args:
        model: the start; a run's card names its data, and the data of its own start.
        listener: hears the progress.

    Returns:
        The hashes of these images, and the names of data that cannot be looked at.
    """
    card, hashes, unseen = card_of(model), set[bytes](), list[str]()
    if card.data is not None and HEAD not in card.origin:  # else its head alone was trained on that data
        try:
            train = trained_model.open_model_data(model).splits["train"]
            hashes = {digest or bytes(32) for digest in hash_images(train, listener)}
        except (VitkitError, OSError):
            unseen.append(card.data.name)
    before = card.origin.get("start")
    while isinstance(before, Mapping):  # of the start's start the name alone is recorded
        name = before["data"].get("name") if isinstance(before.get("data"), Mapping) else None
        if name is not None and HEAD not in before and before["data"] != to_json(card.data):
            unseen.append(str(name))
        before = before.get("start")
    return as_hashes(sorted(hashes)), tuple(unseen)


def _with_head(model: ImageModel, head: RidgeHead, images: LearnedImages) -> ImageModel:
    """Return a model with another head, `Novelty` and card, and the same backbone; `model` is used up."""
    card, class_names = card_of(model), model.card.class_names
    config = replace(model.config, num_classes=len(class_names))
    tensors = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    weights, bias = (torch.from_numpy(part.astype(np.float32)) for part in (head.weights, head.bias))
    tensors |= {"head.weight": weights, "head.bias": bias}
    made = loading.fill(loading.build_checked(config, tensors, "the model"), tensors)
    counts = zip(class_names, images.counts(len(class_names)), strict=True)
    solved = {
        "solved": "ridge on frozen features, in closed form",
        "images": dict(counts),
        "images_hash": images.hash(class_names),
        "penalty": head.penalty,
        "temperature": 1 / head.scale,
        "leave_one_out_accuracy": head.right / len(images),
    }
    origin = {**card.origin, HEAD: solved, "vitkit": __version__, "torch": torch.__version__}
    refuses = None
    if len(images) >= FEWEST:
        with threadpool_limits(1, "blas"):  # for the same bits, as `refit`
            parts, scores = cross_calibrate(images.rows, images.labels, head.logits_without)
        made.novelty = Novelty(**{name: torch.from_numpy(part) for name, part in parts.items()})
        # Every so many: the order of the hashes says nothing of the images.
        some = scores[:: -(-len(images) // MOST_HELD_OUT)]
        refuses = Refusal("train", tuple(np.sort(some).tolist()))
    logits, answering = head.logits_without.astype(np.float32), answering_of(card)
    card = replace(card, origin=origin, refusal=refuses)
    made.card = answering.learn_levels(logits, images.labels, card, "train")
    return made.eval()


def measure_head(
    folder: Path, model: ImageModel, images: LearnedImages, head: RidgeHead, listener: Listener
) -> None:
    """Count how many images a head in closed form refuses: of its own, and of a class that is left out.

    Args:
        folder: of the run.
        model: with the head and its `Novelty`; without one, nothing is counted.
        images: that the head learned from.
        head: with the logits of each image by the head without it.
        listener: hears the result.
    """
    names, recorded = model.card.class_names, model.card.refusal
    if recorded is None:
        return
    with threadpool_limits(1, "blas"):
        _, scores = cross_calibrate(images.rows, images.labels, head.logits_without)
    record, unseen = count_refused(recorded, scores, images.labels, names), dict[int, int]()
    # Of a network that was trained on these images, or may have been, a class is never unseen.
    if not len(images.backbone) and not images.record.unseen:
        with listener.progress("leaving out a class at a time"), threadpool_limits(1, "blas"):
            unseen = count_unseen(images.rows, images.labels, len(names), record.share)
    of_unseen = {names[number]: count for number, count in unseen.items()}
    totals = {name: record.images[name] for name in of_unseen}
    record = replace(record, strangest=(), unseen=of_unseen, unseen_images=totals)
    trained_model.write_refusal(folder, record, listener)


def _stored(model: ImageModel) -> NDArray[np.float32]:
    """Return the weights and the bias of a model's head as one row."""
    head: Any = model.head
    return torch.cat([head.weight.detach().flatten(), head.bias.detach()]).cpu().numpy()


def head_hash(model: ImageModel) -> str:
    """Hash the weights of a model's head."""
    return hashlib.sha256(_stored(model).tobytes()).hexdigest()


def difference_of(model: ImageModel, head: RidgeHead) -> float:
    """Compute the largest difference of a model's head from a solution, over its largest weight; 0 where all
    bits are equal."""
    solution = np.append(head.weights.ravel(), head.bias).astype(np.float32)
    return float(np.abs(_stored(model) - solution).max() / np.abs(solution).max())


def write_model(
    folder: Path,
    model: ImageModel,
    head: RidgeHead,
    images: LearnedImages,
    added: int,
    removed: Hashes = NOTHING,
) -> tuple[ImageModel, LearnedImages]:
    """Write a model with another head and the images of that into a folder, together where it replaces
    another.

    Args:
        folder: locked, or new.
        model: the backbone, and the card with the new class names; it is used up.
        head: its new head.
        images: what that was solved from, with the record of the former ones.
        added: the number of images that are new.
        removed: the hashes of images that were taken out.

    Returns:
        The new model, and the images with their record.
    """
    model = _with_head(model, head, images)
    out = tuple(row.tobytes().hex() for row in removed)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    change = Change(now, added, out, len(images), images.hash(model.card.class_names))
    record = replace(images.record, head=head_hash(model), changes=(*images.record.changes, change))
    arrays = {name: getattr(images, name) for name in ("rows", "hashes", "labels", "backbone")}
    arrays["record"] = np.frombuffer(json_bytes(to_json(record)), np.uint8)
    chunks = safetensors_chunks({name: torch.from_numpy(part.copy()) for name, part in arrays.items()})
    if (folder / "model.json").exists():
        replace_native(model, folder, {FILE: chunks})
    else:  # a model that is there is whole only beside its images
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / FILE, chunks)
        loading.save_model(model, folder)
    return model, replace(images, record=record)


def read_model(folder: Path) -> tuple[ImageModel, LearnedImages]:
    """Read the model in a folder, and what its head was solved from, which anybody may have made.

    Raises:
        VitkitError: there are no such images, they are damaged, or they belong to another head.
    """
    present = [path for path in (folder / FILE, waiting(folder / FILE)) if path.is_file()]
    if not present:
        raise VitkitError(
            f"{folder} has no {FILE}: it is no folder of a model, its head was trained by gradient descent, "
            "or its images were left behind, so that none can be added or taken out. Make a model that can: "
            "vitkit finetune START DATA --freeze backbone."
        )
    model = loading.load(folder).model
    classes, width = model.state_dict()["head.weight"].shape
    hashes, of_image = ("uint8", (32,)), {"rows": ("float32", (width,)), "labels": ("int64", ())}
    of_image["hashes"] = hashes
    for path in present:  # while a model is replaced, its images are in one of two places
        arrays = {name: tensor.numpy() for name, tensor in read_safetensors(path).items()}
        kinds = {name: (each.dtype.name, each.shape[1:]) for name, each in arrays.items() if each.ndim}
        damage = [f"other shapes or types than arrays of images with {width} features"]
        is_whole = kinds == {**of_image, "backbone": hashes, "record": ("uint8", ())}
        if is_whole and len({len(arrays[name]) for name in of_image}) == 1:
            record = from_json(Record, parse_json(arrays.pop("record").tobytes(), path), str(path))
            if record.head != head_hash(model):
                continue
            images = LearnedImages(**arrays, record=record)
            keys, labels = as_keys(images.hashes), images.labels
            problems = {
                "labels that are no class of the model": ((labels < 0) | (labels >= classes)).any(),
                "features that are not finite": not np.isfinite(images.rows).all(),
                "hashes out of order, or twice": not np.array_equal(np.unique(keys), keys),
                "a class without images": len(np.unique(labels)) < classes,
            }
            damage = [problem for problem, is_there in problems.items() if is_there]
            if not damage:
                return model, images
        raise VitkitError(f"{path} is damaged: it has {join_names(damage)}. Put the original file back.")
    raise VitkitError(
        f"{folder / FILE} belongs to another head than model.safetensors beside it. Put back both from the "
        "same copy."
    )


def require_removable(images: LearnedImages, rows: NDArray[np.bool_]) -> None:
    """Refuse to take images out of a head whose backbone was trained on them, or may have been.

    Args:
        images: all that are in.
        rows: `(N,)` whether each is to be taken out.

    Raises:
        VitkitError: the backbone was trained on one, or on data whose images are not known.
    """
    way = (
        "Fine-tune from a start that was not trained on it: vitkit finetune START DATA --freeze backbone; a "
        "published one's own images vitkit does not know."
    )
    if seen := int((rows & np.isin(as_keys(images.hashes), as_keys(images.backbone))).sum()):
        raise VitkitError(
            f"The backbone itself was trained on {seen:,} of these images: "
            f"what it learned of them would stay in every feature. {way}"
        )
    if images.record.unseen and rows.any():
        raise VitkitError(
            f"The backbone was trained on {join_names(list(images.record.unseen))}, whose images were not at "
            "hand when the head was made, so that nobody can say that these are not among them. " + way
        )


def is_complete(folder: Path) -> bool:
    """Whether a run has solved its head and written its report, or images were added or taken out since.

    Raises:
        VitkitError: the model or its images are damaged: they may hold more than the run's own images.
    """
    if not (folder / "model.json").exists():
        return False
    return len(read_model(folder)[1].record.changes) > 1 or (folder / "report.html").exists()


def is_extended(folder: Path) -> bool:
    """Whether images were added to the head in a folder, or taken out, since its run."""
    return (folder / FILE).is_file() and len(read_model(folder)[1].record.changes) > 1
