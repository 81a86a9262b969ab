"""The parts of a Transformer encoder, made from sizes alone: attention, MLP, block.

Nothing here knows a whole model or its configuration, so a decoder, a projection head or an ablation can use
the same parts. They follow vision_transformer `models_vit.py`: GELU in its tanh form, weights initialised as
there. Each is computed here in one way, the plain one; `fast.py` has the others.

Each part also tells what it costs, in the terms of `cost.py`. In these methods `product` is the bytes of a
number that goes into matrix products: 4, or 2 under autocast.

Shapes: B images, T tokens, D = width, h = num_heads, d = head_dim = D / h.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.cost import FLOAT, INDEX, MASK, PartCost, count_parameters, norm_cost, rounded
from vitkit.models.image_model import Taps
from vitkit.models.position import relative_logits
from vitkit.models.resize import resize_line
from vitkit.models.vit_config import Gelu, Interpolation

QUICK_GELU_SLOPE = 1.702
"""At this slope the logistic curve is nearest to the normal distribution's (Hendrycks, Gimpel 2016)."""


class Attention(nn.Module):
    """Multi-head self-attention (paper, Appendix A).

    Args:
        width: D.
        num_heads: h, which divides D.
        dropout: probability with which an attention weight is dropped in training.
        rotary: a module `(B, h, T, d) -> (B, h, T, d)` that turns queries and keys by their positions.
    """

    def __init__(
        self, width: int, num_heads: int, *, dropout: float = 0.0, rotary: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        # Queries, keys and values in one matrix: one large product is faster than three.
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.rotary = rotary

    def init_weights(self, generator: torch.Generator | None) -> None:
        # q, k and v are drawn as the original's three square matrices: the bound of Xavier's uniform
        # distribution, sqrt(6 / (fan_in + fan_out)), is theirs and not that of the fused (3D, D) matrix.
        bound = math.sqrt(6 / (2 * self.out.in_features))
        nn.init.uniform_(self.qkv.weight, -bound, bound, generator=generator)
        nn.init.xavier_uniform_(self.out.weight, generator=generator)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def bias(self, queries: Tensor) -> Tensor | None:
        """Compute what is added to the logits of queries `(B, h, T, d)`, `(B, h, T, T)`; None: nothing."""
        return None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        """Mix values by attention, softmax(q k^T / sqrt(d) + bias) v, all `(B, h, T, d)`.

        PyTorch's fused kernel never holds the `(T, T)` attention weights, which is why it is fast.
        """
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)

    def forward(self, x: Tensor, taps: Taps | None = None, name: str = "") -> Tensor:
        """Attend, `(B, T, D) -> (B, T, D)`; with `taps`, write the attention weights `(B, h, T, T)` there."""
        batch, tokens, width = x.shape
        # The 3D outputs are ordered as (q, k, v), within them by head: (B, T, 3D) -> (B, T, 3, h, d).
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, width // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, h, T, d)
        if self.rotary is not None:  # values stay: a token's content does not depend on where it stands
            q, k = self.rotary(q), self.rotary(k)
        dropout = self.dropout if self.training else 0.0  # the functions below do not know the mode
        bias = self.bias(q)
        if taps is None:
            mixed = self.attend(q, k, v, bias, dropout)
        else:
            # A fused kernel never holds the weights. Scaled after the product, as in the paper's Appendix A:
            # another order has other last digits, and taps keep theirs from version to version.
            logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, h, T, T)
            weights = (logits if bias is None else logits + bias).softmax(-1)  # rows of queries sum to one
            taps[name] = weights
            mixed = F.dropout(weights, dropout) @ v  # (B, h, T, d)
        # Heads side by side again: (B, h, T, d) -> (B, T, h, d) -> (B, T, D).
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))  # type: ignore[no-any-return]

    def cost(self, tokens: int, seen: int, product: int) -> PartCost:
        """Give the cost of fused attention of `tokens`, each of which attends to `seen` tokens.

        It keeps the sums of its softmax and no attention weights.
        """
        width = self.out.in_features
        numbers = tokens * width
        # Rotary positions keep turned queries and keys too, and the result in another order of memory.
        turned = 0 if self.rotary is None else 3
        return PartCost(
            # Four square projections (q, k, v, out), and two products for every pair of tokens.
            macs=4 * numbers * width + 2 * numbers * seen,
            # What autograd keeps: the input, q, k, v and the result; a sum for each head and query.
            kept=(5 + turned) * product * numbers + FLOAT * self.num_heads * tokens,
            passing=4 * product * numbers,
            live=(5 + turned) * product * numbers,
            parameters=count_parameters(self),
            once=rounded(4 * width**2, product),
        )


