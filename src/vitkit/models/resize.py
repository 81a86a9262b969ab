"""The rules by which position embeddings are resized between image sizes, in 2-D (paper 3.2)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.models.vit_config import Interpolation


def resize_grid(
    grid: Tensor, new_shape: tuple[int, int], interpolation: Interpolation = "original"
) -> Tensor:
    """Resize a grid of position embeddings.

    The original's rule is bilinear with aligned corners, for which vision_transformer `checkpoint.py:178-188`
    asks `scipy.ndimage.zoom(order=1)`; here it holds for rectangular grids too. At some pairs of sizes (28 to
    14, 16 to 30, 24 to 42) scipy's last coordinate overshoots by a rounding error, and its last row and
    column are zeros, in the original as well. Here they are those of the grid: a departure on purpose.

    Args:
        grid: `(rows, columns, D)`, one vector per patch.
        new_shape: `(rows, columns)` of the new grid.
        interpolation: the rule.

    Returns:
        `(new_rows, new_columns, D)`.
    """
    # In float64: in float32 the interpolation's own coordinates are off by more than the original's.
    channels_first = grid.permute(2, 0, 1)[None].double()  # (1, D, rows, columns)
    if interpolation == "original":
        resized = F.interpolate(channels_first, size=new_shape, mode="bilinear", align_corners=True)
    else:
        resized = F.interpolate(channels_first, size=new_shape, mode="bicubic", antialias=True)
    return resized[0].permute(1, 2, 0).to(grid.dtype)


def resize_line(line: Tensor, new_length: int, interpolation: Interpolation = "original") -> Tensor:
    """Resize vectors along one axis, `(length, D) -> (new_length, D)`, by the same rules.

    A table of relative offsets keeps its centre, the offset zero, and its ends.
    """
    return resize_grid(line[:, None], (new_length, 1), interpolation)[:, 0]


def resize_position_embedding(
    embedding: Tensor,
    new_grid: tuple[int, int],
    *,
    prefix_tokens: int,
    old_grid: tuple[int, int] | None = None,
    interpolation: Interpolation = "original",
) -> Tensor:
    """Resize a position embedding to another grid of patches; the class token's own row is kept.

    Args:
        embedding: `(1, prefix_tokens + rows * columns, D)`.
        new_grid: `(rows, columns)` of the new grid.
        prefix_tokens: rows before the grid: 1 with a class token that has a position, else 0.
        old_grid: `(rows, columns)` of the old grid; left out, it is taken to be square.
        interpolation: the rule.

    Returns:
        `(1, prefix_tokens + new_rows * new_columns, D)`; the same bits if the grid stays.

    Raises:
        VitkitError: the number of rows is not that of `old_grid`, or of any square grid.
    """
    prefix, patches = embedding[0, :prefix_tokens], embedding[0, prefix_tokens:]
    side = round(len(patches) ** 0.5)
    rows, columns = old_grid or (side, side)
    if rows * columns != len(patches):
        shape = f"{rows}x{columns}" if old_grid else "square"
        raise VitkitError(
            f"Expected position embeddings for a {shape} grid of patches, found {len(patches)} of them "
            f"(and {prefix_tokens} before the grid). Say which image size the weights were made for."
        )
    if (rows, columns) == new_grid:
        return embedding
    resized = resize_grid(patches.reshape(rows, columns, -1), new_grid, interpolation)
    return torch.cat([prefix, resized.flatten(0, 1)])[None]
