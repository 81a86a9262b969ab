"""Decide which images are none of a model's classes: scores, the threshold that keeps a promise, its test.

`vitkit.models.novelty.Novelty` scores an image. What an unusual score is, is counted on images of the model's
own kind that played no part in training: of n + 1 images drawn in the same way, the new one is among the
`share` strangest with a probability of at most `share` (split conformal prediction, Vovk et al. 2005).

Nothing here imports torch: an exported model refuses without it. Shapes: N images, D features, K classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.config import Count
from vitkit.errors import VitkitError
from vitkit.evaluation.ridge import solve_head
from vitkit.evaluation.statistics import binomial_interval, describe_interval
from vitkit.models.config import Refusal
from vitkit.text import pluralize

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]

MOST_TRAINING = 2_000
"""Training images whose features the score is made of, or ten of each class where that is more: a covariance
of 384 features changes little with more, and a run should not wait for it."""
FEWEST = 10
"""The fewest images that a threshold is counted on: with fewer, more than 9 % of its own would be refused."""
MOST_HELD_OUT = 1_000
"""Held-out images that the threshold is counted on: 2 % of them are 20."""
MOST_LEFT_OUT = 20
"""Classes that are left out one at a time, each of which takes a tenth of a second at least."""
FOLDS = 5
"""Parts of the images of a head in closed form; each is scored by the statistics of the others."""
TIE = 1e-3
"""Scores this near count as equal: they are in standard deviations, of which rounding, other for each way to
compute, moves a part. An image at the threshold would else be refused by one way alone."""
DEFAULT_SHARE = 0.02
"""The share of a model's own images that it may refuse where none is given."""


def typicality(scores: Floats, own: Sequence[float]) -> NDArray[np.float64]:
    """Give the fraction of images of the model's own kind that are at least as strange, `(N,)`.

    The image itself is counted among them, so that the number is a p-value: for an image drawn like `own` it
    is at most x with a probability of at most x.

    Args:
        scores: `(N,)`.
        own: scores of held-out images, ascending.
    """
    stranger = len(own) - np.searchsorted(np.asarray(own), scores - TIE, side="left")
    return np.asarray((1 + stranger) / (1 + len(own)), np.float64)


def smallest_share(images: int) -> float:
    """Give the smallest share of its own images that a model can keep as a promise, with so many held out."""
    return 1 / (images + 1)


def show_smallest_share(images: int) -> str:
    """Write the smallest share with two digits, rounded up: a smaller one than the smallest is refused."""
    smallest = smallest_share(images)
    digits = 1 - math.floor(math.log10(smallest))
    # 1e-9: a product such as 10.000000000000002 is ten.
    return f"{math.ceil(smallest * 10**digits - 1e-9) / 10**digits:.2g}"


def choose_share(refusal: Refusal, share: float | None) -> float:
    """Choose the share of its own images that a model may refuse: the default, unless one is given.

    Args:
        refusal: the model's record.
        share: from 0, which refuses nothing, to below 1; None: the default, or the smallest share that so few
            held-out images can keep.

    Raises:
        VitkitError: the share is smaller than that, or no fraction.
    """
    smallest = smallest_share(len(refusal.scores))
    if share is None:
        return max(DEFAULT_SHARE, smallest)
    if not 0 <= share < 1:
        raise VitkitError(f"The share to refuse is a number from 0 to below 1, found {share:g}.")
    if 0 < share < smallest - 1e-12:
        raise VitkitError(
            f"With {len(refusal.scores)} held-out images the smallest share that can be kept is "
            f"{show_smallest_share(len(refusal.scores))}, found {share:g}: give a larger one, or 0 to refuse "
            "nothing."
        )
    return share


