"""The interface of a task: everything that the rest of the code has to know about what is learned.

A task is a value without state. It says how images with their targets are listed, what is minimised, what is
measured and which of the numbers decides, how predictions are kept and told, and what the report says of
them. The trainer, the jobs, the report and the command line ask the task, and know none by name: the table in
`vitkit.tasks` is the only place that does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitkit.data.batch import Batch
from vitkit.data.decode_config import DecodeRule
from vitkit.data.listing import Labels
from vitkit.data.sources_config import Splits
from vitkit.models import card
from vitkit.models.card import Card, TaskName
from vitkit.models.precision_config import Precision
from vitkit.models.zoo import ModelConfig
from vitkit.tasks.page import Curve, Table, TaskReport
from vitkit.training.evaluators import Evaluator, Monitor
from vitkit.training.objectives_config import ClassificationConfig

if TYPE_CHECKING:
    from vitkit.data.sources import ImageData


class Result(Protocol):
    """The numbers of a split."""

    @property
    def count(self) -> int:
        """Images that could be read: what all numbers are about."""

    @property
    def bad(self) -> int:
        """Images that could not be read."""

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data: `evaluation/SPLIT.json` and what `vitkit evaluate --json`
        prints."""


class SplitPredictions(Protocol):
    """The outputs of a model for every image of a split, kept in a file beside the numbers."""

    @property
    def ids(self) -> NDArray[np.int64]:
        """`(N,)` indices of the images in their split, rising."""

    def __len__(self) -> int: ...

    def save(self, path: Path) -> None:
        """Write an `.npz` file, in place of an older one."""


@dataclass(frozen=True)
class Guess:
    """A class and how probable the model finds it."""

    name: str
    probability: float


@dataclass(frozen=True)
class Pooled:
    """The right answers on several parts of the images together, each part with a model of its own."""

    right: int
    images: int
    interval: tuple[float, float]
    """Wilson's 95 % interval of the fraction that is right: over other images, not over other trainings."""


@dataclass(frozen=True)
class Validation:
    """The values from which the evaluators of a run are made."""

    objective: ClassificationConfig
    """The options of the loss."""
    class_names: tuple[str, ...]
    batches: Callable[[], Iterable[Batch]]
    """Opens the validation images: every one once, in the same order at each call. A batch's `labels` are
    rows of the `labels` of the split, as `open_data` listed them."""
    device: torch.device
    precision: Precision


R = TypeVar("R", bound=Result)
P = TypeVar("P", bound=SplitPredictions)


