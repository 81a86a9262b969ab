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
from vitkit.report.template import ComparisonContent, Flipped, FlippedSection, render_comparison
from vitkit.tasks.answering import Answering
from vitkit.tasks.page import Pictures, Plot
from vitkit.text import pluralize

PICTURES_SHOWN = 12
"""The most images on which one model alone is right that the page shows."""
CLASSES_DRAWN = 30
"""The most bars of the drawing by class; the table has every class."""

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
    answer, *sentences = conclusions(comparison)
    flips, flips_caption = _draw_flips(comparison)
    if comparison.options is None:
        no_options = "At least one of the two is no run, so that its options are not recorded."
    else:
        no_options = "The two were trained with the same options."
    return render_comparison(
        ComparisonContent(
            title=f"{comparison.second.label} beside {comparison.first.label}",
            answer=answer,
            sentences=sentences,
            measures=measure_table(comparison),
            speed=speed_sentence(comparison),
            flipped=[_flipped(comparison, answering, evaluations, samples, number) for number in (0, 1)],
            flips=flips,
            flips_caption=flips_caption,
            classes=class_table(comparison),
            sureness=answering.compare_sureness(
                evaluations[0][0], evaluations[1][0], (comparison.first.label, comparison.second.label)
            ),
            options=option_table(comparison),
            no_options=no_options,
            command=comparison.command,
        )
    )


def _flipped(
    comparison: ModelComparison,
    answering: Answering[Any, Any],
    evaluations: Both,
    samples: Samples | None,
    better: int,
) -> FlippedSection:
    """Show the images on which the first (0) or the second (1) model is better."""
    sides = (comparison.first, comparison.second)
    scores = [answering.score_images(predictions) for _, predictions in evaluations]
    rows = np.flatnonzero(scores[better] > scores[1 - better])
    title = f"Images on which {sides[better].label} {what_flipped(comparison)}"
    if not len(rows):
        return FlippedSection(title, (), "There is none.")
    if samples is None:
        images = pluralize(len(rows), "image")
        return FlippedSection(title, (), f"{images}, which cannot be shown: they are not at hand.")
    shown = _pictures(comparison, answering, evaluations, samples, rows, better)
    caption = (
        f"{len(shown):,} of {pluralize(len(rows), 'image')}, those first on which both models together are "
        "surest: the true class, what each model says and how sure it is, the file. Where both are sure and "
        "disagree, look at the label too."
    )
    return FlippedSection(title, shown, caption)


def _pictures(
    comparison: ModelComparison,
    answering: Answering[Any, Any],
    evaluations: Both,
    samples: Samples,
    rows: NDArray[np.int64],
    better: int,
) -> list[Flipped]:
    """Read the pictures of some images, with both models' answers; unreadable files are passed over."""
    first, second = (answering.show(result, predictions, rows) for result, predictions in evaluations)
    doubt = [-(a.confidence + b.confidence) for a, b in zip(first, second, strict=True)]
    evaluation = ShownEvaluation(comparison.split, *evaluations[better], samples)
    flipped: list[Flipped] = []
    # A stable order, so that the same comparison shows the same pictures.
    for row in np.argsort(doubt, kind="stable").tolist():
        answers = first[row], second[row]
        for picture in pictures(evaluation, Pictures([answers[0]], 1, "", "")):
            guesses = (
                (comparison.first.label, answers[0].predicted, answers[0].confidence, better == 0),
                (comparison.second.label, answers[1].predicted, answers[1].confidence, better == 1),
            )
            flipped.append(Flipped(picture.sources[0], picture.key, answers[0].true, guesses))
        if len(flipped) == PICTURES_SHOWN:
            break
    return flipped


def _draw_flips(comparison: ModelComparison) -> tuple[Plot | None, str]:
    """Draw how many images of each class one model alone gets right; return the caption too."""
    changed = [change for change in comparison.classes if change.flips.first_only or change.flips.second_only]
    drawn = sorted(changed, key=lambda change: -(change.flips.first_only + change.flips.second_only))
    drawn = sorted(drawn[:CLASSES_DRAWN], key=lambda change: (change.gain, change.name))
    if not drawn:
        return None, ""
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
    return Plot(figure, "flips", alt), caption
