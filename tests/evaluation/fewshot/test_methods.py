"""Few-shot classifiers against the authors' numbers, against brute force, and at their edges."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.fixture_files import load_fixture
from tests.helpers.refusals import refused
from vitkit.evaluation.fewshot.config import Learning
from vitkit.evaluation.fewshot.methods import (
    Draws,
    LabelledFeatures,
    fit,
    fit_logistic,
    fit_neighbours,
    fit_ridge,
    measure,
    mixed_order,
)

FIXTURES = {"j_fewshot_dim16": 7, "j_fewshot_dim96_dual": 5}


@pytest.mark.parametrize("name", FIXTURES)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("shots", [1, 5, 10])
def test_shots_and_predictions_of_ridge_are_those_of_the_authors(name: str, seed: int, shots: int) -> None:
    """Primal with 16 features and 10 shots, dual else.

    From a penalty of 16 on the original's float32 predictions are the exact ones; with 0.25 and 1 it flips at
    most one prediction, where float64 has hardly a margin.
    """
    (_, _, arrays), classes, key = load_fixture(name), FIXTURES[name], f"seed{seed}_shots{shots}"
    drawn = Draws(arrays["train_labels"], classes, seed).take(shots)
    assert np.array_equal(drawn, arrays[f"idx_{key}"])
    features, labels = arrays["train_features"][drawn], arrays["train_labels"][drawn]
    for number, l2 in enumerate(arrays["l2_regs"].tolist()):
        predicted = fit_ridge(features.astype(np.float64), labels, classes, l2).predict(
            arrays["test_features"]
        )
        assert np.array_equal(predicted, arrays[f"pred64_{key}"][number])
        differing = int((predicted != arrays[f"pred_{key}"][number]).sum())
        assert differing <= (0 if l2 >= 16 else 1)
        accuracy = (predicted == arrays["test_labels"]).mean()
        assert accuracy == pytest.approx(float(arrays[f"acc64_{key}"][number]), abs=1e-12)
        if l2 >= 16:
            assert accuracy == pytest.approx(float(arrays[f"acc_{key}"][number]), abs=1e-6)  # float32


def _blobs(
    seed: int, counts: tuple[int, ...], features: int = 6, spread: float = 1.5
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Features of classes around centres of their own."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    centres = np.random.default_rng(0).normal(size=(len(counts), features))
    rows = centres[labels] + spread * rng.normal(size=(len(labels), features))
    return rows.astype(np.float32), labels.astype(np.int64)


def test_draws_are_nested_of_the_classes_and_their_own() -> None:
    labels = np.random.default_rng(1).integers(0, 5, 400)
    draws = Draws(labels, 5, 3)
    previous: set[int] = set()
    for shots in (1, 2, 7, 20):
        drawn = draws.take(shots)
        assert len(set(drawn.tolist())) == len(drawn) == 5 * shots
        assert np.array_equal(labels[drawn], np.repeat(np.arange(5), shots))
        assert previous <= set(drawn.tolist())
        previous = set(drawn.tolist())
    assert np.array_equal(draws.take(7), Draws(labels, 5, 3).take(7))
    assert not np.array_equal(draws.take(7), Draws(labels, 5, 4).take(7))


def test_the_next_image_of_the_class_stands_in_for_an_unreadable_one() -> None:
    labels = np.repeat(np.arange(3), (10, 2, 10))
    draws = Draws(labels, 3, 0)
    bad = [int(draws.take(3)[0]), int(draws.take(3)[3])]  # of the classes 0 and 1
    drawn = draws.take(3, bad)
    assert not set(bad) & set(drawn.tolist())
    assert np.bincount(labels[drawn], minlength=3).tolist() == [3, 1, 3]
    assert drawn[:2].tolist() == draws.take(3)[1:3].tolist()


def _brute_neighbours(x: NDArray[Any], y: NDArray[Any], classes: int, row: NDArray[Any], k: int) -> int:
    """One image at a time: sort the shots by cosine, count the votes."""
    cosines = [float(np.dot(shot, row) / np.linalg.norm(shot) / np.linalg.norm(row)) for shot in x]
    nearest = sorted(range(len(x)), key=lambda i: -cosines[i])[:k]
    votes = [
        (sum(y[i] == c for i in nearest), sum(cosines[i] for i in nearest if y[i] == c), -c)
        for c in range(classes)
    ]
    return max(range(classes), key=lambda c: votes[c] if votes[c][0] else (0, -np.inf, -c))


@pytest.mark.parametrize("k", [1, 2, 5, 99])
def test_neighbours_vote_as_counted_one_by_one(k: int) -> None:
    x, y = _blobs(1, (6, 3, 8))
    rows, _ = _blobs(2, (20, 20, 20))
    x, rows = x.astype(np.float64), rows.astype(np.float64)
    predicted = fit("knn", x, y, 3, neighbours=k).predict(rows)
    assert predicted.tolist() == [_brute_neighbours(x, y, 3, row, k) for row in rows]


def test_the_number_of_neighbours_is_the_best_at_naming_shots_by_the_others() -> None:
    x, y = _blobs(5, (20, 20, 20), spread=1.8)
    x = x.astype(np.float64)
    right = {
        k: sum(
            _brute_neighbours(np.delete(x, i, 0), np.delete(y, i), 3, x[i], k) == y[i] for i in range(len(x))
        )
        for k in (1, 3, 5, 10, 20, 50)
    }
    chosen = fit_neighbours(x, y, 3).setting
    assert chosen == min(right, key=lambda k: (-right[k], k)) != 1
    assert fit("knn", *_blobs(5, (1, 1, 1)), 3).setting == 1  # no shot is like another


def test_parts_change_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = _blobs(1, (6, 6, 6))
    rows, _ = _blobs(2, (20, 20, 20))
    whole = [fit(method, x, y, 3) for method in ("ridge", "knn", "logistic")]
    expected = [(fitted.setting, fitted.predict(rows)) for fitted in whole]
    monkeypatch.setattr("vitkit.evaluation.fewshot.methods.PART", 40)  # two shots, six test images at a time
    for method, (setting, predicted) in zip(("ridge", "knn", "logistic"), expected, strict=True):
        fitted = fit(method, x, y, 3)  # type: ignore[arg-type]
        assert fitted.setting == setting
        assert np.array_equal(fitted.predict(rows), predicted)


def test_logistic_regression_finds_the_minimum() -> None:
    """Its predictions are those of the penalised cross entropy's minimum, by another optimiser."""
    from scipy.optimize import minimize

    x, y = _blobs(3, (1, 1, 1, 1), features=3)  # one shot a class: C is 1
    rows, _ = _blobs(4, (30, 30, 30, 30), features=3)
    x, rows = x.astype(np.float64), rows.astype(np.float64)
    mean, std = x.mean(0), x.std(0) + 1e-5
    z = (x - mean) / std

    def loss(flat: NDArray[Any]) -> float:
        weights, bias = flat[:12].reshape(3, 4), flat[12:]
        logits = z @ weights + bias
        terms = np.log(np.exp(logits).sum(1)) - logits[np.arange(4), y]
        return float(terms.sum() + 0.5 * (weights**2).sum())

    flat = minimize(loss, np.zeros(16), method="Powell", options={"ftol": 1e-14, "maxiter": 10**5}).x
    scores = (rows - mean) / std @ flat[:12].reshape(3, 4) + flat[12:]
    clear = np.sort(scores, 1)[:, -1] - np.sort(scores, 1)[:, -2] > 0.02  # both optimisers stop somewhere
    fitted = fit_logistic(x, y)
    assert fitted.setting == 1.0
    assert fitted.converged
    assert clear.sum() > 100
    assert np.array_equal(fitted.predict(rows)[clear], scores.argmax(1)[clear])


