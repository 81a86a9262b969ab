"""Measure how well a model predicts a class, or labels of which an image has several or none: every number
is computed from its predictions on a data set.

`run_model.predict` runs the model once; `classification` and `multi_label` count. Keeping the two apart
lets the same predictions be counted again, compared with another model's, or looked at one by one.

Conventions:

- Predictions are ordered by id, so that nothing depends on how the images were batched.
- Images that could not be read are named in `bad` and excluded.
- A ratio whose denominator is zero (the precision of a class never predicted, say) is None, never 0 or NaN.

Conventions where an image has one class:

- The loss that the model was trained with decides what a logit means (`predictions`): softmax or sigmoid.
- The prediction is the class with the largest logit; among equals, the lowest class number. A true class is
  within the top five if fewer than five classes stand before it by the same order.
- Everything but loss and calibration is a ratio of integer counts.

Conventions where an image has several labels:

- Each label is a yes or no of its own, scored by the sigmoid of its logit: it is predicted from a probability
  of 0.5, a logit of 0.
- How well a label's logits rank images is its average precision, the area under the steps of precision over
  recall, Σ (R_n - R_{n-1}) P_n over the distinct logits from the largest, as in scikit-learn's
  `average_precision_score`: images of equal logits come in together, so that their order decides nothing.
  Nothing is interpolated, unlike in PASCAL VOC. The logits themselves are ranked, so that no rounding of
  probabilities makes them equal.
- A label of no image has no average precision: it is None, and the mean does without it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitkit.config import Count, Fraction, NotNegative
from vitkit.evaluation.levels import LevelScores
from vitkit.evaluation.predictions import Predictions, count_by_class, in_parts, ratio, refuse_uncountable
from vitkit.evaluation.statistics import NORMAL_95, binomial_interval, binomial_test, describe_interval
from vitkit.models.config import LossFunction
from vitkit.result import Result
from vitkit.text import join_names, pluralize

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
    """The 95 % confidence interval of this mean."""

    @property
    def verdict(self) -> str:
        """Say "too sure of itself" or "not sure enough" where the interval excludes 0; else ""."""
        if self.interval[0] > 0:
            return "too sure of itself"
        return "not sure enough" if self.interval[1] < 0 else ""


def overconfidence(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> Overconfidence:
    """Compare the confidence in predictions with whether they are right.

    The limits of the two means are put together by their squares (Zou and Donner 2008, "Construction of
    confidence limits about effect measures", for paired estimates; Newcombe 1998). The accuracy has its exact
    limits, so that a model that was right on all of 20 images is not called too modest, as a bootstrap
    of the differences would have it.

    Args:
        confidence: `(N,)` probabilities of the predicted classes, N at least 1.
        right: `(N,)` whether they are the true ones.
    """
    count, correct = len(right), int(right.sum())
    accuracy, (low, high) = correct / count, binomial_interval(correct, count)
    spread = float(np.std(confidence, ddof=1)) if count > 1 else 1.0  # one image says nothing about others
    half = NORMAL_95 * spread / math.sqrt(count)
    varies = spread > 0 and 0 < correct < count
    together = float(np.corrcoef(confidence, right)[0, 1]) if varies and count > 1 else 0.0
    below, above = accuracy - low, high - accuracy
    gap = math.fsum(confidence) / count - accuracy
    # Of confidence less accuracy the lower limit goes with the accuracy's upper one. Rounding may leave a
    # little less than nothing below a root.
    lower = math.sqrt(max(0.0, half**2 + above**2 - 2 * together * half * above))
    upper = math.sqrt(max(0.0, half**2 + below**2 - 2 * together * half * below))
    return Overconfidence(gap, (gap - lower, gap + upper))


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
"""Above this p a difference is not distinguished from chance; the level that goes with 95 % intervals."""


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
    levels: LevelScores | None = None
    """The numbers by level of a tree of classes; None where the classes are no tree."""

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
        """Compare with guessing, give the numbers by level, and say how many are training images and the
        accuracy without them."""
        levels = "" if self.levels is None else f"; {self.levels.sentence(self.count)}"
        if self.repeated is None:
            return f"{self.guessing.sentence()}{levels}"
        without, (low, high) = self.repeated.accuracy_without or 0.0, self.repeated.interval_without
        figure = f"{without:.2%} ({low:.1%} to {high:.1%})"
        repeats = repeats_clause(self.repeated.count, self.count - self.repeated.count, figure)
        return f"{self.guessing.sentence()}{levels}{repeats}"

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


THRESHOLD = 0.5
"""Probability from which a label is predicted."""
FEWEST_POSITIVES = 3
"""Fewest images with a label for an interval of its average precision: without one of two, one is left."""
_PRIOR_IMAGES = 20
"""Images with a label that weigh as much as the variance of a fraction. In simulations the intervals of
single labels held as little as 86 % of the true values with 5 of them, and 99 % for frequent labels with any
more."""
Floats = NDArray[np.float64]
Interval = tuple[Fraction, Fraction]


@dataclass(frozen=True)
class Ranking:
    """The images in the order of their scores for one label, in groups of equal scores."""

    order: NDArray[np.int64]
    """`(N,)` from the largest score to the smallest."""
    positive: NDArray[np.bool_]
    """`(N,)` whether the image has the label, in that order."""
    ends: NDArray[np.int64]
    """`(G,)` the last image of each group that holds an image with the label."""
    scores: NDArray[np.float32]
    """`(G,)` the score of each of these groups."""

    @classmethod
    def from_scores(cls, scores: NDArray[np.float32], positive: NDArray[np.bool_]) -> "Ranking":
        """Rank images by their scores `(N,)`."""
        order = np.argsort(-scores, kind="stable")
        ranked, positive = scores[order], positive[order]
        ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
        # Groups without the label add nothing to the sum.
        gains = np.diff(np.cumsum(positive)[ends], prepend=0)
        ends = ends[gains > 0]
        return cls(order, positive, ends, ranked[ends])

    def average_precision(self) -> float | None:
        """Compute the average precision; None where no image has the label."""
        if not len(self.ends):
            return None
        positives = np.cumsum(self.positive)[self.ends].astype(np.float64)
        return float((np.diff(positives, prepend=0) * (positives / (self.ends + 1))).sum() / positives[-1])

    def without_each(self) -> Floats:
        """Compute the average precision without each image in turn, `(N,)` in the order of the images.

        NaN where the only image with the label is left out.
        """
        count = len(self.order)
        if not len(self.ends):
            return np.full(count, np.nan)
        positives = np.cumsum(self.positive)[self.ends].astype(np.float64)
        gains, total = np.diff(positives, prepend=0), positives[-1]
        # The sum's terms before a group stay as they are; in its own and later terms one image fewer is seen.
        before = np.append(0.0, np.cumsum(gains * (positives / (self.ends + 1))))
        seen = np.maximum(self.ends, 1).astype(np.float64)  # a group of one image has no term without it
        without_negative = _sums_from(gains * (positives / seen))
        without_positive = _sums_from(gains * ((positives - 1) / seen))
        own = (gains - 1) * ((positives - 1) / seen)
        # The group of each image, or the next one that holds an image with the label.
        group = np.searchsorted(self.ends, np.arange(count))
        sums = before[group] + without_negative[group]
        labelled = group[self.positive]
        sums[self.positive] = before[labelled] + own[labelled] + without_positive[labelled + 1]
        left = np.where(self.positive, total - 1, total)
        values = np.full(count, np.nan)
        values[self.order] = np.divide(sums, left, out=np.full(count, np.nan), where=left > 0)
        return values

    def best_f1(self) -> tuple[float, float] | None:
        """Find the largest F1 that a threshold can reach, and that threshold.

        Labels with that score or more are predicted; among equal F1 the largest threshold is returned. None
        where no image has the label.
        """
        if not len(self.ends):
            return None
        positives = np.cumsum(self.positive)[self.ends]
        f1 = 2 * positives / (self.ends + 1 + positives[-1])
        best = int(f1.argmax())
        return float(f1[best]), float(self.scores[best])


def _sums_from(terms: Floats) -> Floats:
    """Add up the terms from each place to the end, `(G + 1,)`; the last one is 0."""
    return np.append(np.cumsum(terms[::-1])[::-1], 0.0)


def intervals_95(rankings: Sequence[Ranking]) -> tuple[Interval | None, list[Interval | None]]:
    """Estimate 95 % intervals of average precisions on other images drawn alike.

    The average precision of a few images is too high on average: the jackknife (leave each image out in turn)
    says by how much, and how far it varies, all labels of an image together. A rare label that happens to be
    ranked well seems not to vary at all, so the variance of each label is drawn up towards the variance of a
    fraction of its images, AP (1 - AP) / n (Boyd, Eng and Page 2013, "Area under the precision-recall curve",
    3.2). The limits are a fraction's, of as many images as give it this variance.

    In simulations (`python -m benchmarks.coverage`, docs/results/accuracy.md) they held the truth in 94 to
    98 % of the cases from 100 images on; in up to 99.7 % where a label is rare. Labels that do
    not occur are neither in the mean nor in its interval.

    Args:
        rankings: of the same images for K labels.

    Returns:
        The interval of the mean over the labels that occur, from 0 to 1, and the interval of each label: None
        where a label has fewer than `FEWEST_POSITIVES` images, for the mean where any label that occurs has.
    """
    counts = [int(ranking.positive.sum()) for ranking in rankings]
    singles: list[Interval | None] = []
    parts: list[tuple[float, float, float]] = []
    together: Floats | None = None
    for ranking, count in zip(rankings, counts, strict=True):
        if count < FEWEST_POSITIVES:
            singles.append(None)
            continue
        part, deviations = _jackknife(ranking, count)
        parts.append(part)
        singles.append(_interval_of([part], _variance(deviations)))
        together = deviations if together is None else together + deviations
    if together is None or any(0 < count < FEWEST_POSITIVES for count in counts):
        return None, singles
    return _interval_of(parts, _variance(together) / len(parts) ** 2), singles


def _jackknife(ranking: Ranking, count: int) -> tuple[tuple[float, float, float], Floats]:
    """Estimate an average precision by leaving each image out in turn.

    Returns:
        The value without its bias, from 0 to 1; the value if one image more were ranked first, and one last,
        which is never 0 or 1; the variance that the images with the label are too few to show. And each
        image's part in the value, `(N,)`.
    """
    precision, without = ranking.average_precision(), ranking.without_each()
    assert precision is not None
    mean = float(without.mean())
    value = min(max(precision - (len(without) - 1) * (mean - precision), 0.0), 1.0)
    smoothed = (count * value + 1) / (count + 2)
    deviations = without - mean
    weight = _PRIOR_IMAGES / (count + _PRIOR_IMAGES)
    missing = weight * max(0.0, smoothed * (1 - smoothed) / count - _variance(deviations))
    return (value, smoothed, missing), deviations


def _variance(deviations: Floats) -> float:
    return float((deviations**2).sum()) * (len(deviations) - 1) / len(deviations)


def _interval_of(parts: Sequence[tuple[float, float, float]], variance: float) -> Interval:
    """Make the interval of a mean of average precisions from its variance and what `_jackknife` estimates."""
    labels = len(parts)
    value, smoothed, missing = (sum(column) for column in zip(*parts, strict=True))
    value, smoothed = value / labels, smoothed / labels
    images = smoothed * (1 - smoothed) / (variance + missing / labels**2)
    return binomial_interval(value * images, images)


@dataclass(frozen=True)
class LabelScore(ClassScore):
    """One label among all."""

    average_precision: Fraction | None
    average_precision_interval: Interval | None
    """95 %; None if it was not computed, or fewer than three images have the label."""
    best_f1: Fraction | None
    """The largest F1 that another threshold reaches on these images; on others it will be lower."""
    best_threshold: Fraction | None
    """The threshold that reaches it, a probability."""


@dataclass(frozen=True)
class RepeatedLabels:
    """The images that are training images too, pixel for pixel, and the numbers without them."""

    count: Count
    mean_average_precision_without: Fraction | None
    """On the other images, over the labels that occur there; None where no label does."""
    interval_without: Interval | None
    """95 %; None if any of these labels is on fewer than three of the other images."""
    labels_that_occur: Count
    """Labels of the other images."""


@dataclass(frozen=True, repr=False)
class MultiLabel(Result):
    """The numbers of one data set; fractions are from 0 to 1."""

    count: Count
    """Readable images: what all numbers are about."""
    bad: Count
    """Images that could not be read."""
    mean_average_precision: Fraction | None
    """Mean over the labels that occur; None if no image has a label."""
    mean_average_precision_interval: Interval | None
    """95 %; None if it was not computed, or a label occurs on too few images."""
    labels_that_occur: Count
    """Labels that the mean is over."""
    micro_average_precision: Fraction | None
    """Average precision of all pairs of image and label, ranked together."""
    macro_f1: Fraction | None
    """Mean F1 of the labels that occur or are predicted."""
    micro_f1: Fraction | None
    """F1 of all pairs of image and label, counted together."""
    subset_accuracy: Fraction
    """Fraction of the images for which exactly the right labels are predicted."""
    hamming_loss: Fraction
    """Fraction of the pairs of image and label that are predicted wrongly."""
    loss: NotNegative
    """Mean over the images, in nats, of the sum over all labels of their binary cross entropies. As in
    training, but for label smoothing and mixup."""
    labels_per_image: NotNegative
    predicted_per_image: NotNegative
    per_label: tuple[LabelScore, ...]
    repeated: RepeatedLabels | None = None
    """None where nothing looked for them."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(score.name for score in self.per_label)

    def explain_no_interval(self) -> str:
        """Say why the mean average precision has no interval, without a full stop; "" where it has one."""
        rare = [score.name for score in self.per_label if 0 < score.count < FEWEST_POSITIVES]
        if self.mean_average_precision_interval is not None or not rare:
            return ""
        are, named = pluralize(len(rare), "label is", "labels are"), join_names(rare, 3)
        return f"no 95 % interval: {are} on fewer than {FEWEST_POSITIVES} images ({named})"

    def interval_clause(self) -> str:
        """State the interval of the mean average precision, or why there is none; "" if it was left out."""
        if self.mean_average_precision_interval is not None:
            return f" {describe_interval(self.mean_average_precision_interval)}"
        reason = self.explain_no_interval()
        return f" ({reason})" if reason else ""

    def summary(self) -> str:
        """State the mean average precision with its interval in one line."""
        unread = f", {self.bad} unreadable" if self.bad else ""
        figure = f"{percent_to_hundredths(self.mean_average_precision)} mean average precision"
        return f"{figure} on {self.count:,} images{unread}{self.interval_clause()}{self._repeats}"

    def sentence(self, images: str) -> str:
        """State the mean average precision, and how good the model is by other measures; `images` is the noun
        after their count."""
        return (
            f"{percent_to_hundredths(self.mean_average_precision)}"
            f" mean average precision of {self.labels_that_occur} labels on {self.count:,} "
            f"{images}{self.interval_clause()}; "
            f"micro {percent_to_hundredths(self.micro_average_precision)}, "
            f"macro F1 {percent_to_hundredths(self.macro_f1)}, "
            f"micro F1 {percent_to_hundredths(self.micro_f1)}, "
            f"all labels of an image right {self.subset_accuracy:.2%}, "
            f"single labels wrong {self.hamming_loss:.2%}; loss {self.loss:.4f}{self._repeats}"
        )

    @property
    def _repeats(self) -> str:
        """Say how many images are training images, and the mean average precision without them."""
        if (repeated := self.repeated) is None:
            return ""
        figure = percent_to_hundredths(repeated.mean_average_precision_without)
        if repeated.interval_without is not None:
            low, high = repeated.interval_without
            figure += f" ({low:.1%} to {high:.1%})"
        return repeats_clause(repeated.count, self.count - repeated.count, figure)


def repeats_clause(repeated: int, others: int, figure: str) -> str:
    """Say how many of the images are training images, to follow the figures; "" where none is.

    Args:
        repeated: images that are training images too.
        others: all other images.
        figure: the score on the others, and its interval.
    """
    if not repeated:
        return ""
    clause = pluralize(repeated, "image is a training image", "images are training images")
    if not others:
        return f"; all {clause} too"
    return f"; {clause} too: without {'it' if repeated == 1 else 'them'} {figure}"


def percent_to_hundredths(fraction: float | None) -> str:
    """Write a fraction with hundredths of a point."""
    return "undefined" if fraction is None else f"{fraction:.2%}"


def multi_label(predictions: Predictions, class_names: Sequence[str], intervals: bool = True) -> MultiLabel:
    """Count every number, by the conventions at the head of this file.

    Args:
        predictions: of K labels.
        class_names: K names, in the order of the logits.
        intervals: whether to estimate them.

    Raises:
        VitkitError: no image could be read, or the names do not fit the logits.
    """
    count, classes = predictions.labels.shape
    refuse_uncountable(count, len(predictions.bad), classes, class_names, "label")
    logits, targets = predictions.logits, predictions.labels
    # A logit of 0 is a probability of 0.5 by the sigmoid: from there on the label is predicted.
    predicted, wrong = logits >= 0, ~predictions.right
    hits = predicted & targets
    rankings = [Ranking.from_scores(logits[:, label], targets[:, label]) for label in range(classes)]
    pooled = Ranking.from_scores(logits.reshape(-1), targets.reshape(-1))  # all labels as one
    whole, singles = intervals_95(rankings) if intervals else (None, [None] * classes)
    counts = (flags.sum(0).tolist() for flags in (targets, predicted, hits))
    per_label = []
    counted = count_by_class(class_names, *counts)
    for fields, ranking, interval in zip(counted, rankings, singles, strict=True):
        f1, logit = ranking.best_f1() or (None, None)
        threshold = None if logit is None else float(np.exp(-np.logaddexp(0, -np.float64(logit))))  # sigmoid
        per_label.append(LabelScore(*fields, ranking.average_precision(), interval, f1, threshold))
    precisions = [score.average_precision for score in per_label if score.average_precision is not None]
    f1s = [score.f1 for score in per_label if score.f1 is not None]
    mean = math.fsum(precisions) / len(precisions) if precisions else None
    # The labels' binary cross entropies: log(1 + e^x) where one is absent, log(1 + e^-x) where it is present.
    signed = (np.where(has, -rows.astype(np.float64), rows) for rows, has in in_parts(logits, targets))
    losses = [np.logaddexp(0, part).sum(1).tolist() for part in signed]
    total, named = int(targets.sum()), int(predicted.sum())
    return MultiLabel(
        count=count,
        bad=len(predictions.bad),
        mean_average_precision=mean,
        mean_average_precision_interval=whole,
        labels_that_occur=len(precisions),
        micro_average_precision=pooled.average_precision(),
        macro_f1=math.fsum(f1s) / len(f1s) if f1s else None,
        micro_f1=ratio(2 * int(hits.sum()), total + named),
        subset_accuracy=int((~wrong.any(1)).sum()) / count,
        hamming_loss=int(wrong.sum()) / wrong.size,
        loss=math.fsum(loss for part in losses for loss in part) / count,
        labels_per_image=total / count,
        predicted_per_image=named / count,
        per_label=tuple(per_label),
    )


def mark_repeated_labels(result: MultiLabel, predictions: Predictions, rows: NDArray[np.int64]) -> MultiLabel:
    """Add the mean average precision without the images that were trained on.

    Args:
        result: the numbers of `predictions`.
        predictions: of all images of a split.
        rows: numbers of the images of the split that are training images too.
    """
    new = ~np.isin(predictions.ids, rows)
    if (count := int((~new).sum())) == len(predictions):
        return replace(result, repeated=RepeatedLabels(count, None, None, 0))
    logits, labels = predictions.logits[new], predictions.labels[new]
    rest = Predictions(logits, labels, predictions.ids[new], predictions.bad, predictions.loss)
    others = multi_label(rest, result.class_names) if count else result
    mean, interval = others.mean_average_precision, others.mean_average_precision_interval
    return replace(result, repeated=RepeatedLabels(count, mean, interval, others.labels_that_occur))
