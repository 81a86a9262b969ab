"""The Vision Transformer, read top to bottom: images to patches, patches to tokens, encoder, pooling, head.

Follows section 3.1 of the paper, and vision_transformer `models_vit.py` where the paper is silent. The parts
are in `parts.py` (attention, MLP, block, poolings, stems) and `position.py`, the configuration is in
`config.py`. All is computed here in one way, the plain one; `fast.py` has the others.

Shapes: B images of C channels and H x W pixels; N patches; T tokens: class token and registers, P of which
have a position, and then the patches. D = width, h = num_heads, K = num_classes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models import parts
from vitkit.models.config import IN_ATTENTION, ViTConfig
from vitkit.models.image_model import (
    AttentionWeights,
    BatchRows,
    Grid,
    ImageModel,
    Taps,
    lecun_normal,
    tapped,
)
from vitkit.models.position import Position, RotaryPosition2D, make_positions


class ViT(ImageModel):
    """The Vision Transformer: `patches` and `place` make tokens, `encode` mixes them, `head` reads them.

    Args:
        config: shapes and numerics.
        stem: a module `(B, C, H, W) -> (B, N, D)` in place of the linear patch projection, with a method
            `init_weights(generator)`; required where `config.backbone` or `config.stem_channels` is set.
        blocks: modules `(B, T, D) -> (B, T, D)` in place of the encoder blocks, with
            `init_weights(generator)` and the arguments of `Block.forward`; required where `config.attention`
            is not "full".
        generator: source of the initial weights; left out, PyTorch's default one.

    `vitkit.build_model` hands in the parts that a configuration needs.

    Raises:
        VitkitError: the configuration needs a part that was not handed in.
    """

    config: ViTConfig
    pooling: parts.Pooling

    def __init__(
        self,
        config: ViTConfig,
        stem: nn.Module | None = None,
        blocks: Iterable[nn.Module] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(config)
        absent = {
            "stem": stem is None and (config.backbone is not None or bool(config.stem_channels)),
            "blocks": blocks is None and config.attention != "full",
        }
        # Without them a hybrid's or an axial model's configuration would silently become another model.
        if missing := [name for name, is_absent in absent.items() if is_absent]:
            raise VitkitError(
                f"This configuration needs {' and '.join(missing)} that ViT does not make by itself: "
                "call vitkit.build_model(config), which hands them in."
            )
        width, registers = config.width, config.register_tokens
        self.stem = parts.PatchStem(config.patch_size, width, config.in_channels) if stem is None else stem
        self.class_token = nn.Parameter(torch.empty(1, 1, width)) if config.class_token else None
        # Learned tokens that stand for no part of the image, in which attention may store what it needs
        # (Darcet et al. 2024). The pools "token", "mean" and "max" leave them out. The paper has none.
        self.register_tokens = nn.Parameter(torch.empty(1, registers, width)) if registers else None
        self.positions = nn.ModuleList(make_positions(config))  # none, one, or one for each block
        self.dropout = parts.Dropout(config.dropout)
        made = (encoder_block(config, number) for number in range(config.depth))
        self.blocks = nn.ModuleList(made if blocks is None else blocks)
        # CLIP's models have a norm before the first block, the paper's have none.
        pre_norm = config.norm_before_blocks
        self.pre_norm = parts.NORMS[config.norm](width, config.norm_eps) if pre_norm else None
        self.norm = parts.NORMS[config.norm](width, config.norm_eps) if config.final_norm else nn.Identity()
        self.pooling = parts.make_pooling(config)
        size = config.representation_size  # of a hidden layer, which pre-training has (paper 3.1)
        features = config.feature_width
        self.pre_logits = nn.Linear(features, size) if size else None
        self.head = nn.Linear(size or features, config.num_classes) if config.num_classes else nn.Identity()
        # None on the meta device, where arithmetic makes PyTorch import its compiler, for seconds.
        if not next(self.parameters()).is_meta:
            self.init_weights(generator)

    @torch.no_grad()
    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights as vision_transformer does: zero head and class token, normal(0.02) positions.

        Norms keep the scale and shift that they have, which are 1 and 0 in a model just built.
        """
        # The order in which the generator is drawn from: the bits of a run's first weights depend on it.
        for module in (self.stem, *self.blocks, *self.positions, self.pooling):
            module.init_weights(generator)
        if self.class_token is not None:
            nn.init.zeros_(self.class_token)
        if self.register_tokens is not None:
            # Not zero: they are alike in all else, and equal ones would stay equal. 0.02 as for positions.
            nn.init.normal_(self.register_tokens, std=0.02, generator=generator)
        if self.pre_logits is not None:
            lecun_normal(self.pre_logits.weight, self.pre_logits.in_features, generator)
            nn.init.zeros_(self.pre_logits.bias)
        self.init_head()

    def take_rows(self, rows: BatchRows | None) -> None:
        """Treat the next training images as these rows of a larger batch; None: as all of it."""
        super().take_rows(rows)
        for part in self.modules():
            if isinstance(part, parts.Block | parts.Dropout):
                part.batch_rows = rows

    def layers(self) -> list[nn.Module]:
        """List the encoder blocks."""
        return list(self.blocks)

    def patches(self, images: Tensor, taps: Taps | None = None, any_size: bool = False) -> Tensor:
        """Embed images `(B, C, H, W)` as patches `(B, N, D)`, in raster order and without positions.

        Masking patches, as the paper's self-supervision does (B.1.2), happens between this and `place`.

        Args:
            images: uint8 pixels or floats normalised by the model's mean and std.
            taps: receives `stem`.
            any_size: whether images may have another size than the model's.

        Raises:
            VitkitError: images of another size or number of channels than the model's, or neither uint8 nor
                float.
        """
        return tapped(taps, "stem", self.stem(self.normalize(images, any_size)))

    def place(self, patches: Tensor, taps: Taps | None = None, grid: Grid | None = None) -> Tensor:
        """Make tokens `(B, T, D)` of patch embeddings `(B, N, D)` (paper eq. 1).

        Class token and registers are put before them, positions are added, then come dropout and, in CLIP's
        models, a norm.

        Args:
            patches: embeddings of all patches of a grid, in raster order.
            taps: receives `embedded`.
            grid: `(rows, columns)` of the patches where it is not the model's own: positions are resized.
        """
        prefix = [part for part in (self.class_token, self.register_tokens) if part is not None]
        # Each is (1, count, D), the same for all images: `expand` copies nothing. `len(patches)` would be a
        # number that never changes in the graph of an export.
        expanded = [part.expand(patches.shape[0], -1, -1) for part in prefix]
        tokens: Tensor = torch.cat([*expanded, patches], dim=1) if expanded else patches  # (B, T, D)
        if self.config.position_at == "stem" and len(self.positions):
            tokens = self._add_position(tokens, 0, grid)
        if self.training and self.batch_rows is not None and self.config.attention_dropout:
            # The objective has drawn for the whole batch before; PyTorch drops attention weights of these
            # images alone.
            torch.manual_seed(self.batch_rows.seed)
        tokens = self.dropout(tokens)  # after the positions, as in vision_transformer
        if self.pre_norm is not None:
            tokens = self.pre_norm(tokens)
        return tapped(taps, "embedded", tokens)

    def embed(self, images: Tensor, taps: Taps | None = None) -> Tensor:
        """Embed images `(B, C, H, W)` as tokens `(B, T, D)` with their positions: `place` of `patches`."""
        return self.place(self.patches(images, taps), taps)

    def position_embedding(self) -> Tensor | None:
        """Return the position embedding added first, `(1, P + N, D)`; None for a model that adds none."""
        return self.positions[0]() if len(self.positions) else None

    def before_layer(self, layer: int, tokens: Tensor, grid: Grid | None = None) -> Tensor:
        """Add the positions that belong before block number `layer` to its input, `(B, T, D)`.

        Nothing is added unless the configuration adds positions at every layer (paper D.4).

        Args:
            layer: number of the block, from 0.
            tokens: output of the block before, or of `place`.
            grid: `(rows, columns)` of the patches where it is not the model's own.
        """
        if self.config.position_at == "stem":
            return tokens
        # "every_layer" learns an embedding for each layer, "every_layer_shared" one for all.
        return self._add_position(tokens, layer if self.config.position_at == "every_layer" else 0, grid)

    def _add_position(self, tokens: Tensor, number: int, grid: Grid | None) -> Tensor:
        """Add position embedding `number` to tokens `(B, T, D)`; `grid` as for `before_layer`."""
        position = self.positions[number]
        assert isinstance(position, Position)
        embedding: Tensor = (
            position() if grid is None else position.at(grid, self.card.position_interpolation)
        )  # (1, P + N, D)
        if not (unpositioned := self.config.prefix_tokens - position.prefix_rows):
            return tokens + embedding
        # Without a position for the class token, as in big_vision, registers have none either.
        return torch.cat([tokens[:, :unpositioned], tokens[:, unpositioned:] + embedding], dim=1)

    def encode(
        self,
        tokens: Tensor,
        taps: Taps | None = None,
        attention_weights: AttentionWeights = False,
        grid: Grid | None = None,
    ) -> Tensor:
        """Pass tokens `(B, T, D)` through all blocks and the final norm, to `(B, T, D)` (paper eq. 2 to 4).

        Where the configuration puts the final norm after the pooling, the tokens leave without it.

        Args:
            tokens: output of `embed` or `place`.
            taps, attention_weights: as for `forward`.
            grid: `(rows, columns)` of the patches where it is not the model's own.

        Raises:
            VitkitError: attention weights without taps, of a layer that is not there, or of an axial model.
        """
        every_layer = range(len(self.blocks))
        # The layers that leave the fused kernel, for their attention weights.
        explicit = every_layer if attention_weights is True else attention_weights or ()
        if explicit and taps is None:
            raise VitkitError("Attention weights are written to taps: pass taps={} as well.")
        if not all(layer in every_layer for layer in explicit):
            raise VitkitError(f"Layers are numbered 0 to {every_layer[-1]}, found {sorted(explicit)}.")
        for i, block in enumerate(self.blocks):
            tokens = self.before_layer(i, tokens, grid)
            if taps is None:
                tokens = self.through(block, tokens)
            else:  # never recomputed for gradients: a block would write its taps twice
                tokens = block(tokens, taps, f"block{i:02d}", i in explicit)
        # All tokens are normed, even if the head reads the class token alone: taps and feature maps hold
        # normed tokens.
        return tapped(taps, "encoded", tokens if self.config.norm_after_pooling else self.norm(tokens))

    def pool(self, encoded: Tensor, taps: Taps | None = None) -> Tensor:
        """Reduce encoded tokens `(B, T, D)` to the head's features, `(B, F)`; `(B, T, F)` without pooling.

        F is the representation size where there is a tanh layer before the head, else D, or 2D for the class
        token and the mean of the patches.
        """
        pooled: Tensor = self.pooling(encoded)
        # MAE and others norm the mean of the tokens, not the tokens themselves (`fc_norm` in timm).
        if self.config.norm_after_pooling:
            pooled = self.norm(pooled)
        features = pooled if self.pre_logits is None else torch.tanh(self.pre_logits(pooled))
        tapped(taps, "pooled", pooled)
        return tapped(taps, "pre_logits", features)

    def features(
        self,
        images: Tensor,
        taps: Taps | None = None,
        attention_weights: AttentionWeights = False,
        *,
        any_size: bool = False,
    ) -> Tensor:
        """Compute the features that the head sees, also for few-shot evaluation and embeddings.

        Their shape is that of `pool`'s result.

        Args:
            images: `(B, C, H, W)`, uint8 pixels or floats normalised by the model's mean and std.
            taps, attention_weights: as for `forward`.
            any_size: whether images may have another size than the model's. Their positions are then resized
                for this call alone, which multi-crop training needs; to change the size for good, load the
                model with `image_size`.

        Raises:
            VitkitError: images of another size or number of channels than the model's, or neither uint8 nor
                float; with `any_size`, no patch fits into them or positions are part of the attention;
                attention weights without taps, of a layer that is not there, or of an axial model.
        """
        grid = self.grid_of(images) if any_size else None
        tokens = self.place(self.patches(images, taps, any_size), taps, grid)
        return self.encode_and_pool(tokens, taps, attention_weights, grid)

    def encode_and_pool(
        self, tokens: Tensor, taps: Taps | None, attention_weights: AttentionWeights, grid: Grid | None
    ) -> Tensor:
        """Compute the features of placed tokens `(B, T, D)`; see `features`."""
        return self.pool(self.encode(tokens, taps, attention_weights, grid), taps)

    def feature_maps(self, images: Tensor, layers: Sequence[int] = (-1,)) -> list[Tensor]:
        """Arrange the patch tokens after some blocks as maps `(B, D, rows, columns)`, in the given order.

        The final norm is applied to the tokens of the last block alone, as `encode` does.

        Args:
            images: as for `forward`.
            layers: numbers of blocks from 0; negative ones count from the end.
        """
        numbers = self._layer_numbers(layers, len(self.blocks))
        taps: Taps = {}
        encoded = self.encode(self.embed(images), taps)
        rows, columns = self.config.grid
        last = len(self.blocks) - 1
        maps = []
        for number in numbers:
            # `encoded` is the output of the last block after the final norm; its tap has no norm yet.
            # An axial block is two blocks, of which the one along the columns comes last.
            part = "columns/" if self.config.attention == "axial" else ""
            tokens = encoded if number == last else taps[f"block{number:02d}/{part}+mlp"]
            patches = tokens[:, self.config.prefix_tokens :]  # (B, N, D)
            # Patches are in raster order, so that D becomes the channels of a map of the grid's shape.
            maps.append(patches.transpose(1, 2).reshape(len(patches), -1, rows, columns))
        return maps

    def grid_of(self, images: Tensor) -> Grid | None:
        """Count the patches of images of any size, `(rows, columns)`; None where it is the model's own grid.

        Raises:
            VitkitError: the model's positions are part of its attention, or no patch fits into the images.
        """
        size = (images.shape[-2], images.shape[-1])
        if size == self.config.image_size:
            return None
        config = self.config
        if config.attention == "axial" or config.position in IN_ATTENTION or config.rotary is not None:
            raise VitkitError(
                "Axial attention, relative and rotary positions are made for one grid: load the model with "
                f"image_size=({size[0]}, {size[1]}) instead of any_size."
            )
        return replace(self.config, image_size=size).grid  # which refuses images smaller than a patch

    def forward(
        self, images: Tensor, taps: Taps | None = None, attention_weights: AttentionWeights = False
    ) -> Tensor:
        """Compute the logits of images.

        Args:
            images: `(B, C, H, W)`, uint8 pixels or floats normalised by the model's mean and std.
            taps: a dictionary that receives every intermediate: `stem`, `embedded`, `blockNN/attention`,
                `blockNN/+attention`, `blockNN/mlp`, `blockNN/+mlp`, `encoded`, `pooled`, `pre_logits`,
                `logits`. Axial models have `blockNN/rows/...` and `blockNN/columns/...` in place of
                `blockNN/...`. Without a tanh layer `pre_logits` is `pooled`.
            attention_weights: layers whose attention weights `(B, h, T, T)` are written to taps too, as
                `blockNN/attention_weights`: all (True), or the given numbers, from 0. Only these layers
                leave the fused attention.

        Returns:
            `(B, K)`; `(B, T, K)` without pooling.

        Raises:
            VitkitError: images of another size or number of channels than the model's, or neither uint8 nor
                float; attention weights without taps, of a layer that is not there, or of an axial model.
        """
        return tapped(taps, "logits", self.head(self.features(images, taps, attention_weights)))


