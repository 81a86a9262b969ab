"""The numbers of a classifier by PyTorch, scikit-learn and SciPy, of all logits at once."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn import metrics
from torch.nn import functional as F

from vitkit.evaluation.classify import CALIBRATION_BINS, Classification
from vitkit.models.config import LossFunction

close = partial(pytest.approx, rel=1e-12, abs=1e-12)
"""The formulas of other libraries round in another order than the fast ones."""


def require_alike(
    result: Classification, logits: NDArray[np.float32], labels: NDArray[np.int64], loss: LossFunction
) -> None:
    """Compare every number of a result with what others make of the logits `(N, K)` and labels `(N,)`."""
    count, classes = logits.shape
    wide, truth, every = torch.from_numpy(logits).double(), torch.from_numpy(labels), np.arange(classes)
    if loss == "softmax":
        shares, losses = wide.softmax(1), F.cross_entropy(wide, truth)
    else:
        shares = wide.sigmoid()
        one_hot = F.one_hot(truth, classes).double()
        losses = F.binary_cross_entropy_with_logits(wide, one_hot, reduction="none").sum(1).mean()
    said = logits.argmax(1)
    right, sure = said == labels, shares.numpy()[np.arange(count), said]
    own = logits[np.arange(count), labels][:, None]
    rank = ((logits > own) | ((logits == own) & (every < labels[:, None]))).sum(1)
    interval = stats.binomtest(int(right.sum()), count).proportion_ci(0.95, "exact")
    assert (result.count, result.correct, result.loss_function) == (count, right.sum(), loss)
    assert result.accuracy == metrics.accuracy_score(labels, said)
    assert result.accuracy_interval == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert result.top5_accuracy == ((rank < 5).sum() / count if classes > 5 else None)
    assert result.loss == close(losses.item())
    scores = metrics.precision_recall_fscore_support(labels, said, labels=every, zero_division=np.nan)
    for score, said_times, *theirs, of_class in zip(
        result.per_class, np.bincount(said, minlength=classes), *scores, strict=True
    ):
        assert (score.count, score.predicted) == (of_class, said_times)
        for mine, other in zip((score.precision, score.recall, score.f1), theirs, strict=True):
            assert (mine is None and np.isnan(other)) or mine == close(other)
    assert result.balanced_accuracy == close(np.nanmean(scores[1]))
    assert result.macro_f1 == close(np.nanmean(scores[2]))
    assert (result.confusion == metrics.confusion_matrix(labels, said, labels=every)).all()
    assert list(result.confusion_cells) == sorted(result.confusion_cells)
    place = np.array([max(math.ceil(share * CALIBRATION_BINS), 1) - 1 for share in sure])
    gap = 0.0
    for number, held in enumerate(result.calibration):
        inside = place == number
        assert held.count == inside.sum()
        assert (held.lower, held.upper) == close((number / CALIBRATION_BINS, (number + 1) / CALIBRATION_BINS))
        if not inside.any():
            assert held.confidence is held.accuracy is None
            continue
        assert (held.confidence, held.accuracy) == close((sure[inside].mean(), right[inside].mean()))
        gap += abs(sure[inside].sum() - right[inside].sum()) / count
    assert result.calibration_error == close(gap)
    most = int(np.bincount(labels, minlength=classes).argmax())
    guessed = labels == most
    # The exact binomial test of scipy, doubled: its own two-sided p adds up likelihoods.
    tails = [
        stats.binomtest(int(right.sum()), count, guessed.mean(), side).pvalue for side in ("less", "greater")
    ]
    assert result.guessing.class_name == result.class_names[most]
    assert result.guessing.accuracy == close(guessed.mean())
    only = ((right & ~guessed).sum(), (guessed & ~right).sum())
    assert (result.guessing.model_only, result.guessing.guess_only) == only
    assert result.guessing.p_value == pytest.approx(min(1.0, 2 * min(tails)), rel=1e-9)
    assert result.overconfidence.mean == close((sure.sum() - right.sum()) / count)
    if count > 1 and 0 < right.sum() < count and sure.std() > 0:
        exact, z = stats.binomtest(int(right.sum()), count).proportion_ci(), stats.norm.ppf(0.975)
        sides = abs(np.array([exact.high, exact.low]) - right.mean())
        half, r = z * stats.sem(sure), stats.pearsonr(sure, right).statistic
        widths = (half**2 + sides**2 - 2 * r * half * sides) ** 0.5
        assert abs(np.array(result.overconfidence.interval) - result.overconfidence.mean) == close(widths)
