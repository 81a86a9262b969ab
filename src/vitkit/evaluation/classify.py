"""Measure how well a model classifies: every number computed from its predictions on a data set.

`run_model.predict` runs the model once and scores each image; `classification` counts. Keeping the two apart
lets the same predictions be counted again, compared with another model's, or looked at one by one.

Conventions:

- What a logit means depends on the loss that the model was trained with (`scores`): softmax or sigmoid.
- The prediction is the class with the largest logit; among equals, the lowest class number. A true class is
  within the top five if fewer than five classes stand before it by the same order.
- Predictions are ordered by id. Everything but loss and calibration is a ratio of integer counts, so it does
  not depend on how the images were batched.
- Images that could not be read are named in `bad` and count neither as right nor as wrong.
- A ratio whose denominator is zero (the precision of a class never predicted, say) is None, never 0 or NaN.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitkit.config import Count, Fraction, NotNegative
from vitkit.evaluation.predictions import (
    Predictions,
    count_by_class,
    ratio,
    refuse_uncountable,
    repeats_clause,
)
from vitkit.evaluation.statistics import (
    binomial_interval,
    binomial_test,
    describe_interval,
    overconfidence_interval,
)
from vitkit.models.config import LossFunction
from vitkit.models.zoo import ModelConfig
from vitkit.result import Result

CALIBRATION_BINS = 15  # as in Guo et al. 2017


@dataclass(frozen=True)
class CalibrationBin:
    """Images whose confidence (the predicted class's probability) lies in `(lower, upper]`."""

    lower: Fraction
    upper: Fraction
    count: Count
    confidence: Fraction | None
    """Mean over the bin's images."""
    accuracy: Fraction | None


@dataclass(frozen=True)
class Overconfidence:
    """The mean confidence of a model minus its accuracy, over all images."""

    mean: float
    """Mean confidence - accuracy; below 0 the model is not sure enough."""
    interval: tuple[float, float]
    """The 95% confidence interval of this mean."""

    @property
    def verdict(self) -> str:
        """Say "too sure of itself" or "not sure enough" where the interval excludes 0; else ""."""
        if self.interval[0] > 0:
            return "too sure of itself"
        return "not sure enough" if self.interval[1] < 0 else ""


def overconfidence(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> Overconfidence:
    """Compare the confidence in the predictions `(N,)` with whether they are `right`, `(N,)`."""
    mean = (math.fsum(confidence) - int(right.sum())) / len(right)
    return Overconfidence(mean, overconfidence_interval(confidence, right))


def calibration_bins(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[CalibrationBin, ...]:
    """Put images into 15 bins of equal width by their confidence (Guo et al. 2017)."""
    number = np.clip(np.ceil(confidence * CALIBRATION_BINS) - 1, 0, CALIBRATION_BINS - 1)
    bins = []
    for i in range(CALIBRATION_BINS):
        inside = number == i
        count = int(inside.sum())
        mean = math.fsum(confidence[inside]) / count if count else None
        accuracy = ratio(int(right[inside].sum()), count)
        bins.append(CalibrationBin(i / CALIBRATION_BINS, (i + 1) / CALIBRATION_BINS, count, mean, accuracy))
    return tuple(bins)


SIGNIFICANT = 0.05
"""Above this p a difference is not distinguished from chance; the level that goes with 95% intervals."""


@dataclass(frozen=True)
class Guessing:
    """A model beside the guess that is right most often: always the most frequent class of these images."""

    class_name: str
    """The largest class; the first where several are equally large."""
    accuracy: Fraction
    """The fraction of the images that are of this class."""
    model_only: Count
    """Images that the model alone is right on."""
    guess_only: Count
    """Images that the guess alone is right on."""
    p_value: Fraction
    """Two-sided, of the exact binomial test of the accuracy against that of the guess: below 0.05 where the
    interval of the accuracy lies wholly above or below it."""

    @property
    def verdict(self) -> str:
        """Say whether the model is better than the guess, worse, or not distinguishable from it."""
        if self.p_value >= SIGNIFICANT:
            return "not distinguishable from guessing"
        return "better than guessing" if self.model_only > self.guess_only else "worse than guessing"

    def sentence(self) -> str:
        """State the verdict and the numbers behind it, without a full stop."""
        p = "p < 0.001" if self.p_value < 0.001 else f"p = {self.p_value:.2g}"
        return (
            f"{self.verdict}: always answering {self.class_name!r} is right on {self.accuracy:.1%} "
            f"(exact binomial test, {p})"
        )


@dataclass(frozen=True)
class ClassScore:
    """The numbers of one class."""

    name: str
    count: Count
    """Images of this class."""
    predicted: Count
    """Images predicted to be of this class."""
    correct: Count
    """Images of this class predicted to be of it."""
    precision: Fraction | None
    """correct / predicted"""
    recall: Fraction | None
    """correct / count, the accuracy within the class"""
    f1: Fraction | None
    """2 correct / (count + predicted), the harmonic mean of the two"""


@dataclass(frozen=True)
class Repeated:
    """The images that are training images too, pixel for pixel, and the accuracy without them."""

    count: Count
    correct: Count
    """Repeated images that the model is right on."""
    accuracy_without: Fraction | None
    """On the other images; None where there are no others."""
    interval_without: tuple[Fraction, Fraction]
    """The 95 % interval of this accuracy."""


@dataclass(frozen=True, repr=False)
class Classification(Result):
    """The numbers of one data set; fractions are from 0 to 1."""

    count: Count
    """Readable images: what all numbers are about."""
    bad: Count
    """Images that could not be read."""
    correct: Count
    accuracy: Fraction
    accuracy_interval: tuple[Fraction, Fraction]
    """95 %, of the accuracy on other images drawn alike (Clopper and Pearson)."""
    top5_accuracy: Fraction | None
    """Fraction with the true class among the five largest logits; None with five classes or fewer."""
    loss: NotNegative
    """Mean over the images, in nats: cross entropy; of a sigmoid model, the sum over all classes of their
    binary cross entropies. As in training, but for label smoothing and mixup."""
    balanced_accuracy: Fraction
    """Mean recall of the classes that occur."""
    macro_f1: Fraction
    """Mean F1 of the classes that occur or are predicted."""
    calibration_error: Fraction
    """Expected calibration error: mean of the bins' |accuracy - confidence|, weighted by their counts."""
    calibration: tuple[CalibrationBin, ...]
    """15 bins of equal width (Guo et al. 2017)."""
    per_class: tuple[ClassScore, ...]
    confusion_cells: tuple[tuple[Count, Count, Count], ...]
    """`(true, predicted, count)` where the count is not 0, sorted: 21k classes would not fit as a matrix."""
    loss_function: LossFunction
    """The loss that the model was trained with: probabilities, loss and calibration depend on it."""
    guessing: Guessing
    """Whether it is better than always answering the most frequent class."""
    overconfidence: Overconfidence
    """Mean confidence - accuracy, with an interval."""
    repeated: Repeated | None = None
    """Images that the model was trained on; None where nothing looked for them."""

    def summary(self) -> str:
        """State the accuracy with its interval in one line, and whether it is better than guessing."""
        unread = f", {self.bad} unreadable" if self.bad else ""
        images = f"{self.count:,} images{unread} {describe_interval(self.accuracy_interval)}"
        return f"{self.accuracy:.2%} accuracy on {images}; {self._beside}"

    def sentence(self, images: str) -> str:
        """State the accuracy, and how good the model is by other measures.

        Args:
            images: the noun after their count: "test images of digits".
        """
        top5 = "" if self.top5_accuracy is None else f", top-5 {self.top5_accuracy:.2%}"
        if sureness := self.overconfidence.verdict:
            low, high = self.overconfidence.interval
            sureness = f" ({sureness}: confidence - accuracy is {low:+.1%} to {high:+.1%})"
        return (
            f"{self.accuracy:.2%} accuracy{top5} on {self.count:,} {images} "
            f"{describe_interval(self.accuracy_interval)}; "
            f"loss {self.loss:.4f}, balanced accuracy {self.balanced_accuracy:.2%}, "
            f"calibration error {self.calibration_error:.2%}{sureness}; {self._beside}"
        )

    @property
    def _beside(self) -> str:
        """Compare with guessing, and say how many are training images and the accuracy without them."""
        if self.repeated is None:
            return self.guessing.sentence()
        without, (low, high) = self.repeated.accuracy_without or 0.0, self.repeated.interval_without
        figure = f"{without:.2%} ({low:.1%} to {high:.1%})"
        repeats = repeats_clause(self.repeated.count, self.count - self.repeated.count, figure)
        return f"{self.guessing.sentence()}{repeats}"

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(score.name for score in self.per_class)

    @property
    def confusion(self) -> NDArray[np.int64]:
        """`(K, K)` counts, rows the true classes and columns the predicted ones; 3.8 GB of 21,843 classes."""
        matrix = np.zeros((len(self.per_class),) * 2, np.int64)
        true, predicted, count = np.array(self.confusion_cells).T
        matrix[true, predicted] = count
        return matrix


def explain_no_classes(config: ModelConfig) -> str:
    """Say why a model of this configuration cannot classify, as a clause after its name; "" if it can."""
    if not config.num_classes:
        return (
            "has no head: it gives features, not classes. Take a checkpoint that has a head, or train one "
            "with vitkit finetune"
        )
    if not config.pools:
        return (
            "has no pooling (pool none): its outputs for single tokens are no prediction for an image. "
            "Choose pool token, mean or map when the model is made"
        )
    return ""


def classification(predictions: Predictions, class_names: Sequence[str]) -> Classification:
    """Compute every number of a classifier, by the conventions at the head of this file.

    Args:
        predictions: of a model with K classes.
        class_names: K names, in the order of the logits.

    Raises:
        VitkitError: no image could be read, or the names or labels do not fit the logits.
    """
    count, bad, classes = len(predictions), len(predictions.bad), predictions.classes
    refuse_uncountable(count, bad, classes, class_names, "class")
    scores, labels, predicted = predictions.scores, predictions.labels, predictions.predicted
    right = predictions.right
    correct = int(right.sum())
    counts = (np.bincount(each, minlength=classes).tolist() for each in (labels, predicted, labels[right]))
    per_class = tuple(ClassScore(*fields) for fields in count_by_class(class_names, *counts))
    # One number for each pair of true and predicted class: no K x K matrix is needed.
    pairs, cells = np.unique(labels * classes + predicted, return_counts=True)
    recalls = [score.recall for score in per_class if score.recall is not None]
    f1s = [score.f1 for score in per_class if score.f1 is not None]
    bins = calibration_bins(scores.confidence, right)
    gaps = (each.count * abs((each.accuracy or 0.0) - (each.confidence or 0.0)) for each in bins)
    # `fsum` rounds once: no number depends on the order of the images or on how they were batched.
    return Classification(
        count=count,
        bad=bad,
        correct=correct,
        accuracy=correct / count,
        accuracy_interval=binomial_interval(correct, count),
        top5_accuracy=int((scores.rank < 5).sum()) / count if classes > 5 else None,
        loss=math.fsum(scores.loss) / count,
        balanced_accuracy=math.fsum(recalls) / len(recalls),
        macro_f1=math.fsum(f1s) / len(f1s),
        calibration_error=math.fsum(gaps) / count,
        calibration=bins,
        per_class=per_class,
        confusion_cells=tuple(
            (*divmod(pair, classes), cell) for pair, cell in zip(pairs.tolist(), cells.tolist(), strict=True)
        ),
        loss_function=predictions.loss,
        guessing=compare_with_guessing(per_class),
        overconfidence=overconfidence(scores.confidence, right),
    )


def mark_repeats(result: Classification, predictions: Predictions, rows: NDArray[np.int64]) -> Classification:
    """Add the accuracy without the images that were trained on.

    Args:
        result: the numbers of `predictions`.
        predictions: of all images of a split.
        rows: numbers of the images of the split that are training images too.
    """
    is_repeated = np.isin(predictions.ids, rows)
    count, correct = int(is_repeated.sum()), int(predictions.right[is_repeated].sum())
    others, hits = result.count - count, result.correct - correct
    repeated = Repeated(count, correct, ratio(hits, others), binomial_interval(hits, others))
    return replace(result, repeated=repeated)


def compare_with_guessing(classes: Sequence[ClassScore]) -> Guessing:
    """Compare a model with always answering the most frequent class, whose accuracy these images fix.

    The answers of a model that knows nothing do not depend on the classes. Given the classes, the number of
    its right answers is then a sum of independent yes and no, of a mean accuracy of at most the guess's, and
    its upper tail is at most the binomial's (Hoeffding 1956, "On the distribution of the number of successes
    in independent trials", theorem 4). So at most 2.5 % of such models are called better, with classes of any
    number and size, drawn or stratified. McNemar's test against the guess found 40 % of the models that are
    right on 70 % of 50 images of two classes; this one finds 78 % (`python -m benchmarks.coverage verdicts`).

    Args:
        classes: the counts of each class, not all 0.
    """
    most = max(classes, key=lambda score: score.count)  # the first of several
    count, right = sum(score.count for score in classes), sum(score.correct for score in classes)
    chance = most.count / count
    p = binomial_test(right, count, chance)
    return Guessing(most.name, chance, right - most.correct, most.count - most.correct, p)
