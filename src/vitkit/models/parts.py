"""The parts of a Vision Transformer: attention, MLP, block; the poolings; the stems.

All but `make_pooling` are made from sizes alone, without a whole model or its configuration, so a decoder, a
projection head or an ablation can use the same parts. They follow vision_transformer `models_vit.py`: GELU in
its tanh form, weights initialised as there. Each is computed here in one way, the plain one.

Whoever changes a part changes its copies too, or computes without them: each way to compute a part in another
way lists what it knows of it (`known_parts.py`), and is not taken where there is more. The copies are in
`fast.py` (attention, GELU, whole blocks, the last block for the class token alone, stem and pixels),
`kernels/block.py` (whole blocks), `AttentionPool` (the attention) and `engines/graph.py` (attention and stem
of an export).

A pooling reduces the encoded tokens of an image to the features that the head sees. It is a module
`(B, T, D) -> (B, D)`, `(B, 2D)` for token+mean, or `(B, T, D)` for none, with `init_weights`.

A stem makes tokens of images: the original's linear projection of patches, or a few convolutions in its
place. The convolutional stem follows Xiao et al. 2021 (arXiv 2106.14881, section 3): 3x3 convolutions, each
with a norm and ReLU, some of stride 2, which halve the map until a position stands for a patch, then a 1x1
convolution to the Transformer's width. Their norm is a batch norm; here it is a group norm, because the
patches of an image must not depend on the other images of its batch: unreadable ones are among them,
micro-batches have to add up, and there is no state to average.

Shapes: B images, C channels, N patches of p x q pixels, T tokens, of which the first P are the class token
and the registers, D = width, h = num_heads, d = head_dim = D / h.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models.config import STEM_GROUP, Gelu, Interpolation, NormKind, ViTConfig
from vitkit.models.image_model import BatchRows, Taps, lecun_normal
from vitkit.models.known_parts import Way
from vitkit.models.position import offset_places, relative_logits, resize_line, resize_offsets

QUICK_GELU_SLOPE = 1.702
"""The slope at which the logistic function is nearest to the normal distribution function (Hendrycks and
Gimpel 2016)."""


class RMSNorm(nn.RMSNorm):
    """RMSNorm in the type of its scale, whatever the input's: PyTorch's kernel takes one type alone."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


Norm = nn.LayerNorm | RMSNorm


NORMS: Mapping[NormKind, Callable[[int, float], Norm]] = {"layer": nn.LayerNorm, "rms": RMSNorm}
"""Make a norm over so many last numbers: "layer" has a scale and a shift, "rms" a scale alone."""


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
        self.q_norm = None if qk_norm is None else NORMS[qk_norm](head_dim, norm_eps)
        self.k_norm = None if qk_norm is None else NORMS[qk_norm](head_dim, norm_eps)

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


class BiasedAttention(Attention):
    """Attention whose logits have a learned number added, of each head and each offset in the grid (BEiT).

    Args:
        width, num_heads: as for `Attention`.
        grid: `(rows, columns)` of patches.
        prefix_tokens: P, tokens before the patches, which have three numbers in place of the offsets: for one
            of them as the query, as the key, and as both (BEiT `modeling_finetune.py`, where P is 1).
        options: the others of `Attention`.
    """

    places: Tensor

    def __init__(
        self, width: int, num_heads: int, grid: tuple[int, int], prefix_tokens: int, **options: Any
    ) -> None:
        super().__init__(width, num_heads, **options)
        self.grid, self.prefix_tokens = grid, prefix_tokens
        offsets = (2 * grid[0] - 1) * (2 * grid[1] - 1)
        self.relative_bias = nn.Parameter(torch.empty(offsets + (3 if prefix_tokens else 0), num_heads))
        self.make_buffers()

    def make_buffers(self) -> None:
        """Compute the row of the table for each query and key, once more where there was no memory."""
        tokens = self.prefix_tokens + self.grid[0] * self.grid[1]
        places = torch.empty(tokens, tokens, dtype=torch.int32)  # (T, T)
        self.register_buffer("places", places, persistent=False)  # it follows from the sizes
        if not places.is_meta:
            self.places = offset_places(self.grid, self.prefix_tokens).to(places.device)

    def init_weights(self, generator: torch.Generator | None) -> None:
        super().init_weights(generator)
        nn.init.zeros_(self.relative_bias)  # as there

    def bias(self, queries: Tensor) -> Tensor:
        return self.relative_bias[self.places].permute(2, 0, 1)[None].to(queries.dtype)  # (1, h, T, T)

    def fit_positions(
        self, tensors: Mapping[str, Tensor], old_grid: tuple[int, int], interpolation: Interpolation
    ) -> dict[str, Tensor]:
        """Resize the table of a model with another grid; the three numbers of the first tokens stay."""
        table = tensors["relative_bias"]
        fitted = resize_offsets(table, old_grid, self.grid, 3 if self.prefix_tokens else 0, interpolation)
        return {"relative_bias": fitted}


