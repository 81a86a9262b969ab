"""The numbers of an evaluation the slow way: all logits in memory, one image after the other."""

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from vitkit.evaluation.classify import (
    CALIBRATION_BINS,
    CalibrationBin,
    Classification,
    ClassScore,
    Guessing,
    Overconfidence,
)
from vitkit.evaluation.statistics import binomial_interval, overconfidence_interval
from vitkit.models.config import LossFunction


def image(logits: NDArray[np.float32], label: int, loss: LossFunction) -> tuple[int, float, float, int]:
    """Prediction, confidence, loss and the classes before the true one, of one image's logits `(K,)`."""
    predicted = min(i for i, value in enumerate(logits) if value == logits.max())
    before = [(-value, i) for i, value in enumerate(logits)]
    rank = sorted(before).index((-logits[label], label))
    if loss == "softmax":
        shifted = logits - np.float64(logits.max())
        total = np.exp(shifted).sum()
        return predicted, 1 / total, np.log(total) - shifted[label], rank
    wide = logits.astype(np.float64)
    terms = [np.logaddexp(0, -x if i == label else x) for i, x in enumerate(wide)]
    return predicted, np.exp(-np.logaddexp(0, -wide[predicted])), np.array(terms).sum(), rank


def reference(
    logits: NDArray[np.float32],
    labels: Sequence[int],
    names: Sequence[str],
    bad: int = 0,
    loss: LossFunction = "softmax",
) -> Classification:
    count, classes = logits.shape
    answers = [image(row, label, loss) for row, label in zip(logits, labels, strict=True)]
    pairs = [(label, answer[0]) for label, answer in zip(labels, answers, strict=True)]
    scores = []
    for i, name in enumerate(names):
        of_class = sum(true == i for true, _ in pairs)
        said = sum(predicted == i for _, predicted in pairs)
        hits = pairs.count((i, i))
        scores.append(
            ClassScore(
                name,
                of_class,
                said,
                hits,
                hits / said if said else None,
                hits / of_class if of_class else None,
                2 * hits / (of_class + said) if of_class + said else None,
            )
        )
    bins = []
    for i in range(CALIBRATION_BINS):
        inside = [
            (answer[1], true == answer[0])
            for answer, (true, _) in zip(answers, pairs, strict=True)
            if min(max(math.ceil(answer[1] * CALIBRATION_BINS) - 1, 0), CALIBRATION_BINS - 1) == i
        ]
        size = len(inside)
        bins.append(
            CalibrationBin(
                i / CALIBRATION_BINS,
                (i + 1) / CALIBRATION_BINS,
                size,
                math.fsum(confidence for confidence, _ in inside) / size if size else None,
                sum(right for _, right in inside) / size if size else None,
            )
        )
    recalls = [score.recall for score in scores if score.recall is not None]
    f1s = [score.f1 for score in scores if score.f1 is not None]
    correct = sum(true == predicted for true, predicted in pairs)
    gaps = [
        b.count * abs(b.accuracy - b.confidence)
        for b in bins
        if b.accuracy is not None and b.confidence is not None
    ]
    return Classification(
        count=count,
        bad=bad,
        correct=correct,
        accuracy=correct / count,
        accuracy_interval=binomial_interval(correct, count),
        top5_accuracy=sum(answer[3] < 5 for answer in answers) / count if classes > 5 else None,
        loss=math.fsum(answer[2] for answer in answers) / count,
        balanced_accuracy=math.fsum(recalls) / len(recalls),
        macro_f1=math.fsum(f1s) / len(f1s),
        calibration_error=math.fsum(gaps) / count,
        calibration=tuple(bins),
        per_class=tuple(scores),
        confusion_cells=tuple((*pair, pairs.count(pair)) for pair in sorted(set(pairs))),
        loss_function=loss,
        guessing=_guessing(names, pairs),
        overconfidence=Overconfidence(
            (math.fsum(answer[1] for answer in answers) - correct) / count,
            overconfidence_interval(
                np.array([answer[1] for answer in answers]), np.array([true == said for true, said in pairs])
            ),
        ),
    )


def require_alike(result: object, expected: object, place: str = "") -> None:
    """Compare two results field by field, numbers to 12 digits, and name the field that differs.

    The formulas of a textbook round in another order than the fast ones.
    """
    if isinstance(expected, float) and isinstance(result, float):
        assert math.isclose(result, expected, rel_tol=1e-12, abs_tol=1e-12), (place, result, expected)
    elif is_dataclass(expected):
        for field in fields(expected):
            own = getattr(result, field.name)
            require_alike(own, getattr(expected, field.name), f"{place}.{field.name}".lstrip("."))
    elif isinstance(expected, tuple) and isinstance(result, tuple):
        assert len(result) == len(expected), (place, result, expected)
        for number, (own, theirs) in enumerate(zip(result, expected, strict=True)):
            require_alike(own, theirs, f"{place}[{number}]")
    else:
        assert result == expected, (place, result, expected)


def _guessing(names: Sequence[str], pairs: list[tuple[int, int]]) -> Guessing:
    """Compare with always answering the most frequent class, image by image."""
    truth = [true for true, _ in pairs]
    most = max(range(len(names)), key=truth.count)
    model = sum(true == said != most for true, said in pairs)
    guess = sum(true == most != said for true, said in pairs)
    # The exact binomial test of scipy, doubled: its own two-sided p adds up likelihoods.
    right, chance = sum(true == said for true, said in pairs), truth.count(most) / len(truth)
    tails = [stats.binomtest(right, len(pairs), chance, side).pvalue for side in ("less", "greater")]
    return Guessing(names[most], chance, model, guess, min(1.0, 2 * min(tails)))
