"""Teach a trained model which images are none of its classes, and measure how well it tells; and choose the
thresholds by which a model of a tree of classes is sure of a level.

evaluation/refusal.json   how many of the images of each class are refused, and which
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from vitkit.config import read, write
from vitkit.data.listing import class_numbers
from vitkit.data.stream.loader import worker_count
from vitkit.durable import refuse_links
from vitkit.errors import VitkitError
from vitkit.evaluation import refusal
from vitkit.evaluation.features import FeatureExtractor
from vitkit.evaluation.refusal import RefusalRecord
from vitkit.evaluation.ridge import RidgeHead
from vitkit.listener import Listener
from vitkit.models.config import Levels, Precision, Refusal
from vitkit.models.image_model import ImageModel
from vitkit.models.novelty import Novelty
from vitkit.runs.build import Parts
from vitkit.runs.closed_form import LearnedImages
from vitkit.tasks import answering_of
from vitkit.text import tree_levels
from vitkit.weights.model_card import card_of, preprocessing_of

RECORD = Path("evaluation") / "refusal.json"


def read_record(folder: Path) -> RefusalRecord | None:
    """Read the record of a run folder; None where its model refuses nothing.

    Raises:
        VitkitError: it is damaged.
    """
    return read(RefusalRecord, folder / RECORD)


def learn_refusal(parts: Parts, precision: Precision, listener: Listener) -> None:
    """Give a trained model its `Novelty`, and count on held-out images what an unusual score is; by the same
    images choose the thresholds of its levels, if its classes have any.

    The held-out images are those of the test split, which no choice was made by; else of the validation
    split, which chose the weights: the share that is refused may then be somewhat larger, and that of wrong
    answers too. A model without either, or of a task with several labels, refuses nothing, and is sure of
    nothing.

    Args:
        parts: of the run, with its final weights on the device.
        precision: that it is evaluated in.
        listener: hears the progress, and why nothing is refused.
    """
    model, run, splits, names = parts.model, parts.run, parts.data.splits, parts.data.class_names
    held_out = "test" if "test" in splits else "val"
    if run.task != "classification" or not run.training.evaluate_test:  # a run to choose options by
        return
    # Those of its start, if any, were chosen for other weights.
    learned = Levels((None,) * len(tree_levels(names))) if run.splits.levels else None
    model.card = replace(card_of(model), levels=learned)
    if held_out not in splits:
        if learned is not None:
            listener.note("The model is sure of no level: no images are held out to choose thresholds by.")
        return
    extractor = FeatureExtractor(model, preprocessing_of(model), parts.device, precision)

    def compute(split: str, most: int) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        samples = splits[split]
        indices = samples.spread(most)
        reading = replace(extractor, workers=worker_count(samples, run.loading))
        what = {"train": "training", "val": "validation"}.get(split, split)
        with listener.progress(f"features of {what} images", len(indices)) as progress:
            features = reading.compute(samples, indices, progress)
        readable = indices[features.readable]
        return features.rows, class_numbers(samples.labels)[readable], readable

    try:
        rows, labels, _ = compute("train", max(refusal.MOST_TRAINING, 10 * len(names)))
        own, own_labels, indices = compute(held_out, refusal.MOST_HELD_OUT)
        # The scales may not come from the images that the threshold is counted on.
        scaled = (
            rows if held_out == "val" or "val" not in splits else compute("val", refusal.MOST_HELD_OUT)[0]
        )
    except VitkitError as error:
        listener.note(f"No image is refused as none of the classes: {error}")
        return
    if learned is not None:
        logits, card = head_logits(model, own), card_of(model)
        model.card, lines = answering_of(card).learn_levels(logits, own_labels, card, held_out)
        listener.show([("levels", lines)])
    if len(own) < refusal.FEWEST or not np.bincount(labels, minlength=len(names)).all():
        listener.note(
            f"No image is refused as none of the classes: that takes {refusal.FEWEST} {held_out} images and "
            f"a training image of each class, found {len(own)}."
        )
        return
    learn(model, rows, labels, scaled)
    scores = score(model, own)
    recorded = Refusal(held_out, tuple(np.sort(scores).tolist()))
    model.card = replace(card_of(model), refusal=recorded)
    share = refusal.choose_share(recorded, None)
    refused = refusal.judge_halves(scores, share)
    counts = (np.bincount(each, minlength=len(names)).tolist() for each in (own_labels, own_labels[refused]))
    images, of_class = (dict(zip(names, count, strict=True)) for count in counts)
    strangest = indices[refused][np.argsort(-scores[refused], kind="stable")]
    record = RefusalRecord(held_out, share, images, of_class, tuple(strangest.tolist()))
    _write_record(parts.folder, record, listener)


def measure_head(
    folder: Path, model: ImageModel, images: LearnedImages, head: RidgeHead, listener: Listener
) -> None:
    """Count how many images a head in closed form refuses: of its own, and of a class that is left out.

    Args:
        folder: of the run.
        model: with the head and its `Novelty`.
        images: that the head learned from.
        head: with the logits of each image by the head without it.
        listener: hears the result.
    """
    names, recorded = model.card.class_names, model.card.refusal
    assert recorded is not None
    share = refusal.choose_share(recorded, None)
    with threadpool_limits(1, "blas"):
        scores = refusal.cross_calibrate(images.rows, images.labels, head.logits_without).scores
    refused = refusal.judge_halves(scores, share)
    of_class = images.take(refused).counts(len(names))
    total, unseen = images.counts(len(names)), dict[int, int]()
    # Of a network that was trained on these images, or may have been, a class is never unseen.
    if not len(images.backbone) and not images.record.unseen:
        with listener.progress("leaving out a class at a time"), threadpool_limits(1, "blas"):
            unseen = refusal.count_unseen(images.rows, images.labels, len(names), share)
    record = RefusalRecord(
        "train",
        share,
        dict(zip(names, total, strict=True)),
        dict(zip(names, of_class, strict=True)),
        (),
        {names[number]: count for number, count in unseen.items()},
        {names[number]: total[number] for number in unseen},
    )
    _write_record(folder, record, listener)


def _write_record(folder: Path, record: RefusalRecord, listener: Listener) -> None:
    """Write the record into a run folder, and show what it says."""
    refuse_links(folder)
    (folder / RECORD).parent.mkdir(exist_ok=True)
    write(folder / RECORD, record)
    listener.show([("refuses", record.sentences())])


def learn(
    model: ImageModel, rows: NDArray[np.float32], labels: NDArray[np.int64], others: NDArray[np.float32]
) -> None:
    """Give a model its `Novelty`.

    Args:
        model: with a head of K classes.
        rows: `(N, D)`, features of training images, some of each class.
        labels: `(N,)`.
        others: `(M, D)`, features of images of the same kind, by which distance and energy are scaled.
    """
    parts = refusal.fit_statistics(rows, labels, model.config.num_classes)
    tensors = {name: torch.from_numpy(part).to(model.pixel_mean.device) for name, part in parts.items()}
    novelty = model.novelty = Novelty(**tensors, scales=torch.ones(2, device=model.pixel_mean.device))
    distances, logits = measure(model, others)
    energy = np.logaddexp.reduce(logits.astype(np.float64), axis=1)
    # Images that are all alike have no deviation.
    scales = [max(float(values.std()), 1e-6) for values in (distances.min(1).astype(np.float64), energy)]
    novelty.scales.copy_(torch.tensor(scales))


@torch.inference_mode()
def measure(model: ImageModel, rows: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Compute distances to the class means and logits, `(N, K)` each, of features `(N, D)`."""
    assert model.novelty is not None
    features = torch.from_numpy(rows).to(model.pixel_mean)
    distances: NDArray[np.float32] = model.novelty.distances(features).cpu().numpy()
    return distances, head_logits(model, rows)


@torch.inference_mode()
def head_logits(model: ImageModel, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute logits `(N, K)` of features `(N, D)`."""
    logits: NDArray[np.float32] = (
        model.head(torch.from_numpy(rows).to(model.pixel_mean)).float().cpu().numpy()
    )
    return logits


@torch.inference_mode()
def score(model: ImageModel, rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """Score images by their features `(N, D)`: `(N,)`."""
    assert model.novelty is not None
    features = torch.from_numpy(rows).to(model.pixel_mean)
    scores = model.novelty(features, model.head(features))
    return np.asarray(scores.cpu().numpy(), np.float64)
