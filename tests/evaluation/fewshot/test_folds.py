"""Cross-validation of few-shot classifiers."""

import numpy as np

from vitkit.evaluation.fewshot.methods import FITS, METHODS, cross_validate, mixed_order

LABELS = np.repeat(np.arange(4), 30)


def test_classes_that_lie_apart_are_all_told_apart() -> None:
    features = np.eye(4)[LABELS] + np.random.default_rng(0).normal(0, 0.05, (120, 4))
    seen: list[int] = []
    scores = cross_validate(features, LABELS, 4, progress=seen.append)
    assert scores.right == {"ridge": 120, "knn": 120} and scores.accuracy == 1.0
    assert seen == list(range(1, FITS + 1))


def test_no_image_is_predicted_by_itself() -> None:
    """By itself the nearest neighbour would be right on all of this noise."""
    features = np.random.default_rng(0).normal(size=(120, 16))
    scores = cross_validate(features, LABELS, 4)
    assert all(scores.right[method] < 50 for method in METHODS)  # 30 of 120 by chance
    assert cross_validate(features, LABELS, 4) == scores


def test_a_class_of_one_image_is_never_right_and_breaks_nothing() -> None:
    labels = np.array([0] * 10 + [1])
    features = np.eye(2)[labels]
    scores = cross_validate(features, labels, 2)
    assert scores.right["ridge"] == 10 and scores.images == 11


def test_every_beginning_of_the_order_holds_the_classes_in_their_shares() -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    order = mixed_order(labels)
    assert sorted(order) == list(range(100))
    for count in (10, 20, 50):
        counts = np.bincount(labels[order[:count]], minlength=3)
        assert np.abs(counts - count * np.array([0.6, 0.3, 0.1])).max() <= 1
