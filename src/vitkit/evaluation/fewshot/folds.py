"""Cross-validate the few-shot classifiers: how well frozen features separate the classes of images.

Every image is predicted once, by classifiers that were fitted without it and without a fifth of the others.

Shapes: N images, D features, K classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from vitkit.data.layouts.cutting import draws
from vitkit.evaluation.fewshot.config import Method
from vitkit.evaluation.fewshot.methods import Floats, Integers, fit
from vitkit.evaluation.intervals import binomial_interval

FOLDS = 5
"""Parts of the images, each predicted from the others."""
METHODS: tuple[Method, ...] = ("ridge", "knn")
"""The classifiers. Logistic regression takes many times as long for much the same accuracy."""
FITS = FOLDS * len(METHODS)
"""The fits of `cross_validate`."""
_STREAM = 7  # of the draws: not the stream by which splits are cut


@dataclass(frozen=True)
class Folded:
    """The number of images that cross-validated classifiers predict rightly."""

    images: int
    right: Mapping[str, int]
    """Images predicted rightly by each method, which learned from four fifths of the images."""

    @property
    def method(self) -> str:
        """The method that is right most often, the first of several."""
        return max(self.right, key=self.right.__getitem__)

    @property
    def accuracy(self) -> float:
        """The accuracy of the best method, from 0 to 1."""
        return self.right[self.method] / self.images

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of that accuracy, on other images drawn alike."""
        return binomial_interval(self.right[self.method], self.images)


def mixed_order(labels: Integers) -> Integers:
    """Order images at random, so that every beginning of the order holds the classes in their proportions.

    Args:
        labels: `(N,)` class numbers.
    """
    order = np.lexsort((draws(len(labels), 0, _STREAM), labels))  # class by class, each at random
    sizes = np.unique(labels, return_counts=True)[1]
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within the class
    spread = (place + 0.5) / np.repeat(sizes, sizes)
    mixed: Integers = order[np.lexsort((draws(len(labels), 0, _STREAM + 1), spread))]
    return mixed


def cross_validate(
    features: Floats, labels: Integers, classes: int, *, progress: Callable[[int], None] = lambda done: None
) -> Folded:
    """Predict every image by classifiers that were fitted without it.

    Args:
        features: `(N, D)`, finite, N at least 2.
        labels: `(N,)` from 0 to K - 1.
        classes: K.
        progress: called after each fit with the number of fits done, of `FITS`.
    """
    order = mixed_order(labels)
    # Class after class in turn: images of a class fall into different folds.
    by_class = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[by_class] = np.arange(len(labels)) % FOLDS
    right: dict[str, int] = dict.fromkeys(METHODS, 0)
    done = 0
    for number in range(FOLDS):
        held_out = np.flatnonzero(fold == number)
        training = order[fold[order] != number]
        if not len(held_out) or not len(training):
            continue
        for method in METHODS:
            fitted = fit(method, features[training], labels[training], classes)
            right[method] += int((fitted.predict(features[held_out]) == labels[held_out]).sum())
            done += 1
            progress(done)
    return Folded(len(labels), right)
