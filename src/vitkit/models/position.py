"""Position embeddings: where a token stands in the image (paper 3.1 and D.4).

The original adds one learned vector to each token, in raster order, the class token's first (paper eq. 1).
Appendix D.4 compares that with none, with learned 2-D ones and with relative ones; big_vision adds fixed
sines and cosines. How they are resized between image sizes
stands in `resize.py`.

Shapes: R x C the grid of patches, N = R * C, P rows before those of the grid, T tokens, D = width.
"""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models.resize import resize_grid as resize_grid
from vitkit.models.resize import resize_line as resize_line
from vitkit.models.resize import resize_position_embedding as resize_position_embedding
from vitkit.models.vit_config import Interpolation as Interpolation
from vitkit.models.vit_config import RotaryConfig, ViTConfig


class Position(nn.Module):
    """Base of the position embeddings that are added to tokens.

    Args:
        grid: `(rows, columns)` of patches.
        width: D.
        prefix: P, the number of tokens before the patches that have a position too.
    """

    def __init__(self, grid: tuple[int, int], width: int, prefix: int) -> None:
        super().__init__()
        self.grid, self.width, self.prefix_rows = grid, width, prefix

    def init_weights(self, generator: torch.Generator | None) -> None:
        """Draw new weights: normal with a deviation of 0.02, as the original does."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02, generator=generator)

    def forward(self) -> Tensor:
        """`(1, P + N, D)`, in raster order after the first P."""
        raise NotImplementedError

    def at(self, grid: tuple[int, int], interpolation: Interpolation = "original") -> Tensor:
        """Give what `forward` would on another grid: `(1, P + rows * columns, D)`, with gradients."""
        if grid == self.grid:
            return self()  # type: ignore[no-any-return]
        embedding = self()
        return resize_position_embedding(
            embedding,
            grid,
            prefix_tokens=self.prefix_rows,
            old_grid=self.grid,
            interpolation=interpolation,
        )

    def fit_positions(
        self, tensors: Mapping[str, Tensor], old_grid: tuple[int, int], interpolation: Interpolation
    ) -> dict[str, Tensor]:
        """Resize parameters made for another grid to this one's; what is computed is in no file."""
        return {}


class LearnedPosition(Position):
    """One learned vector for each token (paper eq. 1)."""

    def __init__(self, grid: tuple[int, int], width: int, prefix: int) -> None:
        super().__init__(grid, width, prefix)
        self.embedding = nn.Parameter(torch.empty(1, prefix + grid[0] * grid[1], width))

    def forward(self) -> Tensor:
        return self.embedding

    def fit_positions(
        self, tensors: Mapping[str, Tensor], old_grid: tuple[int, int], interpolation: Interpolation
    ) -> dict[str, Tensor]:
        resized = resize_position_embedding(
            tensors["embedding"],
            self.grid,
            prefix_tokens=self.prefix_rows,
            old_grid=old_grid,
            interpolation=interpolation,
        )
        return {"embedding": resized}


