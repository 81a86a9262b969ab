"""The page of two models: the answer, both side by side, the images that tell them apart, class by class."""

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
CLASSES_DRAWN = 30

Both = tuple[tuple[Any, Any], tuple[Any, Any]]
"""Numbers and predictions of the first model, and of the second."""


def render(
    found: ModelComparison, answering: Answering[Any, Any], evaluations: Both, samples: Samples | None
) -> str:
    """Render the page as HTML.

    Args:
        found: the comparison.
        answering: the task of both models.
        evaluations: what both said of the same images, in the same order.
        samples: the images; None where they are not at hand.
    """
    answer, *sentences = conclusions(found)
    flips, flips_caption = _draw_flips(found)
    if found.options is None:
        no_options = "At least one of the two is no run whose options are known."
    else:
        no_options = "The two were trained with the same options."
    return render_comparison(
        ComparisonContent(
            title=f"{found.second.label} beside {found.first.label}",
            answer=answer,
            sentences=sentences,
            measures=measure_table(found),
            speed=speed_sentence(found),
            flipped=[_flipped(found, answering, evaluations, samples, number) for number in (0, 1)],
            flips=flips,
            flips_caption=flips_caption,
            classes=class_table(found),
            sureness=answering.compare_sureness(
                evaluations[0][0], evaluations[1][0], (found.first.label, found.second.label)
            ),
            options=option_table(found),
            no_options=no_options,
            command=found.command,
        )
    )


def _flipped(
    found: ModelComparison,
    answering: Answering[Any, Any],
    evaluations: Both,
    samples: Samples | None,
    better: int,
) -> FlippedSection:
    """Show the images on which the first (0) or the second (1) model is better."""
    sides = (found.first, found.second)
    scores = [answering.score_images(predictions) for _, predictions in evaluations]
    rows = np.flatnonzero(scores[better] > scores[1 - better])
    title = f"Images on which {sides[better].label} {what_flipped(found)}"
    if not len(rows):
        return FlippedSection(title, (), "There is none.")
    if samples is None:
        images = pluralize(len(rows), "image")
        return FlippedSection(title, (), f"{images}, which cannot be shown: they are not at hand.")
    shown = _pictures(found, answering, evaluations, samples, rows, better)
    caption = (
        f"{len(shown):,} of {pluralize(len(rows), 'image')}, those first on which both models together are "
        "surest: the true class, what each model says and how sure it is, the file. Where both are sure and "
        "disagree, look at the label too."
    )
    return FlippedSection(title, shown, caption)


def _pictures(
    found: ModelComparison,
    answering: Answering[Any, Any],
    evaluations: Both,
    samples: Samples,
    rows: NDArray[np.int64],
    better: int,
) -> list[Flipped]:
    """Read images, with what both models say; those that cannot be read are passed over."""
    first, second = (answering.show(result, predictions, rows) for result, predictions in evaluations)
    sure = [-(one.confidence + other.confidence) for one, other in zip(first, second, strict=True)]
    evaluation = ShownEvaluation(found.split, *evaluations[better], samples)
    made: list[Flipped] = []
    for place in np.argsort(sure, kind="stable").tolist():
        one, other = first[place], second[place]
        for picture in pictures(evaluation, Pictures([one], 1, "", "")):
            guesses = (
                (found.first.label, one.predicted, one.confidence, better == 0),
                (found.second.label, other.predicted, other.confidence, better == 1),
            )
            made.append(Flipped(picture.sources[0], picture.key, one.true, guesses))
        if len(made) == PICTURES_SHOWN:
            break
    return made


def _draw_flips(found: ModelComparison) -> tuple[Plot | None, str]:
    """Draw how many images of each class one model alone is right on, with a caption; None of no image."""
    told_apart = [change for change in found.classes if change.flips.first_only or change.flips.second_only]
    drawn = sorted(told_apart, key=lambda change: -(change.flips.first_only + change.flips.second_only))
    drawn = sorted(drawn[:CLASSES_DRAWN], key=lambda change: (change.gain, change.name))
    if not drawn:
        return None, ""
    first, second, what = found.first.label, found.second.label, what_flipped(found)
    figure = flip_figure(
        [change.name for change in drawn],
        [change.flips.first_only for change in drawn],
        [change.flips.second_only for change in drawn],
        (f"{first} {what}", f"{second} {what}"),
    )
    which = "" if len(drawn) == len(told_apart) else f"The {len(drawn)} classes with most such images. "
    caption = (
        f"{which}To the left the images of a class on which {first} {what}, to the right those on which "
        f"{second} {what}; the class that {second} lost most in stands first."
    )
    alt = f"For each class, the images on which {first} {what}, and those on which {second} {what}."
    return Plot(figure, "flips", alt), caption
