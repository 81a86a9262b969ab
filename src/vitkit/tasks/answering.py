"""The half of a task that a finished model needs: what its outputs mean, how good they are, the report.

Outputs are arrays of numpy: nothing here imports torch, so that an exported model answers without it.
Two tasks answer: with one class for each image, and with several labels, each a yes or no of its own.
`vitkit.tasks.Answering` names their classes.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitkit.config import read
from vitkit.errors import VitkitError
from vitkit.evaluation import classify, levels
from vitkit.evaluation.classify import (
    THRESHOLD,
    CalibrationBin,
    Classification,
    MultiLabel,
    percent_to_hundredths,
)
from vitkit.evaluation.predictions import Predictions, likeliest, probabilities, ratio
from vitkit.evaluation.statistics import binomial_interval
from vitkit.models.config import Card, LossFunction
from vitkit.result import Block, Caption, Cell, Photo, Photos, Plot, Section, Table, Text, table_of
from vitkit.tasks import page
from vitkit.tasks.page import Chosen, ShownImage, TaskReport, count_cell, figures, fraction_cell, percent
from vitkit.text import join_names, pluralize, visible

if TYPE_CHECKING:
    from vitkit.data.sources import Samples


Rows = NDArray[np.int64]
Floats = NDArray[np.float64]
Evaluated = tuple[Any, Predictions]
"""The numbers of a split, and what they are counted from."""
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


class Answer(list[Guess]):
    """The guesses of an image, best first, whether it looks like none of the classes, and what the model is
    sure of where its classes are a tree.

    Args:
        guesses: the classes.
        typicality: the fraction of images of the model's own kind that are at least as strange, the image
            itself among them; None for a model that refuses nothing.
        most_refused: the fraction of its own images that the model may refuse.
        sure: the group or class of the deepest level that the model is sure of; None where there is none.
        has_levels: whether the model's classes are a tree.
    """

    def __init__(
        self,
        guesses: Iterable[Guess],
        typicality: float | None = None,
        most_refused: float = 0.0,
        sure: Guess | None = None,
        has_levels: bool = False,
    ) -> None:
        super().__init__(guesses)
        self.typicality = typicality
        self.refused = typicality is not None and typicality <= most_refused
        """Whether the image is refused as none of the classes: the guesses are then worth little."""
        self.sure = None if self.refused else sure
        """The most exact answer that the model is sure of, birds/petrel or birds alone; None: it is not sure,
        the image is refused, or its classes are no tree."""
        self.level = (0 if self.sure is None else 1 + self.sure.name.count("/")) if has_levels else None
        """The level of that answer, from 1, the top; 0 without one, and None where its classes are no
        tree."""


NONE_OF_THESE = "none of these"
"""The words for a refused image."""
NOT_SURE = "not sure"
"""The words for an image of which a model of a tree of classes is sure at no level."""


class LabelAnswering(ABC):
    """Answers with labels, of one class or of several labels for each image.

    Three methods have nothing in common and stand in each task alone. `right_by_class` says for each class
    whether the answer is right on each image that counts for it, its own images in order: two models are
    compared class by class by these. `answers` turns outputs `(B, K)` into answers, integers `(B, A)`: two
    models agree where they are equal. `guess_row` makes the row of an image for the table of `vitkit
    predict`, by heading the entries of a cell; where there is one heading alone, the first entry is the
    answer and is shown bold.
    """

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
    """The main number, named where a run has no evaluation."""
    terms: str
    """Explains the names of `measures`."""
    mistakes: tuple[str, str]
    """The caption of the surest mistakes, which follows "The N of M images", and the text without any."""
    looked_at: tuple[str, str]
    """The caption of the images whose attention is shown, and the text without any."""

    def read_evaluation(self, path: Path) -> Evaluated:
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
        recorded = {name: getattr(result, name) for name in ("repeated", "levels") if hasattr(result, name)}
        return replace(self.measure(predictions, result.class_names), **recorded), predictions

    def score_images(self, predictions: Predictions) -> Floats:
        """Score each image by itself, from 0 (all wrong) to 1 (all right), `(N,)`: two models are compared by
        these scores of the same images. It is right or wrong, or has a fraction of its labels right."""
        scores: Floats = np.atleast_2d(predictions.right.T).mean(0)
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
        pairs = zip(rows, classes.tolist(), strict=True)
        return [[Guess(names[i], float(row[i])) for i in chosen] for row, chosen in pairs]

    def learn_levels(self, logits: NDArray[np.float32], labels: Rows, card: Card, split: str) -> Card:
        """Choose the thresholds of a card's levels, where it has any, by held-out images of a split."""
        if card.levels is None:
            return card
        return replace(card, levels=levels.learn_levels(logits, labels, card.class_names, split))

    def describe_levels(self, card: Card) -> list[str]:
        """Say how sure a model is at each level of its classes; nothing where they are no tree."""
        return [] if card.levels is None else [*levels.describe(card.levels)]

    def mark_levels(self, result: Any, predictions: Predictions, card: Card, cross_fit: bool) -> Any:
        """Add the numbers by level to those of a split, where classes are a tree.

        Args:
            result, predictions: the numbers, and what they are counted from.
            card: the model's, with its thresholds.
            cross_fit: whether the thresholds were chosen by these images.
        """
        if card.levels is None:
            return result
        scores = levels.score_levels(predictions, result.class_names, card.levels, cross_fit)
        return replace(result, levels=scores)

    def sure(self, outputs: NDArray[np.float32], card: Card) -> list[Guess | None]:
        """Name the group or class of the deepest level that the model is sure of; None for an image without
        one, and where its classes are no tree.

        Args:
            outputs: `(B, K)`, finite.
            card: the model's.
        """
        if card.levels is None:
            return [None] * len(outputs)
        named = levels.name_groups(outputs, card.class_names, card.levels.thresholds)
        return [None if each is None else Guess(*each) for each in named]

    def guess_json(self, guesses: Sequence[Guess]) -> dict[str, Any]:
        """Make the part of a line of JSON that holds an image's prediction: the classes, best first."""
        shown = [{"class": guess.name, "probability": round(guess.probability, 6)} for guess in guesses]
        answer: dict[str, Any] = {"predictions": shown}
        if isinstance(guesses, Answer) and guesses.typicality is not None:
            answer |= {"none_of_these": guesses.refused, "typicality": round(guesses.typicality, 6)}
        if isinstance(guesses, Answer) and guesses.level is not None:
            sure = guesses.sure
            named = (None, None) if sure is None else (sure.name, round(sure.probability, 6))
            answer |= {"answer": named[0], "answer_probability": named[1], "level": guesses.level}
        return answer

    def show(
        self, result: Any, predictions: Predictions, rows: Rows, confidence: Floats | None = None
    ) -> list[ShownImage]:
        """Name the true and the predicted classes of the images of these rows, and how sure the model is.

        Args:
            result, predictions: the numbers, and what they are counted from.
            rows: `(n,)`.
            confidence: `(N,)`; left out, that of the predictions.
        """
        confidence = predictions.confidence if confidence is None else confidence
        shown = ((row, self.named(result, predictions, row)) for row in rows.tolist())
        return [ShownImage(int(predictions.ids[row]), *names, float(confidence[row])) for row, names in shown]

    @abstractmethod
    def named(self, result: Any, predictions: Predictions, row: int) -> tuple[str, str]:
        """Name the true and the predicted classes of the image of a row."""

    def report(
        self, evaluations: Mapping[str, Evaluated], split: str | None, samples: "Samples | None" = None
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
            mistakes = (Photos(load), Caption(f"{count} {caption}"))
        loss = page.LOSS_LABELS[getattr(result, "loss_function", "sigmoid")]
        terms = Caption(f"Loss: the mean over the images of the {loss}. {self.terms}")
        splits = self.split_table({split: result for split, (result, _) in evaluations.items()})
        chosen = self.show(result, predictions, self.choose_for_attention(predictions, rows))
        shown = Section("Most confident mistakes", mistakes, name="mistakes", menu="Mistakes")
        made = self.describe(result, split, images, shown)
        facts = tuple((value.partition(" (")[0], name) for name, value in self.measures(result)[:FACTS])
        results = Section("Results", (splits, terms), name="splits", menu="Results")
        attention = Chosen(chosen, *self.looked_at)
        return replace(made, facts=facts, sections=(results, *made.sections), attention=attention)

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
    def choose_for_attention(self, predictions: Predictions, mistakes: Rows) -> Rows:
        """Choose the rows of the images whose attention is shown, in order; `mistakes` are the rows of the
        surest."""


TIES_SHOWN = 3
"""The most classes in a cell where a class is taken for several equally often."""
PAIRS_SHOWN = 15
"""Pairs of confused classes that are listed below the matrix."""


class ClassificationAnswering(LabelAnswering):
    """Answers with one class for each image; `LabelAnswering` describes the methods."""

    image_score = figure = "accuracy"
    numbers = Classification
    measure = staticmethod(classify.classification)
    mark_repeats = staticmethod(classify.mark_repeats)
    terms = (
        "Balanced accuracy: the mean of the classes' accuracies. Macro F1: the mean of the classes' F1 "
        "scores. Top-5: the true class is among the five likeliest."
    )
    mistakes = (
        "that the model got wrong and was surest of: true class → predicted class, its probability, the "
        "file. Look here first for wrong labels in the data.",
        "There is none: every image was classified rightly.",
    )
    looked_at = (
        "First the model's surest mistakes, then right answers, a class at a time.",
        "There is no image to look at.",
    )

    def details(self, result: Classification) -> Table | None:
        """Make the table of the levels of a tree of classes; of other classes the summary is enough."""
        return None if result.levels is None else level_table(result.levels, result.count)

    def right_by_class(self, result: Any, predictions: Predictions) -> dict[str, NDArray[np.bool_]]:
        """Give for each class whether its own images are right."""
        # One sort, and not a search for each of 21,000 classes.
        order = np.argsort(predictions.labels, kind="stable")
        counts = np.bincount(predictions.labels, minlength=len(result.class_names))
        groups = np.split(predictions.right[order], np.cumsum(counts)[:-1])
        return dict(zip(result.class_names, groups, strict=True))

    def measures(self, result: Classification) -> tuple[tuple[str, str], ...]:
        """Name accuracies, F1, the loss and calibration."""
        low, high = result.accuracy_interval
        rows = [("accuracy", f"{percent(result.accuracy)} ({percent(low)} to {percent(high)})")]
        if result.repeated is not None and result.repeated.count:
            without, images = result.repeated.accuracy_without, result.repeated.count
            rows.append((f"accuracy without {pluralize(images, 'training image')}", percent(without)))
        if result.top5_accuracy is not None:
            rows.append(("top-5 accuracy", percent(result.top5_accuracy)))
        excess = result.overconfidence
        mean, low_end, high_end = (f"{100 * end:+.1f}" for end in (excess.mean, *excess.interval))
        return (
            *rows,
            ("balanced accuracy", percent(result.balanced_accuracy)),
            ("macro F1", percent(result.macro_f1)),
            ("loss (nats)", f"{result.loss:.3f}"),
            ("calibration error (ECE)", percent(result.calibration_error)),
            ("confidence - accuracy, points", f"{mean} ({low_end} to {high_end})"),
            ("calibration verdict", excess.verdict or "as sure as it should be"),
        )

    def compare_sureness(self, first: Any, second: Any, labels: tuple[str, str]) -> Plot | None:
        """Draw accuracy against confidence, both in the bins of the report."""
        models = {labels[0]: first.calibration, labels[1]: second.calibration}
        return _calibration_plot(models, f"of {labels[0]} and of {labels[1]}")

    def named(self, result: Any, predictions: Predictions, row: int) -> tuple[str, str]:
        """Name the class of the image and the predicted one."""
        names = result.class_names
        return names[int(predictions.labels[row])], names[int(predictions.predicted[row])]

    def pool(self, parts: Sequence[tuple[float, int]]) -> Pooled:
        """Count the right answers of several parts together."""
        # An accuracy is a ratio of whole numbers, so that rounding undoes the division.
        right, images = sum(round(value * count) for value, count in parts), sum(count for _, count in parts)
        return Pooled(right, images, binomial_interval(right, images))

    def answers(self, outputs: NDArray[np.float32]) -> Rows:
        """Give the class with the largest logit, which either loss predicts."""
        return likeliest(outputs, 1)

    def guess_row(self, guesses: Sequence[Guess], top: int) -> dict[str, list[str]]:
        """Write the class and its probability, or the `top` classes with theirs."""
        answer = guesses if isinstance(guesses, Answer) else Answer(guesses)
        shown, instead = [f"{guess.name} {guess.probability:.1%}" for guess in guesses], list[str]()
        if answer.refused:
            instead = [NONE_OF_THESE]
        elif answer.level == 0:
            instead = [NOT_SURE]
        elif answer.sure is not None and answer.sure.name != answer[0].name:
            instead = [answer.sure.name, f"{answer.sure.probability:.1%}"]
        if top > 1:
            return {f"top {top}": [*([" ".join(instead)] if instead else []), *shown]}
        if instead:
            name, *probability = instead
            return {"class": [name], "probability": [*probability, *(f"({guess})" for guess in shown[:1])]}
        return {
            "class": [guess.name for guess in guesses],
            "probability": [f"{g.probability:.1%}" for g in guesses],
        }

    def choose_for_attention(self, predictions: Predictions, mistakes: Rows) -> Rows:
        """Choose images of as many classes as there is room for, a quarter of them wrong."""
        right = np.flatnonzero(predictions.right)
        # The first image of every class, then the second of every class, and so on.
        seen: dict[int, int] = {}
        turns = []
        for label in predictions.labels[right].tolist():
            seen[label] = seen.get(label, -1) + 1
            turns.append(seen[label])
        fair = right[np.lexsort((right, predictions.labels[right], np.array(turns, int)))]
        return np.concatenate([mistakes[: page.ATTENTION_SHOWN // 4], fair])

    def describe(self, result: Classification, split: str, images: str, mistakes: Section) -> TaskReport:
        """Show the accuracy, the confusions, the classes and the calibration."""
        guessing, repeated, right, without = result.guessing, result.repeated, "", ""
        answer = (
            f"The model is right on **{result.correct:,} of {images}**: an accuracy of "
            f"**{percent(result.accuracy)}**. {page.expectation(result.accuracy_interval)} This is "
            f"**{guessing.verdict}**: always answering with the most frequent class would be right on "
            f"{percent(guessing.accuracy)} (exact binomial test: p {page.shown_p(guessing.p_value)})."
        )
        if repeated is not None:
            low, high = map(percent, repeated.interval_without)
            right = f", and the model is right on {repeated.correct:,} of them"
            accuracy = percent(repeated.accuracy_without)
            without = f"**without them the accuracy is {accuracy}** (95 % interval {low} to {high})."
        parts = _confusion(result, images), _classes(result, images), mistakes, _calibration(result, images)
        by_level = () if result.levels is None else (level_section(result.levels, result.count, images),)
        answers = page.answer_texts(answer, result, right, without, split, images)
        return TaskReport(answers, sections=(*by_level, *parts))


def _confusion(result: Classification, images: str) -> Section:
    alt, pairs = f"Confusion matrix of {len(result.class_names)} classes on {images}.", confused_pairs(result)
    about = (
        "Rows are the true classes, columns the predicted ones; the diagonal is right. The colour is the "
        "fraction of the row, on a scale of square roots so that rare confusions can be seen."
    )
    of_pairs = "The pairs that are confused most often, and how many images are of the true class."
    listed = (pairs, Caption(of_pairs)) if pairs.rows else ()
    cells, names = result.confusion_cells, result.class_names
    drawn = Plot(lambda: figures().confusion_matrix(cells, names, images), "confusion", alt)
    blocks = (drawn, Caption(about), *listed)
    return Section("Mistaken for what?", blocks, name="confusion", menu="Confusions")


def _classes(result: Classification, images: str) -> Section:
    # Classes without images, which have no recall, come last.
    rows = sorted(class_rows(result), key=lambda row: 2.0 if row[0].recall is None else row[0].recall)
    columns: Mapping[str, Callable[[tuple[classify.ClassScore, str]], Cell]] = {
        "class": lambda row: row[0].name,
        "accuracy (recall)": lambda row: fraction_cell(row[0].recall),
        "precision": lambda row: fraction_cell(row[0].precision),
        "F1": lambda row: fraction_cell(row[0].f1),
        "most often taken for": lambda row: row[1],
        "images": lambda row: count_cell(row[0].count),
        "right": lambda row: count_cell(row[0].correct),
    }
    table = table_of(rows, columns, sortable=True)
    alt = f"Accuracy by class on {images}."
    blocks = (
        Plot(lambda: figures().class_accuracy(result.per_class, images), "classes", alt),
        Caption(
            "Accuracy within the classes, the worst first. The line is the 95 % interval: where it "
            "is long there are few images, and the order says little."
        ),
        table,
        Caption(
            "Recall: the fraction of the class's images that are predicted as this class. Precision: the "
            "fraction of the images predicted as this class that are of it. F1: their harmonic mean. A dash: "
            "there is nothing to divide by. Click a heading to sort."
        ),
    )
    return Section("Class by class", blocks, name="classes", menu="Classes")


def confused_pairs(result: Classification) -> Table:
    """List the classes that are most often taken for another, with that class."""
    wrong = [cell for cell in result.confusion_cells if cell[0] != cell[1]]
    columns: Mapping[str, Callable[[tuple[int, int, int]], Cell]] = {
        "true class": lambda cell: result.class_names[cell[0]],
        "predicted": lambda cell: result.class_names[cell[1]],
        "images": lambda cell: count_cell(cell[2]),
        "of": lambda cell: count_cell(result.per_class[cell[0]].count),
    }
    return table_of(sorted(wrong, key=lambda cell: -cell[2])[:PAIRS_SHOWN], columns)


def class_rows(result: Classification) -> list[tuple[classify.ClassScore, str]]:
    """List every class with the class that it is most often taken for, or several equally frequent ones."""
    taken_for: list[list[tuple[int, str]]] = [[] for _ in result.per_class]
    for true, predicted, count in result.confusion_cells:
        if true != predicted:
            taken_for[true].append((count, result.class_names[predicted]))
    rows = []
    for score, mistakes in zip(result.per_class, taken_for, strict=True):
        most = max((count for count, _ in mistakes), default=0)
        others = [name for count, name in mistakes if count == most]
        each = " each" if len(others) > 1 else ""
        rows.append((score, f"{join_names(others, TIES_SHOWN)} ({most}{each})" if others else ""))
    return rows


def _calibration_plot(models: Mapping[str, Sequence[CalibrationBin]], what: str, data: str = "") -> Plot:
    alt = f"Accuracy against confidence {what}."
    return Plot(lambda: figures().calibration_figure(models, data), "calibration", alt)


def _calibration(result: Classification, images: str) -> Section:
    confidence = math.fsum(b.count * (b.confidence or 0) for b in result.calibration) / result.count
    low, high = (f"{100 * end:+.1f}" for end in result.overconfidence.interval)
    # On few images a difference may be chance.
    verdict = result.overconfidence.verdict or f"as sure as it should be, as far as {images} can tell"
    verdict += f" (confidence - accuracy: 95 % interval {low} to {high} percentage points)"
    sigmoid = ", by sigmoid, as the model was trained to say yes or no to each class by itself"
    blocks = (
        _calibration_plot({"accuracy, with its 95 % interval": result.calibration}, f"on {images}", images),
        Caption(
            "Images grouped by confidence (the probability given to the predicted class"
            f"{sigmoid if result.loss_function == 'sigmoid' else ''}) into 15 bins of equal width: the "
            "fraction that is right, with its 95 % interval, at the mean confidence of the bin. Below: how "
            "many images are in each bin. Points below the dashed line: the model is too sure of itself."
        ),
        Text(
            f"The expected calibration error (ECE) is {percent(result.calibration_error)}: averaged over the "
            f"images, a bin's confidence differs from its accuracy by {100 * result.calibration_error:.1f} "
            f"percentage points. Over all images the model is {percent(confidence)} sure and "
            f"{percent(result.accuracy)} right: as a whole it is {verdict}."
        ),
    )
    return Section("Can its confidence be trusted?", blocks, name="calibration", menu="Calibration")


def level_table(scores: levels.LevelScores, images: int) -> Table:
    """Make the table of levels: how accurate the model is at each, and how often it is sure."""

    def with_interval(part: int, whole: int, interval: tuple[float, float] | None) -> str:
        low, high = map(percent, interval or (None, None))
        return f"{percent(ratio(part, whole))} ({low} to {high})" if interval else "–"

    columns: Mapping[str, Callable[[levels.LevelScore], Cell]] = {
        "level": lambda row: count_cell(row.level),
        "classes": lambda row: count_cell(row.groups),
        "accuracy": lambda row: with_interval(row.correct, images, row.accuracy_interval),
        "sure above": lambda row: fraction_cell(scores.thresholds[row.level - 1]),
        "named": lambda row: fraction_cell(row.named / images),
        "named rightly": lambda row: with_interval(row.right, row.named, row.right_interval),
        "end here": lambda row: fraction_cell(row.ended / images),
        "rightly": lambda row: fraction_cell(ratio(row.ended_right, row.ended)),
    }
    return table_of(scores.levels, columns)


def level_section(scores: levels.LevelScores, images: int, what: str) -> Section:
    """Make the section of a page: the table of levels, and the tree.

    Args:
        scores: the numbers of so many `images`.
        what: the images in words, such as "360 test images".
    """
    columns: Mapping[str, Callable[[levels.GroupScore], Cell]] = {
        "class": lambda row: "\u2003" * row.name.count("/") + row.name.rpartition("/")[2],
        "images": lambda row: count_cell(row.count),
        "accuracy": lambda row: fraction_cell(ratio(row.correct, row.count)),
        "named": lambda row: fraction_cell(ratio(row.named, row.count)),
        "named rightly": lambda row: fraction_cell(ratio(row.right, row.named)),
    }
    cross_fit = (
        " The thresholds were chosen by some of these images: here each tenth of them is judged by "
        "thresholds that the other tenths give."
    )
    blocks = (
        level_table(scores, images),
        Caption(
            f"On {what}, with 95 % intervals. Accuracy: the most probable group of classes is the true one; "
            "a group is as probable as its classes together. Named: the model is sure at this level, as the "
            "probability is above the threshold; the answer may end further down. The threshold is such that "
            f"at most {levels.MOST_WRONG:.0%} of the images named at a level are named wrongly there, with a "
            f"confidence of {levels.CONFIDENCE:.0%}. Of the answers that end at a level, which are about the "
            f"harder images, more may be wrong.{cross_fit if scores.cross_fitted else ''}"
        ),
        table_of(scores.groups, columns),
        Caption("Named: the images of the class for which the model is sure at its level, rightly or not."),
    )
    return Section("Level by level", blocks, name="levels", menu="Levels")


ATTENTION_TRIED = 24
"""Images of each label that are tried, as some may not be readable any more."""
LABELS_SHOWN = 6
"""The most labels that a caption names."""


class MultiLabelAnswering(LabelAnswering):
    """Answers with several labels for each image, or none; `LabelAnswering` describes the methods."""

    image_score = "fraction of labels right"
    figure = "average precision"
    numbers = MultiLabel
    measure = staticmethod(classify.multi_label)
    mark_repeats = staticmethod(classify.mark_repeated_labels)
    several_labels = True
    terms = (
        "Mean average precision: of labels that occur. Micro average precision: all pairs of image and label "
        "ranked together. F1: at a probability of 0.5; macro: the mean of the labels', micro: of all pairs "
        "together. All labels right: images with no label too many or too few. Single labels wrong: the "
        "fraction of single answers that are wrong (Hamming loss)."
    )
    mistakes = (
        "on which the model was surest of a wrong answer to one label: the labels of the image → the "
        "predicted labels (+: predicted and not the image's, −: the image's and not predicted), how sure the "
        "model is of its worst answer, the file. Look here first for labels that are missing in the data.",
        "There is none: every label of every image is right.",
    )
    looked_at = (
        "Images of each label in turn, the images first on which the label is most probable.",
        "No image has a label.",
    )

    def right_by_class(self, result: Any, predictions: Predictions) -> dict[str, NDArray[np.bool_]]:
        """Give for each label whether the answer to it is right, on all images."""
        return dict(zip(result.class_names, predictions.right.T, strict=True))

    def measures(self, result: MultiLabel) -> tuple[tuple[str, str], ...]:
        """Name average precisions, F1 and fractions of right answers."""
        figure = percent_to_hundredths(result.mean_average_precision)
        rows = [("mean average precision", f"{figure}{result.interval_clause()}")]
        if result.repeated is not None and result.repeated.count:
            images = pluralize(result.repeated.count, "training image")
            without = percent_to_hundredths(result.repeated.mean_average_precision_without)
            rows.append((f"the same without {images}", without))
        return (
            *rows,
            ("micro average precision", percent_to_hundredths(result.micro_average_precision)),
            ("macro F1", percent_to_hundredths(result.macro_f1)),
            ("micro F1", percent_to_hundredths(result.micro_f1)),
            ("all labels of an image right", percent_to_hundredths(result.subset_accuracy)),
            ("single labels wrong", percent_to_hundredths(result.hamming_loss)),
            ("loss (nats)", f"{result.loss:.4f}"),
            ("labels an image", f"{result.labels_per_image:.2f}"),
            ("predicted labels an image", f"{result.predicted_per_image:.2f}"),
        )

    def named(self, result: Any, predictions: Predictions, row: int) -> tuple[str, str]:
        """Name the labels of the image and the predicted ones, with marks at wrong answers."""
        names, targets, predicted = result.class_names, predictions.labels[row], predictions.logits[row] >= 0
        answers = [
            ("" if predicted[i] == targets[i] else "+" if predicted[i] else "−") + names[i]
            for i in np.flatnonzero(predicted | targets).tolist()
        ]
        true = [names[i] for i in np.flatnonzero(targets).tolist()]
        return join_names(true, LABELS_SHOWN) or "no label", join_names(answers, LABELS_SHOWN) or "no label"

    def details(self, result: MultiLabel) -> Table:
        """Make the table of every label, the worst first."""
        return label_table(result, worst_first=True)

    def answers(self, outputs: NDArray[np.float32]) -> Rows:
        """Give 1 for each predicted label, else 0, `(B, K)`."""
        return (probabilities(outputs, "sigmoid") >= THRESHOLD).astype(np.int64)

    def guess_row(self, guesses: Sequence[Guess], top: int) -> dict[str, list[str]]:
        """Write the predicted labels, and the most probable label that is not predicted."""
        shown = [f"{guess.name} {guess.probability:.1%}" for guess in guesses]
        there = sum(guess.probability >= THRESHOLD for guess in guesses)
        heading = f"labels (probability {THRESHOLD:g} or more)"
        return {heading: shown[:there] or ["none"], "next": shown[there : there + 1]}

    def guess_json(self, guesses: Sequence[Guess]) -> dict[str, Any]:
        """List the predicted labels, and the probabilities of all labels."""
        there = [guess.name for guess in guesses if guess.probability >= THRESHOLD]
        return {"labels": there, **super().guess_json(guesses)}

    def choose_for_attention(self, predictions: Predictions, mistakes: Rows) -> Rows:
        """Choose images with labels, a label at a time, its most probable images first."""
        surest = [
            rows[np.argsort(-predictions.logits[rows, label], kind="stable")][:ATTENTION_TRIED].tolist()
            for label, rows in enumerate(map(np.flatnonzero, predictions.labels.T))
        ]
        turns = [rows[turn] for turn in range(ATTENTION_TRIED) for rows in surest if turn < len(rows)]
        return np.array(list(dict.fromkeys(turns)), np.int64)  # each image once

    def describe(self, result: MultiLabel, split: str, images: str, mistakes: Section) -> TaskReport:
        """Show the average precisions, label by label."""
        chance = [score.count / result.count for score in result.per_label if score.count]
        reason = result.explain_no_interval() or "How much other images would change that is not known"
        interval = f"{reason[0].upper()}{reason[1:]}."
        if result.mean_average_precision_interval is not None:
            interval = page.expectation(result.mean_average_precision_interval)
        answer = (
            f"The mean average precision of {result.labels_that_occur} labels is "
            f"**{percent(result.mean_average_precision)}** on {images}. {interval} Ranking by chance would "
            f"give {percent(float(np.mean(chance)) if chance else None)}. All labels of an image are right "
            f"for **{percent(result.subset_accuracy)}** of the images."
        )
        repeated, without = result.repeated, ""
        if repeated is not None:
            precision = percent(repeated.mean_average_precision_without)
            of_labels = f"of {repeated.labels_that_occur} labels."
            without = f"**without them the mean average precision is {precision}**, {of_labels}"
        answers = page.answer_texts(answer, result, "", without, split, images)
        return TaskReport(answers, sections=(_labels(result, images), mistakes))


def label_table(result: MultiLabel, worst_first: bool = False) -> Table:
    """Make the table of all labels, in their own order or by average precision; undefined ones come last."""
    scores = list(result.per_label)
    if worst_first:
        scores.sort(key=lambda score: 2.0 if score.average_precision is None else score.average_precision)
    columns: Mapping[str, Callable[[classify.LabelScore], Cell]] = {
        "label": lambda score: score.name,
        "AP": lambda score: fraction_cell(score.average_precision),
        "95 % interval": lambda score: page.interval_cell(score.average_precision_interval),
        "precision": lambda score: fraction_cell(score.precision),
        "recall": lambda score: fraction_cell(score.recall),
        "F1": lambda score: fraction_cell(score.f1),
        "best F1": lambda score: fraction_cell(score.best_f1),
        "at": lambda score: fraction_cell(score.best_threshold),
        "images": lambda score: count_cell(score.count),
        "predicted": lambda score: count_cell(score.predicted),
    }
    return table_of(scores, columns, sortable=True)


def _labels(result: MultiLabel, images: str) -> Section:
    alt = f"Average precision by label on {images}."
    blocks = (
        Plot(lambda: figures().label_precision(result.per_label, result.count, images), "labels", alt),
        Caption(
            "Average precision of the labels, the worst first: the area under the steps of precision over "
            "recall, 100% if every image with the label is ranked before all others. The line is the 95 % "
            "interval, which allows for the average precision of few images being too high; a label on "
            "fewer than three images has none. The dot is the average precision of a random ranking."
        ),
        label_table(result),
        Caption(
            "Predicted: images on which the label has a probability of 0.5 or more. Precision: the fraction "
            "of them that have it. Recall: the fraction of the images with the label on which it is "
            "predicted. F1: their harmonic mean. Best F1: the largest that another threshold would reach, "
            "and the threshold; chosen on these very images, so that on others it is lower. A dash: there "
            "is nothing to divide by. Click a heading to sort."
        ),
    )
    return Section("Label by label", blocks, name="labels", menu="Labels")