class LearnedPosition2D(Position):
    """A learned vector of half the width for each column and for each row, concatenated (paper D.4)."""

    def __init__(self, grid: tuple[int, int], width: int, prefix: int) -> None:
        super().__init__(grid, width, prefix)
        self.columns = nn.Parameter(torch.empty(grid[1], width // 2))
        self.rows = nn.Parameter(torch.empty(grid[0], width - width // 2))
        self.prefix = nn.Parameter(torch.empty(1, prefix, width)) if prefix else None

    def forward(self) -> Tensor:
        rows, columns = len(self.rows), len(self.columns)
        across = self.columns[None].expand(rows, -1, -1)
        down = self.rows[:, None].expand(-1, columns, -1)
        patches = torch.cat([across, down], dim=-1).reshape(1, rows * columns, -1)
        return patches if self.prefix is None else torch.cat([self.prefix, patches], dim=1)

    def fit_positions(
        self, tensors: Mapping[str, Tensor], old_grid: tuple[int, int], interpolation: Interpolation
    ) -> dict[str, Tensor]:
        return {
            "columns": resize_line(tensors["columns"], self.grid[1], interpolation),
            "rows": resize_line(tensors["rows"], self.grid[0], interpolation),
        }


class SinCosPosition2D(Position):
    """Fixed sines and cosines of column and row, on any grid (big_vision `models/vit.py:34-44`)."""

    embedding: Tensor

    def __init__(self, grid: tuple[int, int], width: int) -> None:
        super().__init__(grid, width, prefix=0)
        self.compute()

    def compute(self) -> None:
        """Compute the buffer, once more where the module was built without memory."""
        embedding = torch.empty(1, self.grid[0] * self.grid[1], self.width)
        self.register_buffer("embedding", embedding, persistent=False)
        if not embedding.is_meta:
            self.embedding = sincos_2d(self.grid, self.width).to(embedding.device)

    def forward(self) -> Tensor:
        return self.embedding

    def at(self, grid: tuple[int, int], interpolation: Interpolation = "original") -> Tensor:
        return self.embedding if grid == self.grid else sincos_2d(grid, self.width).to(self.embedding)


def make_positions(config: ViTConfig) -> Iterator[Position]:
    """Make the position embeddings of a configuration: none, one, or one for each layer."""
    grid, width, prefix = config.grid, config.width, config.prefix_positions
    for _ in range(config.depth if config.position_at == "every_layer" else 1):
        match config.position:
            case "learned":
                yield LearnedPosition(grid, width, prefix)
            case "learned_2d":
                yield LearnedPosition2D(grid, width, prefix)
            case "sincos_2d":
                yield SinCosPosition2D(grid, width)
            case "relative" | "none":  # relative positions are the attention's own
                return


class RotaryPosition2D(nn.Module):
    """Turns queries and keys by angles of their patch's row and column (Su et al. 2021, in two dimensions).

    Args:
        grid: `(rows, columns)` of patches.
        head_dim: d, a multiple of 4.
        prefix_tokens: P, tokens before the patches, which are not turned.
        config: pairs, coordinates and temperature.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self, grid: tuple[int, int], head_dim: int, prefix_tokens: int, config: RotaryConfig
    ) -> None:
        super().__init__()
        self.grid, self.head_dim, self.prefix_tokens, self.config = grid, head_dim, prefix_tokens, config
        self.compute()

    def compute(self) -> None:
        """Compute the buffers `(N, d)`, once more where the module was built without memory."""
        shape = (self.grid[0] * self.grid[1], self.head_dim)
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(shape), persistent=False)
        if not self.cos.is_meta:
            angles = rotary_angles(self.grid, self.head_dim, self.config)
            self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, x: Tensor) -> Tensor:
        """`(B, h, P + N, d) -> (B, h, P + N, d)`."""
        prefix, patches = x[..., : self.prefix_tokens, :], x[..., self.prefix_tokens :, :]
        if self.config.pairs == "interleaved":
            turned = torch.stack([-patches[..., 1::2], patches[..., ::2]], dim=-1).flatten(-2)
        else:
            first, second = patches.chunk(2, dim=-1)
            turned = torch.cat([-second, first], dim=-1)
        patches = (patches * self.cos + turned * self.sin).to(x.dtype)
        return torch.cat([prefix, patches], dim=-2) if self.prefix_tokens else patches


def rotary_angles(grid: tuple[int, int], head_dim: int, config: RotaryConfig) -> Tensor:
    """Give the angle by which each number of a head turns, `(N, d)`, in radians.

    Follows timm's `pos_embed_sincos.py`, whose float32 arithmetic it repeats step by step.
    """
    exponents = torch.arange(head_dim // 4, dtype=torch.float32) / (head_dim // 4)
    if config.coordinates == "patches":
        axes = [torch.arange(size, dtype=torch.float32) for size in grid]
        if config.reference_grid is not None:
            axes = [
                axis / size * reference
                for axis, size, reference in zip(axes, grid, config.reference_grid, strict=True)
            ]
    else:
        axes = [2.0 * ((torch.arange(size, dtype=torch.float32) + 0.5) / size) - 1.0 for size in grid]
    positions = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 1)  # (N, 2)
    if config.first == "column":
        positions = positions.flip(-1)
    if config.coordinates == "patches":
        angles = positions[:, :, None] * (1.0 / config.temperature**exponents)
    else:
        angles = 2 * math.pi * positions[:, :, None] / config.temperature**exponents
    angles = angles.flatten(1)  # (N, d / 2): of one axis, then of the other
    if config.pairs == "interleaved":
        return angles.repeat_interleave(2, dim=-1)
    return angles.repeat(1, 2)


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
