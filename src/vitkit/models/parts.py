"""The parts of a Transformer encoder, made from sizes alone: attention, MLP, block.

Nothing here depends on a whole model or its configuration, so a decoder, a projection head or an ablation can
use the same parts. They follow vision_transformer `models_vit.py`: GELU in its tanh form, weights initialised
as there. Each is computed here in one way, the plain one.

Whoever changes a part changes its copies too, or computes without them: each way to compute a part in another
way lists what it knows of it (`known_parts.py`), and is not taken where there is more. The copies are in
`fast.py` (attention, GELU, whole blocks, the last block for the class token alone, stem and pixels),
`kernels/block.py` (whole blocks), `pool.py` (the attention of `AttentionPool`) and `engines/graph.py`
(attention and stem of an export).

Shapes: B images, T tokens, D = width, h = num_heads, d = head_dim = D / h.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.config import Gelu, Interpolation, NormKind
from vitkit.models.image_model import BatchRows, Taps
from vitkit.models.position import relative_logits, resize_line

QUICK_GELU_SLOPE = 1.702
"""The slope at which the logistic function is nearest to the normal distribution function (Hendrycks and
Gimpel 2016)."""


class RMSNorm(nn.RMSNorm):
    """RMSNorm in the type of its scale, whatever the input's: PyTorch's kernel takes one type alone."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


Norm = nn.LayerNorm | RMSNorm


def make_norm(kind: NormKind, size: int, eps: float) -> Norm:
    """Make a norm over the last `size` numbers: "layer" has a scale and a shift, "rms" a scale alone."""
    return RMSNorm(size, eps) if kind == "rms" else nn.LayerNorm(size, eps)


