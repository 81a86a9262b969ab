"""A head in closed form: its predictions without an image are those of a head that was solved without it."""

import numpy as np
import pytest

from vitkit.evaluation import ridge
from vitkit.evaluation.ridge import BIAS, Ridge, fit_scale, solve_head


def draw(images: int, width: int, classes: int, seed: int = 0) -> tuple[ridge.Floats, ridge.Integers]:
    """Features of classes that lie apart, each at a direction of its own."""
    generator = np.random.default_rng(seed)
    labels = np.arange(images) % classes
    centres = generator.normal(size=(classes, width))
    return centres[labels] + generator.normal(size=(images, width)), labels


@pytest.mark.parametrize(("images", "width"), [(40, 10), (20, 50)], ids=["primal", "dual"])
@pytest.mark.parametrize("l2", [0.25, 16.0, 1024.0])
def test_a_prediction_without_an_image_is_that_of_weights_without_it(
    images: int, width: int, l2: float
) -> None:
    features, labels = draw(images, width, 3)
    solved = Ridge(features, labels, 3)
    x = np.pad((features - solved.mean) / solved.std, ((0, 0), (0, 1)), constant_values=BIAS)
    expected = []
    for left_out in range(images):
        others = np.arange(images) != left_out
        gram = x[others].T @ x[others] + l2 * np.eye(width + 1)
        expected.append(x[left_out] @ np.linalg.solve(gram, x[others].T @ solved.targets[others]))
    # The constant of 100 makes the matrix ill-conditioned: 1e4 * 40 / 0.25 times the rounding of float64.
    assert np.abs(solved.predictions_without(l2) - expected).max() < 1e-10


def test_the_head_takes_features_as_they_are_and_tells_classes_apart() -> None:
    features, labels = draw(200, 16, 4)
    head = solve_head(features, labels, 4)
    logits = features @ head.weights.T + head.bias
    assert (logits.argmax(1) == labels).mean() > 0.95
    shifted = solve_head(3 * features + 7, labels, 4)
    assert np.allclose((3 * features + 7) @ shifted.weights.T + shifted.bias, logits, atol=1e-3)


def test_the_temperature_is_calibrated_on_images_the_head_was_solved_without() -> None:
    others, truth = draw(1_200, 12, 4)
    features, labels = others[:600], truth[:600]
    head = solve_head(features, labels, 4)
    unseen, truth = others[600:], truth[600:]
    logits = unseen @ head.weights.T + head.bias
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    accuracy = (logits.argmax(1) == truth).mean()
    assert abs(probabilities.max(1).mean() - accuracy) < 0.05
    assert abs(head.right / 600 - accuracy) < 0.05


def test_the_scale_is_the_minimum_of_the_cross_entropy() -> None:
    generator = np.random.default_rng(0)
    labels = np.arange(300) % 3
    scores = generator.normal(size=(300, 3)) + 0.7 * np.eye(3)[labels]
    smoothed = np.full((300, 3), 1 / 303)
    smoothed[np.arange(300), labels] = 301 / 303

    def loss(scale: float) -> float:
        logits = scale * scores
        return float((np.log(np.exp(logits).sum(1)) - (smoothed * logits).sum(1)).mean())

    scale = fit_scale(scores, labels)
    assert loss(scale) < min(loss(scale * 0.999), loss(scale * 1.001))


@pytest.mark.parametrize("sign", [1, -1], ids=["all right", "all wrong"])
def test_scores_that_tell_everything_or_nothing_get_a_finite_scale(sign: int) -> None:
    labels = np.arange(30) % 3
    scale = fit_scale(sign * (2 * np.eye(3)[labels] - 1), labels)
    assert 10**ridge.LEAST_POWER <= scale < 10
    assert fit_scale(sign * 1e-6 * np.eye(3)[labels], labels) == 10.0 ** (3 * sign)


def test_constant_features_and_a_class_of_one_image_do_no_harm() -> None:
    features, labels = draw(30, 8, 3)
    features[:, :4] = 5.0
    labels[labels == 2] = 1
    labels[0] = 2
    head = solve_head(features, labels, 3)
    assert np.isfinite(head.weights).all() and np.isfinite(head.logits_without).all()