class Task(Protocol[R, P]):
    """A task: what is learned. `R` are the numbers of a split, `P` the predictions that they are counted
    from."""

    @property
    def name(self) -> TaskName:
        """Its name in `--task`, config.json and model.json."""

    @property
    def monitor(self) -> Monitor:
        """The number of its evaluators that decides which weights are best."""

    def open_data(
        self, spec: str, splits: Splits, rule: DecodeRule, class_names: Sequence[str] | None = None
    ) -> "ImageData":
        """List images and their targets.

        The `labels` of a split are an array whose first axis is the images, `(N,)` int64 for one class each;
        the loader cuts batches from it. Everything else of the data does not look at them.

        Args:
            spec: what a person gave as --data.
            splits: how splits are cut that the data lacks.
            rule: how image files are decoded.
            class_names: those of a trained model, to which targets are mapped by name; None: those found.

        Raises:
            VitkitError: the data is not there, or cannot be what was meant.
        """

    def learned(self, config: ClassificationConfig) -> card.Task:
        """Make what the card of a model says of the task; `card.loss` decides what the logits mean.

        It is called before anything is written, so that options that do not fit the task are refused here.

        Raises:
            VitkitError: these options do not fit the task.
        """

    def objective(self, config: ClassificationConfig, num_outputs: int, labels: Labels) -> nn.Module:
        """Build what is minimised: a module that is called with `(model, batch)`.

        `vitkit.training.objectives` says what it may do and what it returns.

        Args:
            config: its options.
            num_outputs: K of the model's logits `(B, K)`.
            labels: of the training images, as `open_data` listed them.
        """

    def evaluators(self, validation: Validation) -> Mapping[str, Evaluator]:
        """Make what is measured while a model is trained, by name.

        The one named "validation" is the monitor's. It measures `loss` too, which the report draws beside the
        training loss.
        """

    def progress(self, metrics: Mapping[str, float]) -> str:
        """Tell the last validation in a word or two, for the line of a training run: "val 97.2%"."""

    def explain_unfit(self, config: ModelConfig) -> str:
        """Say why a model of this configuration cannot do the task, in words that follow its name; "" if it
        can."""

    def predict(
        self,
        model: nn.Module,
        batches: Iterable[Batch],
        *,
        device: torch.device,
        precision: Precision,
        learned: card.Task,
        progress: Callable[[int], None] | None = None,
        folder: Path | None = None,
    ) -> P:
        """Run a model over a split once.

        Args:
            model: already on `device`.
            batches: every image once.
            device: where batches are moved to.
            precision: that the model computes in.
            learned: what the model's card says of the task.
            progress: called after each batch with the number of its images.
            folder: where outputs too many for memory are kept in a file; None: the system's folder.

        Raises:
            VitkitError: the outputs are not what the task needs, or not finite.
        """

    def measure(self, predictions: P, class_names: Sequence[str]) -> R:
        """Count every number of a split.

        Raises:
            VitkitError: no image could be read, or the names do not fit the predictions.
        """

    def mark_repeats(self, result: R, predictions: P, rows: NDArray[np.int64]) -> R:
        """Add what the numbers are without the images that are training images too.

        Args:
            result: the numbers of `predictions`.
            predictions: of all images of a split.
            rows: numbers of those images in the split, rising.
        """

    def read_evaluation(self, path: Path) -> tuple[R, P]:
        """Read what `R.to_json` gave `path`, a `.json` file, and `P.save` the `.npz` file beside it.

        Raises:
            FileNotFoundError: there is no such `.json` file.
            VitkitError: one of the two is damaged, or they do not belong together.
        """

    def pool(self, parts: Sequence[tuple[float, int]]) -> Pooled | None:
        """Count the right answers on several parts of the images together, such as folds; None where the
        metric counts none.

        Args:
            parts: the monitor's metric and the images of each.
        """

    def explain_outdated(self, result: R, learned: card.Task) -> str:
        """Say why a kept result is not what the model would get now, in words that follow "The evaluation of
        test"; "" if it is."""

    def line(self, result: R) -> str:
        """Tell a result in one line: the figure, how many images, how sure that is."""

    def summary(self, result: R, images: str) -> tuple[str, str]:
        """Tell a result in a sentence that begins with its most important figure.

        Args:
            result: the numbers.
            images: what follows their count: "test images of digits".

        Returns:
            That figure, and the rest of the sentence.
        """

    def details(self, result: R) -> Table | None:
        """Tell the numbers of every class in a table, where the summary alone would hide which are bad; None:
        the summary is all that is printed."""

    def guesses(self, outputs: Tensor, card: Card, top: int) -> list[list[Guess]]:
        """Name what is in images.

        Args:
            outputs: `(B, K)`, finite, float32, in the memory of the CPU.
            card: the model's, with K class names or none.
            top: how many classes for each image at most.

        Returns:
            The most probable classes of each image, best first.
        """

    def answers(self, outputs: Tensor) -> Tensor:
        """Make of outputs `(B, K)` what they say, as whole numbers `(B, A)`: two models agree where these are
        the same."""

    def guess_headings(self, top: int) -> tuple[str, ...]:
        """Give the headings of the table that `vitkit predict` prints, after the first, "image"."""

    def guess_cells(self, guesses: Sequence[Guess], top: int) -> list[list[str]]:
        """Make the row of an image for that table: for each heading the words of its cell. Where there is one
        heading alone, the first word is the answer and is shown bold."""

    def guess_json(self, guesses: Sequence[Guess]) -> dict[str, Any]:
        """Make the part of a line of JSON that tells an image's prediction."""

    @property
    def curve(self) -> Curve:
        """The curve of the validations in the report."""

    def report(self, evaluations: Mapping[str, tuple[R, P]], split: str | None) -> TaskReport:
        """Make the task's part of the report.

        Args:
            evaluations: what was kept of each split.
            split: the one that the page is about; None where nothing was evaluated.
        """