class RelativeAttention(Attention):
    """Attention whose logits also depend on the offset between query and key in the sequence (paper D.4).

    Args:
        width, num_heads, dropout: as for `Attention`.
        tokens: T, on which the number of offsets depends.
    """

    def __init__(self, width: int, num_heads: int, tokens: int, *, dropout: float = 0.0) -> None:
        super().__init__(width, num_heads, dropout=dropout)
        # One embedding for every offset, from -(T - 1) to T - 1, which all heads share.
        self.relative = nn.Parameter(torch.empty(2 * tokens - 1, width // num_heads))

    def init_weights(self, generator: torch.Generator | None) -> None:
        super().init_weights(generator)
        nn.init.normal_(self.relative, std=0.02, generator=generator)  # as position embeddings are

    def bias(self, queries: Tensor) -> Tensor:
        return relative_logits(queries, self.relative)

    def fit_positions(
        self, tensors: Mapping[str, Tensor], old_grid: tuple[int, int], interpolation: Interpolation
    ) -> dict[str, Tensor]:
        """Resize a table of the offsets of another number of tokens to this one's, as a line."""
        return {"relative": resize_line(tensors["relative"], len(self.relative), interpolation)}

    def cost(self, tokens: int, seen: int, product: int) -> PartCost:
        """Give the cost of attention that holds its weights, a logit for every offset, and the bias."""
        plain = super().cost(tokens, seen, product)
        numbers = tokens * self.out.in_features
        # Queries by offset, the bias made of them, the attention weights, and copies of q, k and v.
        offsets, pairs = self.num_heads * tokens * len(self.relative), self.num_heads * tokens**2
        return replace(
            plain,
            macs=plain.macs + numbers * len(self.relative),
            kept=plain.kept + product * (numbers + offsets + pairs) - FLOAT * self.num_heads * tokens,
            passing=plain.passing + product * 2 * pairs,
            live=plain.live + product * (offsets + pairs + 2 * numbers),
            once=plain.once + INDEX * tokens**2,
        )


class MLP(nn.Module):
    """Two dense layers with GELU between them: `(B, T, D) -> (B, T, D)` (paper 3.1).

    Args:
        width: D.
        mlp_dim: numbers between the layers.
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

    def cost(self, tokens: int, product: int) -> PartCost:
        """Give the cost of both layers, which keep what they and the GELU between them read."""
        hidden, width = self.fc1.weight.shape
        mask = MASK if self.dropout.p else 0
        return PartCost(
            macs=2 * tokens * width * hidden,
            kept=tokens * (width * (product + mask) + hidden * (2 * product + mask)),
            passing=tokens * hidden * product,
            live=tokens * 2 * product * (width + hidden),
            parameters=count_parameters(self),
            once=rounded(2 * width * hidden, product),
        )


def drop_path(branch: Tensor, rate: float) -> Tensor:
    """Set a residual branch `(B, T, D)` to zero for images drawn at a rate, and scale the others up.

    Scaled in training, the mean stays and evaluation needs nothing; Huang et al. (2016, eq. 5) scale down in
    evaluation instead. Drawn from PyTorch's default generator, which the trainer seeds for every step.
    """
    kept = torch.rand(len(branch), 1, 1, device=branch.device) >= rate  # one draw an image
    # In the branch's type, bfloat16 under autocast: a factor in float32 would raise the product to it.
    return branch * (kept / (1 - rate)).to(branch.dtype)


class Block(nn.Module):
    """Pre-norm encoder block (paper eq. 2 and 3).

    Args:
        width: D.
        attention, mlp: modules `(B, T, D) -> (B, T, D)`.
        norm_eps: epsilon of both layer norms; 1e-6 in the original.
        dropout: probability with which the attention's output is dropped (the MLP has its own).
        layer_scale: first value of a learned factor for each channel of both branches; None: no such factor.
        drop_path: probability with which an image skips a branch in training.
    """

    def __init__(
        self,
        width: int,
        attention: Attention,
        mlp: MLP,
        *,
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.norm1 = nn.LayerNorm(width, norm_eps)
        self.attention = attention
        self.dropout = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width, norm_eps)
        self.mlp = mlp
        self.layer_scale = layer_scale
        scaled = layer_scale is not None  # CaiT's; the paper's models have none
        self.attention_scale = nn.Parameter(torch.empty(width)) if scaled else None
        self.mlp_scale = nn.Parameter(torch.empty(width)) if scaled else None

    def init_weights(self, generator: torch.Generator | None) -> None:
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
            taps: receives `{name}/attention`, `{name}/+attention`, `{name}/mlp` and `{name}/+mlp`; those with
                a plus are taken after the residual sum.
            name: the block's name in the taps.
            attention_taps: whether `{name}/attention_weights` is written too.
        """
        # Attention that is given taps leaves the fused kernel, so it gets them for its weights alone.
        weights_taps = taps if attention_taps else None
        attended = self.attention(self.norm1(x), weights_taps, f"{name}/attention_weights")
        return self.after_attention(x, attended, taps, name)

    def after_attention(
        self, x: Tensor, attended: Tensor, taps: Taps | None = None, name: str = ""
    ) -> Tensor:
        """Add the attention's output to the block's input, both `(B, T, D)`, then the MLP's to that sum.

        Args:
            x: tokens that the block was given.
            attended: what its attention made of them.
            taps, name: as for `forward`.
        """
        # Random numbers are drawn in this order, on which the bits of a run with dropout depend.
        attended = self.dropout(attended)
        if self.attention_scale is not None:
            attended = attended * self.attention_scale
        if self.training and self.drop_path:
            attended = drop_path(attended, self.drop_path)
        x = x + attended
        refined = self.mlp(self.norm2(x))
        if self.mlp_scale is not None:
            refined = refined * self.mlp_scale
        if self.training and self.drop_path:
            refined = drop_path(refined, self.drop_path)
        out: Tensor = x + refined
        if taps is not None:
            taps |= {f"{name}/attention": attended, f"{name}/+attention": x}
            taps |= {f"{name}/mlp": refined, f"{name}/+mlp": out}
        return out

    def costs(self, tokens: int, product: int, seen: int | None = None) -> Iterator[PartCost]:
        """Give the costs of both branches, each with the norm before it.

        Args:
            tokens: of an image.
            product: bytes of what goes into matrix products.
            seen: the tokens that each of them looks at; left out, all.
        """
        width = self.norm1.weight.numel()
        scale = PartCost()
        if self.attention_scale is not None:  # the factor's gradient needs what it multiplies
            scale = PartCost(kept=product * tokens * width, parameters=width)
        dropped = PartCost(kept=MASK * tokens * width if self.dropout.p else 0)
        attention = self.attention.cost(tokens, tokens if seen is None else seen, product)
        yield norm_cost(tokens, width) + attention + dropped + scale
        yield norm_cost(tokens, width) + self.mlp.cost(tokens, product) + scale