def encoder_block(config: ViTConfig, number: int = 0) -> parts.Block:
    """Make encoder block `number`, from 0, of a configuration; the number decides how often it is skipped."""
    make_attention: Callable[..., parts.Attention]
    if config.position == "relative":
        make_attention = partial(parts.RelativeAttention, tokens=config.num_tokens)
    elif config.position == "relative_bias":
        make_attention = partial(parts.BiasedAttention, grid=config.grid, prefix_tokens=config.prefix_tokens)
    elif config.rotary is not None:
        registers = 0 if config.rotary.register_temperature is None else config.register_tokens
        fixed = config.prefix_tokens - registers  # the class token, and registers without a place
        rotary = RotaryPosition2D(config.grid, config.head_dim, fixed, config.rotary, registers)
        make_attention = partial(parts.Attention, rotary=rotary)
    else:
        make_attention = parts.Attention
    attention = make_attention(
        config.width,
        config.num_heads,
        dropout=config.attention_dropout,
        qk_norm=config.norm if config.qk_norm else None,
        norm_eps=config.norm_eps,
        qkv_bias=config.qkv_bias,
    )
    mlp: parts.MLP | parts.GatedMLP
    if config.mlp == "swiglu":
        norm, eps = config.norm if config.mlp_norm else None, config.norm_eps
        mlp = parts.GatedMLP(config.width, config.mlp_dim, norm=norm, norm_eps=eps, dropout=config.dropout)
    else:
        mlp = parts.MLP(config.width, config.mlp_dim, gelu=config.gelu, dropout=config.dropout)
    return parts.Block(
        config.width,
        attention,
        mlp,
        norm=config.norm,
        norm_eps=config.norm_eps,
        dropout=config.dropout,
        layer_scale=config.layer_scale,
        # The rate rises evenly from 0 in the first block, as in timm and DeiT. The linear rule of Huang et
        # al. (2016, eq. 4) begins at drop_path / depth instead.
        drop_path=config.drop_path * number / max(config.depth - 1, 1),
    )
