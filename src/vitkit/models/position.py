"""Position embeddings: where a token stands in the image.

The original adds one learned vector to each token, in raster order, the class token's first
(paper eq. 1). Between image sizes the grid of vectors is resized in 2-D (paper 3.2).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.errors import VitkitError


def resize_grid(grid: Tensor, new_shape: tuple[int, int]) -> Tensor:
    """Resize a grid of position embeddings as the original does.

    Bilinear with the corners aligned and no antialiasing: what `scipy.ndimage.zoom(order=1)` does in
    vision_transformer `checkpoint.py:178-188`, for rectangular grids too.

    Args:
        grid: `(rows, columns, D)`, one vector per patch.
        new_shape: `(rows, columns)` of the new grid.

    Returns:
        `(new_rows, new_columns, D)`.
    """
    # In float64: in float32 the interpolation's own coordinates are off by more than the original's.
    channels_first = grid.permute(2, 0, 1)[None].double()  # (1, D, rows, columns)
    resized = F.interpolate(channels_first, size=new_shape, mode="bilinear", align_corners=True)
    return resized[0].permute(1, 2, 0).to(grid.dtype)


def resize_position_embedding(
    embedding: Tensor,
    new_grid: tuple[int, int],
    *,
    prefix_tokens: int,
    old_grid: tuple[int, int] | None = None,
) -> Tensor:
    """Resize a position embedding to another grid of patches; the class token's own row is kept.

    Args:
        embedding: `(1, prefix_tokens + rows * columns, D)`.
        new_grid: `(rows, columns)` of the new grid.
        prefix_tokens: rows before the grid: 1 with a class token that has a position, else 0.
        old_grid: `(rows, columns)` of the old grid; left out, it is taken to be square.

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
            f"(and {prefix_tokens} for the class token). Say which image size the weights were made for."
        )
    if (rows, columns) == new_grid:
        return embedding
    resized = resize_grid(patches.reshape(rows, columns, -1), new_grid)
    return torch.cat([prefix, resized.flatten(0, 1)])[None]