def fit_statistics(features: Floats, labels: Integers, classes: int) -> dict[str, NDArray[np.float32]]:
    """Compute what a `Novelty` is made of, but for its scales.

    The covariance within classes is shrunk towards a multiple of the identity by the rule of Ledoit and Wolf
    (2004), without which as many images as features give none that can be inverted.

    Args:
        features: `(N, D)`, finite.
        labels: `(N,)`.
        classes: K, each with an image.
    """
    x = features.astype(np.float64)
    means = np.stack([x[labels == number].mean(0) for number in range(classes)])
    covariance = shrunk_covariance(x - means[labels])
    values, vectors = np.linalg.eigh(covariance)
    # A feature that is the same for all images of a class tells nothing: it would be divided by zero.
    floor = max(values[-1] * 1e-6, 1e-12)
    whitening = vectors / np.sqrt(np.maximum(values, floor))
    centre = means.mean(0)
    parts = {"centre": centre, "whitening": whitening, "class_means": (means - centre) @ whitening}
    return {name: part.astype(np.float32) for name, part in parts.items()}


def shrunk_covariance(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Estimate the covariance of centred rows, by the rule of Ledoit and Wolf (2004): scikit-learn's function
    of that name has the same, and takes a second to import.

    Args:
        x: `(N, D)`.
    """
    count, size = x.shape
    sample: NDArray[np.float64] = x.T @ x / count
    mean = float(np.trace(sample)) / size
    spread = float(np.square(sample).sum()) / size - mean**2
    noise = (
        (float(np.square(np.square(x).sum(1)).sum()) / count - float(np.square(sample).sum())) / count / size
    )
    shrinkage = min(noise / spread, 1.0) if spread > 0 else 0.0
    sample *= 1 - shrinkage
    sample.flat[:: size + 1] += shrinkage * mean
    return sample


@dataclass(frozen=True)
class RefusalRecord:
    """Counts the images of its own kind that a model refuses: the contents of `refusal.json`."""

    split: str
    """The split whose images were counted: held out, or of a head in closed form each without itself."""
    share: float
    """The share of them that may be refused."""
    images: Mapping[str, Count]
    """The images by class."""
    refused: Mapping[str, Count]
    """Refused images by class, each half by the threshold of the other."""
    strangest: tuple[int, ...]
    """The numbers in the split of refused images, the strangest first."""
    unseen: Mapping[str, Count] = field(default_factory=dict)
    """Images of each class that a head without the class refuses; none where the network itself was trained
    with the classes, so that it cannot be measured."""
    unseen_images: Mapping[str, Count] = field(default_factory=dict)
    """The images of these classes that were scored."""

    def sentence(self) -> str:
        """Say how many of these images are refused, and how many may be."""
        refused, images = sum(self.refused.values()), sum(self.images.values())
        what = {"val": "validation", "train": "training"}.get(self.split, self.split)
        return (
            f"{describe_rate(refused, images)} of {images:,} {what} images as none of the classes; "
            f"{self.share:.1%} may be"
        )

    def unseen_sentence(self) -> str:
        """Say how many images of classes that were left out are refused; "" where that was not measured."""
        if not self.unseen:
            return ""
        rate = describe_rate(sum(self.unseen.values()), sum(self.unseen_images.values()))
        return f"{rate} of the images of a class that was left out, each in turn"


@dataclass(frozen=True)
class OthersRefused:
    """Counts the images of something else that a model refuses."""

    name: str
    images: int
    refused: int
    share: float
    """The share of the model's own images that may be refused."""
    unreadable: int = 0
    """Files that could not be read, which are not counted."""

    def sentence(self) -> str:
        """Say how many are refused."""
        rate = describe_rate(self.refused, self.images)
        left_out = f" ({pluralize(self.unreadable, 'file')} could not be read)" if self.unreadable else ""
        return f"{rate} of {self.images:,} images in {self.name} as none of the classes{left_out}"


def judge_halves(scores: Floats, share: float) -> NDArray[np.bool_]:
    """Say which of the images that a threshold is counted on are refused, `(N,)`.

    Each half, every second image, is judged by the scores of the other half: an image would else help to set
    the threshold that it is measured by.
    """
    refused = np.zeros(len(scores), bool)
    for first in (0, 1):
        others = np.sort(scores[1 - first :: 2])
        refused[first::2] = typicality(scores[first::2], others.tolist()) <= share
    return refused


def count_refused(
    refusal: Refusal, scores: Floats, labels: Integers, class_names: Sequence[str]
) -> RefusalRecord:
    """Count the images of each class that a model refuses by the default share.

    Args:
        refusal: the model's record.
        scores: `(N,)` of images of its split.
        labels: `(N,)`.
        class_names: K names.

    Returns:
        The record; its strangest images are numbers among these N.
    """
    share, classes = choose_share(refusal, None), len(class_names)
    refused = judge_halves(scores, share)
    counts = (np.bincount(each, minlength=classes).tolist() for each in (labels, labels[refused]))
    images, of_class = (dict(zip(class_names, count, strict=True)) for count in counts)
    strangest = np.flatnonzero(refused)[np.argsort(-scores[refused], kind="stable")]
    return RefusalRecord(refusal.split, share, images, of_class, tuple(strangest.tolist()))


def cross_calibrate(
    features: Floats, labels: Integers, logits_without: Floats
) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.float64]]:
    """Make a `Novelty` for a linear head on frozen features, with the scores of all images it is made of.

    Each image is scored by the statistics of four fifths of the others (cross-conformal prediction, Vovk
    2015) and by the logits of a head without it, so that no image has to be held out. It is right where the
    features owe nothing to these images: those of a network that was trained on them lie too near.

    Args:
        features: `(N, D)`, finite, in an order that says nothing of the classes.
        labels: `(N,)` from 0 to K - 1.
        logits_without: `(N, K)`, of each image by the head without it.

    Returns:
        The arguments of the `Novelty`, and the scores `(N,)` of the images.
    """
    fold, distances = np.arange(len(labels)) % FOLDS, np.empty(len(labels))
    for number in range(FOLDS):
        rest, own = fold != number, fold == number
        # A class whose images are all in this fold is left out.
        present, relabelled = np.unique(labels[rest], return_inverse=True)
        if own.any():
            distances[own] = nearest_distance(
                fit_statistics(features[rest], relabelled, len(present)), features[own]
            )
    energy = -np.logaddexp.reduce(logits_without.astype(np.float64), axis=1)
    # Images that are all alike have no deviation.
    scales = np.maximum([distances.std(), energy.std()], 1e-6)
    parts = fit_statistics(features, labels, logits_without.shape[1])
    parts["scales"] = scales.astype(np.float32)
    return parts, distances / scales[0] + energy / scales[1]


