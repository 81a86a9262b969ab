"""Fit few-shot classifiers to frozen features: a few labelled images of each class.

The paper's few-shot accuracy (4.1, Figure 4) is `ridge`: a least-squares fit of the features to -1 and 1, in
closed form, as in big_vision `evaluators/fewshot_lsr.py`. The others are nearest neighbours and logistic
regression.

Shapes: N training images (the shots), M test images, D features, K classes.
"""

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot.config import L2, Method

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]

BIAS = 100.0
"""The constant feature that carries the bias: so large that the penalty on its weight hardly counts."""
STD_EPS = 1e-5
"""Added to standard deviations, so that a constant feature is not divided by zero."""
NEIGHBOURS = (1, 3, 5, 10, 20, 50)
"""Numbers of neighbours that are tried on the shots."""
INVERSE_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""The values of scikit-learn's C that are tried on a held-out part of the shots, the strongest penalty first.
"""
HELD_OUT = 5
"""One shot of each class in `HELD_OUT` is held out to choose C; of two to nine shots, one."""
MAX_ITERATIONS = 2000
"""The most iterations of L-BFGS; on standardised features a hundred or two are usual."""
PART = 1 << 22
"""Numbers in an array that is made of a part of the rows: 32 MiB in float64."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A classifier that was fitted to the shots."""

    predict: Callable[[Floats], Integers]
    """Features `(M, D)` to class numbers `(M,)`."""
    setting: float
    """The setting of the fit: the penalty of `ridge`, the k of `knn`, the C of `logistic`."""
    converged: bool = True
    """Whether the optimiser of `logistic` came to an end before its last iteration."""


class Draws:
    """The images that are drawn as shots: a function of labels and seed alone, the same for every checkpoint.

    The order of each class is the original's: NumPy's default generator with the seed, one permutation for
    each class in turn. Fewer shots are the first of more. NumPy does not promise this stream for ever, as it
    does the streams of raw bit generators; the authors' fixture in the tests would show a change.

    Args:
        labels: `(P,)` of all images to draw from.
        classes: K.
        seed: from 0.
    """

    def __init__(self, labels: Integers, classes: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._orders = [rng.permutation(np.flatnonzero(labels == number)) for number in range(classes)]

    def take(self, shots: int, without: Collection[int] = ()) -> Integers:
        """Give the images of the first `shots` of each class, class after class.

        Args:
            shots: of each class at most.
            without: unreadable images: the next image of the class replaces each.
        """
        left_out = np.fromiter(without, np.int64, len(without))
        orders = [order[~np.isin(order, left_out)] for order in self._orders] if without else self._orders
        taken = [order[:shots] for order in orders]
        return np.concatenate(taken).astype(np.int64)


def fit(
    method: Method,
    features: Floats,
    labels: Integers,
    classes: int,
    *,
    l2: float = L2,
    neighbours: int | None = None,
) -> Fitted:
    """Fit a classifier to the shots.

    Args:
        method: "ridge", "knn" or "logistic".
        features: `(N, D)`, finite.
        labels: `(N,)` from 0 to K - 1, each class's images in the order in which they were drawn.
        classes: K.
        l2: the penalty of `ridge`.
        neighbours: of `knn`; None: chosen among `NEIGHBOURS`, by leaving out one shot at a time.

    Raises:
        VitkitError: there are no shots.
    """
    if not len(labels):
        raise VitkitError("There are no shots to learn from: no image of any class can be read.")
    features = features.astype(np.float64)
    if method == "ridge":
        return fit_ridge(features, labels, classes, l2)
    if method == "knn":
        return fit_neighbours(features, labels, classes, neighbours)
    return fit_logistic(features, labels)


def fit_ridge(features: Floats, labels: Integers, classes: int, l2: float = L2) -> Fitted:
    """Fit least squares with an L2 penalty to targets of -1 and 1, in closed form.

    As in big_vision `evaluators/fewshot_lsr.py`: features are whitened by mean and population deviation of
    the shots, the bias is a constant feature under the same penalty, and the smaller of the two Gram matrices
    is decomposed. It is computed in float64, unlike the original's float32: the constant makes the matrix
    ill-conditioned, and with penalties below 16 rounding decides single predictions of the original.
    """
    mean, std = _statistics(features)
    x = np.pad((features - mean) / std, ((0, 0), (0, 1)), constant_values=BIAS)  # (N, D + 1)
    y = np.full((len(labels), classes), -1.0)
    y[np.arange(len(labels)), labels] = 1.0
    if x.shape[0] >= x.shape[1]:
        eigenvalues, left = np.linalg.eigh(x.T @ x)  # primal: (X'X + l2)^-1 X'Y
        right = left.T @ (x.T @ y)
    else:
        eigenvalues, q = np.linalg.eigh(x @ x.T)  # dual: X' (XX' + l2)^-1 Y
        left, right = x.T @ q, q.T @ y
    weights = (left / (eigenvalues + l2)) @ right  # (D + 1, K)

    def predict(rows: Floats) -> Integers:
        scores = (
            ((part - mean) / std) @ weights[:-1] + BIAS * weights[-1] for _, part in _parts(rows, classes)
        )
        return np.concatenate([score.argmax(1) for score in scores])

    return Fitted(predict, l2)


def fit_neighbours(features: Floats, labels: Integers, classes: int, neighbours: int | None = None) -> Fitted:
    """Classify an image as most of its nearest shots, by the cosine of the features.

    Among classes with equal votes the larger sum of cosines decides, then the lower class number. Without
    `neighbours`, k is the number of `NEIGHBOURS` that predicts most shots rightly from the other shots; among
    equals the smallest, so always 1 with one shot a class.
    """
    shots = _directions(features)

    def vote(rows: Floats, tried: Sequence[int], first: int | None = None) -> list[Integers]:
        """Name the classes of directions `(M, D)` by each number of neighbours.

        Where the rows are shots, `first` is the number of the first: no shot is its own neighbour.
        """
        cosines = rows @ shots.T  # (M, N)
        if first is not None:
            cosines[np.arange(len(rows)), first + np.arange(len(rows))] = -np.inf
        nearest = np.argsort(-cosines, axis=1, kind="stable")[:, : max(tried)]  # of equals the first
        cosines = np.take_along_axis(cosines, nearest, 1)
        return [_most_votes(labels[nearest[:, :k]], cosines[:, :k], classes) for k in tried]

    if neighbours is None:
        tried = [k for k in NEIGHBOURS if k < len(labels)] or [1]
        right = np.zeros(len(tried), np.int64)
        if len(labels) > 1:
            for start, part in _parts(shots, len(labels)):
                own = labels[start : start + len(part)]
                right += [int((predicted == own).sum()) for predicted in vote(part, tried, start)]
        neighbours = tried[int(right.argmax())]
    count = min(neighbours, len(labels))

    def predict(rows: Floats) -> Integers:
        parts = _parts(rows, len(labels))
        return np.concatenate([vote(_directions(part), [count])[0] for _, part in parts])

    return Fitted(predict, count)


def fit_logistic(features: Floats, labels: Integers) -> Fitted:
    """Fit multinomial logistic regression with an L2 penalty by L-BFGS, on whitened features.

    The penalty is the value of `INVERSE_PENALTIES` that predicts most held-out shots rightly, among equals
    the value with the least cross entropy there; then all shots are fitted with it. With one shot a class,
    none can be held out: C is 1.
    """
    mean, std = _statistics(features)
    x = (features - mean) / std
    penalty = 1.0
    held_out = _held_out(labels)
    if held_out.any():
        trials = []
        for inverse in INVERSE_PENALTIES:
            model, _ = _logistic(x[~held_out], labels[~held_out], inverse)
            scores = np.log(np.maximum(model.predict_proba(x[held_out]), 1e-300))
            true = scores[np.arange(len(scores)), np.searchsorted(model.classes_, labels[held_out])]
            right = int((model.classes_[scores.argmax(1)] == labels[held_out]).sum())
            trials.append((-right, -float(true.sum()), inverse))
        penalty = min(trials)[2]
    model, converged = _logistic(x, labels, penalty)

    def predict(rows: Floats) -> Integers:
        predicted: Integers = np.concatenate(
            [model.predict((part - mean) / std) for _, part in _parts(rows, len(model.classes_))]
        )
        return predicted

    return Fitted(predict, penalty, converged)


def _logistic(features: Floats, labels: Integers, inverse_penalty: float) -> tuple[Any, bool]:
    """Fit scikit-learn's model; returns it and whether L-BFGS converged."""
    from sklearn.dummy import DummyClassifier
    from sklearn.exceptions import ConvergenceWarning  # a second to import, which only this method needs
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(labels)) == 1:
        return DummyClassifier().fit(features, labels), True  # the other refuses a single class
    model = LogisticRegression(C=inverse_penalty, solver="lbfgs", tol=1e-4, max_iter=MAX_ITERATIONS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(features, labels)
    return model, not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)