class Attention(nn.Module):
    """Multi-head self-attention (paper, Appendix A).

    Args:
        width: D.
        num_heads: h, which divides D.
        dropout: probability with which an attention weight is dropped in training.
        rotary: a module `(B, h, T, d) -> (B, h, T, d)` that turns queries and keys by their positions.
        qk_norm: the kind of the norms of queries and of keys (Dehghani et al. 2023); None: no such norms.
        norm_eps: epsilon of these norms.
        qkv_bias: whether queries, keys and values have biases.
    """

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        rotary: nn.Module | None = None,
        qk_norm: NormKind | None = None,
        norm_eps: float = 1e-6,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        # Queries, keys and values in one matrix: one large product is faster than three.
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.out = nn.Linear(width, width)
        self.rotary = rotary
        # Each is over the numbers of a head, with one scale for all heads, as in timm.
        head_dim = width // num_heads
        self.q_norm = None if qk_norm is None else make_norm(qk_norm, head_dim, norm_eps)
        self.k_norm = None if qk_norm is None else make_norm(qk_norm, head_dim, norm_eps)

    def init_weights(self, generator: torch.Generator | None) -> None:
        # q, k and v are drawn as the original's three square matrices: their shapes, not the fused matrix's
        # (3D, D), decide the bound of Xavier's uniform distribution, sqrt(6 / (fan_in + fan_out)).
        bound = math.sqrt(6 / (2 * self.out.in_features))
        nn.init.uniform_(self.qkv.weight, -bound, bound, generator=generator)
        nn.init.xavier_uniform_(self.out.weight, generator=generator)
        for layer in (self.qkv, self.out):
            if layer.bias is not None:  # PyTorch's types do not say that it may be None
                nn.init.zeros_(layer.bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Make queries, keys and values of tokens `(B, T, D)`, each `(B, h, T, d)`."""
        batch, tokens, width = x.shape
        # The 3D outputs are ordered as (q, k, v), within them by head: (B, T, 3D) -> (B, T, 3, h, d).
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, width // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return q, k, v

    def bias(self, queries: Tensor) -> Tensor | None:
        """Compute the bias that is added to the attention logits of queries `(B, h, T, d)`.

        Returns:
            `(B, h, T, T)`; None where nothing is added.
        """
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        """Mix values by attention, softmax(q k^T / sqrt(d) + bias) v, all `(B, h, T, d)`.

        PyTorch's fused kernel never holds the `(T, T)` attention weights, which is why it is fast. On a CPU
        PyTorch leaves it for dropout, and for a bias that is learned.
        """
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)

    def forward(self, x: Tensor, taps: Taps | None = None, name: str = "") -> Tensor:
        """Attend, `(B, T, D) -> (B, T, D)`.

        Args:
            x: tokens.
            taps: receives the attention weights `(B, h, T, T)`; the result then differs by rounding.
            name: the key of the weights in `taps`.
        """
        batch, tokens, width = x.shape
        q, k, v = self.project(x)  # each (B, h, T, d)
        if self.q_norm is not None and self.k_norm is not None:
            # Before the rotation, which keeps their lengths. Under autocast norms give float32.
            q, k = self.q_norm(q).type_as(v), self.k_norm(k).type_as(v)
        if self.rotary is not None:  # values stay: a token's content does not depend on where it stands
            q, k = self.rotary(q), self.rotary(k)
        dropout = self.dropout if self.training else 0.0  # the functions below do not know the mode
        bias = self.bias(q)
        if taps is None:
            mixed = self.attend(q, k, v, bias, dropout)
        else:
            # Not the fused kernel, which never holds the weights. The logits are scaled after the product, as
            # in the paper's Appendix A. Scaling the queries first, as `fast.py` does, would change last
            # digits of the taps, which stay the same from version to version.
            logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, h, T, T)
            weights = (logits if bias is None else logits + bias).softmax(-1)  # rows of queries sum to one
            taps[name] = weights
            mixed = F.dropout(weights, dropout) @ v  # (B, h, T, d)
        # Heads side by side again: (B, h, T, d) -> (B, T, h, d) -> (B, T, D).
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))  # type: ignore[no-any-return]


class RelativeAttention(Attention):
    """Attention whose logits also depend on the offset between query and key in the sequence (paper D.4).

    Args:
        width, num_heads: as for `Attention`.
        tokens: T, on which the number of offsets depends.
        options: the others of `Attention`.
    """

    def __init__(self, width: int, num_heads: int, tokens: int, **options: Any) -> None:
        super().__init__(width, num_heads, **options)
        # One embedding for every offset, from -(T - 1) to T - 1, which all heads share. A class token has a
        # place in the sequence as any other, the first.
        self.relative = nn.Parameter(torch.empty(2 * tokens - 1, width // num_heads))

    def init_weights(self, generator: torch.Generator | None) -> None:
        super().init_weights(generator)
        nn.init.normal_(self.relative, std=0.02, generator=generator)  # as position embeddings are

    def bias(self, queries: Tensor) -> Tensor:
        return relative_logits(queries, self.relative)

    def fit_positions(
        self, tensors: Mapping[str, Tensor], old_grid: tuple[int, int], interpolation: Interpolation
    ) -> dict[str, Tensor]:
        """Resize the table of offsets of a model with another number of tokens, by 1-D interpolation.

        Offsets count tokens in the sequence, so the grids are not needed. Nor is any resizing of such a table
        right in both dimensions of the image: the model has to be fine-tuned.
        """
        return {"relative": resize_line(tensors["relative"], len(self.relative), interpolation)}


class MLP(nn.Module):
    """Two dense layers with GELU between them: `(B, T, D) -> (B, T, D)` (paper 3.1).

    Args:
        width: D.
        mlp_dim: width of the hidden layer.
        gelu: "tanh" (the original), "erf" (the exact one) or "quick" (CLIP's).
        dropout: probability with which a number is dropped in training, after each layer.
    """

    def __init__(self, width: int, mlp_dim: int, *, gelu: Gelu = "tanh", dropout: float = 0.0) -> None:
        super().__init__()
        self.gelu = gelu
        self.dropout = nn.Dropout(dropout)
        self.fc1 = nn.Linear(width, mlp_dim)
        self.fc2 = nn.Linear(mlp_dim, width)

    def init_weights(self, generator: torch.Generator | None) -> None:
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            # The original draws the biases too, with a deviation of 1e-6 (`models_vit.py`, `MlpBlock`).
            nn.init.normal_(layer.bias, std=1e-6, generator=generator)

    def activate(self, x: Tensor) -> Tensor:
        """Apply GELU in the form that the model was trained with, number by number."""
        if self.gelu == "quick":
            return x * torch.sigmoid(QUICK_GELU_SLOPE * x)
        return F.gelu(x, approximate="tanh" if self.gelu == "tanh" else "none")

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.activate(self.fc1(x)))  # (B, T, mlp_dim)
        return self.dropout(self.fc2(hidden))  # type: ignore[no-any-return]


def drop_path(branch: Tensor, rate: float, rows: BatchRows | None = None) -> Tensor:
    """Set a residual branch `(B, T, D)` to zero for images drawn at a rate, and scale the others up.

    Scaled in training, the mean stays and evaluation needs nothing; Huang et al. (2016, eq. 5) scale down in
    evaluation instead. PyTorch's default generator is drawn from, which the trainer seeds for every
    micro-batch.

    Args:
        branch: of the images of a batch.
        rate: probability that an image skips the branch.
        rows: the larger batch that the images are a part of.
    """
    drawn = torch.rand(len(branch) if rows is None else rows.total, 1, 1, device=branch.device)
    stays = (drawn if rows is None else drawn[rows.start : rows.stop]) >= rate  # one draw an image
    # The factor has the branch's type, which under autocast is bfloat16 (with a layer scale float32): a
    # factor in float32 would make every product float32.
    return branch * (stays / (1 - rate)).to(branch.dtype)


class Block(nn.Module):
    """Pre-norm encoder block (paper eq. 2 and 3).

    Args:
        width: D.
        attention, mlp: modules `(B, T, D) -> (B, T, D)`.
        norm: kind of both norms.
        norm_eps: epsilon of both norms; 1e-6 in the original.
        dropout: probability with which the attention's output is dropped (the MLP has its own).
        layer_scale: first value of a learned factor for each channel of both branches; None: no such factor.
        drop_path: probability with which an image skips a branch in training.
    """

    batch_rows: BatchRows | None = None
    """The larger batch that the images are a part of, as `ImageModel.batch_rows`."""

    def __init__(
        self,
        width: int,
        attention: Attention,
        mlp: MLP,
        *,
        norm: NormKind = "layer",
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.norm1 = make_norm(norm, width, norm_eps)
        self.attention = attention
        self.dropout = nn.Dropout(dropout)
        self.norm2 = make_norm(norm, width, norm_eps)
        self.mlp = mlp
        self.layer_scale = layer_scale
        scaled = layer_scale is not None  # CaiT's; the paper's models have none
        self.attention_scale = nn.Parameter(torch.empty(width)) if scaled else None
        self.mlp_scale = nn.Parameter(torch.empty(width)) if scaled else None

    def init_weights(self, generator: torch.Generator | None) -> None:
        # Attention is drawn first: the first weights of a run depend on the order of the draws.
        self.attention.init_weights(generator)
        self.mlp.init_weights(generator)
        for scale in (self.attention_scale, self.mlp_scale):
            if scale is not None and self.layer_scale is not None:
                nn.init.constant_(scale, self.layer_scale)

    def forward(
        self, x: Tensor, taps: Taps | None = None, name: str = "", attention_taps: bool = False
    ) -> Tensor:
        """Apply the block, `(B, T, D) -> (B, T, D)`.

        Args:
            x: tokens.
            taps: receives `{name}/attention` and `{name}/mlp`, the branches as they are added (after dropout,
                layer scale and stochastic depth), and `{name}/+attention` and `{name}/+mlp`, the sums.
            name: the block's name in the taps.
            attention_taps: whether `{name}/attention_weights` is written too.
        """
        # Attention leaves the fused kernel as soon as it has taps, so it gets them only where its weights are
        # to be written.
        weights_taps = taps if attention_taps else None
        attended = self.attention(self.norm1(x), weights_taps, f"{name}/attention_weights")
        return self.add_branches(x, attended, taps, name)

    def add_branches(self, x: Tensor, attended: Tensor, taps: Taps | None = None, name: str = "") -> Tensor:
        """Add the attention's output to the block's input, both `(B, T, D)`, then the MLP's to that sum.

        Args:
            x: input of the block.
            attended: output of its attention.
            taps, name: as for `forward`.
        """
        # Random numbers are drawn in this order, on which the bits of a run with dropout depend.
        attended = self.dropout(attended)
        if self.attention_scale is not None:
            attended = attended * self.attention_scale
        if self.training and self.drop_path:
            attended = drop_path(attended, self.drop_path, self.batch_rows)
        x = x + attended
        refined = self.mlp(self.norm2(x))
        if self.mlp_scale is not None:
            refined = refined * self.mlp_scale
        if self.training and self.drop_path:
            refined = drop_path(refined, self.drop_path, self.batch_rows)
        out: Tensor = x + refined
        if taps is not None:
            taps |= {f"{name}/attention": attended, f"{name}/+attention": x}
            taps |= {f"{name}/mlp": refined, f"{name}/+mlp": out}
        return out
