"""The scores of a sweep over learning rates, as a picture."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from vitkit.analysis.drawing import BLUE, GREY, VERMILION, WIDTH, styled


def rate_plot(
    rates: Sequence[float],
    values: Sequence[float],
    intervals: Sequence[tuple[float, float] | None],
    chosen: float,
    label: str,
) -> Figure:
    """Draw scores with their 95 % intervals against the learning rate.

    Args:
        rates: of each run that has a score.
        values: fractions from 0 to 1.
        intervals: theirs; None where there is none.
        chosen: the rate that was chosen.
        label: of the axis of the scores.
    """
    ends = np.array([(v, v) if i is None else i for v, i in zip(values, intervals, strict=True)])
    reach = np.abs(ends.T - np.array(values))
    with styled():
        figure = Figure((WIDTH * 0.6, 3.2), layout="constrained")
        axes = figure.subplots()
        axes.errorbar(rates, values, yerr=reach, color=GREY, ecolor=BLUE, capsize=3, linewidth=1)
        colours = [VERMILION if rate == chosen else BLUE for rate in rates]
        axes.scatter(rates, values, c=colours, zorder=3)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(list(rates)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g}%"))
        axes.set(xlabel="learning rate", ylabel=label)
        axes.grid(True)
    return figure
