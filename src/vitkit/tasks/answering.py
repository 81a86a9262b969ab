"""The half of a task that a finished model needs: what its outputs mean, how good they are, the report.

Outputs are arrays of numpy: nothing here imports torch, so that an exported model answers without it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitkit.models.config import card
from vitkit.models.config.card import Card
from vitkit.models.config.compute_config import Precision
from vitkit.models.zoo import ModelConfig
from vitkit.result import Plot, Table
from vitkit.tasks.page import ShownImage, TaskReport
from vitkit.text import pluralize, visible
from vitkit.world import ALONE, World

if TYPE_CHECKING:
    import torch

    from vitkit.data.stream.batch import Batch
    from vitkit.evaluation.run_model import Model


class Result(Protocol):
    """The numbers of a split."""

    @property
    def count(self) -> int:
        """Images that could be read: all numbers are about them."""

    @property
    def bad(self) -> int:
        """Images that could not be read."""

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data: `evaluation/SPLIT.json` and what `vitkit evaluate --json`
        prints."""


class SplitPredictions(Protocol):
    """The outputs of a model for every image of a split, stored beside the numbers."""

    @property
    def ids(self) -> NDArray[np.int64]:
        """`(N,)` indices of the images in their split, rising."""

    def __len__(self) -> int: ...

    def save(self, path: Path) -> None:
        """Write the files of `vitkit.evaluation.stored` beside `path`, in place of older ones."""


@dataclass(frozen=True)
class Guess:
    """A class and how probable the model finds it."""

    name: str
    probability: float

    def __repr__(self) -> str:
        return f"Guess(name={visible(self.name)!r}, probability={self.probability:.4g})"


@dataclass(frozen=True)
class Pooled:
    """The right answers on several parts of the images together, each part with a model of its own."""

    right: int
    images: int
    interval: tuple[float, float]
    """95 % interval of the fraction that is right: over other images, not over other trainings."""


R = TypeVar("R", bound=Result)
P = TypeVar("P", bound=SplitPredictions)
P_co = TypeVar("P_co", bound=SplitPredictions, covariant=True)


class Predictor(Protocol[P_co]):
    """A function that runs a model over a split."""

    def __call__(
        self,
        model: "Model",
        batches: Iterable["Batch"],
        *,
        device: "torch.device | str" = ...,
        precision: Precision = ...,
        progress: Callable[[int], None] | None = None,
        folder: Path | None = None,
        world: World = ALONE,
    ) -> P_co:
        """Run a model over a split once.

        Args:
            model: already on `device`.
            batches: every image once.
            device: where batches are moved to.
            precision: that the model computes in.
            progress: called after each batch with the number of its images.
            folder: where outputs too many for memory are kept in a file; None: the system's folder.
            world: the processes that compute different batches; each gets the predictions of all.

        Raises:
            VitkitError: the outputs are not what the task needs, or not finite.
        """


