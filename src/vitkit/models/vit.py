"""The Vision Transformer, read top to bottom: configuration, stem, attention, MLP, block, ViT.

Follows section 3.1 of the paper, and vision_transformer `models_vit.py` where the paper is silent:
GELU in its tanh form, layer norms with epsilon 1e-6, weights initialised as there.

Shapes: B images, N patches, T tokens (N and the class token, where there is one), D = width,
h = num_heads, d = head_dim, K = num_classes.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models.card import ModelCard

Taps = dict[str, Tensor]


@dataclass(frozen=True)
class ViTConfig:
    """Everything that decides the shapes and the arithmetic of a ViT.

    Sizes are `(height, width)` in pixels. Images that are no multiple of the patch are cropped at the right
    and bottom, as the original's VALID convolution does.
    """

    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    num_classes: int
    in_channels: int = 3
    pool: Literal["token", "mean", "none"] = "token"
    """What the head sees: the class token, the mean of the patch tokens (GAP, paper D.3), or every token."""
    class_token_position: bool = True
    """Whether the class token has a position embedding of its own (the original: yes; big_vision: no)."""
    representation_size: int | None = None
    """Width of the pre-training head's hidden layer with tanh (paper 3.1); None: a linear head alone."""
    dropout: float = 0.0
    """After the position embeddings and every dense layer but qkv (paper, Appendix B)."""
    attention_dropout: float = 0.0
    gelu: Literal["tanh", "erf"] = "tanh"
    norm_eps: float = 1e-6
    head_bias_init: float = 0.0
    image_mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Of pixels in [0, 1]; with `image_std` what brings uint8 images to the range the weights know."""
    image_std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        sizes = ("width", "depth", "num_heads", "mlp_dim", "num_classes", "in_channels")
        for name in sizes:
            if getattr(self, name) < 1:
                raise VitkitError(f"A ViT needs {name} of at least 1, found {getattr(self, name)}.")
        if min(self.patch_size) < 1 or self.grid[0] < 1 or self.grid[1] < 1:
            raise VitkitError(
                f"Images of {_by(self.image_size)} hold no patch of {_by(self.patch_size)} pixels: "
                "choose a smaller patch or larger images."
            )
        if self.width % self.num_heads:
            raise VitkitError(f"width {self.width} cannot be shared among {self.num_heads} heads equally.")
        if self.representation_size is not None and self.representation_size < 1:
            raise VitkitError(f"representation_size is at least 1 or none, found {self.representation_size}.")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise VitkitError(f"{name} is a share from 0 to below 1, found {getattr(self, name)}.")
        if len(self.image_mean) != self.in_channels or len(self.image_std) != self.in_channels:
            raise VitkitError(
                f"image_mean and image_std need one value per channel ({self.in_channels}), "
                f"found {self.image_mean} and {self.image_std}."
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Patches per column and per row."""
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    @property
    def class_token(self) -> bool:
        return self.pool == "token"

    @property
    def prefix_tokens(self) -> int:
        """Rows of the position embedding before those of the grid."""
        return int(self.class_token and self.class_token_position)

    @property
    def num_tokens(self) -> int:
        return self.grid[0] * self.grid[1] + self.class_token