def test_the_penalty_is_chosen_on_held_out_shots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each class the last fifth is asked, at least one; the others alone are learned from."""
    from vitkit.evaluation.fewshot import methods as fewshot

    seen: list[tuple[int, float]] = []
    original = fewshot._logistic

    def counting(features: NDArray[Any], labels: NDArray[Any], inverse: float) -> tuple[Any, bool]:
        seen.append((len(labels), inverse))
        return original(features, labels, inverse)

    monkeypatch.setattr(fewshot, "_logistic", counting)
    x, y = _blobs(6, (10, 4, 1))
    fitted = fit_logistic(x.astype(np.float64), y)
    assert seen[:-1] == [(15 - 2 - 1, inverse) for inverse in fewshot.INVERSE_PENALTIES]
    assert seen[-1] == (15, fitted.setting)
    monkeypatch.setattr(fewshot, "MAX_ITERATIONS", 1)
    assert not fit("logistic", x, y, 3).converged


@pytest.mark.parametrize("method", ["ridge", "knn", "logistic"])
def test_every_method_survives_a_feature_without_variation_and_an_absent_class(method: Any) -> None:
    x, y = _blobs(1, (5, 0, 1))
    x[:, 0] = 3.0
    x = np.hstack([x, np.zeros((6, 1), np.float32)])
    predicted = fit(method, x, y, 3).predict(x)
    assert set(predicted.tolist()) <= {0, 2}
    assert predicted[0] == 0
    x, y = _blobs(1, (0, 4, 0))
    assert fit(method, x, y, 3).predict(x).tolist() == [1] * 4  # the only class
    refused("no shots", fit, method, np.zeros((0, 4)), np.zeros(0, np.int64), 3)


def test_every_beginning_of_the_order_holds_the_classes_in_their_shares() -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    order = mixed_order(labels)
    assert sorted(order) == list(range(100))
    for count in (10, 20, 50):
        counts = np.bincount(labels[order[:count]], minlength=3)
        assert np.abs(counts - count * np.array([0.6, 0.3, 0.1])).max() <= 1


# Accuracy over draws: its mean, its spread, and that of each class

DRAWN = np.random.default_rng(0)
SCORED_LABELS = DRAWN.integers(0, 4, 200)
ROWS = (DRAWN.normal(size=(4, 5))[SCORED_LABELS] + DRAWN.normal(size=(200, 5))).astype(np.float32)
POOL = LabelledFeatures(np.arange(0, 200, 2), ROWS[::2], SCORED_LABELS[::2])
TEST = LabelledFeatures(np.arange(80), ROWS[1:160:2], SCORED_LABELS[1:160:2])


def _draws(seeds: int) -> list[Draws]:
    labels = np.full(200, -1)  # of the whole split: only every second image has features
    labels[::2] = SCORED_LABELS[::2]
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
            fitted = fit(score.method, ROWS[drawn], SCORED_LABELS[drawn], 4)
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


@pytest.mark.parametrize("methods", [(), ("ridge", "forest")])
def test_methods_that_are_none_are_refused(methods: tuple[Any, ...]) -> None:
    refused("methods are among ridge, knn", Learning, methods=methods)