def nearest_distance(parts: Mapping[str, Floats], features: Floats) -> NDArray[np.float64]:
    """Compute the squared Mahalanobis distance of features `(N, D)` to the nearest class mean, `(N,)`."""
    x = (features.astype(np.float64) - parts["centre"]) @ parts["whitening"]
    means = parts["class_means"].astype(np.float64)
    squares = np.square(x).sum(1)[:, None] - 2 * x @ means.T + np.square(means).sum(1)
    return np.asarray(squares.min(1), np.float64)


def count_unseen(features: Floats, labels: Integers, classes: int, share: float) -> dict[int, int]:
    """Count the images of each class that a head without the class refuses: "none of these" at its word.

    For each class in turn, head and `Novelty` are made of the others alone, and the threshold is theirs.

    Args:
        features: `(N, D)` of a network that was not trained on these images.
        labels: `(N,)`.
        classes: K.
        share: of the images of the other classes that may be refused.

    Returns:
        The counts by class number, of `MOST_LEFT_OUT` classes at most; none where fewer than two would be
        left.
    """
    counts = dict[int, int]()
    for number in range(min(classes, MOST_LEFT_OUT)) if classes > 2 else ():
        rest, unseen = labels != number, labels == number
        head = solve_head(features[rest], labels[rest] - (labels[rest] > number), classes - 1)
        parts, own = cross_calibrate(features[rest], head.labels, head.logits_without)
        energy = -np.logaddexp.reduce(features[unseen] @ head.weights.T + head.bias, axis=1)
        scales = parts["scales"].astype(np.float64)
        scores = nearest_distance(parts, features[unseen]) / scales[0] + energy / scales[1]
        counts[number] = int((typicality(scores, np.sort(own).tolist()) <= share).sum())
    return counts


def describe_rate(refused: int, images: int) -> str:
    """Write a share of images with its 95 % interval: "87% (95 % interval 81% to 92%)"."""
    if not images:
        return "–"
    return f"{refused / images:.1%} {describe_interval(binomial_interval(refused, images))}"