class Dropout(nn.Module):
    """Sets numbers of tensors `(B, ...)` to zero in training, each at random, and scales the others up.

    A number is dropped if the hash of its place in the image and of two keys of the image is small. So it
    does not depend on the other images, on how a batch is divided, or on the number of threads, and a kernel
    draws the same (`kernels/block.c`). PyTorch's serial generator took a fifth of a training step on a
    processor. On other devices PyTorch drops.

    Args:
        rate: the probability.
    """

    batch_rows: BatchRows | None = None
    """The larger batch that the images are a part of, as `ImageModel.batch_rows`."""
    faster_mask: Callable[[Tensor, float, Tensor], Tensor] | None = None
    """Computes `keep_mask`, to the same bits."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def draw_keys(self, images: int) -> Tensor:
        """Draw the keys of images, `(B, 2)` int32, from PyTorch's default generator."""
        total = images if self.batch_rows is None else self.batch_rows.total
        keys = torch.randint(-(2**31), 2**31, (total, 2), dtype=torch.int32)
        return keys if self.batch_rows is None else keys[self.batch_rows.start : self.batch_rows.stop]

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate or not len(x):
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.rate)
        stays = (self.faster_mask or keep_mask)(self.draw_keys(len(x)), self.rate, x)
        return x * (1 / (1 - self.rate)) * stays


def keep_mask(keys: Tensor, rate: float, like: Tensor) -> Tensor:
    """Say which numbers of a tensor `(B, ...)` dropout keeps, as bool.

    The hash is Wellons' lowbias32 with a second key between its multiplications, of 32 bits held in 64.

    Args:
        keys: `(B, 2)` int32.
        rate: probability with which a number is dropped.
        like: has the shape.
    """
    whole, places = 2**32 - 1, torch.arange(like[0].numel())

    def of_image(first: int, second: int) -> Tensor:
        x = (places + first) & whole
        x = ((x ^ x >> 16) * 0x7FEB352D + second) & whole
        x = ((x ^ x >> 15) * 0x846CA68B) & whole
        return (x ^ x >> 16) >= min(round(rate * 2**32), whole)

    return torch.stack([of_image(*pair) for pair in (keys.long() & whole).tolist()]).view(like.shape)


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
        self.dropout = Dropout(dropout)
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