class Answering(Protocol[R, P]):
    """The half of a task that a finished model needs. `R` are the numbers of a split, and `P` the predictions
    that they are counted from."""

    @property
    def image_score(self) -> str:
        """Name the mean of `score_images`, such as accuracy."""

    def explain_unfit(self, config: ModelConfig) -> str:
        """Say why a model of this configuration has no answers, as a clause after its name; "" if it has."""

    def predictor(self, learned: card.Task) -> Predictor[P]:
        """Give the function that runs a model over a split.

        Args:
            learned: the task in the model's card.
        """

    def measure(self, predictions: P, class_names: Sequence[str]) -> R:
        """Count every number of a split.

        Raises:
            VitkitError: no image could be read, or the names do not fit the predictions.
        """

    def mark_repeats(self, result: R, predictions: P, rows: NDArray[np.int64]) -> R:
        """Add the numbers without the images that are training images too.

        Args:
            result: the numbers of `predictions`.
            predictions: of all images of a split.
            rows: numbers of the training images in the split, rising.
        """

    def read_evaluation(self, path: Path) -> tuple[R, P]:
        """Read what `R.to_json` gave `path`, a `.json` file, and what `P.save` wrote beside it.

        Raises:
            FileNotFoundError: there is no such `.json` file.
            VitkitError: a file is damaged, or the numbers do not follow from the predictions.
        """

    def score_images(self, predictions: P) -> NDArray[np.float64]:
        """Score each image by itself, from 0 (all wrong) to 1 (all right), `(N,)`: two models are compared by
        these scores of the same images."""

    def truth(self, predictions: P, class_names: Sequence[str]) -> NDArray[np.int64]:
        """Give the true labels of each image, `(N, A)`, as numbers that do not depend on the order of the
        classes: two models were evaluated on the same labels where these numbers are equal.

        Args:
            predictions: of a model of K classes.
            class_names: K names, in the order of the logits.
        """

    def right_by_class(self, result: R, predictions: P) -> Mapping[str, NDArray[np.bool_]]:
        """Give for each class whether the answer is right on each image that counts for it, in order: two
        models are compared class by class by these."""

    def measures(self, result: R) -> tuple[tuple[str, str], ...]:
        """Name the numbers by which two models are put side by side, each with its formatted value, the most
        important first and calibration last."""

    def compare_sureness(self, first: R, second: R, labels: tuple[str, str]) -> Plot | None:
        """Draw how well two models are calibrated; None where the task has no such figure.

        Args:
            first, second: the numbers of both on the same images.
            labels: the names of the models.
        """

    def show(self, result: R, predictions: P, rows: NDArray[np.int64]) -> list[ShownImage]:
        """Name the true and the predicted classes of the images of these rows, and the confidence."""

    def pool(self, parts: Sequence[tuple[float, int]]) -> Pooled | None:
        """Count the right answers on several parts of the images together, such as folds; None where the
        metric counts none.

        Args:
            parts: the monitor's metric and the number of images of each part.
        """

    def line(self, result: R) -> str:
        """State a result in one line: the figure, the number of images, the interval."""

    def summary(self, result: R, images: str) -> tuple[str, str]:
        """State a result in a sentence that begins with its most important figure.

        Args:
            result: the numbers.
            images: the noun after their count: "test images of digits".

        Returns:
            The figure, and the rest of the sentence.
        """

    def details(self, result: R) -> Table | None:
        """Make the table of every class, where the summary alone would hide which are bad; None: the summary
        is all that is printed."""

    def guesses(self, outputs: NDArray[np.float32], card: Card, top: int) -> list[list[Guess]]:
        """Name the classes of images.

        Args:
            outputs: `(B, K)`, finite.
            card: the model's, with K class names or none.
            top: how many classes for each image at most.

        Returns:
            The most probable classes of each image, best first.
        """

    def answers(self, outputs: NDArray[np.float32]) -> NDArray[np.int64]:
        """Turn outputs `(B, K)` into answers, integers `(B, A)`: two models agree where they are equal."""

    def guess_headings(self, top: int) -> tuple[str, ...]:
        """Give the headings of the table that `vitkit predict` prints, after the first, "image"."""

    def guess_cells(self, guesses: Sequence[Guess], top: int) -> list[list[str]]:
        """Make the row of an image for that table: for each heading the entries of its cell. Where there is
        one heading alone, the first entry is the answer and is shown bold."""

    def guess_json(self, guesses: Sequence[Guess]) -> dict[str, Any]:
        """Make the part of a line of JSON that holds an image's prediction."""

    def report(self, evaluations: Mapping[str, tuple[R, P]], split: str | None) -> TaskReport:
        """Make the task's part of the report.

        Args:
            evaluations: the numbers and predictions of each split.
            split: the split that the page is about; None where nothing was evaluated.
        """


def repeats_clause(repeated: int, others: int, figure: str) -> str:
    """Say how many of the images are training images, to follow the figures; "" where none is.

    Args:
        repeated: images that are training images too.
        others: all other images.
        figure: the score on the others, and its interval.
    """
    if not repeated:
        return ""
    clause = pluralize(repeated, "image is a training image", "images are training images")
    if not others:
        return f"; all {clause} too"
    return f"; {clause} too: without {'it' if repeated == 1 else 'them'} {figure}"


def predictions_json(guesses: Sequence[Guess]) -> list[dict[str, Any]]:
    """List the classes with their probabilities, for JSON."""
    return [{"class": guess.name, "probability": round(guess.probability, 6)} for guess in guesses]
