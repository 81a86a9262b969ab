"""The linear classifier in closed form that a run may begin with."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot import Floats, Integers
from vitkit.evaluation.fewshot_head import ALONE, PENALTIES, SCALES, Ridge, fit_head


def blobs(images: int, features: int, classes: int, seed: int = 0) -> tuple[Floats, Integers]:
    """Features of classes that overlap, with another scale in each column."""
    rng = np.random.default_rng(seed)
    labels = np.arange(images) % classes
    rows = 0.7 * rng.normal(size=(classes, features))[labels] + rng.normal(size=(images, features))
    return (rows * rng.uniform(0.1, 10, features) + 3).astype(np.float32), labels


def solve(x: Floats, y: Floats, penalty: float) -> tuple[Floats, Floats]:
    """Weights and intercept by the normal equations, the intercept without a penalty."""
    mean = x.mean(0)
    weights = np.linalg.solve((x - mean).T @ (x - mean) + penalty * np.eye(x.shape[1]), (x - mean).T @ y)
    return weights, y.mean(0) - mean @ weights


@pytest.mark.parametrize(("images", "features"), [(12, 30), (60, 5), (9, 9)])
@pytest.mark.parametrize("penalty", [1e-3, 1.0, 100.0])
def test_leaving_one_out_in_closed_form_is_solving_without_it(
    images: int, features: int, penalty: float
) -> None:
    rows, labels = blobs(images, features, 3)
    x, y = np.asarray(rows - rows.mean(0), np.float64), np.eye(3)[labels]
    x -= x.mean(0)
    ridge = Ridge(x, y)
    weights, _ = solve(x, y, penalty * ridge.unit)
    assert np.allclose(ridge.weights(penalty), weights, rtol=1e-7, atol=1e-10)
    for left in range(images):
        kept = np.arange(images) != left
        weights, intercept = solve(x[kept], y[kept], penalty * ridge.unit)
        assert np.allclose(ridge.left_out(penalty)[left], x[left] @ weights + intercept, rtol=1e-6, atol=1e-8)


def test_penalty_and_scale_are_the_best_for_images_left_out() -> None:
    rows, labels = blobs(90, 20, 3)
    head = fit_head(rows, labels, 3)
    x = (rows.astype(np.float64) - rows.mean(0, dtype=np.float64)) / (rows.std(0, dtype=np.float64) + 1e-5)
    ridge = Ridge(x, np.eye(3)[labels])
    errors = [float(((ridge.left_out(one) - ridge.targets) ** 2).sum()) for one in PENALTIES]
    assert head.penalty == PENALTIES[int(np.argmin(errors))]
    predicted = ridge.left_out(head.penalty)
    assert head.right == (predicted.argmax(1) == labels).mean()
    targets = np.eye(3)[labels] * (1 - 1 / 92) + 1 / 92 / 3  # as if one image more had any label

    def loss(scale: float) -> float:
        logits = scale * predicted
        return float((np.log(np.exp(logits).sum(1)) - (targets * logits).sum(1)).mean())

    best = minimize_scalar(loss, bounds=(0.1, 50), method="bounded", options={"xatol": 1e-7})
    logits, scores = rows @ head.weight.T + head.bias, x @ ridge.weights(head.penalty) + ridge.intercept
    # Logits are the scores times the scale, but for the rounding of float32 features.
    assert np.allclose(logits, best.x * scores, rtol=1e-4, atol=1e-3)
    assert (logits.argmax(1) == labels).mean() > 0.8


def test_the_same_features_give_the_same_bits() -> None:
    first, second = (fit_head(*blobs(50, 80, 5), 5) for _ in range(2))
    assert np.array_equal(first.weight, second.weight) and np.array_equal(first.bias, second.bias)


def test_a_class_without_images_is_predicted_last() -> None:
    rows, labels = blobs(40, 10, 2)
    head = fit_head(rows, labels * 2, 3)  # of classes 0, 1, 2 the middle one is missing
    assert np.isfinite(head.weight).all() and not head.weight[1].any()
    assert not ((rows @ head.weight.T + head.bias).argmax(1) == 1).any()


def test_of_one_image_a_class_nothing_is_left_out() -> None:
    rows, labels = blobs(4, 10, 4)
    head = fit_head(rows, labels, 4)
    logits = rows @ head.weight.T + head.bias
    assert head.penalty == ALONE and head.right is None
    assert (logits.argmax(1) == labels).all()
    assert np.isclose((logits - logits.mean(1, keepdims=True)).std(), 1, rtol=1e-5)


def test_a_class_of_one_image_takes_no_part_in_the_choice() -> None:
    rows, labels = blobs(40, 10, 2)
    labels[-1] = 2
    head = fit_head(rows, labels, 3)
    assert head.right is not None and head.right > 0.7
    assert (rows[-1] @ head.weight.T + head.bias)[2] > (rows[0] @ head.weight.T + head.bias)[2]


def test_images_that_are_told_apart_with_certainty_leave_some_doubt() -> None:
    rows, labels = blobs(20, 4, 2)
    rows[:, 0] = 100 * labels  # far apart
    logits = rows @ fit_head(rows, labels, 2).weight.T
    spread = (logits - logits.mean(1, keepdims=True)).std()
    assert SCALES[0] < spread < 5


@pytest.mark.parametrize("images", [1, 10])
def test_features_that_are_all_alike_say_nothing_but_the_shares(images: int) -> None:
    labels = np.zeros(images, np.int64)
    labels[: images // 5] = 1
    head = fit_head(np.full((images, 6), 0.1, np.float32), labels, 2)
    assert np.isfinite(head.bias).all() and abs(head.weight).max() < 1e-3
    assert head.bias[0] > head.bias[1]


def test_no_images_are_refused() -> None:
    with pytest.raises(VitkitError, match="no training image can be read"):
        fit_head(np.zeros((0, 3), np.float32), np.zeros(0, np.int64), 2)