class GatedMLP(nn.Module):
    """SwiGLU, an MLP whose values pass gates: `(B, T, D) -> (B, T, D)` (Shazeer 2020, arXiv 2002.05202).

    Args:
        width: D.
        mlp_dim: H, hidden values and as many gates.
        norm: the kind of a norm of what the gates let through (EVA-02); None: no such norm.
        norm_eps: epsilon of this norm.
        dropout: probability with which a number is dropped in training, after gates and output.
    """

    def __init__(
        self, width: int, mlp_dim: int, *, norm: NormKind | None, norm_eps: float, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        # Gates, then values, in one matrix (DINOv2's `w12`): one large product is faster than two.
        self.fc1 = nn.Linear(width, 2 * mlp_dim)
        self.norm = None if norm is None else NORMS[norm](mlp_dim, norm_eps)
        self.fc2 = nn.Linear(mlp_dim, width)

    def init_weights(self, generator: torch.Generator | None) -> None:
        # As two matrices (H, D), as `MLP` draws its own: the fused matrix's shape would give another bound.
        bound = math.sqrt(6 / (self.fc2.in_features + self.fc2.out_features))
        for layer in (self.fc1, self.fc2):
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.normal_(layer.bias, std=1e-6, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        gates, values = self.fc1(x).chunk(2, dim=-1)  # each (B, T, H)
        hidden = self.dropout(F.silu(gates) * values)
        if self.norm is not None:
            hidden = self.norm(hidden)
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
    factors = path_factors(branch, rate, rows)
    # The factor has the branch's type, which under autocast is bfloat16 (with a layer scale float32): a
    # factor in float32 would make every product float32.
    return branch * factors[:, None, None].to(branch.dtype)


def path_factors(like: Tensor, rate: float, rows: BatchRows | None) -> Tensor:
    """Draw the factors of a residual branch, `(B,)`: 0 for images that skip it; arguments of `drop_path`."""
    drawn = torch.rand(len(like) if rows is None else rows.total, device=like.device)
    stays = (drawn if rows is None else drawn[rows.start : rows.stop]) >= rate  # one draw an image
    return stays / (1 - rate)


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
        mlp: MLP | GatedMLP,
        *,
        norm: NormKind = "layer",
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.drop_path = drop_path
        self.norm1 = NORMS[norm](width, norm_eps)
        self.attention = attention
        self.dropout = Dropout(dropout)
        self.norm2 = NORMS[norm](width, norm_eps)
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


class TokenMeanPool(MeanPool):
    """The class token, and behind it the mean of the patch tokens: `(B, 2D)` (DINOv2's linear heads)."""

    def forward(self, encoded: Tensor) -> Tensor:
        return torch.cat([encoded[:, 0], super().forward(encoded)], dim=-1)


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
    width, heads = config.width, config.pool_heads or config.num_heads
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
            return AttentionPool(width, attention, mlp, NORMS[config.norm](width, config.norm_eps))
        case "token+mean":
            return TokenMeanPool(config.prefix_tokens)
        case "none":
            return NoPool()


class PatchStem(nn.Module):
    """Cuts images into patches and projects each linearly: a convolution whose stride is its kernel.

    Written as one matrix product over flattened patches, which is faster than the convolution; the weights
    keep the convolution's shape, so that checkpoints of other libraries need no reshaping.
    """

    def __init__(self, patch_size: tuple[int, int], width: int, in_channels: int = 3) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.weight = nn.Parameter(torch.empty(width, in_channels, *patch_size))
        self.bias = nn.Parameter(torch.empty(width))

    def init_weights(self, generator: torch.Generator | None) -> None:
        # Flax's default for convolutions, which the original's projection is: fan-in C * p * q.
        lecun_normal(self.weight, self.weight[0].numel(), generator)
        nn.init.zeros_(self.bias)

    def forward(self, images: Tensor) -> Tensor:
        return F.linear(self.cut(images), self.weight.flatten(1), self.bias)  # (B, N, D)

    def cut(self, images: Tensor) -> Tensor:
        """Cut images into flattened patches, `(B, N, C*p*q)`."""
        batch, channels, height, width = images.shape
        p, q = self.patch_size
        rows, columns = height // p, width // q
        # The original's convolution is VALID: rows and columns that fill no patch are not seen.
        images = images[:, :, : rows * p, : columns * q]
        # (B, C, rows, p, columns, q) -> (B, rows, columns, C, p, q): a patch's numbers stand together, in the
        # order of the flattened kernel.
        patches = images.reshape(batch, channels, rows, p, columns, q).permute(0, 2, 4, 1, 3, 5)
        return patches.reshape(batch, rows * columns, channels * p * q)  # (B, N, C*p*q)


class ConvStem(nn.Module):
    """Makes patch embeddings by convolutions: images `(B, C, H, W)` to `(B, N, D)`.

    Args:
        channels: of each 3x3 convolution, multiples of `STEM_GROUP`.
        patch_size: `(height, width)` in pixels, the same power of two.
        width: D.
        in_channels: of the images.
        strides: of each convolution, 1 or 2. Left out, the last ones have stride 2, as many as it takes to
            reach the patch size.
    """

    def __init__(
        self,
        channels: Sequence[int],
        patch_size: tuple[int, int],
        width: int,
        in_channels: int = 3,
        strides: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        halvings = patch_size[0].bit_length() - 1
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        before = in_channels
        strides = strides or (1,) * (len(channels) - halvings) + (2,) * halvings
        for after, stride in zip(channels, strides, strict=True):
            self.convolutions.append(nn.Conv2d(before, after, 3, stride, padding=1, bias=False))
            self.norms.append(nn.GroupNorm(after // STEM_GROUP, after))
            before = after
        self.projection = nn.Conv2d(before, width, 1)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None) -> None:
        """Draw new weights: He's before ReLU (He et al. 2015), and a linear patch projection's at the end."""
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            assert isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.GroupNorm)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu", generator=generator)
            norm.reset_parameters()
        lecun_normal(self.projection.weight, self.projection.in_channels, generator)
        assert self.projection.bias is not None
        nn.init.zeros_(self.projection.bias)

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W) -> (B, N, D)`, row after row; pixels that fill no patch are not seen, as by
        `PatchStem`."""
        p, q = self.patch_size
        x = images[:, :, : images.shape[2] // p * p, : images.shape[3] // q * q]
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        return self.projection(x).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]
