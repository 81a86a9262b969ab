"""The page of a comparison: the answer, both models side by side, the images that one alone gets right, and
the classes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.analysis.study_figures import flip_figure
from vitkit.data.sources import Samples
from vitkit.jobs.compare.result import (
    ModelComparison,
    class_table,
    conclusions,
    measure_table,
    option_table,
    speed_sentence,
    what_flipped,
)
from vitkit.report.page import ShownEvaluation, pictures
from vitkit.report.template import Part, Photo, render_page
from vitkit.tasks.answering import Answering
from vitkit.tasks.page import Pictures, Plot, Text
from vitkit.text import pluralize

PICTURES_SHOWN = 12
"""The most images on which one model alone is right that the page shows."""
CLASSES_DRAWN = 30
"""The most bars of the drawing by class; the table has every class."""
ABOUT_INTERVALS = Text(
    "In parentheses 95% intervals, each about one model alone: whether the two differ is said above, image "
    "by image, and not by whether these overlap.",
    "caption",
)
ABOUT_CLASSES = Text(
    "Difference in points, and the images that one model alone is right on. p: McNemar's exact test within "
    "the class, by Holm over all classes: below 0.05 a difference is taken to be there. Click a heading to "
    "sort.",
    "caption",
)
ABOUT_SURENESS = Text(
    "Images grouped by confidence (the probability given to the predicted class) into 15 bins of equal "
    "width: the fraction that is right, with its 95% interval, at the mean confidence of the bin. Points "
    "below the dashed line: too sure. Below: how many images have which confidence. The numbers stand side "
    "by side above.",
    "caption",
)

Both = tuple[tuple[Any, Any], tuple[Any, Any]]
"""Numbers and predictions of the first model, and of the second."""


def render(
    comparison: ModelComparison, answering: Answering[Any, Any], evaluations: Both, samples: Samples | None
) -> str:
    """Render the page as HTML.

    Args:
        comparison: its numbers.
        answering: the task of both models.
        evaluations: of both models, on the same images in the same order.
        samples: the images; None where they are not at hand.
    """
    sides = (comparison.first.label, comparison.second.label)
    if comparison.options is None:
        no_options = "At least one of the two is no run, so that its options are not recorded."
    else:
        no_options = "The two were trained with the same options."
    sureness = answering.compare_sureness(evaluations[0][0], evaluations[1][0], sides)
    parts: list[Part] = [
        (
            "Side by side",
            (measure_table(comparison), ABOUT_INTERVALS, speed_sentence(comparison)),
        ),
        *(_flipped(comparison, answering, evaluations, samples, number) for number in (0, 1)),
        (
            "Class by class",
            (*_draw_flips(comparison), class_table(comparison), ABOUT_CLASSES),
        ),
    ]
    if sureness is not None:
        parts.append(("Are they as sure as they should be?", (sureness, ABOUT_SURENESS)))
    parts.append(("Options that differ", (option_table(comparison) or no_options,)))
    title = f"{sides[1]} beside {sides[0]}"
    return render_page(title, conclusions(comparison), parts, command=comparison.command)


def _flipped(
    comparison: ModelComparison,
    answering: Answering[Any, Any],
    evaluations: Both,
    samples: Samples | None,
    better: int,
) -> Part:
    """Show the images on which the first (0) or the second (1) model is better."""
    sides = (comparison.first, comparison.second)
    scores = [answering.score_images(predictions) for _, predictions in evaluations]
    rows = np.flatnonzero(scores[better] > scores[1 - better])
    title = f"Images on which {sides[better].label} {what_flipped(comparison)}"
    if not len(rows):
        return title, ("There is none.",)
    if samples is None:
        images = pluralize(len(rows), "image")
        return title, (f"{images}, which cannot be shown: they are not at hand.",)
    shown = _pictures(comparison, answering, evaluations, samples, rows, better)
    caption = (
        f"{len(shown):,} of {pluralize(len(rows), 'image')}, those first on which both models together are "
        "surest: the true class, what each model says and how sure it is, the file. Where both are sure and "
        "disagree, look at the label too."
    )
    return title, (shown, Text(caption, "caption"))


def _pictures(
    comparison: ModelComparison,
    answering: Answering[Any, Any],
    evaluations: Both,
    samples: Samples,
    rows: NDArray[np.int64],
    better: int,
) -> list[Photo]:
    """Read the pictures of some images, with both models' answers; unreadable files are passed over."""
    first, second = (answering.show(result, predictions, rows) for result, predictions in evaluations)
    doubt = [-(a.confidence + b.confidence) for a, b in zip(first, second, strict=True)]
    evaluation = ShownEvaluation(comparison.split, *evaluations[better], samples)
    flipped: list[Photo] = []
    # A stable order, so that the same comparison shows the same pictures.
    for row in np.argsort(doubt, kind="stable").tolist():
        answers = first[row], second[row]
        for picture in pictures(evaluation, Pictures([answers[0]], 1, "", "")):
            guesses = (
                (comparison.first.label, answers[0].predicted, answers[0].confidence, better == 0),
                (comparison.second.label, answers[1].predicted, answers[1].confidence, better == 1),
            )
            true = answers[0].true
            flipped.append(Photo(picture.sources[0], f"An image of {true}.", picture.key, true, guesses))
        if len(flipped) == PICTURES_SHOWN:
            break
    return flipped


def _draw_flips(comparison: ModelComparison) -> tuple[Plot | Text, ...]:
    """Draw how many images of each class one model alone gets right, with a caption; empty where none is."""
    changed = [change for change in comparison.classes if change.flips.first_only or change.flips.second_only]
    drawn = sorted(changed, key=lambda change: -(change.flips.first_only + change.flips.second_only))
    drawn = sorted(drawn[:CLASSES_DRAWN], key=lambda change: (change.gain, change.name))
    if not drawn:
        return ()
    first, second, what = comparison.first.label, comparison.second.label, what_flipped(comparison)
    figure = flip_figure(
        [change.name for change in drawn],
        [change.flips.first_only for change in drawn],
        [change.flips.second_only for change in drawn],
        (f"{first} {what}", f"{second} {what}"),
    )
    which = "" if len(drawn) == len(changed) else f"The {len(drawn)} classes with most such images. "
    caption = (
        f"{which}To the left the images of a class on which {first} {what}, to the right those on which "
        f"{second} {what}; the class that {second} lost most in stands first."
    )
    alt = f"For each class, the images on which {first} {what}, and those on which {second} {what}."
    return Plot(figure, "flips", alt), Text(caption, "caption")
