"""Solve a linear head in closed form: ridge regression on frozen features.

It is a function of the rows and labels alone, in float64 and in one order of summation, so that a head to
which images were added, and from which others were taken, is the head of training on exactly what is left.
Predictions without an image come from the hat matrix (Cook and Weisberg, *Residuals and Influence in
Regression*, 2.2): penalty and temperature are chosen by them, and no image has to be held out.

Shapes: N images, D features, K classes, R the rank, the smaller of N and D + 1.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import VitkitError

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]

BIAS = 100.0
"""The constant feature that carries the bias: so large that the penalty on its weight hardly counts."""
STD_EPS = 1e-5
"""Added to standard deviations, so that a constant feature is not divided by zero."""
PENALTIES = tuple(4.0**power for power in range(-1, 10))
"""The penalties that are tried: a whitened feature of N images has the square N, so that these are weak and
strong for tens of images and for a hundred thousand."""
LEAST_POWER, MOST_POWER = -3.0, 3.0
"""Bounds of the factor of the scores, which lie between -1 and 1, as powers of 10: from equal classes to
certainty."""


def statistics(features: Floats) -> tuple[Floats, Floats]:
    """Compute mean and population standard deviation `(1, D)`, with big_vision's epsilon."""
    return features.mean(0, keepdims=True), features.std(0, keepdims=True) + STD_EPS


class Ridge:
    """Least squares with an L2 penalty from whitened features to targets of -1 and 1, decomposed once for
    every penalty.

    As in big_vision `evaluators/fewshot_lsr.py`: features are whitened by mean and population deviation, the
    bias is a constant feature under the same penalty, and the smaller of the two Gram matrices is decomposed.
    It is computed in float64, unlike the original's float32: the constant makes the matrix ill-conditioned,
    and with penalties below 16 rounding decides single predictions of the original.

    Args:
        features: `(N, D)` in float64.
        labels: `(N,)` from 0 to K - 1.
        classes: K.
    """

    def __init__(self, features: Floats, labels: Integers, classes: int) -> None:
        self.mean, self.std = statistics(features)
        x = np.pad((features - self.mean) / self.std, ((0, 0), (0, 1)), constant_values=BIAS)  # (N, D + 1)
        self.targets = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)
        # The hat matrix is U (F / (E + l2)) U', with U `_rotated`, F `_above` and E the eigenvalues.
        if x.shape[0] >= x.shape[1]:
            self._eigenvalues, self._left = np.linalg.eigh(x.T @ x)  # (X'X + l2)^-1 X'Y
            self._right = self._left.T @ (x.T @ self.targets)
            self._rotated, self._above = x @ self._left, np.ones_like(self._eigenvalues)
        else:
            self._eigenvalues, self._rotated = np.linalg.eigh(x @ x.T)  # X' (XX' + l2)^-1 Y
            self._left, self._right = x.T @ self._rotated, self._rotated.T @ self.targets
            self._above = self._eigenvalues

    def weights(self, l2: float) -> Floats:
        """Return the weights `(D + 1, K)` of whitened features and of the constant, for a penalty."""
        weights: Floats = (self._left / (self._eigenvalues + l2)) @ self._right
        return weights

    def predictions_without(self, l2: float) -> Floats:
        """Predict each image `(N, K)` by the weights without it, for a penalty.

        They are exact but for the whitening, which stays that of all images: to leave one out moves it by
        about 1/N.
        """
        factor = self._above / (self._eigenvalues + l2)
        leverage = (self._rotated**2 @ factor)[:, None]
        fitted = (self._rotated * factor) @ self._right
        # Below 1 with any penalty, but for rounding.
        without: Floats = (fitted - leverage * self.targets) / np.maximum(1 - leverage, 1e-9)
        return without


@dataclass(frozen=True, eq=False)
class RidgeHead:
    """A linear head in closed form, with what each image says of it when it is left out."""

    weights: Floats
    """`(K, D)` in float64, of features as they are: whitening and temperature are part of them."""
    bias: Floats
    """`(K,)`"""
    penalty: float
    scale: float
    """The factor of the scores, 1 / temperature, which is part of the weights."""
    logits_without: Floats
    """`(N, K)`: the logits of each image by the head without it, at this penalty and temperature."""
    labels: Integers
    """`(N,)`"""

    @property
    def right(self) -> int:
        """The number of images whose class the head without them says."""
        return int((self.logits_without.argmax(1) == self.labels).sum())


def solve_head(features: Floats, labels: Integers, classes: int) -> RidgeHead:
    """Solve a head, with the penalty and the temperature that suit images it was solved without.

    Whatever else is calibrated by held-out scores, such as a threshold of refusal, is computed here too, of
    `logits_without`: it follows then from exactly the images that are in.

    Args:
        features: `(N, D)`, finite; equal sets of images come in an equal order, by their hashes.
        labels: `(N,)` from 0 to K - 1; every class has an image.
        classes: K, at least 2.

    Raises:
        VitkitError: there are fewer than two classes.
    """
    if classes < 2:
        raise VitkitError(
            f"A classifier needs images of two classes, and {'one is' if classes else 'none are'} left."
        )
    ridge = Ridge(features.astype(np.float64), labels, classes)

    def measure(l2: float) -> tuple[float, float, float]:
        scores = ridge.predictions_without(l2)
        scale = fit_scale(scores, labels)
        return _cross_entropy(scale * scores, labels), -l2, scale

    _, negative, scale = min(map(measure, PENALTIES))  # of equals the strongest, the simplest head
    penalty = -negative
    without = scale * ridge.predictions_without(penalty)
    solved = ridge.weights(penalty)  # (D + 1, K)
    weights = scale * solved[:-1].T / ridge.std
    bias = scale * BIAS * solved[-1] - weights @ ridge.mean[0]
    return RidgeHead(weights, bias, penalty, scale, without, labels)


def fit_scale(scores: Floats, labels: Integers) -> float:
    """Fit the factor of scores by which softmax has the least cross entropy: 1 / temperature.

    The targets are smoothed as Platt's are (*Probabilistic Outputs for Support Vector Machines*, 1999), by
    one image more of each class: scores that tell all images apart would else be certain of everything.

    Args:
        scores: `(N, K)` of images that the scores were not fitted to.
        labels: `(N,)`
    """
    count, classes = scores.shape
    smoothed = np.where(labels[:, None] == np.arange(classes), count + 1, 1) / (count + classes)

    def slope(power: float) -> float:
        """Subtract the mean score of the targets from that under softmax, at the factor 10^power."""
        logits = 10**power * scores
        probabilities = np.exp(logits - _log_sum_exp(logits)[:, None])
        return float(((probabilities - smoothed) * scores).sum(1).mean())

    # The cross entropy is convex in the factor.
    for bound, side in ((LEAST_POWER, 1), (MOST_POWER, -1)):
        if side * slope(bound) >= 0:
            return float(10**bound)
    from scipy.optimize import brentq  # slow to import

    return float(10 ** brentq(slope, LEAST_POWER, MOST_POWER))


def _cross_entropy(logits: Floats, labels: Integers) -> float:
    """Compute the mean cross entropy of rows of logits, in nats."""
    return float((_log_sum_exp(logits) - logits[np.arange(len(labels)), labels]).mean())


def _log_sum_exp(logits: Floats) -> Floats:
    """Compute the logarithm of the sum of exponentials of each row, without overflow."""
    most = logits.max(1)
    total: Floats = most + np.log(np.exp(logits - most[:, None]).sum(1))
    return total
