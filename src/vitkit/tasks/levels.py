"""The section of a page on the levels of a tree of classes, and the table of it that a terminal shows."""

from collections.abc import Callable, Mapping

from vitkit.evaluation import levels
from vitkit.evaluation.predictions import ratio
from vitkit.result import Caption, Cell, Section, Table, table_of
from vitkit.tasks.page import count_cell, fraction_cell, percent


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
    parts = (
        " The thresholds were chosen by some of these images: here each tenth of them is judged by "
        "thresholds that the other tenths give."
    )
    blocks = (
        level_table(scores, images),
        Caption(
            f"On {what}, with 95% intervals. Accuracy: the most probable group of classes is the true one; a "
            "group is as probable as its classes together. Named: the model is sure at this level, as the "
            "probability is above the threshold; the answer may end further down. The threshold is such that "
            f"at most {levels.MOST_WRONG:.0%} of the images named at a level are named wrongly there, with a "
            f"confidence of {levels.CONFIDENCE:.0%}. Of the answers that end at a level, which are about the "
            f"harder images, more may be wrong.{parts if scores.cross_fitted else ''}"
        ),
        table_of(scores.groups, columns),
        Caption("Named: the images of the class for which the model is sure at its level, rightly or not."),
    )
    return Section("Level by level", blocks, name="levels", menu="Levels")
