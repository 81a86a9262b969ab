"""The scores of labels where images have several, as a picture."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from vitkit.analysis.drawing import SKY, VERMILION, WIDTH, add_title, shortened, styled
from vitkit.evaluation.multilabel import LabelScore

BARS_SHOWN = 40
"""Labels in the figure: more bars would not fit on a screen."""


def label_precision(scores: Sequence[LabelScore], count: int, data: str) -> Figure:
    """Draw the average precision of each label as bars with 95 % intervals, the worst on top.

    With many labels only the 40 worst are drawn. The dots are what ranking by chance would give, the fraction
    of images that have the label.

    Args:
        scores: of all labels; those that no image has are left out.
        count: images.
        data: what the images are ("360 test images"), for the title.
    """
    known = [(score.average_precision, score) for score in scores if score.average_precision is not None]
    ordered = sorted(known, key=lambda pair: pair[0])
    shown = ordered[:BARS_SHOWN]
    with styled():
        figure = Figure((WIDTH * 0.58, 1.3 + 0.2 * max(len(shown), 2)), layout="constrained")
        axes = figure.subplots()
        rows = np.arange(len(shown))
        axes.barh(rows, [value for value, _ in shown], height=0.7, color=SKY)
        for row, (_, score) in enumerate(shown):
            if score.average_precision_interval is not None:
                axes.hlines(row, *score.average_precision_interval, color="black", linewidth=1.2)
        axes.plot([score.count / count for _, score in shown], rows, "o", color=VERMILION, markersize=3)
        axes.set_yticks(rows, [f"{shortened(score.name, 28)}  ({score.count})" for _, score in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.grid(True, axis="x")
        axes.tick_params(axis="y", length=0)
        which = (
            "each label" if len(shown) == len(ordered) else f"the {len(shown)} worst of {len(ordered)} labels"
        )
        add_title(figure, f"Average precision of {which}, {data}")
        axes.set(xlabel="average precision (line: 95% interval; dot: by chance)", ylabel="label (images)")
    return figure
