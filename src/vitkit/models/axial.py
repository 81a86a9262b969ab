"""Axial attention (paper D.6), along rows and then along columns: in a ViT's blocks, and in a ResNet in place
of its 3x3 convolutions.

The ResNet's is after Axial-DeepLab (Wang et al. 2020, arXiv 2003.07853, section 3.2 and its public code
`axialnet.py`): the paper's authors did not release theirs.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models.config import Interpolation
from vitkit.models.image_model import Taps, lecun_normal
from vitkit.models.parts import Block
from vitkit.models.position import resize_line
from vitkit.text import format_size

GROUPS = 32
"""Groups of the norms in a ResNet, as many as around them."""


class AxialBlock(nn.Module):
    """Row attention and MLP, then column attention and MLP: two of ViT's blocks, called as one of them.

    Tokens are the grid's, in raster order. A class token would belong to no row and no column, so axial
    models pool by the mean. Each of the two has an MLP of its own, so an encoder has twice the parameters of
    ViT's, as D.6 says.

    Args:
        grid: `(rows, columns)` of the tokens.
        rows, columns: the two blocks.
    """

    def __init__(self, grid: tuple[int, int], rows: Block, columns: Block) -> None:
        super().__init__()
        self.grid = grid
        self.rows = rows
        self.columns = columns

    def init_weights(self, generator: torch.Generator | None) -> None:
        self.rows.init_weights(generator)
        self.columns.init_weights(generator)

    def forward(
        self, x: Tensor, taps: Taps | None = None, name: str = "", attention_taps: bool = False
    ) -> Tensor:
        """`(B, R*C, D) -> (B, R*C, D)`.

        Args:
            x: tokens of a grid of R rows and C columns.
            taps: receives the taps of the two blocks, `{name}/rows/...` and `{name}/columns/...`, each
                `(B, R*C, D)`.
            name: the block's name in the taps.
            attention_taps: refused; axial attention has no matrix of all tokens by all tokens.

        Raises:
            VitkitError: `attention_taps` is set, or the grid has another number of tokens.
        """
        if attention_taps:
            raise VitkitError(
                "Axial models have row attention and column attention, and no single token-by-token matrix: "
                "attention weights cannot be given."
            )
        rows, columns = self.grid
        batch, tokens, width = x.shape
        if tokens != rows * columns:
            raise VitkitError(
                f"Axial attention takes the tokens of a {format_size(self.grid)} grid alone, found {tokens}: "
                'leave out the class token (pool="mean").'
            )
        row_taps: Taps | None = None if taps is None else {}
        column_taps: Taps | None = None if taps is None else {}

        x = x.reshape(batch * rows, columns, width)
        x = self.rows(x, row_taps, f"{name}/rows")
        x = x.reshape(batch, rows, columns, width).transpose(1, 2).reshape(batch * columns, rows, width)
        x = self.columns(x, column_taps, f"{name}/columns")
        x = x.reshape(batch, columns, rows, width).transpose(1, 2).reshape(batch, tokens, width)

        # Taps are in raster order everywhere, whatever the order that the blocks computed in.
        if taps is not None and row_taps is not None and column_taps is not None:
            for key, value in row_taps.items():
                taps[key] = value.reshape(batch, tokens, width)
            for key, value in column_taps.items():
                by_column = value.reshape(batch, columns, rows, width)
                taps[key] = by_column.transpose(1, 2).reshape(batch, tokens, width)
        return x


class RelativeAttention(nn.Module):
    """Multi-head attention along lines of n positions, aware of the distance between query and key.

    For query i and key j, with learned embeddings r of their offset j - i, shared by all heads (equation 4)::

        similarity = q_i . k_j + q_i . rq_(j-i) + k_j . rk_(j-i)
        output_i   = sum over j of softmax_j(similarity) (v_j + rv_(j-i))

    Queries and keys have half as many channels as values, as there. There, batch norms stand after the
    projection, on each of the similarity's three terms (and so in place of a division by the square root of
    the channels) and on each of the output's two; here GroupNorms do.

    Args:
        channels: C, of input and output; a multiple of 16, so that 32 groups divide 2C equally.
        num_heads: h; divides C/2 channels equally.
        positions: n, of a line.
        eps: of the norms.
    """

    def __init__(self, channels: int, num_heads: int, positions: int, eps: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        values = channels // num_heads
        queries = values // 2
        self.qkv = nn.Conv2d(channels, 2 * channels, 1, bias=False)
        self.norm_qkv = nn.GroupNorm(GROUPS, 2 * channels, eps)
        # One for each term of the similarity: all heads are one group, so that some stay sharper than others.
        self.norm_content = nn.GroupNorm(1, num_heads, eps)
        self.norm_query = nn.GroupNorm(1, num_heads, eps)
        self.norm_key = nn.GroupNorm(1, num_heads, eps)
        # One for each term of the output, with half of the groups each: no group spans both.
        self.norm_value = nn.GroupNorm(GROUPS // 2, channels, eps)
        self.norm_place = nn.GroupNorm(GROUPS // 2, channels, eps)
        # Row n - 1 is the offset 0, the rows before it are keys to the left of (or above) their query.
        offsets = 2 * positions - 1
        self.relative_query = nn.Parameter(torch.empty(offsets, queries))
        self.relative_key = nn.Parameter(torch.empty(offsets, queries))
        self.relative_value = nn.Parameter(torch.empty(offsets, values))

    def init_weights(self, generator: torch.Generator | None) -> None:
        lecun_normal(self.qkv.weight, self.qkv.in_channels, generator)
        for norm in self.children():
            if isinstance(norm, nn.GroupNorm):
                norm.reset_parameters()
        std = 1 / math.sqrt(self.relative_value.shape[1])
        for table in (self.relative_query, self.relative_key, self.relative_value):
            nn.init.normal_(table, std=std, generator=generator)

    def fit_positions(
        self, tensors: Mapping[str, Tensor], old_size: tuple[int, int], interpolation: Interpolation
    ) -> dict[str, Tensor]:
        """Resize the tables of the offsets in lines of another length to this one's."""
        names = ("relative_query", "relative_key", "relative_value")
        return {name: resize_line(tensors[name], len(self.relative_value), interpolation) for name in names}

    def forward(self, x: Tensor) -> Tensor:
        """`(B, C, L, n) -> (B, C, L, n)`: each of the L lines of an image attends to itself alone."""
        channels, positions = x.shape[1], x.shape[3]
        qkv = self.norm_qkv(self.qkv(x)).split((channels // 2, channels // 2, channels), dim=1)
        q, k, v = (part.unflatten(1, (self.num_heads, -1)) for part in qkv)  # (B, h, d, L, n)

        position = torch.arange(positions, device=x.device)
        offset = position - position[:, None] + positions - 1  # of key j from query i, (n, n)
        rq, rk, rv = self.relative_query[offset], self.relative_key[offset], self.relative_value[offset]

        similarity = (
            self.norm_content(torch.einsum("bhdli,bhdlj->bhlij", q, k))
            + self.norm_query(torch.einsum("bhdli,ijd->bhlij", q, rq))
            + self.norm_key(torch.einsum("bhdlj,ijd->bhlij", k, rk))
        )
        weights = similarity.softmax(-1)  # (B, h, L, n, n)

        value = torch.einsum("bhlij,bhdlj->bhdli", weights, v).flatten(1, 2)  # (B, C, L, n)
        place = torch.einsum("bhlij,ijd->bhdli", weights, rv).flatten(1, 2)
        out: Tensor = self.norm_value(value) + self.norm_place(place)
        return out


class AxialMixing(nn.Module):
    """Attention along every row, then along every column: `(B, C, H, W) -> (B, C, ceil(H/s), ceil(W/s))`.

    Args:
        channels: C; a multiple of 16, so that 32 groups divide 2C equally.
        num_heads: of both attentions; divides C/2 channels equally.
        size: `(H, W)`: the tables of relative positions have `2W - 1` and `2H - 1` rows.
        stride: s; windows of s x s positions are averaged afterwards (at the edges the positions there are).
        eps: of the norms.
    """

    def __init__(
        self, channels: int, num_heads: int, size: tuple[int, int], stride: int = 1, eps: float = 1e-5
    ) -> None:
        super().__init__()
        height, width = size
        self.stride = stride
        self.rows = RelativeAttention(channels, num_heads, width, eps)
        self.columns = RelativeAttention(channels, num_heads, height, eps)

    def init_weights(self, generator: torch.Generator | None) -> None:
        self.rows.init_weights(generator)
        self.columns.init_weights(generator)

    def forward(self, x: Tensor) -> Tensor:
        x = self.rows(x)
        x = self.columns(x.transpose(2, 3)).transpose(2, 3)
        if self.stride > 1:
            x = F.avg_pool2d(x, self.stride, ceil_mode=True)
        return x
