"""The half of a task that a finished model needs: what its outputs mean, how good they are, the report.

Outputs are arrays of numpy: nothing here imports torch, so that an exported model answers without it.
`vitkit.tasks.Answering` names the classes of all tasks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitkit.config import read
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import explain_no_classes
from vitkit.evaluation.predictions import Predictions, likeliest, probabilities
from vitkit.models.config import Card, LossFunction
from vitkit.result import Block, Photo, Photos, Plot, Section, Table, Text
from vitkit.tasks import page
from vitkit.tasks.page import ShownImage, TaskReport
from vitkit.text import visible

if TYPE_CHECKING:
    from vitkit.data.sources import Samples


FACTS = 3
"""Measures in the tiles at the head of a page."""


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


class LabelAnswering(ABC):
    """Answers with labels, of one class or of several labels for each image."""

    numbers: type[Any]
    """The numbers of a split, a `vitkit.result.Result` that `measure` counts."""
    measure: Callable[..., Any]
    mark_repeats: Callable[..., Any]
    """Adds to numbers those without some images, which are training images too."""
    several_labels: ClassVar[bool] = False
    """Whether an image has several labels or none, and not one class."""
    image_score: str
    """The name of the mean of `score_images`."""
    figure: str
    """The number that a run without evaluation lacks."""
    terms: str
    """Explains the names of `measures`."""
    mistakes: tuple[str, str]
    """The caption of the surest mistakes, which follows "The N of M images", and the text without any."""
    looked_at: tuple[str, str]
    """The caption of the images whose attention is shown, and the text without any."""
    explain_unfit = staticmethod(explain_no_classes)
    """Says why a model of a configuration has no answers, as a clause after its name; "" if it has: it needs
    a head and one row of logits for each image."""

    def read_evaluation(self, path: Path) -> tuple[Any, Predictions]:
        """Read numbers from `path`, a `.json` file, and the predictions that were saved beside it.

        Raises:
            FileNotFoundError: there is no such `.json` file.
            VitkitError: a file is damaged, or the numbers do not belong to the predictions.
        """
        result = read(self.numbers, path)
        if result is None:
            raise FileNotFoundError(path)
        # The numbers may say what the logits mean, so they are read before them.
        loss: LossFunction = getattr(result, "loss_function", "sigmoid")
        predictions = Predictions.load(path, loss, self.several_labels)
        images, outputs = predictions.logits.shape
        names, repeated = len(result.class_names), 0 if result.repeated is None else result.repeated.count
        if names != outputs or repeated > images or not images:
            raise VitkitError(
                f"{path}: expected numbers of {outputs:,} classes and {images:,} images, as in the "
                f"predictions beside it, found {names:,} classes and {repeated:,} repeated images. Run the "
                "evaluation again to write it anew."
            )
        # Counted anew, which takes no longer than a check: somebody may have given the file away.
        return replace(self.measure(predictions, result.class_names), repeated=result.repeated), predictions

    def score_images(self, predictions: Predictions) -> NDArray[np.float64]:
        """Score each image by itself, from 0 (all wrong) to 1 (all right), `(N,)`: two models are compared by
        these scores of the same images. It is right or wrong, or has a fraction of its labels right."""
        scores: NDArray[np.float64] = np.atleast_2d(predictions.right.T).mean(0)
        return scores

    def pool(self, parts: Sequence[tuple[float, int]]) -> Pooled | None:
        """Count the right answers on several parts of the images together, such as folds; None where the
        metric counts none.

        Args:
            parts: the monitor's metric and the number of images of each part.
        """
        return None

    def compare_sureness(self, first: Any, second: Any, labels: tuple[str, str]) -> Plot | None:
        """Draw how well two models are calibrated; None where the task has no such figure.

        Args:
            first, second: the numbers of both on the same images.
            labels: the names of the models.
        """
        return None

    def details(self, result: Any) -> Table | None:
        """Make the table of every class, where the summary alone would hide which are bad; None: the summary
        is all that is printed."""
        return None

    @abstractmethod
    def right_by_class(self, result: Any, predictions: Predictions) -> dict[str, NDArray[np.bool_]]:
        """Give for each class whether the answer is right on each image that counts for it, its own images in
        order: two models are compared class by class by these."""

    @abstractmethod
    def measures(self, result: Any) -> tuple[tuple[str, str], ...]:
        """Name the numbers by which two models are put side by side, each with its formatted value, the most
        important first and calibration last."""

    def guesses(self, outputs: NDArray[np.float32], card: Card, top: int) -> list[list[Guess]]:
        """Name the most probable classes of images, best first, by the loss that the model was trained with.

        Args:
            outputs: `(B, K)`, finite.
            card: the model's, with K class names or none.
            top: the most classes of an image; it leaves no label out, each of which is a question of its own.
        """
        # Not always by softmax: the probabilities of a sigmoid model need not sum to 1.
        rows = probabilities(outputs, "sigmoid" if self.several_labels else card.loss)
        kind = "label" if self.several_labels else "class"
        names = card.class_names or tuple(f"{kind} {i}" for i in range(outputs.shape[1]))
        every = (-outputs).argsort(1, kind="stable") if self.several_labels else None
        classes = likeliest(outputs, min(top, len(names))) if every is None else every
        return [
            [Guess(names[i], float(row[i])) for i in chosen]
            for row, chosen in zip(rows, classes.tolist(), strict=True)
        ]

    @abstractmethod
    def answers(self, outputs: NDArray[np.float32]) -> NDArray[np.int64]:
        """Turn outputs `(B, K)` into answers, integers `(B, A)`: two models agree where they are equal."""

    @abstractmethod
    def guess_row(self, guesses: Sequence[Guess], top: int) -> dict[str, list[str]]:
        """Make the row of an image for the table of `vitkit predict`: by heading the entries of a cell. Where
        there is one heading alone, the first entry is the answer and is shown bold."""

    def guess_json(self, guesses: Sequence[Guess]) -> dict[str, Any]:
        """Make the part of a line of JSON that holds an image's prediction: the classes, best first."""
        shown = [{"class": guess.name, "probability": round(guess.probability, 6)} for guess in guesses]
        return {"predictions": shown}

    def show(
        self,
        result: Any,
        predictions: Predictions,
        rows: NDArray[np.int64],
        sure: NDArray[np.float64] | None = None,
    ) -> list[ShownImage]:
        """Name the true and the predicted classes of the images of these rows, and how sure the model is.

        Args:
            result, predictions: the numbers, and what they are counted from.
            rows: `(n,)`.
            sure: `(N,)` confidences; left out, those of the predictions.
        """
        sure = predictions.confidence if sure is None else sure
        return [
            ShownImage(int(predictions.ids[row]), *self.named(result, predictions, row), float(sure[row]))
            for row in rows.tolist()
        ]

    @abstractmethod
    def named(self, result: Any, predictions: Predictions, row: int) -> tuple[str, str]:
        """Name the true and the predicted classes of the image of a row."""

    def report(
        self,
        evaluations: Mapping[str, tuple[Any, Predictions]],
        split: str | None,
        samples: "Samples | None" = None,
    ) -> TaskReport:
        """Make the task's part of the report: how good the model is, where it fails, and whether it is as
        sure as it should be.

        Args:
            evaluations: the numbers and predictions of each split.
            split: the split that the page is about; None where nothing was evaluated.
            samples: its images; None where they are not at hand.
        """
        if split is None:
            missing = f"This run has not been evaluated: there is no {self.figure} to report."
            return TaskReport((Text(missing, "answer"),))
        result, predictions = evaluations[split]
        images = page.describe_images(result.count, split)
        rows, sure = predictions.surest_mistakes()
        caption, none = self.mistakes

        def load() -> Sequence[Photo]:
            wrong = self.show(result, predictions, rows, sure)
            return [] if samples is None else page.photos_of(samples, wrong, page.MISTAKES_SHOWN)

        mistakes: tuple[Block, ...] = (none,)
        if len(rows) and samples is None:
            mistakes = (f"{page.NOT_AT_HAND}, so they cannot be shown.",)
        elif len(rows):
            count = f"The {min(len(rows), page.MISTAKES_SHOWN):,} of {images}"
            mistakes = (Photos(load), Text(f"{count} {caption}", "caption"))
        loss = page.LOSS_LABELS[getattr(result, "loss_function", "sigmoid")]
        terms = Text(f"Loss: the mean over the images of the {loss}. {self.terms}", "caption")
        splits = self.split_table({split: result for split, (result, _) in evaluations.items()})
        chosen = self.show(result, predictions, self.choose_for_attention(predictions, rows))
        shown = Section("Most confident mistakes", mistakes, name="mistakes", menu="Mistakes")
        made = self.describe(result, split, images, shown)
        return replace(
            made,
            facts=tuple((value.partition(" (")[0], name) for name, value in self.measures(result)[:FACTS]),
            sections=(Section("Results", (splits, terms), name="splits", menu="Results"), *made.sections),
            attention=page.Chosen(chosen, *self.looked_at),
        )

    def split_table(self, results: Mapping[str, Any]) -> Table:
        """Make the table of the evaluated splits: what they are measured by, and the images."""
        columns = [
            {**dict(self.measures(result)), "images": f"{result.count:,}", "unreadable": f"{result.bad:,}"}
            for result in results.values()
        ]
        names = dict.fromkeys(name for column in columns for name in column)
        rows = tuple((name, *(column.get(name, "–") for column in columns)) for name in names)
        return Table(("measured", *results), rows)

    @abstractmethod
    def describe(self, result: Any, split: str, images: str, mistakes: Section) -> TaskReport:
        """Make the answer and the sections.

        Args:
            result: the numbers.
            split: that the page is about.
            images: its images in words, such as "360 test images".
            mistakes: the section on them, which has a place among the others.
        """

    @abstractmethod
    def choose_for_attention(
        self, predictions: Predictions, mistakes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Choose the rows of the images whose attention is shown, in order; `mistakes` are the rows of the
        surest."""
