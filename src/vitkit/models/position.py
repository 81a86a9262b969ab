"""Position embeddings: where a token stands in the image (paper 3.1 and D.4).

The original adds one learned vector to each token, in raster order, the class token's first (paper eq. 1).
Appendix D.4 compares that with none, with learned 2-D ones and with relative ones; big_vision and MAE add
fixed sines and cosines; rotary positions turn queries and keys instead of being added. At the end are
the rules by which embeddings are resized between image sizes (3.2).

Shapes: R x C the grid of patches, N = R * C patches, P rows for the tokens before the patches, T = P + N
tokens, B images, h heads, d = head_dim, D = width.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models.config import Interpolation, PositionKind, RotaryConfig, ViTConfig


class Position(nn.Module):
    """Base of the position embeddings that are added to tokens.

    Args:
        grid: `(rows, columns)` of patches.
        width: D.
        prefix: P, the number of tokens before the patches (class token, registers) that have a position too.
    """

    def __init__(self, grid: tuple[int, int], width: int, prefix: int) -> None:
        super().__init__()
        self.grid, self.width, self.prefix_rows = grid, width, prefix

    def init_weights(self, generator: torch.Generator | None) -> None:
        """Draw new weights: normal with a deviation of 0.02, as the original does."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02, generator=generator)

    def forward(self) -> Tensor:
        """Give the embedding `(1, P + N, D)`, in raster order after the first P rows."""
        raise NotImplementedError

    def at(self, grid: tuple[int, int], interpolation: Interpolation = "original") -> Tensor:
        """Give the embedding on another grid, `(1, P + rows * columns, D)`, with gradients."""
        return resize_position_embedding(
            self(), grid, prefix_tokens=self.prefix_rows, old_grid=self.grid, interpolation=interpolation
        )


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
        """Resize parameters made for another grid to this one's (paper 3.2).

        Args:
            tensors: this module's parameters in a file, by name.
            old_grid: `(rows, columns)` of patches that they were made for.
            interpolation: the rule, one of `Interpolation`.

        Returns:
            The resized parameters by name.
        """
        prefix, embedding = self.prefix_rows, tensors["embedding"]
        resized = resize_position_embedding(
            embedding, self.grid, prefix_tokens=prefix, old_grid=old_grid, interpolation=interpolation
        )
        return {"embedding": resized}


