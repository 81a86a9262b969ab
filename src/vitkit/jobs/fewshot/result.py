"""Show the result of a few-shot evaluation: remarks, figures, and a page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from matplotlib.figure import Figure

from vitkit import config
from vitkit.analysis.study_figures import fewshot_plot, pretraining_plot
from vitkit.evaluation.fewshot.config import Method
from vitkit.evaluation.fewshot.methods import MAX_ITERATIONS
from vitkit.evaluation.fewshot.scores import FewShotScore
from vitkit.report.template import Part, render_page
from vitkit.shown import Rows, Shown
from vitkit.tasks.page import Cell, Number, Plot, Table, Text, fraction_cell
from vitkit.text import join_names, pluralize

DRAWS_SHOWN = 5
"""Accuracies of single draws that the table has room for."""


@dataclass(frozen=True)
class FewShotModel:
    """The few-shot accuracy of one checkpoint."""

    start: str
    """The given path or address."""
    name: str
    """A short name, different from the other checkpoints'."""
    features: int
    """D, the number of features of an image."""
    trained_on_these: bool
    """Whether the model was trained on this data."""
    scores: tuple[FewShotScore, ...]
    """The scores of each method and number of shots."""
    architecture: str = ""
    """The name of the model, such as "ViT-B/16"."""
    pretraining_images: int | None = None
    """Number of images of the first training of its weights; None if unknown."""

    def of_method(self, method: Method) -> tuple[FewShotScore, ...]:
        """Return the scores of one method, by the number of shots."""
        return tuple(score for score in self.scores if score.method == method)

    @property
    def best(self) -> FewShotScore:
        """The best score among the methods, with the most shots."""
        most = max(score.shots for score in self.scores)
        return max((score for score in self.scores if score.shots == most), key=lambda score: score.mean)


@dataclass(frozen=True, repr=False)
class FewShot(Shown):
    """The few-shot accuracy of checkpoints, all with the same shots and the same test images."""

    data: str
    """The given path or address."""
    data_name: str
    class_names: tuple[str, ...]
    test_split: str
    test_images: int
    """Test images that could be read."""
    chance: float
    """Accuracy of guessing every class with the same probability."""
    majority: float
    """Accuracy of always naming the most frequent class of the test images."""
    shots: tuple[int, ...]
    seeds: int
    fewer: Mapping[str, int]
    """Number of readable images in classes with fewer than the most shots: all of them are shots."""
    repeated: int
    """Test images that are among the shots, pixel for pixel."""
    rejects: Mapping[str, str]
    """Key and reason of images that could not be read: shots were replaced by others of their class, test
    images left out."""
    notes: tuple[str, ...]
    """Sentences about the data."""
    models: tuple[FewShotModel, ...]

    def summary(self) -> str:
        """Give the best accuracy of each checkpoint."""
        best = "; ".join(
            f"{model.name} {model.best.mean:.1%} ({model.best.method}, {pluralize(model.best.shots, 'shot')})"
            for model in self.models
        )
        return f"{best}; on {self.test_images:,} {self.test_split} images of {self.data_name}"

    def in_rows(self) -> tuple[Sequence[str], Rows]:
        """Return a row for each checkpoint, method and number of shots."""
        table = score_table(self)
        return table.headings, table.rows

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return config.to_json(self)


def score_table(fewshot: FewShot) -> Table:
    """Make the table of accuracies: a row for each method, checkpoint and number of shots."""
    several = len(fewshot.models) > 1
    rows: list[tuple[Cell, ...]] = []
    for method in dict.fromkeys(score.method for score in fewshot.models[0].scores):
        for model in fewshot.models:
            for score in model.of_method(method):
                low, high = score.shown_interval or (None, None)
                rows.append(
                    (
                        method,
                        *([model.name] if several else []),
                        Number(f"{score.shots:,}", score.shots),
                        Number(f"{score.mean:.2%}", score.mean),
                        "" if score.deviation is None else f"{score.deviation:.2%}",
                        "" if low is None else f"{low:.1%} to {high:.1%}",
                        " ".join(f"{accuracy:.1%}" for accuracy in score.accuracies[:DRAWS_SHOWN]),
                    )
                )
    first = ("method", *(["checkpoint"] if several else []))
    return Table((*first, "shots", "accuracy", "deviation", "95 % over draws", "each draw"), tuple(rows))


def describe_guessing(fewshot: FewShot) -> str:
    """Say on which images the checkpoints were tested, and how often guessing is right on them."""
    return (
        f"On {fewshot.test_images:,} {fewshot.test_split} images of {fewshot.data_name} in "
        f"{len(fewshot.class_names):,} classes: a class drawn at random is right for {fewshot.chance:.1%}, "
        f"always naming the most frequent class for {fewshot.majority:.1%}."
    )


def pretraining_curves(fewshot: FewShot) -> dict[str, list[tuple[int, FewShotModel]]]:
    """Order the checkpoints of each architecture by the number of images of their pre-training.

    Empty where fewer than two such numbers are known.
    """
    sized = [(entry.pretraining_images, entry) for entry in fewshot.models if entry.pretraining_images]
    if len({images for images, _ in sized}) < 2:
        return {}
    curves: dict[str, list[tuple[int, FewShotModel]]] = {}
    for images, model in sorted(sized, key=lambda pair: pair[0]):
        curves.setdefault(model.architecture or model.name, []).append((images, model))
    return curves


def short_names(starts: Sequence[str]) -> list[str]:
    """Name checkpoints by the last part of their path or address.

    Where these are equal, an address is the name, or as many last parts of an absolute path as are unique.
    """
    names = [PurePath(start).name or start for start in starts]
    return [
        name if names.count(name) == 1 else _distinct_end(start, starts)
        for name, start in zip(names, starts, strict=True)
    ]