class PatchStem(nn.Module):
    """Cuts images into patches and projects each linearly: a convolution whose stride is its kernel.

    Written as one matrix product over flattened patches, which is faster than the convolution; the weights
    keep the convolution's shape.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        self.weight = nn.Parameter(torch.empty(config.width, config.in_channels, *config.patch_size))
        self.bias = nn.Parameter(torch.empty(config.width))

    def init_weights(self, generator: torch.Generator | None) -> None:
        _lecun_normal(self.weight, self.weight[0].numel(), generator)
        nn.init.zeros_(self.bias)

    def forward(self, images: Tensor) -> Tensor:
        batch, channels, height, width = images.shape
        p, q = self.patch_size
        rows, columns = height // p, width // q
        images = images[:, :, : rows * p, : columns * q]
        patches = images.reshape(batch, channels, rows, p, columns, q).permute(0, 2, 4, 1, 3, 5)
        patches = patches.reshape(batch, rows * columns, channels * p * q)  # (B, N, C*p*q)
        return F.linear(patches, self.weight.flatten(1), self.bias)  # (B, N, D)


class Attention(nn.Module):
    """Multi-head self-attention (paper, Appendix A)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def init_weights(self, generator: torch.Generator | None) -> None:
        # q, k and v are drawn as three square matrices: the bound is theirs, not the fused one's.
        bound = math.sqrt(6 / (2 * self.out.in_features))
        nn.init.uniform_(self.qkv.weight, -bound, bound, generator=generator)
        nn.init.xavier_uniform_(self.out.weight, generator=generator)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, taps: Taps | None = None, name: str = "") -> Tensor:
        """`(B, T, D) -> (B, T, D)`; with `taps`, the attention weights `(B, h, T, T)` are written there."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, width // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, h, T, d)
        dropout = self.dropout if self.training else 0.0
        if taps is None:
            mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        else:
            weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1)
            taps[name] = weights
            mixed = F.dropout(weights, dropout) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Two dense layers with GELU between them."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.approximate = "tanh" if config.gelu == "tanh" else "none"
        self.dropout = nn.Dropout(config.dropout)
        self.fc1 = nn.Linear(config.width, config.mlp_dim)
        self.fc2 = nn.Linear(config.mlp_dim, config.width)

    def init_weights(self, generator: torch.Generator | None) -> None:
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight, generator=generator)
            nn.init.normal_(layer.bias, std=1e-6, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(F.gelu(self.fc1(x), approximate=self.approximate))  # (B, T, mlp_dim)
        return self.dropout(self.fc2(hidden))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Pre-norm encoder block (paper eq. 2 and 3)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, config.norm_eps)
        self.attention = Attention(config)
        self.dropout = nn.Dropout(config.dropout)
        self.norm2 = nn.LayerNorm(config.width, config.norm_eps)
        self.mlp = MLP(config)

    def init_weights(self, generator: torch.Generator | None) -> None:
        self.attention.init_weights(generator)
        self.mlp.init_weights(generator)

    def forward(self, x: Tensor, taps: Taps | None = None, name: str = "", weights: bool = False) -> Tensor:
        weights_taps = taps if weights else None
        attended = self.dropout(self.attention(self.norm1(x), weights_taps, f"{name}/attention_weights"))
        x = x + attended
        expanded = self.mlp(self.norm2(x))
        out: Tensor = x + expanded
        if taps is not None:
            taps |= {f"{name}/attention": attended, f"{name}/+attention": x}
            taps |= {f"{name}/mlp": expanded, f"{name}/+mlp": out}
        return out


class ViT(nn.Module):
    """The Vision Transformer: `embed` makes tokens of images, `encode` mixes them, `head` reads them.

    Args:
        config: shapes and arithmetic.
        stem: another module `(B, C, H, W) -> (B, N, D)` in place of the linear patch projection.
        generator: source of the initial weights; left out, PyTorch's default one.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(
        self, config: ViTConfig, stem: nn.Module | None = None, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.card = ModelCard()
        self.register_pixel_statistics()

        self.stem = PatchStem(config) if stem is None else stem
        self.class_token = nn.Parameter(torch.empty(1, 1, config.width)) if config.class_token else None
        rows = config.num_tokens - config.class_token + config.prefix_tokens
        self.position_embedding = nn.Parameter(torch.empty(1, rows, config.width))
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        size = config.representation_size
        self.pre_logits = nn.Linear(config.width, size) if size else None
        self.head = nn.Linear(size or config.width, config.num_classes)
        self.init_weights(generator)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights as vision_transformer does: zero head and class token, normal(0.02) positions."""
        for module in (self.stem, *self.blocks):
            module.init_weights(generator)
        if self.class_token is not None:
            nn.init.zeros_(self.class_token)
        nn.init.normal_(self.position_embedding, std=0.02, generator=generator)
        if self.pre_logits is not None:
            _lecun_normal(self.pre_logits.weight, self.pre_logits.in_features, generator)
            nn.init.zeros_(self.pre_logits.bias)
        self.init_head()

    @torch.no_grad()
    def init_head(self) -> None:
        """The zero-initialised linear layer that fine-tuning starts from (paper 3.1)."""
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(self.head.bias, self.config.head_bias_init)

    def register_pixel_statistics(self) -> None:
        """Mean and std as buffers that follow the model to its device."""
        for name, values in (("pixel_mean", self.config.image_mean), ("pixel_std", self.config.image_std)):
            self.register_buffer(name, 255 * torch.tensor(values).view(-1, 1, 1), persistent=False)

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 images to the floats the weights know; floats are taken to be normalised already."""
        expected = (self.config.in_channels, *self.config.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise VitkitError(
                f"This model takes images of shape (B, {expected[0]}, {expected[1]}, {expected[2]}), found "
                f"{tuple(images.shape)}. Resize them, or load the model with image_size=(height, width)."
            )
        if images.dtype == torch.uint8:
            pixels = images.to(self.pixel_mean.dtype)
            return (pixels - self.pixel_mean) / self.pixel_std
        if not images.is_floating_point():
            raise VitkitError(f"Images are uint8 (0 to 255) or normalised floats, found {images.dtype}.")
        return images

    def embed(self, images: Tensor, taps: Taps | None = None) -> Tensor:
        """Images `(B, C, H, W)` to tokens `(B, T, D)` with their positions (paper eq. 1)."""
        patches: Tensor = self.stem(self.normalize(images))  # (B, N, D)
        if self.class_token is None:
            tokens: Tensor = patches + self.position_embedding
        else:
            class_token = self.class_token.expand(len(patches), -1, -1)
            if self.config.class_token_position:
                tokens = torch.cat([class_token, patches], dim=1) + self.position_embedding
            else:
                tokens = torch.cat([class_token, patches + self.position_embedding], dim=1)
        tokens = self.dropout(tokens)
        if taps is not None:
            taps |= {"stem": patches, "embedded": tokens}
        return tokens

    def encode(
        self, tokens: Tensor, taps: Taps | None = None, attention_weights: bool | Collection[int] = False
    ) -> Tensor:
        """Tokens `(B, T, D)` through all blocks and the final norm, `(B, T, D)` (paper eq. 2 to 4)."""
        if isinstance(attention_weights, bool):
            asked: Collection[int] = range(len(self.blocks)) if attention_weights else ()
        else:
            asked = attention_weights
        if asked and taps is None:
            raise VitkitError("Attention weights are written to taps: pass taps={} as well.")
        if asked and not all(0 <= layer < len(self.blocks) for layer in asked):
            raise VitkitError(f"Layers are numbered 0 to {len(self.blocks) - 1}, asked for {sorted(asked)}.")
        for i, block in enumerate(self.blocks):
            tokens = block(tokens, taps, f"block{i:02d}", i in asked)
        encoded: Tensor = self.norm(tokens)
        if taps is not None:
            taps["encoded"] = encoded
        return encoded

    def pool(self, encoded: Tensor, taps: Taps | None = None) -> Tensor:
        """Encoded tokens `(B, T, D)` to what the head sees: `(B, D)`, or `(B, T, D)` without pooling."""
        if self.config.pool == "token":
            pooled = encoded[:, 0]
        elif self.config.pool == "mean":
            pooled = encoded.mean(1)
        else:
            pooled = encoded
        features = pooled if self.pre_logits is None else torch.tanh(self.pre_logits(pooled))
        if taps is not None:
            taps |= {"pooled": pooled, "pre_logits": features}
        return features

    def features(
        self,
        images: Tensor,
        taps: Taps | None = None,
        attention_weights: bool | Collection[int] = False,
    ) -> Tensor:
        """What the head sees, `(B, D)`: the representation few-shot evaluation and embeddings use."""
        return self.pool(self.encode(self.embed(images, taps), taps, attention_weights), taps)

    def forward(
        self,
        images: Tensor,
        taps: Taps | None = None,
        attention_weights: bool | Collection[int] = False,
    ) -> Tensor:
        """Logits of images.

        Args:
            images: `(B, C, H, W)`, uint8 pixels or floats normalised by the model's mean and std.
            taps: a dictionary that receives every intermediate: `stem`, `embedded`, `blockNN/attention`,
                `blockNN/+attention`, `blockNN/mlp`, `blockNN/+mlp`, `encoded`, `pooled`, `pre_logits`,
                `logits`.
            attention_weights: also `blockNN/attention_weights` `(B, h, T, T)`, of every layer (True) or of
                those numbered. Those layers leave the fused attention, the others keep it.

        Returns:
            `(B, K)`; `(B, T, K)` without pooling.

        Raises:
            VitkitError: images of another size or type than the model's.
        """
        logits: Tensor = self.head(self.features(images, taps, attention_weights))
        if taps is not None:
            taps["logits"] = logits
        return logits


def _lecun_normal(weight: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Truncated at two standard deviations, rescaled to a variance of 1/fan_in (as in Flax)."""
    std = math.sqrt(1 / fan_in) / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
