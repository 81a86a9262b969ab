"""Axial attention in a ViT (paper D.6): each block attends along rows, then along columns.

The axial attention of an AxialResNet is in `axial_mixing.py`.
"""

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models.image_model import Taps
from vitkit.models.parts import Block
from vitkit.text import format_size


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
