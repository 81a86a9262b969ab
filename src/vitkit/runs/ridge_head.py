"""Begin a run with the head that ridge regression finds on the features of its start.

Fine-tuning that begins with a head which knows the classes already distorts the features less than one that
begins with zeros (LP-FT: Kumar et al. 2022, arXiv 2202.10054). The solution is ridge regression to 0 and 1 on
standardised features, as in few-shot evaluation; but its intercept bears no penalty, and penalty and scale of
the logits are chosen on the images themselves, each predicted by the others in closed form. It is not the
default (`jobs/finetune_defaults.py`): with 10 images the steps that follow undid it, from 86.1 % to 68.5 %.

Shapes: N images, D features, K classes, R = min(N, D).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitkit.data.listing import class_numbers
from vitkit.data.stream.loader import worker_count
from vitkit.errors import VitkitError
from vitkit.evaluation.features import FeatureExtractor
from vitkit.evaluation.fewshot.folds import mixed_order
from vitkit.evaluation.fewshot.methods import STD_EPS, Floats, Integers
from vitkit.listener import Listener
from vitkit.runs.build import Parts
from vitkit.runs.config import Run
from vitkit.tasks import find_task

MOST_IMAGES = 10_000
"""The most training images that are used: more take long, and move the solution by less than the first steps
of training do."""
MOST_SCORES = 1 << 26
"""The most images times classes: 512 MiB in float64."""
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
"""Penalties that are tried, in units of the mean eigenvalue of the features' Gram matrix."""
ALONE = 1.0
"""The penalty where no class has two images, so that nothing can be left out."""
SCALES = (0.1, 30.0)
"""The least and the largest standard deviation that the logits may get. Below the least they would say
nothing, and above the largest no softmax differs from certainty."""
HALVINGS = 30
"""Steps of the search for the scale: more than the digits that float32 logits have."""


def refuse_ridge_head(run: Run) -> None:
    """Refuse a ridge head for new weights and for other losses than softmax.

    Raises:
        VitkitError: the run has such a head.
    """
    if run.start.head != "ridge":
        return
    if not run.start.start:
        raise VitkitError(
            "The head can begin as the ridge solution on the features of a start, and the features of new "
            "weights are worth nothing: give --start, or leave --start.head ridge out."
        )
    if find_task(run.task).learning.learned(run.objective).loss != "softmax":
        raise VitkitError(
            "The ridge solution is for one class an image and the softmax loss, and this run has another "
            "loss: leave --start.head ridge out."
        )


def begin_head(parts: Parts, checkpoint: Path | None, device: torch.device, listener: Listener) -> None:
    """Replace the head of a run's model by the ridge solution on its training images, if its option says so.

    The images are preprocessed as in evaluation, without random changes. Of more than `MOST_IMAGES` a part is
    drawn by the run's seed, with the same fractions of the classes. The same run gets the same bits.

    Args:
        parts: of the run, whose model has the weights of its start; it is moved to the device.
        checkpoint: that the run continues from, which has its head; None at step 0.
        device: of the computation.
        listener: hears the progress.

    Raises:
        VitkitError: images have several labels, none can be read, or features are not finite.
    """
    if parts.run.start.head != "ridge" or checkpoint is not None:
        return
    run, model, samples = parts.run, parts.model.to(device), parts.data.splits["train"]
    labels, classes = class_numbers(samples.labels), len(parts.data.class_names)
    indices = mixed_order(labels, run.training.seed)[: min(MOST_IMAGES, MOST_SCORES // classes)]
    extractor = FeatureExtractor(model, run.preprocessing, device, model.chosen.precision)
    with listener.progress("features for the head", len(indices)) as progress:
        features = extractor.compute(
            samples,
            np.sort(indices),
            batch_size=run.training.micro_batch_size or run.training.batch_size,
            workers=worker_count(samples, run.loading),
            progress=progress,
        )
    with listener.progress("solving for the head"):
        head = fit_head(features.rows, labels[np.sort(indices)[features.readable]], classes)
    assert isinstance(model.head, nn.Linear)
    with torch.no_grad():
        model.head.weight.copy_(torch.from_numpy(head.weight))
        model.head.bias.copy_(torch.from_numpy(head.bias))
    listener.note(
        f"The head begins as the ridge solution on features of {len(features.rows):,} training images"
        + ("." if head.right is None else f", left out one at a time {head.right:.1%} of them are right.")
    )


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
    """The fraction of images that the solution on all others predicts right; None where no class has two
    images."""


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
        solution: Floats = (self._right.T * shrink) @ self._projected
        return solution

    def left_out(self, penalty: float) -> Floats:
        """Predict each image as the solution on all others does, `(N, K)`, without solving again."""
        shrink = self._singular**2 / (self._singular**2 + penalty * self.unit)
        fitted = self.intercept + (self._left * shrink) @ self._projected
        leverage = 1 / len(self.targets) + self._left**2 @ shrink
        # A single image has leverage 1, and nothing is left to predict it by.
        predictions: Floats = self.targets - (self.targets - fitted) / np.maximum(1 - leverage, 1e-9)[:, None]
        return predictions


def fit_head(features: Floats, labels: Integers, classes: int) -> RidgeHead:
    """Fit a calibrated linear classifier to features, the same bits for the same input.

    The penalty has the least squared error of images that are left out one at a time, the scale of the logits
    the least cross entropy of the same predictions. Images that are alone in their class take no part in that
    choice: without them, the solution has no class to predict.

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
    seen = (np.bincount(labels, minlength=classes) > 1)[labels]  # images whose class has another image
    if seen.any():
        errors = [((ridge.left_out(strength) - targets)[seen] ** 2).sum() for strength in PENALTIES]
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
    # If the few images are all right, certainty would have the least cross entropy. As in Platt (1999), the
    # labels are smoothed a little, here as if another image had every label with the same probability.
    own = own + (predictions.mean(1) - own) / (len(labels) + 2)
    low, high = np.log(SCALES)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        logits = predictions * np.exp(middle)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        expected = (weights * predictions).sum(1) / weights.sum(1)
        # The derivative of the cross entropy by the factor.
        if float((expected - own).sum()) > 0:
            high = middle
        else:
            low = middle
    return float(np.exp((low + high) / 2))
