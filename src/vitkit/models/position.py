"""Position embeddings: where a token stands in the image (paper 3.1 and D.4), and how they are resized.

The original adds one learned vector to each token, in raster order, the class token's first (paper eq. 1).
Appendix D.4 compares that with none, with learned 2-D ones and with relative ones; big_vision adds fixed
sines and cosines. Between image sizes the grid of vectors is resized in 2-D (paper 3.2).

Shapes: R x C the grid of patches, N = R * C, P rows before those of the grid, T tokens, D = width.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError

Interpolation = Literal["original", "bicubic"]
"""`original`: bilinear with the corners aligned and no antialiasing, the authors' rule. `bicubic`: with
antialiasing and half-pixel centres, timm's rule."""


class LearnedPosition(nn.Module):
    """One learned vector for each token (paper eq. 1)."""

    def __init__(self, grid: tuple[int, int], width: int, prefix: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(1, prefix + grid[0] * grid[1], width))

    def init_weights(self, generator: torch.Generator | None) -> None:
        nn.init.normal_(self.embedding, std=0.02, generator=generator)

    def forward(self) -> Tensor:
        """`(1, P + N, D)`."""
        return self.embedding


class LearnedPosition2D(nn.Module):
    """A learned vector of half the width for each column and for each row, concatenated (paper D.4)."""

    def __init__(self, grid: tuple[int, int], width: int, prefix: int) -> None:
        super().__init__()
        self.columns = nn.Parameter(torch.empty(grid[1], width // 2))
        self.rows = nn.Parameter(torch.empty(grid[0], width - width // 2))
        self.prefix = nn.Parameter(torch.empty(1, prefix, width)) if prefix else None

    def init_weights(self, generator: torch.Generator | None) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02, generator=generator)

    def forward(self) -> Tensor:
        """`(1, P + N, D)`."""
        rows, columns = len(self.rows), len(self.columns)
        across = self.columns[None].expand(rows, -1, -1)
        down = self.rows[:, None].expand(-1, columns, -1)
        patches = torch.cat([across, down], dim=-1).reshape(1, rows * columns, -1)
        return patches if self.prefix is None else torch.cat([self.prefix, patches], dim=1)


class SinCosPosition2D(nn.Module):
    """Fixed sines and cosines of column and row, on any grid (big_vision `models/vit.py:34-44`)."""

    embedding: Tensor

    def __init__(self, grid: tuple[int, int], width: int) -> None:
        super().__init__()
        self.grid, self.width = grid, width
        self.compute()

    def compute(self) -> None:
        """Make the numbers, once more where the module was built without memory."""
        embedding = torch.empty(1, self.grid[0] * self.grid[1], self.width)
        self.register_buffer("embedding", embedding, persistent=False)
        if not embedding.is_meta:
            self.embedding = sincos_2d(self.grid, self.width).to(embedding.device)

    def init_weights(self, generator: torch.Generator | None) -> None:
        """Nothing is learned."""

    def forward(self) -> Tensor:
        """`(1, N, D)`."""
        return self.embedding


def sincos_2d(grid: tuple[int, int], width: int, temperature: float = 10_000.0) -> Tensor:
    """Sines and cosines of each patch's column, then of its row, `(1, N, D)`, in float32.

    Raises:
        VitkitError: the width cannot be cut into four.
    """
    if width % 4 or width < 8:
        raise VitkitError(f"Sine-cosine positions need a width divisible by 4, of at least 8, found {width}.")
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    exponents = torch.arange(width // 4, dtype=torch.float64) / (width // 4 - 1)
    frequencies = temperature**-exponents
    across = columns.flatten().double()[:, None] * frequencies
    down = rows.flatten().double()[:, None] * frequencies
    parts = [across.sin(), across.cos(), down.sin(), down.cos()]  # each (N, D / 4)
    return torch.cat(parts, dim=1)[None].float()


def relative_logits(queries: Tensor, table: Tensor) -> Tensor:
    """What 1-D relative attention adds to the attention's logits before the softmax (paper D.4).

    Args:
        queries: `(B, h, T, d)`.
        table: `(2T - 1, d)`, an embedding of every offset p_q - p_k from -(T - 1) to T - 1.

    Returns:
        `(B, h, T, T)`: query content times the embedding of the offset, over the square root of d.
    """
    tokens, head_dim = queries.shape[-2:]
    by_offset = queries @ table.T / math.sqrt(head_dim)  # (B, h, T, 2T - 1)
    place = torch.arange(tokens, device=queries.device)
    offset = place[:, None] - place[None, :] + tokens - 1  # (T, T)
    return by_offset.gather(-1, offset.expand(*by_offset.shape[:-1], -1))


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
