"""What is counted over draws: accuracy, its spread, and that of each class."""

import math

import numpy as np
import pytest

from vitkit.evaluation.fewshot.config import Learning
from vitkit.evaluation.fewshot.methods import Draws, LabelledFeatures, fit, measure

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 4, 200)
ROWS = (RNG.normal(size=(4, 5))[LABELS] + RNG.normal(size=(200, 5))).astype(np.float32)
POOL = LabelledFeatures(np.arange(0, 200, 2), ROWS[::2], LABELS[::2])
TEST = LabelledFeatures(np.arange(80), ROWS[1:160:2], LABELS[1:160:2])


def _draws(seeds: int) -> list[Draws]:
    labels = np.full(200, -1)  # of the whole split: only every second image has features
    labels[::2] = LABELS[::2]
    return [Draws(labels, 4, seed) for seed in range(seeds)]


def test_mean_deviation_and_interval_are_those_of_the_draws() -> None:
    heard: list[int] = []
    scores = measure(
        _draws(3), Learning((1, 5), methods=("ridge", "knn")), POOL, TEST, 4, progress=heard.append
    )
    assert [(score.method, score.shots) for score in scores] == [
        ("ridge", 1), ("ridge", 5), ("knn", 1), ("knn", 5)
    ]  # fmt: skip
    assert heard == list(range(1, 13))
    for score in scores:
        expected = []
        for draw in _draws(3):
            drawn = draw.take(score.shots)
            fitted = fit(score.method, ROWS[drawn], LABELS[drawn], 4)
            expected.append(float((fitted.predict(TEST.rows) == TEST.labels).mean()))
        assert list(score.accuracies) == expected
        assert score.mean == pytest.approx(sum(expected) / 3)
        assert score.deviation == pytest.approx(np.std(expected, ddof=1))
        half = 4.302652729911275 * np.std(expected, ddof=1) / math.sqrt(3)  # Student's t, two degrees
        assert score.interval == pytest.approx(
            (max(0, score.mean - half), min(1, score.mean + half)), abs=1e-9
        )


def test_accuracy_is_the_mean_of_the_classes_by_their_counts() -> None:
    (score,) = measure(_draws(2), Learning((5,), methods=("ridge",)), POOL, TEST, 5)
    counts = np.bincount(TEST.labels, minlength=5)
    assert score.class_accuracy[4] is None  # no test image
    total = sum(share * count for share, count in zip(score.class_accuracy, counts, strict=True) if share)
    assert total / 80 == pytest.approx(score.mean)
    (single,) = measure(_draws(1), Learning((5,), methods=("ridge",)), POOL, TEST, 4)
    assert single.deviation is None and single.interval is None and len(single.accuracies) == 1
