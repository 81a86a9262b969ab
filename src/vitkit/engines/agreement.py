"""The comparison of an engine's logits with PyTorch's of the same images in float32."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluation.intervals import binomial_interval

LOWEST_AGREEMENT = 0.99
"""Fraction of equal answers below which a quantised model counts as another model."""


@dataclass(frozen=True)
class Nearness:
    """The distance between an engine's logits and PyTorch's, in batches of several sizes."""

    compared_on: str
    """The images, as a phrase: "16 test images of photos"."""
    batches: tuple[int, ...]
    """Images that were computed at a time."""
    difference: float
    """Largest difference of two logits."""
    spread: float
    """Standard deviation of PyTorch's logits, over images and classes."""

    def __str__(self) -> str:
        *most, last = map(str, self.batches)
        sizes = f"{', '.join(most)} and {last}" if most else last
        far = f"{self.difference:.1e}"
        if self.spread:
            far = f"{self.difference / self.spread:.1e} of their standard deviation"
        return f"logits at most {far} from PyTorch's, on {self.compared_on} in batches of {sizes}"


@dataclass(frozen=True)
class Agreement:
    """The comparison of an engine's answers and logits with the model's in float32."""

    images: int
    """Images on which they were compared."""
    answers: int
    """Answers that were compared: one for an image, or one for each label of an image."""
    same: int
    """Answers that are the same."""
    logit_error: float
    """Root of the mean squared difference of the logits, as a fraction of their standard deviation."""

    @property
    def fraction_same(self) -> float:
        """The fraction of answers that are the same, from 0 to 1."""
        return self.same / self.answers

    def __str__(self) -> str:
        interval = ""
        if self.answers == self.images:  # several answers on an image change together
            low, high = binomial_interval(self.same, self.answers)
            interval = f", 95 % interval {low:.1%} to {high:.1%}"
        return (
            f"{self.same:,} of {self.answers:,} answers as in float32 ({self.fraction_same:.2%}{interval}), "
            f"logit error {self.logit_error:.2%} of their standard deviation, on {self.images:,} images"
        )


def compare_logits(
    logits: NDArray[np.float32],
    expected: NDArray[np.float32],
    answers: NDArray[np.int64],
    expected_answers: NDArray[np.int64],
) -> Agreement:
    """Compare an engine with the model in float32.

    Args:
        logits, expected: `(N, K)` of the engine and of the model.
        answers, expected_answers: `(N, A)`, the answers that the task makes of them: `Task.answers`.
    """
    spread = float(expected.std(dtype=np.float64))
    difference = float(np.sqrt(np.mean((logits.astype(np.float64) - expected) ** 2)))
    # Logits that are all alike, as a head of zeros gives them, have no spread to compare with.
    error = difference / spread if spread else (math.inf if difference else 0.0)
    same = int((answers == expected_answers).sum())
    return Agreement(len(expected), answers.size, same, error)