def _held_out(labels: Integers) -> NDArray[np.bool_]:
    """Choose the shots to select the penalty on, `(N,)`: the last of each class; none of a single one."""
    held_out = np.zeros(len(labels), bool)
    for number in np.unique(labels):
        own = np.flatnonzero(labels == number)
        if len(own) > 1:
            held_out[own[-max(1, len(own) // HELD_OUT) :]] = True
    return held_out


def _most_votes(nearest: Integers, cosines: Floats, classes: int) -> Integers:
    """Name the class with the most votes `(M,)`, by classes and cosines `(M, k)` of the nearest shots."""
    rows = np.arange(len(nearest))[:, None]
    votes, sums = np.zeros((2, len(nearest), classes))
    np.add.at(votes, (rows, nearest), 1.0)
    np.add.at(sums, (rows, nearest), cosines)
    most = votes == votes.max(1, keepdims=True)
    named: Integers = np.where(most, sums, -np.inf).argmax(1)
    return named


def _directions(features: Floats) -> Floats:
    """Scale each row to length 1; a row of zeros stays as it is, with a cosine of 0 to all."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    directions: Floats = features / np.where(lengths == 0, 1, lengths)
    return directions


def _statistics(features: Floats) -> tuple[Floats, Floats]:
    """Compute mean and population standard deviation of the shots, with the original's epsilon."""
    return features.mean(0, keepdims=True), features.std(0, keepdims=True) + STD_EPS


def _parts(rows: Floats, columns: int) -> list[tuple[int, Floats]]:
    """Split `(M, D)` into parts, each with the number of its first row, for arrays `(part, columns)`."""
    size = max(1, PART // max(columns, rows.shape[1]))
    starts = range(0, max(len(rows), 1), size)
    return [(start, rows[start : start + size]) for start in starts]
