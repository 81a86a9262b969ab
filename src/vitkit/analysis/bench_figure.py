"""The paper's Figure 12 (Appendix D.5): speed and largest batch against the size of the images."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from vitkit.analysis.drawing import (
    BLUE,
    GREEN,
    GREY,
    SKY,
    VERMILION,
    WIDTH,
    add_legend,
    add_title,
    cut,
    shortened,
    styled,
)

COLOURS = (BLUE, VERMILION, GREEN, SKY, GREY)
MARKERS = "osD^v"

Points = Mapping[tuple[str, int], float]
"""Values by model and pixels a side."""


def throughput_figure(speeds: Points, batches: Points, device: str, precision: str) -> Figure:
    """Draw images per second of inference, and the largest batch of training, against the size of the images.

    Args:
        speeds: images per second.
        batches: images of the largest batch; may be empty.
        device, precision: that were measured, for the title.
    """
    panels = [(speeds, "images per second, inference")]
    sizes = sorted({size for _, size in speeds})
    if any(batches.values()):
        panels.append((batches, "largest batch, training"))
    with styled():
        figure = Figure((WIDTH * (1 if len(panels) == 2 else 0.6), 4.0), layout="constrained")
        models = list(dict.fromkeys(model for model, _ in speeds))
        for axes, (points, label) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            _draw(axes, points, models, sizes, points is speeds)
            axes.set(xlabel="image size in pixels", ylabel=label)
        add_title(figure, f"Speed by image size in {precision} on {cut(device, 60)}")
        add_legend(figure)
    return figure


def _draw(axes: Axes, points: Points, models: list[str], sizes: list[int], named: bool) -> None:
    """Draw one line for each model, on logarithmic axes; what is 0 has no place on them.

    Args:
        named: whether this is the panel by which the legend names the models.
    """
    for number, model in enumerate(models):
        line = sorted((size, value) for (name, size), value in points.items() if name == model and value > 0)
        axes.plot(
            [size for size, _ in line],
            [value for _, value in line],
            marker=MARKERS[number % len(MARKERS)],
            color=COLOURS[number % len(COLOURS)],
            label=shortened(model, 60) if named else "_",  # matplotlib leaves such a label out
        )
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(sizes[0] / 1.1, sizes[-1] * 1.1)  # the same in both panels
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))  # 0.5 and 20,000
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(True)
