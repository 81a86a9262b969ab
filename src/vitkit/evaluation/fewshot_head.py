"""Solve for a linear classifier of frozen features in closed form, with calibrated logits, to train on from.

Fine-tuning that begins with a head which knows the classes already distorts the features less than one that
begins with zeros (LP-FT: Kumar et al. 2022, arXiv 2202.10054). The solution is ridge regression to 0 and 1 on
standardised features, as in few-shot evaluation; but its intercept bears no penalty, and penalty and scale of
the logits are chosen on the images themselves, each predicted by the others in closed form.

Shapes: N images, D features, K classes, R = min(N, D).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot import STD_EPS, Floats, Integers

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
"""Penalties that are tried, in units of the mean eigenvalue of the features' Gram matrix."""
ALONE = 1.0
"""The penalty where no class has two images, so that nothing can be left out."""
SCALES = (0.1, 30.0)
"""The least and the largest standard deviation that the logits may get. Below the least they would say
nothing, and above the largest no softmax is told from certainty."""
HALVINGS = 30
"""Steps of the search for the scale: more than the digits that float32 logits have."""


@dataclass(frozen=True, eq=False)
class RidgeHead:
    """A linear classifier: logits are `features @ weight.T + bias`."""

    weight: NDArray[np.float64]
    """`(K, D)`"""
    bias: NDArray[np.float64]
    """`(K,)`"""
    penalty: float
    """Chosen among `PENALTIES`."""
    right: float | None
    """The share of images that the others' classifier predicts right; None where no class has two images."""


class Ridge:
    """Ridge regression of several targets with an intercept that bears no penalty, for any penalty.

    Args:
        x: `(N, D)` standardised features: the mean of each column is 0.
        targets: `(N, K)`
    """

    def __init__(self, x: Floats, targets: Floats) -> None:
        self.targets, self.intercept = targets, targets.mean(0)
        self._left, self._singular, self._right = np.linalg.svd(x, full_matrices=False)
        self._projected = self._left.T @ (targets - self.intercept)  # (R, K)
        # The mean eigenvalue of the smaller Gram matrix; 1 where all images have the same features.
        self.unit = float((self._singular**2).mean()) or 1.0

    def weights(self, penalty: float) -> Floats:
        """Solve for the weights `(D, K)`; the penalty is in units of `unit`."""
        shrink = self._singular / (self._singular**2 + penalty * self.unit)
        found: Floats = (self._right.T * shrink) @ self._projected
        return found

    def left_out(self, penalty: float) -> Floats:
        """Predict each image as the solution on all others does, `(N, K)`, without solving again."""
        shrink = self._singular**2 / (self._singular**2 + penalty * self.unit)
        fitted = self.intercept + (self._left * shrink) @ self._projected
        leverage = 1 / len(self.targets) + self._left**2 @ shrink
        # A single image has leverage 1, and nothing is left to predict it by.
        found: Floats = self.targets - (self.targets - fitted) / np.maximum(1 - leverage, 1e-9)[:, None]
        return found


def fit_head(features: Floats, labels: Integers, classes: int) -> RidgeHead:
    """Fit a calibrated linear classifier to features, the same bits for the same input.

    The penalty has the least squared error of the images that are left out one at a time, the scale of the
    logits the least cross entropy of the same predictions. Images that are alone in their class take no part
    in that choice: a class nobody has seen cannot be predicted.

    Args:
        features: `(N, D)`, finite.
        labels: `(N,)` from 0 to K - 1; a class may lack images, and is then predicted last.
        classes: K.

    Raises:
        VitkitError: there are no images.
    """
    if not len(labels):
        raise VitkitError("There are no features to fit a head to: no training image can be read.")
    x = features.astype(np.float64)
    mean, std = x.mean(0), x.std(0) + STD_EPS
    targets = np.zeros((len(labels), classes))
    targets[np.arange(len(labels)), labels] = 1.0
    ridge = Ridge((x - mean) / std, targets)
    penalty, predicted, right = ALONE, None, None
    seen = (np.bincount(labels, minlength=classes) > 1)[labels]  # images whose class others have too
    if seen.any():
        errors = [((ridge.left_out(one) - targets)[seen] ** 2).sum() for one in PENALTIES]
        penalty = PENALTIES[int(np.argmin(errors))]
        predicted = ridge.left_out(penalty)[seen]
        right = float((predicted.argmax(1) == labels[seen]).mean())
    weight = ridge.weights(penalty) / std[:, None]  # (D, K)
    bias = ridge.intercept - mean @ weight
    scores = x @ weight + bias
    spread = float((scores - scores.mean(1, keepdims=True)).std()) or 1.0
    scale = (1.0 if predicted is None else _calibrate(predicted / spread, labels[seen])) / spread
    return RidgeHead(weight.T * scale, bias * scale, penalty, right)


def _calibrate(predictions: Floats, labels: Integers) -> float:
    """Find the factor between `SCALES` that gives logits the least cross entropy, which is convex in it."""
    own = predictions[np.arange(len(labels)), labels]
    # A few images that are all right would call for certainty: as in Platt (1999), the labels are believed a
    # little less, here as much as if one image more had any label alike.
    own = own + (predictions.mean(1) - own) / (len(labels) + 2)
    low, high = np.log(SCALES)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        logits = predictions * np.exp(middle)
        shares = np.exp(logits - logits.max(1, keepdims=True))
        expected = (shares * predictions).sum(1) / shares.sum(1)
        # The derivative of the cross entropy by the factor.
        if float((expected - own).sum()) > 0:
            high = middle
        else:
            low = middle
    return float(np.exp((low + high) / 2))