def _distinct_end(start: str, starts: Sequence[str]) -> str:
    """Return the shortest end of an absolute path that no other path has; other names as they are."""
    path = PurePath(start)
    if not path.is_absolute():
        return start
    parts = path.parts[1:]
    others = [PurePath(each).parts for each in starts if PurePath(each) != path]
    for count in range(2, len(parts)):
        if all(each[-count:] != parts[-count:] for each in others):
            return str(PurePath(*parts[-count:]))
    return str(PurePath(*parts))


def remarks(fewshot: FewShot) -> Iterator[str]:
    """Yield sentences that a reader of the numbers should know: few images, copies, poor fits."""
    most = max(fewshot.shots)
    if fewshot.fewer:
        shown = join_names([f"{name} ({count})" for name, count in fewshot.fewer.items()])
        classes = pluralize(len(fewshot.fewer), "class has", "classes have")
        yield f"{classes} fewer than {most} images to draw from, and all of them are shots: {shown}."
    if fewshot.repeated:
        images = pluralize(fewshot.repeated, "test image is", "test images are")
        yield (
            f"{images} among the shots, pixel for pixel: the accuracy is too good by them. vitkit data check "
            "names the copies."
        )
    for model in fewshot.models:
        failed = sum(not converged for score in model.scores for converged in score.converged)
        if failed:
            yield (
                f"{model.name}: logistic regression did not converge in {MAX_ITERATIONS:,} iterations in "
                f"{pluralize(failed, 'fit')}; its numbers are of the last iteration."
            )
        interval = model.best.interval
        if interval is not None and interval[0] <= max(fewshot.chance, fewshot.majority):
            yield (
                f"{model.name}: by these draws, the best of its numbers with "
                f"{pluralize(model.best.shots, 'shot')} is not significantly better than guessing."
            )


def fewshot_page(fewshot: FewShot) -> str:
    """Make the page of a result, as an HTML document."""
    images = f"{pluralize(fewshot.test_images, f'{fewshot.test_split} image')} of {fewshot.data_name}"
    curves = {model.name: model.scores for model in fewshot.models}
    best = max(fewshot.models, key=lambda model: model.best.mean)
    described = "; ".join(f"{model.name}: {_describe(model.best)}" for model in fewshot.models)
    by_images = pretraining_figure(fewshot)
    pretrained = "; ".join(
        f"{model.name}, pre-trained on {images:,} images: {model.best.mean:.1%}"
        for models in pretraining_curves(fewshot).values()
        for images, model in models
    )
    parts: list[Part] = [
        (
            "Accuracy by the number of images",
            (
                *(Text(remark, "warning") for remark in remarks(fewshot)),
                Plot(fewshot_plot(curves, images, fewshot.chance, fewshot.seeds), "fewshot", described),
                None if by_images is None else Plot(by_images, "images", pretrained),
                score_table(fewshot),
                Text(
                    "Mean accuracy over the draws of the shots, their standard deviation, and the 95% "
                    "interval of the mean by Student's t; every checkpoint meets the same shots and the same "
                    "test images.",
                    "caption",
                ),
            ),
        ),
        (
            "Class by class",
            (
                Text(
                    "Of the best method with the most shots of each checkpoint, the mean over the draws.",
                    "caption",
                ),
                _class_table(fewshot),
            ),
        ),
    ]
    if fewshot.notes:
        parts.append(("Data", fewshot.notes))
    answer = (_answer(best, images, len(fewshot.models) > 1), describe_guessing(fewshot))
    return render_page(f"Few-shot accuracy on {fewshot.data_name}", answer, parts)


def pretraining_figure(fewshot: FewShot) -> Figure | None:
    """Draw accuracy against the number of images of the pre-training; None where fewer than two are known."""
    curves = pretraining_curves(fewshot)
    if not curves:
        return None
    method = fewshot.models[0].scores[0].method  # ridge is the first, unless it was left out
    scores = {
        name: [(images, model.of_method(method)) for images, model in models]
        for name, models in curves.items()
    }
    tested = f"{pluralize(fewshot.test_images, f'{fewshot.test_split} image')} of {fewshot.data_name}"
    return pretraining_plot(scores, tested, method, fewshot.chance, fewshot.seeds)


def _answer(best: FewShotModel, images: str, several: bool) -> str:
    score = best.best
    shown, interval = score.shown_interval, ""
    if shown is not None:
        interval = f" (95% interval of the mean over draws: {shown[0]:.1%} to {shown[1]:.1%})"
    which = f"The best of the checkpoints is {best.name}: with" if several else "With"
    return (
        f"{which} {pluralize(score.shots, 'image')} of each class, {score.method} on frozen features is "
        f"right on {score.mean:.1%} of {images}{interval}."
    )


def _shots(count: int) -> str:
    return pluralize(count, "shot")


def _describe(best: FewShotScore) -> str:
    return f"{best.mean:.1%} with {_shots(best.shots)} by {best.method}"


def _class_table(fewshot: FewShot) -> Table:
    """Make a row for each class, in rising order of the first checkpoint's accuracy."""
    best = [model.best for model in fewshot.models]
    headings = [
        f"{model.name} ({score.method}, {_shots(score.shots)})"
        for model, score in zip(fewshot.models, best, strict=True)
    ]
    order = sorted(
        range(len(fewshot.class_names)),
        key=lambda i: (
            math.inf if best[0].class_accuracy[i] is None else float(best[0].class_accuracy[i] or 0)
        ),
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (fewshot.class_names[i], *(fraction_cell(score.class_accuracy[i]) for score in best)) for i in order
    )
    return Table(("class", *headings), rows)
