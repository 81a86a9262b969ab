"""The poolings: modules that reduce the encoded tokens of an image to the features that the head sees.

Every pooling is a module `(B, T, D) -> (B, D)`, or `(B, T, D)` for none, with `init_weights`.

Shapes: B images, T tokens, of which the first P are the class token and the registers, D = width,
h = num_heads, d = D / h.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models.config import ViTConfig
from vitkit.models.known_parts import Way
from vitkit.models.parts import MLP, Attention, Norm, make_norm


class Pooling(nn.Module):
    """Base of the poolings: no parameters, nothing to initialise."""

    def init_weights(self, generator: torch.Generator | None) -> None:
        """Draw new weights; a pooling without parameters draws nothing."""


class ClassTokenPool(Pooling):
    """The first token, the class token (paper eq. 4)."""

    def forward(self, encoded: Tensor) -> Tensor:
        return encoded[:, 0]  # (B, D)


class MeanPool(Pooling):
    """The mean of the patch tokens (GAP, paper D.3); class token and registers are left out."""

    def __init__(self, prefix_tokens: int = 0) -> None:
        super().__init__()
        self.prefix_tokens = prefix_tokens

    def forward(self, encoded: Tensor) -> Tensor:
        return encoded[:, self.prefix_tokens :].mean(1)


class MaxPool(MeanPool):
    """The largest value of each feature over the same tokens (timm's `global_pool="max"`)."""

    def forward(self, encoded: Tensor) -> Tensor:
        return encoded[:, self.prefix_tokens :].amax(1)


class NoPool(Pooling):
    """Every token: the head is applied to each."""

    def forward(self, encoded: Tensor) -> Tensor:
        return encoded


MAP = Way({Attention: ("num_heads", "dropout", "qkv", "out")})


class AttentionPool(Pooling):
    """MAP, attention pooling: one learned query looks at all tokens (big_vision `models/vit.py`).

    Args:
        width: D.
        attention: its projections are used; the queries' third of `qkv` is applied to the probe alone.
        mlp: applied to the result, with a residual sum.
        norm: applied before the MLP.
    """

    def __init__(self, width: int, attention: Attention, mlp: MLP, norm: Norm) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.attention = attention
        self.norm = norm
        self.mlp = mlp

    def init_weights(self, generator: torch.Generator | None) -> None:
        # As in big_vision. Without the first axis, or PyTorch would take (1, 1, D) for a convolution's
        # kernel.
        nn.init.xavier_uniform_(self.probe[0], generator=generator)
        self.attention.init_weights(generator)
        self.mlp.init_weights(generator)

    def forward(self, encoded: Tensor) -> Tensor:
        """Pool `(B, T, D) -> (B, D)`.

        As in big_vision, no norm comes before the attention: the tokens have had the encoder's, and the query
        is learned.
        """
        q, k, v = self._projected(encoded)
        dropout = self.attention.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)  # (B, h, 1, d)
        batch, _, width = encoded.shape
        pooled = self.attention.out(mixed.transpose(1, 2).reshape(batch, width))  # (B, D)
        return pooled + self.mlp(self.norm(pooled))  # type: ignore[no-any-return]

    def weights(self, encoded: Tensor) -> Tensor:
        """Compute the attention weights of the query, `(B, T, D) -> (B, h, T)`; a row sums to one."""
        q, k, _ = self._projected(encoded)
        logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, h, 1, T)
        return logits.softmax(-1).squeeze(2)

    def _projected(self, encoded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Give the query `(B, h, 1, d)`, keys and values `(B, h, T, d)`."""
        # In a graph PyTorch has looked: the first call of a model is not in one.
        if not torch.compiler.is_compiling() and not MAP.knows(self.attention):
            raise VitkitError(
                "Attention pooling (map) computes with the weights of its attention without calling it, and "
                "takes an Attention as vitkit builds it. Found one with other layers, parameters or hooks: "
                "take them off `pooling.attention`, or choose another pool."
            )
        batch, tokens, width = encoded.shape
        shape = (batch, -1, self.attention.num_heads, width // self.attention.num_heads)
        # The fused weight (3D, D) holds the projections to queries, keys and values, in this order: the probe
        # becomes a query alone, the tokens keys and values alone.
        qkv = self.attention.qkv
        query = F.linear(self.probe, qkv.weight[:width], qkv.bias[:width]).expand(batch, -1, -1)  # (B, 1, D)
        keys_values = F.linear(encoded, qkv.weight[width:], qkv.bias[width:])  # (B, T, 2D)
        keys_values = keys_values.reshape(batch, tokens, 2, width)
        k, v = (part.reshape(shape).transpose(1, 2) for part in keys_values.unbind(2))  # each (B, h, T, d)
        return query.reshape(shape).transpose(1, 2), k, v


def make_pooling(config: ViTConfig) -> Pooling:
    """Make the pooling of a configuration."""
    width, heads = config.width, config.num_heads
    match config.pool:
        case "token":
            return ClassTokenPool()
        case "mean":
            return MeanPool(config.prefix_tokens)
        case "max":
            return MaxPool(config.prefix_tokens)
        case "map":
            attention = Attention(width, heads, dropout=config.attention_dropout)
            mlp = MLP(width, config.mlp_dim, gelu=config.gelu, dropout=config.dropout)
            return AttentionPool(width, attention, mlp, make_norm(config.norm, width, config.norm_eps))
        case "none":
            return NoPool()
