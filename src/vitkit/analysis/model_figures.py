"""Draw a model's filters, positions and attention from arrays: the paper's Figures 6 and 7."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from vitkit.analysis import drawing

TILES_SHOWN = 14
"""The most tiles along a side of the position similarities; larger grids show every second or third."""
NARROWEST = 3.2
"""Narrowest figure in inches: its title must fit."""


def filter_grid(components: drawing.Floats, explained: drawing.Floats) -> Figure:
    """Draw the principal components of the filters that see the pixels (paper Figure 7, left).

    Args:
        components: `(n, p, q, 3)` in [0, 1].
        explained: `(n,)`, the fraction of the variance that each component explains.
    """
    columns = min(7, len(components)) or 1
    rows = -(-len(components) // columns) or 1
    size = max(0.95 * columns + 0.2, NARROWEST), 1.12 * rows + 0.5
    shape = {"nrows": rows, "ncols": columns, "squeeze": False}
    with drawing.chart(*size, "Filters that see the pixels", **shape) as (figure, grid):
        for axes in grid.flat:
            drawing.bare(axes)
        for axes, component, fraction in zip(grid.flat, components, explained, strict=False):
            axes.imshow(component, interpolation="none", vmin=0, vmax=1)
            axes.set_title(f"{fraction:.1%}", fontsize=8, fontweight="normal", loc="center", pad=2)
    return figure


def position_similarity_map(similarity: drawing.Floats) -> Figure:
    """Draw how similar the position embedding of each patch is to all others (paper Figure 7, centre).

    Args:
        similarity: `(R, C, R, C)` cosine similarities.
    """
    rows, columns = similarity.shape[:2]
    step = -(-max(rows, columns) // TILES_SHOWN)
    shown_rows, shown_columns = range(0, rows, step), range(0, columns, step)
    gap = max(1, round(0.12 * max(rows, columns)))
    mosaic = np.full(
        (len(shown_rows) * (rows + gap) - gap, len(shown_columns) * (columns + gap) - gap), np.nan, np.float32
    )
    for i, row in enumerate(shown_rows):
        for j, column in enumerate(shown_columns):
            top, left = i * (rows + gap), j * (columns + gap)
            mosaic[top : top + rows, left : left + columns] = similarity[row, column]
    height, width = (5.0 * length / max(mosaic.shape) for length in mosaic.shape)
    size = max(width + 1.6, NARROWEST), height + 0.8
    with drawing.chart(*size, "Similarity of position embeddings") as (figure, axes):
        lowest = min(0.0, float(similarity.min()))
        image = axes.imshow(mosaic, cmap="viridis", vmin=lowest, vmax=1, interpolation="none")
        colours = figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02)
        colours.set_label("cosine similarity")
        every = max(1, len(shown_rows) // 7), max(1, len(shown_columns) // 7)
        axes.set_yticks(
            [i * (rows + gap) + (rows - 1) / 2 for i in range(0, len(shown_rows), every[0])],
            [str(row + 1) for row in shown_rows[:: every[0]]],
        )
        axes.set_xticks(
            [j * (columns + gap) + (columns - 1) / 2 for j in range(0, len(shown_columns), every[1])],
            [str(column + 1) for column in shown_columns[:: every[1]]],
        )
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set(xlabel="patch column", ylabel="patch row")
    return figure


def attention_distance_plot(distances: drawing.Floats, even: float, data: str) -> Figure:
    """Plot every head's mean attention distance by depth (paper Figure 7, right).

    Args:
        distances: `(L, h)` in pixels.
        even: the distance of attention that is spread evenly, in pixels.
        data: the images as a phrase ("128 test images of 224 x 224 pixels"), for the title.
    """
    depth, heads = distances.shape
    layers = np.arange(1, depth + 1)
    with drawing.chart(drawing.WIDTH * 0.62, 3.8, f"Attention distance, {data}") as (figure, axes):
        axes.scatter(
            layers.repeat(heads), distances.ravel(), s=26, color=drawing.BLUE, alpha=0.6, linewidths=0
        )
        axes.scatter([], [], s=26, color=drawing.BLUE, linewidths=0, label=f"one of the {heads} heads")
        axes.plot(
            layers, distances.mean(1), color=drawing.VERMILION, linewidth=1.6, marker=".", label="their mean"
        )
        axes.axhline(even, color="black", linestyle="--", linewidth=1, label="attention spread evenly")
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))
        axes.set_xlim(0.5, depth + 0.5)
        axes.set_ylim(0, max(float(distances.max()), even) * 1.1 or 1)
        axes.grid(True)
        axes.set(xlabel="layer (1: nearest to the image)", ylabel="mean attention distance (pixels)")
    return figure


def rollout_gallery(
    images: Sequence[NDArray[np.uint8]], maps: drawing.Floats, captions: Sequence[str], columns: int = 4
) -> Figure:
    """Draw images next to the model's attention to their parts (paper Figure 6).

    Args:
        images: n of `(H, W, 3)`, as the model sees them.
        maps: `(n, R, C)` attention over the patches.
        captions: n lines.
        columns: pairs in a row.
    """
    pairs = []
    for small, heat in zip(images, maps, strict=True):
        image = drawing.enlarged(small, 128)
        white = np.full((len(image), max(1, image.shape[1] // 16), 3), 255, np.uint8)
        pairs.append(np.concatenate([image, white, heat_overlay(image, heat)], axis=1))
    columns = max(1, min(columns, len(pairs)))
    rows = max(1, -(-len(pairs) // columns))
    below = [drawing.wrapped(caption, 36) for caption in captions]
    lines = max((caption.count("\n") + 1 for caption in below), default=1)
    size = 2.45 * columns + 0.2, (1.3 + 0.15 * lines) * rows + 0.4
    shape = {"nrows": rows, "ncols": columns, "squeeze": False}
    with drawing.chart(*size, "Attention rollout", **shape) as (figure, grid):
        for axes in grid.flat:
            drawing.bare(axes)
        for axes, pair, caption in zip(grid.flat, pairs, below, strict=False):
            axes.imshow(pair, interpolation="none")
            axes.set_xlabel(caption, fontsize=7.5)
    return figure


def heat_overlay(image: NDArray[np.uint8], heat: drawing.Floats) -> NDArray[np.uint8]:
    """Lay a map over a grey version of a picture: dark blue its lowest value, yellow its highest.

    Args:
        image: `(H, W, 3)`
        heat: `(R, C)`, of any scale; enlarged bilinearly.

    Returns:
        `(H, W, 3)`
    """
    span = float(heat.max() - heat.min())
    scaled = (heat - heat.min()) / span if span > 0 else np.zeros_like(heat)
    size = (image.shape[1], image.shape[0])
    smooth = np.asarray(Image.fromarray(scaled.astype(np.float32)).resize(size, Image.Resampling.BILINEAR))
    colours = np.asarray(matplotlib.colormaps["viridis"](smooth.clip(0, 1)))[..., :3]
    grey = np.asarray(Image.fromarray(image).convert("L"), np.float32)[..., None] / 255
    blended: drawing.Floats = 255 * colours * (0.45 + 0.55 * grey)
    return blended.round().astype(np.uint8)


def picture_sheet(sheet: NDArray[np.uint8], rows: Sequence[str]) -> Figure:
    """Draw a sheet of pictures in rows, with the name of each row beside it.

    Args:
        sheet: `(H, W, 3)`, rows of equal height.
        rows: their names, from the top.
    """
    height, width = sheet.shape[:2]
    with drawing.chart(drawing.WIDTH, 1.1 * drawing.WIDTH * height / width + 0.1) as (figure, axes):
        drawing.bare(axes)
        axes.imshow(sheet, interpolation="none")
        middles = [(number + 0.5) * height / len(rows) for number in range(len(rows))]
        axes.set_yticks(middles, rows, rotation=90, va="center", fontsize=8)
        axes.tick_params(left=False, labelleft=True)
    return figure
