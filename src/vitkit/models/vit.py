"""The Vision Transformer, read top to bottom: configuration, stem, attention, MLP, block, ViT.

Follows section 3.1 of the paper, and vision_transformer `models_vit.py` where the paper is silent:
GELU in its tanh form, layer norms with epsilon 1e-6, weights initialised as there.

Shapes: B images, N patches, T tokens (N and the class token, where there is one), D = width,
h = num_heads, d = head_dim, K = num_classes.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models.image_model import LARGEST, ImageModel, Taps, by, check_images, lecun_normal, make_head
from vitkit.models.position import LearnedPosition, LearnedPosition2D, SinCosPosition2D, relative_logits
from vitkit.models.resnet import BackboneConfig

DEEPEST = 1000
"""Blocks of a model: ten times as many as any that was published has."""

MOST_TOKENS = 2**24
"""Tokens of an image, of 4096x4096 pixels each a patch of its own."""

MOST_FIXED_POSITIONS = 2**28
"""Numbers of sine-cosine positions, which are computed and in no file: 1 GiB of float32."""


@dataclass(frozen=True)
class ViTConfig:
    """Everything that decides the shapes and the arithmetic of a ViT.

    Sizes are `(height, width)` in pixels. Images that are no multiple of the patch are cropped at the right
    and bottom, as the original's VALID convolution does.
    """

    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    """Pixels, or positions of the feature map where a backbone makes one."""
    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    num_classes: int
    in_channels: int = 3
    backbone: BackboneConfig | None = None
    """A ResNet whose feature map is cut into patches in the image's place (hybrid, paper 3.1)."""
    pool: Literal["token", "mean", "map", "none"] = "token"
    """What the head sees: the class token; the mean of the patch tokens (GAP, paper D.3); what a learned
    query attends to (MAP, big_vision); or every token."""
    register_tokens: int = 0
    """Learned tokens between the class token and the patches, which no head sees."""
    class_token_position: bool = True
    """Whether the tokens before the patches have position embeddings (the original: yes; big_vision: no)."""
    position: Literal["learned", "learned_2d", "relative", "sincos_2d", "none"] = "learned"
    """Kind of position embedding (paper D.4; the sines and cosines are big_vision's)."""
    position_at: Literal["stem", "every_layer", "every_layer_shared"] = "stem"
    """Where it is added: once, before each layer, or the same one before each layer (paper D.4)."""
    attention: Literal["full", "axial"] = "full"
    """Between all tokens; or along rows, then along columns, with an MLP after each (paper D.6)."""
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
        check_images(self)
        for name, most in (
            ("width", LARGEST),
            ("depth", DEEPEST),
            ("num_heads", LARGEST),
            ("mlp_dim", LARGEST),
        ):
            value = getattr(self, name)
            if value < 1:
                raise VitkitError(f"A ViT needs {name} of at least 1, found {value}.")
            if value > most:
                raise VitkitError(f"A ViT has {name} of at most {most:,}, found {value:,}.")
        if min(self.patch_size) < 1 or self.grid[0] < 1 or self.grid[1] < 1:
            raise VitkitError(
                f"Images of {by(self.image_size)} hold no patch of {by(self.token_size)} pixels: "
                "choose a smaller patch or larger images."
            )
        if self.width % self.num_heads:
            raise VitkitError(f"width {self.width} cannot be shared among {self.num_heads} heads equally.")
        if self.representation_size is not None and not 1 <= self.representation_size <= LARGEST:
            raise VitkitError(
                f"representation_size is from 1 to {LARGEST:,} or none, found {self.representation_size}."
            )
        if not 0 <= self.register_tokens <= LARGEST:
            raise VitkitError(f"register_tokens is from 0 to {LARGEST:,}, found {self.register_tokens}.")
        if self.num_tokens > MOST_TOKENS:
            raise VitkitError(
                f"Images of {by(self.image_size)} make {self.num_tokens:,} tokens; at most {MOST_TOKENS:,} "
                "are possible: choose a larger patch or smaller images."
            )
        if self.position == "sincos_2d" and self.num_tokens * self.width > MOST_FIXED_POSITIONS:
            raise VitkitError(
                f"Sine-cosine positions of {self.num_tokens:,} tokens and width {self.width:,} are too many "
                "numbers: choose a larger patch or smaller images."
            )
        if not (math.isfinite(self.norm_eps) and self.norm_eps >= 0):
            raise VitkitError(f"norm_eps is a finite number of 0 or more, found {self.norm_eps}.")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise VitkitError(f"{name} is a share from 0 to below 1, found {getattr(self, name)}.")
        if self.position_at != "stem" and self.position in ("relative", "none"):
            raise VitkitError(
                f"'{self.position}' positions are not added to tokens: position_at says 'stem' for them, "
                f"found '{self.position_at}'."
            )
        if self.attention == "axial" and (self.prefix_tokens or self.position == "relative"):
            raise VitkitError(
                "Axial attention goes along rows and columns: no class or register token has a place there "
                "(choose pool 'mean' or 'map'), and no relative position."
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Patches per column and per row."""
        height, width = self.backbone.feature_map(self.image_size) if self.backbone else self.image_size
        return height // self.patch_size[0], width // self.patch_size[1]

    @property
    def token_size(self) -> tuple[int, int]:
        """Pixels of the image for each token: the patch size, times the stride of a backbone."""
        stride = self.backbone.stride if self.backbone else 1
        return self.patch_size[0] * stride, self.patch_size[1] * stride

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    @property
    def class_token(self) -> bool:
        return self.pool == "token"

    @property
    def prefix_tokens(self) -> int:
        """Tokens before those of the patches."""
        return self.class_token + self.register_tokens

    @property
    def prefix_positions(self) -> int:
        """Rows of the position embedding before those of the grid."""
        positioned = self.class_token_position and self.position in ("learned", "learned_2d")
        return self.prefix_tokens if positioned else 0

    @property
    def num_tokens(self) -> int:
        return self.grid[0] * self.grid[1] + self.prefix_tokens


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
        lecun_normal(self.weight, self.weight[0].numel(), generator)
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
    """Multi-head self-attention (paper, Appendix A), with relative positions where asked for (D.4)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        offsets = 2 * config.num_tokens - 1
        relative = config.position == "relative"
        self.relative = nn.Parameter(torch.empty(offsets, config.head_dim)) if relative else None

    def init_weights(self, generator: torch.Generator | None) -> None:
        # q, k and v are drawn as three square matrices: the bound is theirs, not the fused one's.
        bound = math.sqrt(6 / (2 * self.out.in_features))
        nn.init.uniform_(self.qkv.weight, -bound, bound, generator=generator)
        nn.init.xavier_uniform_(self.out.weight, generator=generator)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)
        if self.relative is not None:
            nn.init.normal_(self.relative, std=0.02, generator=generator)

    def forward(self, x: Tensor, taps: Taps | None = None, name: str = "") -> Tensor:
        """`(B, T, D) -> (B, T, D)`; with `taps`, the attention weights `(B, h, T, T)` are written there."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, width // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (B, h, T, d)
        dropout = self.dropout if self.training else 0.0
        bias = None if self.relative is None else relative_logits(q, self.relative)  # (B, h, T, T)
        if taps is None:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        else:
            logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            weights = (logits if bias is None else logits + bias).softmax(-1)
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


class AttentionPool(nn.Module):
    """MAP, attention pooling: one learned query looks at all tokens (big_vision `models/vit.py`)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.probe = nn.Parameter(torch.empty(1, 1, config.width))
        self.attention = Attention(replace(config, position="none", position_at="stem"))
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        self.mlp = MLP(config)

    def init_weights(self, generator: torch.Generator | None) -> None:
        nn.init.xavier_uniform_(self.probe[0], generator=generator)
        self.attention.init_weights(generator)
        self.mlp.init_weights(generator)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, D) -> (B, D)`. Neither the tokens nor the query are normalised before the attention."""
        batch, tokens, width = x.shape
        shape = (batch, -1, self.num_heads, width // self.num_heads)
        qkv = self.attention.qkv
        query = F.linear(self.probe, qkv.weight[:width], qkv.bias[:width]).expand(batch, -1, -1)
        keys_values = F.linear(x, qkv.weight[width:], qkv.bias[width:]).reshape(batch, tokens, 2, width)
        q = query.reshape(shape).transpose(1, 2)  # (B, h, 1, d)
        k, v = (part.reshape(shape).transpose(1, 2) for part in keys_values.unbind(2))  # (B, h, T, d)
        dropout = self.attention.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
        pooled = self.attention.out(mixed.transpose(1, 2).reshape(batch, width))  # (B, D)
        return pooled + self.mlp(self.norm(pooled))  # type: ignore[no-any-return]


class ViT(ImageModel):
    """The Vision Transformer: `embed` makes tokens of images, `encode` mixes them, `head` reads them.

    Args:
        config: shapes and arithmetic.
        stem: another module `(B, C, H, W) -> (B, N, D)` in place of the linear patch projection.
        blocks: other modules `(B, T, D) -> (B, T, D)` in place of the encoder blocks.
        generator: source of the initial weights; left out, PyTorch's default one.

    `vitkit.models.zoo.build_model` hands in the parts that a configuration asks for.
    """

    config: ViTConfig

    def __init__(
        self,
        config: ViTConfig,
        stem: nn.Module | None = None,
        blocks: Iterable[nn.Module] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(config)
        width = config.width
        self.stem = PatchStem(config) if stem is None else stem
        self.class_token = nn.Parameter(torch.empty(1, 1, width)) if config.class_token else None
        registers = config.register_tokens
        self.register_tokens = nn.Parameter(torch.empty(1, registers, width)) if registers else None
        self.positions = nn.ModuleList(_positions(config))
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            (Block(config) for _ in range(config.depth)) if blocks is None else blocks
        )
        self.norm = nn.LayerNorm(width, config.norm_eps)
        self.attention_pool = AttentionPool(config) if config.pool == "map" else None
        size = config.representation_size
        self.pre_logits = nn.Linear(width, size) if size else None
        self.head = make_head(size or width, config.num_classes)
        self.draw_weights(generator)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights as vision_transformer does: zero head and class token, normal(0.02) positions."""
        for module in (self.stem, *self.blocks, *self.positions, self.attention_pool):
            if module is not None:
                module.init_weights(generator)
        if self.class_token is not None:
            nn.init.zeros_(self.class_token)
        if self.register_tokens is not None:  # not zeros: nothing else would tell them apart
            nn.init.normal_(self.register_tokens, std=0.02, generator=generator)
        if self.pre_logits is not None:
            lecun_normal(self.pre_logits.weight, self.pre_logits.in_features, generator)
            nn.init.zeros_(self.pre_logits.bias)
        self.init_head()

    def embed(self, images: Tensor, taps: Taps | None = None) -> Tensor:
        """Images `(B, C, H, W)` to tokens `(B, T, D)` with their positions (paper eq. 1)."""
        patches: Tensor = self.stem(self.normalize(images))  # (B, N, D)
        prefix = [part for part in (self.class_token, self.register_tokens) if part is not None]
        tokens: Tensor = patches
        if prefix:
            tokens = torch.cat([*(part.expand(len(patches), -1, -1) for part in prefix), patches], dim=1)
        if self.config.position_at == "stem" and len(self.positions):
            tokens = self._add_position(tokens, 0)
        tokens = self.dropout(tokens)
        if taps is not None:
            taps |= {"stem": patches, "embedded": tokens}
        return tokens

    def before_layer(self, layer: int, tokens: Tensor) -> Tensor:
        """What block number `layer` sees of the tokens `(B, T, D)` that the one before it made.

        They are the same, unless position embeddings are added at every layer.
        """
        if self.config.position_at == "stem":
            return tokens
        return self._add_position(tokens, layer if self.config.position_at == "every_layer" else 0)

    def _add_position(self, tokens: Tensor, number: int) -> Tensor:
        position: Tensor = self.positions[
            number
        ]()  # (1, N, D), or (1, T, D) where the first tokens have one too
        unpositioned = tokens.shape[1] - position.shape[1]
        if not unpositioned:
            return tokens + position
        return torch.cat([tokens[:, :unpositioned], tokens[:, unpositioned:] + position], dim=1)

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
            tokens = block(self.before_layer(i, tokens), taps, f"block{i:02d}", i in asked)
        encoded: Tensor = self.norm(tokens)
        if taps is not None:
            taps["encoded"] = encoded
        return encoded

    def pool(self, encoded: Tensor, taps: Taps | None = None) -> Tensor:
        """Encoded tokens `(B, T, D)` to what the head sees: `(B, D)`, or `(B, T, D)` without pooling."""
        if self.config.pool == "token":
            pooled = encoded[:, 0]
        elif self.config.pool == "mean":
            pooled = encoded[:, self.config.prefix_tokens :].mean(1)
        elif self.attention_pool is not None:
            pooled = self.attention_pool(encoded)
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


def _positions(config: ViTConfig) -> Iterable[nn.Module]:
    """The modules that make position embeddings: none, one, or one for each layer."""
    for _ in range(config.depth if config.position_at == "every_layer" else 1):
        if config.position == "learned":
            yield LearnedPosition(config.grid, config.width, config.prefix_positions)
        elif config.position == "learned_2d":
            yield LearnedPosition2D(config.grid, config.width, config.prefix_positions)
        elif config.position == "sincos_2d":
            yield SinCosPosition2D(config.grid, config.width)
