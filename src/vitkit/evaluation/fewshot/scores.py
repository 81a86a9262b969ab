"""Measure the few-shot accuracy of every method with every number of shots, over several draws.

Shapes: n images with features, the shots among them, M test images, D features, K classes, S seeds.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vitkit.evaluation.fewshot.config import Learning, Method
from vitkit.evaluation.fewshot.methods import Draws, Floats, Integers, fit


@dataclass(frozen=True, eq=False)
class LabelledFeatures:
    """Features of images of a split."""

    indices: Integers
    """`(n,)` of the images in their split, ascending."""
    rows: Floats
    """`(n, D)`"""
    labels: Integers
    """`(n,)`"""

    def taken(self, indices: Integers) -> tuple[Floats, Integers]:
        """Give the rows and labels of images that are among these, in the order given."""
        where = np.searchsorted(self.indices, indices)
        return self.rows[where], self.labels[where]


@dataclass(frozen=True)
class FewShotScore:
    """The accuracies of one method with one number of shots, from 0 to 1."""

    method: Method
    shots: int
    """Images of each class at most."""
    accuracies: tuple[float, ...]
    """On all test images, of each seed."""
    mean: float
    deviation: float | None
    """Standard deviation of a single draw (divided by S - 1); None of one seed."""
    interval: tuple[float, float] | None
    """95% interval of the mean over draws, by Student's t; None of one seed. It does not cover the chance in
    the choice of test images."""
    class_accuracy: tuple[float | None, ...]
    """Accuracy on each class's test images, mean over seeds; None of a class without test images."""
    settings: tuple[float, ...]
    """The setting of each seed's fit: the penalty of ridge, the k of knn, the C of logistic."""
    converged: tuple[bool, ...]
    """Whether the optimiser of logistic came to an end, for each seed."""

    @property
    def shown_interval(self) -> tuple[float, float] | None:
        """Give the interval where the draws differ; None where all accuracies are equal, as when every image
        is a shot: they do not show the chance in drawing."""
        return self.interval if len(set(self.accuracies)) > 1 else None


def measure(
    draws: Sequence[Draws],
    learning: Learning,
    pool: LabelledFeatures,
    test: LabelledFeatures,
    classes: int,
    unreadable: Sequence[int] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[FewShotScore, ...]:
    """Fit every method to the shots and measure its accuracy on the test images.

    Args:
        draws: one for each seed.
        learning: the numbers of shots and the methods.
        pool: features of all drawn images.
        test: of the test images.
        classes: K.
        unreadable: indices in the pool's split of images that are not drawn.
        progress: called after each fit with the number of fits done.

    Raises:
        VitkitError: there are no shots.
    """
    scores, done = [], 0
    counts = np.bincount(test.labels, minlength=classes)
    for method in learning.methods:
        for shots in learning.shots:
            fits, rights = [], []
            for draw in draws:
                features, labels = pool.taken(draw.take(shots, unreadable))
                fits.append(
                    fit(method, features, labels, classes, l2=learning.l2, neighbours=learning.neighbours)
                )
                rights.append(fits[-1].predict(test.rows) == test.labels)
                done += 1
                progress(done)
            accuracies = tuple(float(right.mean()) for right in rights)
            sums = np.bincount(test.labels, weights=np.array(rights).mean(0), minlength=classes)
            by_class = zip(sums, counts, strict=True)
            scores.append(
                FewShotScore(
                    method,
                    shots,
                    accuracies,
                    math.fsum(accuracies) / len(accuracies),
                    *_spread(accuracies),
                    tuple(float(total / images) if images else None for total, images in by_class),
                    tuple(fitted.setting for fitted in fits),
                    tuple(fitted.converged for fitted in fits),
                )
            )
    return tuple(scores)


def _spread(values: Sequence[float]) -> tuple[float | None, tuple[float, float] | None]:
    """Compute standard deviation and 95% interval of the mean, within 0 to 1; none of a single value."""
    count = len(values)
    if count < 2:
        return None, None
    from scipy.special import stdtrit  # half a second to import, which only several seeds need

    mean, deviation = math.fsum(values) / count, float(np.std(values, ddof=1))
    half = float(stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count)
    return deviation, (max(0.0, mean - half), min(1.0, mean + half))