class LearnedPosition2D(Position):
    """A learned vector of half the width for each column and for each row, concatenated (paper D.4)."""

    def __init__(self, grid: tuple[int, int], width: int, prefix: int) -> None:
        super().__init__(grid, width, prefix)
        # The column's half comes first, as in D.4's (X, Y); an odd width gives the row one number more.
        self.columns = nn.Parameter(torch.empty(grid[1], width // 2))
        self.rows = nn.Parameter(torch.empty(grid[0], width - width // 2))
        self.prefix = nn.Parameter(torch.empty(1, prefix, width)) if prefix else None

    def forward(self) -> Tensor:
        rows, columns = len(self.rows), len(self.columns)
        across = self.columns[None].expand(rows, -1, -1)  # (R, C, D / 2), the same in every row
        down = self.rows[:, None].expand(-1, columns, -1)  # (R, C, D / 2), the same in every column
        patches = torch.cat([across, down], dim=-1).reshape(1, rows * columns, -1)  # (1, N, D)
        return patches if self.prefix is None else torch.cat([self.prefix, patches], dim=1)

    def fit_positions(
        self, tensors: Mapping[str, Tensor], old_grid: tuple[int, int], interpolation: Interpolation
    ) -> dict[str, Tensor]:
        # The prefix does not depend on the grid, so it is taken as it is.
        return {
            "columns": resize_line(tensors["columns"], self.grid[1], interpolation),
            "rows": resize_line(tensors["rows"], self.grid[0], interpolation),
        }


class SinCosPosition2D(Position):
    """Fixed sines and cosines of column and row, on any grid, with the frequencies of `sincos_2d`."""

    embedding: Tensor

    def __init__(self, grid: tuple[int, int], width: int, kind: PositionKind) -> None:
        super().__init__(grid, width, prefix=0)  # neither big_vision nor MAE gives the class token a position
        self.kind = kind
        self.make_buffers()

    def make_buffers(self) -> None:
        """Compute the buffer, once more where the module was built without memory."""
        embedding = torch.empty(1, self.grid[0] * self.grid[1], self.width)
        # Not persistent: it follows from the sizes, and checkpoints of other libraries do not hold it.
        self.register_buffer("embedding", embedding, persistent=False)
        # On the meta device, where a model waits for its weights, arithmetic would load PyTorch's compiler.
        if not embedding.is_meta:
            self.embedding = sincos_2d(self.grid, self.width, self.kind).to(embedding.device)

    def forward(self) -> Tensor:
        return self.embedding

    def at(self, grid: tuple[int, int], interpolation: Interpolation = "original") -> Tensor:
        if grid == self.grid:
            return self.embedding
        return sincos_2d(grid, self.width, self.kind).to(self.embedding)


def make_positions(config: ViTConfig) -> Iterator[Position]:
    """Make the position embeddings of a configuration: none, one, or one for each layer."""
    grid, width, prefix = config.grid, config.width, config.prefix_positions
    for _ in range(config.depth if config.position_at == "every_layer" else 1):
        match config.position:
            case "learned":
                yield LearnedPosition(grid, width, prefix)
            case "learned_2d":
                yield LearnedPosition2D(grid, width, prefix)
            case "sincos_2d" | "sincos_2d_mae":
                yield SinCosPosition2D(grid, width, config.position)
            case "relative" | "relative_bias" | "none":  # relative positions are the attention's own
                return


class RotaryPosition2D(nn.Module):
    """Turns queries and keys by angles of their patch's row and column (Su et al. 2021, in two dimensions).

    Two numbers of a head make a pair, which is turned like a point in the plane. The product of a query with
    a key then depends on the difference of their positions alone.

    Args:
        grid: `(rows, columns)` of patches.
        head_dim: d, a multiple of 4.
        prefix_tokens: P, the first tokens, which are not turned.
        config: pairs, coordinates and temperature.
        registers: tokens between these and the patches, which are turned as a square grid of their own.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        grid: tuple[int, int],
        head_dim: int,
        prefix_tokens: int,
        config: RotaryConfig,
        registers: int = 0,
    ) -> None:
        super().__init__()
        self.grid, self.head_dim, self.prefix_tokens, self.config = grid, head_dim, prefix_tokens, config
        self.registers = registers
        self.make_buffers()

    def make_buffers(self) -> None:
        """Compute the buffers `(T - P, d)`, once more where the module was built without memory."""
        shape = (self.registers + self.grid[0] * self.grid[1], self.head_dim)
        for name in ("cos", "sin"):  # not persistent: they follow from the sizes
            self.register_buffer(name, torch.empty(shape), persistent=False)
        if not self.cos.is_meta:
            angles = rotary_angles(self.grid, self.head_dim, self.config)
            if self.registers and self.config.register_temperature is not None:
                own = replace(self.config, temperature=self.config.register_temperature, reference_grid=None)
                side = math.isqrt(self.registers)
                angles = torch.cat([rotary_angles((side, side), self.head_dim, own), angles])
            self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, x: Tensor) -> Tensor:
        """Turn queries or keys, `(B, h, T, d) -> (B, h, T, d)`; the first P stay as they are."""
        prefix, patches = x[..., : self.prefix_tokens, :], x[..., self.prefix_tokens :, :]
        # A pair (a, b) becomes (a cos - b sin, b cos + a sin): itself times cos, and (-b, a) times sin. The
        # pairs are neighbours (0, 1), (2, 3), ..., or number i of the first half with i of the second.
        if self.config.pairs == "interleaved":
            turned = torch.stack([-patches[..., 1::2], patches[..., ::2]], dim=-1).flatten(-2)
        else:
            first, second = patches.chunk(2, dim=-1)
            turned = torch.cat([-second, first], dim=-1)
        # Under autocast x is bfloat16 and the angles are float32: rounded once, after the sum.
        patches = (patches * self.cos + turned * self.sin).to(x.dtype)
        return torch.cat([prefix, patches], dim=-2) if self.prefix_tokens else patches


def rotary_angles(grid: tuple[int, int], head_dim: int, config: RotaryConfig) -> Tensor:
    """Compute the angle by which each number of a head turns, `(N, d)`, in radians.

    Follows timm's `pos_embed_sincos.py`, whose float32 arithmetic it repeats step by step: that is why the
    two kinds of coordinates divide and multiply in different orders.
    """
    # A quarter of the head's numbers for each of two axes: half of them in either member of the pairs.
    exponents = torch.arange(head_dim // 4, dtype=torch.float32) / (head_dim // 4)
    if config.coordinates == "patches":
        axes = [torch.arange(size, dtype=torch.float32) + config.offset for size in grid]
        # EVA-02 counts in patches of the grid it was pre-trained on: a finer grid has steps below one.
        if config.reference_grid is not None:
            sizes = zip(axes, grid, config.reference_grid, strict=True)
            axes = [axis / size * reference for axis, size, reference in sizes]
    else:  # DINOv3: centres of patches, from -1 at one edge of the image to 1 at the other
        axes = [2.0 * ((torch.arange(size, dtype=torch.float32) + 0.5) / size) - 1.0 for size in grid]
    positions = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 1)  # (N, 2): row, column
    if config.first == "column":
        positions = positions.flip(-1)
    if config.coordinates == "patches":
        angles = positions[:, :, None] * (1.0 / config.temperature**exponents)  # (N, 2, d / 4)
    else:
        angles = 2 * math.pi * positions[:, :, None] / config.temperature**exponents  # (N, 2, d / 4)
    angles = angles.flatten(1)  # (N, d / 2): of one axis, then of the other
    # Both members of a pair turn by one angle.
    if config.pairs == "interleaved":
        return angles.repeat_interleave(2, dim=-1)
    return angles.repeat(1, 2)


def sincos_2d(grid: tuple[int, int], width: int, kind: PositionKind) -> Tensor:
    """Compute sines and cosines of each patch's column, then of its row, `(1, N, D)`, in float32.

    Args:
        grid: `(rows, columns)` of patches.
        width: D.
        kind: `sincos_2d_mae` for frequencies from 1 to nearly 1 / 10,000, as Vaswani et al. 2017 and MAE
            (`util/pos_embed.py`) have them; else to 1 / 10,000 itself (big_vision `models/vit.py:34-44`).

    Raises:
        VitkitError: the width cannot be cut into four.
    """
    if width % 4 or width < 8:
        raise VitkitError(f"Sine-cosine positions need a width divisible by 4, of at least 8, found {width}.")
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    # big_vision's exponents go from 0 to 1 with both ends, hence the - 1 (and so a width of at least 8). In
    # float64, rounded once, at the end.
    last = width // 4 if kind == "sincos_2d_mae" else width // 4 - 1
    frequencies = 10_000.0 ** -(torch.arange(width // 4, dtype=torch.float64) / last)
    across = columns.flatten().double()[:, None] * frequencies  # (N, D / 4)
    down = rows.flatten().double()[:, None] * frequencies  # (N, D / 4)
    parts = [across.sin(), across.cos(), down.sin(), down.cos()]  # each (N, D / 4)
    return torch.cat(parts, dim=1)[None].float()


def relative_logits(queries: Tensor, table: Tensor) -> Tensor:
    """Compute the logits that 1-D relative attention adds before the softmax (paper D.4).

    Args:
        queries: `(B, h, T, d)`.
        table: `(2T - 1, d)`, an embedding of every offset p_q - p_k from -(T - 1) to T - 1.

    Returns:
        `(B, h, T, T)`: query content times the embedding of the offset, over the square root of d.
    """
    tokens, head_dim = queries.shape[-2:]
    # The product with every offset at once, from which each pair of tokens takes its own: `(T, T, d)`
    # embeddings of all pairs are never made.
    by_offset = queries @ table.T / math.sqrt(head_dim)  # (B, h, T, 2T - 1)
    index = torch.arange(tokens, device=queries.device)
    offset = index[:, None] - index[None, :] + tokens - 1  # (T, T), from 0: rows of the table
    return by_offset.gather(-1, offset.expand(*by_offset.shape[:-1], -1))  # (B, h, T, T)


def offset_places(grid: tuple[int, int], prefix_tokens: int) -> Tensor:
    """Number the offsets of each query from each key, `(T, T)` int32: rows of a table of biases (BEiT).

    Offsets are counted row by row from the most negative one. Behind them stand three numbers for the tokens
    before the patches: as query, as key, as both.

    Args:
        grid: `(rows, columns)` of patches.
        prefix_tokens: tokens before the patches.
    """
    rows, columns = (axis.flatten() for axis in torch.meshgrid(*map(torch.arange, grid), indexing="ij"))
    down = rows[:, None] - rows[None, :] + grid[0] - 1  # (N, N), from 0
    right = columns[:, None] - columns[None, :] + grid[1] - 1
    offsets = (2 * grid[0] - 1) * (2 * grid[1] - 1)
    places = torch.empty((prefix_tokens + len(rows),) * 2, dtype=torch.int32)
    places[prefix_tokens:, prefix_tokens:] = down * (2 * grid[1] - 1) + right
    places[:prefix_tokens] = offsets
    places[:, :prefix_tokens] = offsets + 1
    places[:prefix_tokens, :prefix_tokens] = offsets + 2
    return places


def resize_offsets(
    table: Tensor,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    extra: int,
    interpolation: Interpolation = "original",
) -> Tensor:
    """Resize a table of biases of offsets in a grid to those in another grid.

    By timm's rule (`resize_rel_pos_bias_table` in `pos_embed_rel.py`, after BEiT's authors), the old offsets
    stand for a geometric series that reaches as far as the new ones: near offsets keep their biases. All
    other rules do as transformers does, and spread the old offsets evenly. Both are linear in between.

    Args:
        table: `(offsets + extra, h)`.
        old_grid, new_grid: `(rows, columns)` of patches.
        extra: last rows, which stay as they are.
        interpolation: the rule.

    Returns:
        `(new offsets + extra, h)`; the same bits if the grid stays.
    """
    if old_grid == new_grid:
        return table
    old, new = ((2 * rows - 1, 2 * columns - 1) for rows, columns in (old_grid, new_grid))
    offsets, rest = table[: len(table) - extra], table[len(table) - extra :]
    grid = offsets.reshape(*old, -1).double()
    if interpolation == "timm":
        down, right = (_series_weights(*sizes) for sizes in zip(old, new, strict=True))
        resized = torch.einsum("ar,bc,rch->abh", down, right, grid)
    else:
        resized = F.interpolate(grid.permute(2, 0, 1)[None], size=new, mode="bilinear")[0].permute(1, 2, 0)
    return torch.cat([resized.flatten(0, 1).to(table.dtype), rest])


def _series_weights(old: int, new: int) -> Tensor:
    """Weigh old offsets, in a geometric series, for each new one, `(new, old)`; both lengths are odd."""
    low, high, ratio = 1.01, 1.5, 1.01
    while high - low > 1e-6:  # timm's bounds and precision
        ratio = (low + high) / 2
        reaches = (1 - ratio ** (old // 2)) / (1 - ratio) > new // 2
        low, high = (low, ratio) if reaches else (ratio, high)
    steps = torch.tensor([ratio**step for step in range(old // 2)], dtype=torch.float64).cumsum(0)
    series = torch.cat([-steps.flip(0), steps.new_zeros(1), steps])
    offsets = torch.arange(new, dtype=torch.float64) - new // 2
    right = torch.bucketize(offsets, series).clamp(1, max(old - 1, 1)).clamp(max=old - 1)
    left = (right - 1).clamp(min=0)
    # Beyond the ends of the series its last bias holds.
    share = ((offsets - series[left]) / (series[right] - series[left]).clamp(min=1e-9)).clamp(0, 1)
    weights = torch.zeros(new, old, dtype=torch.float64)
    rows = torch.arange(new)
    weights[rows, left] = 1 - share
    weights[rows, right] += share
    return weights


def resize_grid(
    grid: Tensor, new_shape: tuple[int, int], interpolation: Interpolation = "original"
) -> Tensor:
    """Resize a grid of position embeddings.

    The original's rule is bilinear with aligned corners, for which vision_transformer `checkpoint.py:178-188`
    and big_vision call `scipy.ndimage.zoom(order=1)`; here it holds for rectangular grids too. At some pairs
    of sizes (28 to 14, 16 to 30, 24 to 42) scipy's last coordinate overshoots by a rounding error, and its
    last row and column are zeros, in the original as well. Here they are the grid's own: a departure on
    purpose.

    The others are bicubic, but for timm's of FlexiViT. timm antialiases (`layers/pos_embed.py`), and so do
    open_clip (`resize_pos_embed`) and DINOv2's models with registers. Hugging Face does not
    (`interpolate_pos_encoding` of ViT and DINOv2), nor do DINO and DINOv2 without registers, which compute
    the coordinates from sizes that are a tenth of a patch larger. torchvision aligns the corners
    (`interpolate_embeddings`).

    Args:
        grid: `(rows, columns, D)`, one vector per patch.
        new_shape: `(rows, columns)` of the new grid.
        interpolation: the rule.

    Returns:
        `(new_rows, new_columns, D)`.
    """
    # In float64: in float32 the interpolation's own coordinates are off by 3e-6.
    channels_first = grid.permute(2, 0, 1)[None].double()  # (1, D, rows, columns)
    if interpolation in ("original", "torchvision"):
        mode = "bilinear" if interpolation == "original" else "bicubic"
        resized = F.interpolate(channels_first, size=new_shape, mode=mode, align_corners=True)
    elif interpolation == "dinov2":
        # 0.1 kept a rounding error from losing a row (DINO `vision_transformer.py`, `interpolate_offset` in
        # DINOv2), and the weights were trained with the coordinates that it moves.
        rows, columns = ((new + 0.1) / old for new, old in zip(new_shape, grid.shape[:2], strict=True))
        resized = F.interpolate(channels_first, scale_factor=(rows, columns), mode="bicubic")
    else:
        mode, antialias = "bilinear" if interpolation == "flexivit" else "bicubic", interpolation == "timm"
        resized = F.interpolate(channels_first, size=new_shape, mode=mode, antialias=antialias)
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
    old_grid: tuple[int, int],
    interpolation: Interpolation = "original",
) -> Tensor:
    """Resize a position embedding to another grid of patches; the rows before the grid stay as they are.

    Args:
        embedding: `(1, prefix_tokens + rows * columns, D)`.
        new_grid: `(rows, columns)` of the new grid.
        prefix_tokens: rows before the grid: 1 with a class token that has a position, else 0.
        old_grid: `(rows, columns)` of the old grid.
        interpolation: the rule.

    Returns:
        `(1, prefix_tokens + new_rows * new_columns, D)`; the same bits if the grid stays.
    """
    if old_grid == new_grid:
        return embedding
    prefix, patches = embedding[0, :prefix_tokens], embedding[0, prefix_tokens:]
    resized = resize_grid(patches.reshape(*old_grid, -1), new_grid, interpolation)
    return torch.cat([prefix, resized.flatten(0, 1)])[None]
