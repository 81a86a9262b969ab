"""The other ways to compute a Vision Transformer: each gives the plain way's results up to rounding, faster
on some machine or in some precision (`vitkit.runs.machine` has the rule).

Each is a subclass of a plain part that overrides a method (`FastViT` two) to compute the same in another way.
`compute_as` exchanges the classes of a model's parts (`part.__class__ = ...`) and hands compiled functions to
the parts that need one, as `compiled`; no parameter is added, removed or renamed. A copy or a pickle is of
the same classes and computes through its own weights. Functions stored in the parts as `forward` would be
simpler, but each would refer to its part and the part to it: such a circle stays in memory, with all weights,
until Python looks for circles. Each way says what it knows of a part (`known_parts.py`), and all else stays
as it is: parts of other classes, with layers of other classes, with hooks or with a parameter more.

Callers hand in the functions compiled from C.

Shapes: B images, N patches, T tokens, D = width, h = num_heads, d = head_dim = D / h.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.config import PLAIN, Compute, ViTConfig
from vitkit.models.image_model import AttentionWeights, Grid, ImageModel, Taps, tapped
from vitkit.models.known_parts import ANY, LAYERS, Watch, Way, contents
from vitkit.models.novelty import Novelty
from vitkit.models.parts import (
    MLP,
    Attention,
    BiasedAttention,
    Block,
    ClassTokenPool,
    Dropout,
    GatedMLP,
    PatchStem,
    RelativeAttention,
    RMSNorm,
    path_factors,
)
from vitkit.models.position import RotaryPosition2D
from vitkit.models.vit import ViT

BlockFunction = Callable[
    [Tensor, tuple[Tensor, ...], int, float, Callable[[], Mapping[str, Any]]], Tensor | None
]
"""A function that computes a whole block: (tokens `(B, T, D)`, `block_weights`, h, epsilon of the norms,
`block_extras`) -> tokens `(B, T, D)`. It returns None where it cannot: for another type, device, size of a
head or autocast. Then nothing was drawn at random."""

CENTRE = 128
"""The level subtracted from all pixels: a whole number, so that bfloat16 holds the differences exactly, and
near the middle of 0 to 255, so that sums stay small."""

HEAD_MULTIPLE = 16
"""A head's size in `kernels/block.c` is a multiple of this, which is `PADDING` there; models import no
kernels, so that a test compares the two."""

PartNames = dict[type[nn.Module], Collection[str]]

BLOCK: PartNames = {
    Block: (
        "drop_path",
        "batch_rows",
        "norm1",
        "attention",
        "dropout",
        "norm2",
        "mlp",
        "_compiled_call_impl",
    ),
    Attention: ("num_heads", "dropout", "qkv", "out"),
    MLP: ("gelu", "dropout", "fc1", "fc2"),
    Dropout: ("rate", "batch_rows", "faster_mask"),
}
"""The parts that a block is made of in the original."""
SCALED_BLOCK: PartNames = {**BLOCK, Block: (*BLOCK[Block], "layer_scale", "attention_scale", "mlp_scale")}
"""The same, with a layer scale or without."""
RMS_NORM: PartNames = {RMSNorm: contents(RMSNorm(1))}
"""RMSNorm, of ways that call it."""
ROTARY: PartNames = {
    Attention: (*BLOCK[Attention], "rotary", "q_norm", "k_norm"),
    RotaryPosition2D: ("grid", "head_dim", "prefix_tokens", "config", "registers", "cos", "sin"),
    **RMS_NORM,
}
"""Attention with rotary positions and norms of queries and keys, of ways that call them."""
WHOLE: PartNames = {
    ViT: (
        *("config", "card", "chosen", "recompute", "batch_rows"),
        *("pixel_mean", "pixel_std"),
        *("stem", "class_token", "register_tokens", "positions", "dropout", "pre_norm", "blocks", "norm"),
        *("pooling", "pre_logits", "head", "novelty"),
    ),
    # It scores what the model computes, and has no part in it.
    Novelty: ("centre", "whitening", "class_means", "scales"),
}
"""A ViT, for the two of its methods that `FastViT` overrides."""
BY_CONTENT = {
    "attention": ("full",),
    "position": ("learned", "learned_2d", "sincos_2d", "sincos_2d_mae", "none"),
    "rotary": (None,),
}
"""Values with which all tokens attend to all tokens, by their content and not by their positions."""

CALLED = dict.fromkeys(("norm", "qk_norm", "qkv_bias", "mlp", "mlp_norm", "final_norm"), ANY)
"""The fields of parts that a way calls or has nothing to do with."""

EXPLICIT_ATTENTION = Way(
    {
        **ROTARY,
        RelativeAttention: (*ROTARY[Attention], "relative"),
        BiasedAttention: (*ROTARY[Attention], "grid", "prefix_tokens", "relative_bias", "places"),
        nn.Linear: LAYERS[nn.Linear],  # with a bias or without
    },
    CALLED,
)
COMPILED_GELU = Way(BLOCK, {**CALLED, "mlp": ("gelu",)})
TURNED: PartNames = {Attention: (*BLOCK[Attention], "rotary"), RotaryPosition2D: ROTARY[RotaryPosition2D]}
"""Attention with rotary positions or without, of ways that turn queries and keys."""
CLASS_TOKEN = Way(
    {
        **WHOLE,
        **SCALED_BLOCK,
        **TURNED,
        GatedMLP: ("dropout", "fc1", "norm", "fc2"),
        ClassTokenPool: (),
        **RMS_NORM,
    },
    # `attend_first` adds no relative positions, normalises no queries or keys, and needs the biases of qkv.
    {**BY_CONTENT, "rotary": ANY, "pool": ("token",), "norm": ANY, "mlp": ANY, "mlp_norm": ANY},
)
FOLDED_PIXELS = Way(
    {**WHOLE, PatchStem: ("patch_size", "weight", "bias")},
    {**CALLED, "backbone": (None,), "stem_channels": ((),)},
)
COMPILED_BLOCK = Way(
    {**SCALED_BLOCK, **TURNED},
    {**BY_CONTENT, "rotary": ANY, "final_norm": ANY},
)


class ExplicitAttention(Attention):
    """Attention by two products and a softmax, which keeps the weights in memory for the backward pass.

    In bfloat16 on a CPU PyTorch's fused kernel is slower, up to `MOST_EXPLICIT_TOKENS` of
    `vitkit.runs.machine`. In float32 the fused one stays: this way is faster at 17 to 26 tokens, and slower
    at 10 and at 50.
    """

    plain: ClassVar[type[nn.Module]] = Attention

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        # Scaled are the queries, which are fewer numbers than the logits: T * d of a head and not T * T.
        logits = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)  # (B, h, T, T)
        weights = (logits if bias is None else logits + bias).softmax(-1)
        return F.dropout(weights, dropout) @ v  # (B, h, T, d)


class ExplicitRelativeAttention(ExplicitAttention, RelativeAttention):
    """Relative attention by two products and a softmax: the bias is `RelativeAttention`'s."""

    plain: ClassVar[type[nn.Module]] = RelativeAttention


class ExplicitBiasedAttention(ExplicitAttention, BiasedAttention):
    """Attention with biases of offsets by two products and a softmax."""

    plain: ClassVar[type[nn.Module]] = BiasedAttention


class CompiledMLP(MLP):
    """An MLP whose GELU is a compiled function: PyTorch's takes up to three times as long."""

    plain: ClassVar[type[nn.Module]] = MLP

    compiled: Callable[[Tensor, str], Tensor] | None
    """None where an MLP was unpickled on a machine that cannot compile it."""

    def activate(self, x: Tensor) -> Tensor:
        return super().activate(x) if self.compiled is None else self.compiled(x, self.gelu)


class CompiledBlock(Block):
    """A block that one function computes, products and all that is between them, wherever it can."""

    plain: ClassVar[type[nn.Module]] = Block

    compiled: BlockFunction | None
    """None where a block was unpickled on a machine that cannot compile it."""
    watch: Watch

    def forward(
        self, x: Tensor, taps: Taps | None = None, name: str = "", attention_taps: bool = False
    ) -> Tensor:
        # The function drops no attention weights and writes no taps: both are left to the modules.
        drops = self.training and self.attention.dropout > 0
        # Asked at every call: a hook may have been added since.
        parts = (self.norm1, self.attention, self.dropout, self.norm2, self.mlp)
        whole = self.watch.ask(lambda: COMPILED_BLOCK.knows(self), self, parts)
        if self.compiled is not None and taps is None and not drops and whole:
            heads, epsilon = self.attention.num_heads, self.norm1.eps or 0.0
            out = self.compiled(x, block_weights(self), heads, epsilon, partial(block_extras, self, x))
            if out is not None:
                return out
        return super().forward(x, taps, name, attention_taps)


class FastViT(ViT):
    """A ViT that folds the normalisation of pixels, and shortens its last block, where `chosen` says so."""

    plain: ClassVar[type[nn.Module]] = ViT
    watch: Watch
    watch_last: Watch

    def patches(self, images: Tensor, taps: Taps | None = None, any_size: bool = False) -> Tensor:
        stem, folds = self.stem, self.chosen.pixels == "folded" and images.dtype == torch.uint8
        folds = folds and self.watch.ask(lambda: can_fold_pixels(self), self, (stem,))
        # Folding normalises the weights in place of the pixels: it pays where the pixels are more numbers.
        if not (folds and isinstance(stem, PatchStem) and images.numel() > stem.weight.numel()):
            return super().patches(images, taps, any_size)
        self.require_size(images, any_size)
        return tapped(taps, "stem", embed_pixels(stem, images, self.pixel_mean, self.pixel_std))

    def shortened_block(self) -> Block | None:
        """Return the last block if it computes the class token alone; None if it computes all tokens."""
        if self.chosen.last_block != "class_token":
            return None
        last = self.blocks[-1] if len(self.blocks) else self.norm
        if not self.watch_last.ask(lambda: can_shorten(self), self, (last, self.norm, self.pooling)):
            return None
        assert isinstance(last, Block)
        return last

    def encode_and_pool(
        self, tokens: Tensor, taps: Taps | None, attention_weights: AttentionWeights, grid: Grid | None
    ) -> Tensor:
        last = self.shortened_block()
        # Taps hold all tokens, so that with them all are computed.
        if last is None or taps is not None or attention_weights:
            return super().encode_and_pool(tokens, taps, attention_weights, grid)
        for i, block in enumerate(self.blocks[:-1]):
            tokens = self.through(block, self.before_layer(i, tokens, grid))
        tokens = self.before_layer(len(self.blocks) - 1, tokens, grid)
        attended = attend_first(last.attention, last.norm1(tokens))
        token = last.add_branches(tokens[:, :1], attended)  # (B, 1, D), and no other token
        return self.pool(token if self.config.norm_after_pooling else self.norm(token))


def can_shorten(model: ImageModel) -> bool:
    """Whether the last block of a model may compute the class token alone.

    The norm and the pooling behind it are handed one token in place of all: they have to be known too.
    """
    if not CLASS_TOKEN.knows(model, alone=True):
        return False
    vit = cast("ViT", model)
    parts = (vit.blocks[-1], vit.norm, vit.pooling) if len(vit.blocks) else ()
    return bool(parts) and all(map(CLASS_TOKEN.knows, parts))


def can_fold_pixels(model: ImageModel) -> bool:
    """Whether the normalisation of pixels may be a part of the patch embedding."""
    return FOLDED_PIXELS.knows(model, alone=True) and FOLDED_PIXELS.knows(cast("ViT", model).stem)


def compute_as(
    model: ImageModel,
    chosen: Compute,
    gelu: Callable[[Tensor, str], Tensor] | None = None,
    block: BlockFunction | None = None,
    mask: Callable[[Tensor, float, Tensor], Tensor] | None = None,
    objective: nn.Module | None = None,
) -> None:
    """Have a model compute in the chosen ways from now on, as far as they know all of it.

    The blocks of an objective, such as a decoder, compute as the model's.

    A way is taken for all parts of a kind or for none of them, and `model.chosen` records which ones were.
    Results differ by rounding alone, except under dropout of attention weights: the ways draw different
    random numbers. The precision is the caller's to set: models do not enter autocast by themselves.

    Args:
        model: a ViT; another family computes in the plain way.
        chosen: the ways to compute.
        gelu: computes a form of GELU where `chosen.gelu` is "compiled".
        block: computes an encoder block where `chosen.block` is "compiled".
        mask: draws dropout as `parts.keep_mask` does, and faster: its results are the same bits.
        objective: what the model is trained for, with parts of its own.
    """
    every = [*model.modules(), *(() if objective is None else objective.modules())]
    attentions = [part for part in every if isinstance(part, Attention)]
    mlps = [part for part in every if isinstance(part, MLP)]
    blocks = [part for part in every if isinstance(part, Block)]
    compiles = block is not None and block_can_be_compiled(model.config)
    ways: dict[str, tuple[Way, Sequence[nn.Module], Callable[[Any], bool]]] = {
        "attention": (EXPLICIT_ATTENTION, attentions, EXPLICIT_ATTENTION.knows),
        "last_block": (CLASS_TOKEN, [model], can_shorten),
        "gelu": (COMPILED_GELU, mlps if gelu is not None else [], COMPILED_GELU.knows),
        "pixels": (FOLDED_PIXELS, [model], can_fold_pixels),
        "block": (COMPILED_BLOCK, blocks if compiles else [], COMPILED_BLOCK.knows),
    }
    plain: dict[str, Any] = {
        name: getattr(PLAIN, name)
        for name, (way, parts, knows) in ways.items()
        if not (way.computes(model.config) and parts and all(map(knows, parts)))
    }
    if "block" in plain:
        plain["products"] = PLAIN.products
    model.chosen = chosen = replace(chosen, **plain)
    for attention in attentions:
        _exchange(attention, chosen.attention == "explicit")
    for mlp in mlps:
        _exchange(mlp, chosen.gelu == "compiled", gelu)
    for part in blocks:
        _exchange(part, chosen.block == "compiled", block)
        # A graph for each kind of block and not one of the whole model: it is compiled once for all blocks,
        # and is there where an objective calls blocks by itself. PyTorch has no method that undoes `compile`:
        # the compiled call is removed as PyTorch does in copies of a model.
        part.__dict__.pop("_compiled_call_impl", None)
        if chosen.graph == "compiled":
            part.compile()
    for dropout in (part for part in every if isinstance(part, Dropout)):
        dropout.__dict__["faster_mask"] = mask
    _exchange(model, chosen.last_block == "class_token" or chosen.pixels == "folded")


WATCHES = ("watch", "watch_last")
"""Attributes that `compute_as` gives to the parts that it exchanges; a `FastViT` uses both."""
FAST: dict[type[nn.Module], type[nn.Module]] = {
    fast.plain: fast
    for fast in (
        *(ExplicitAttention, ExplicitRelativeAttention, ExplicitBiasedAttention),
        *(CompiledMLP, CompiledBlock, FastViT),
    )
}
"""The fast class of each plain part, which computes the same in another way."""


def _exchange(part: nn.Module, fast: bool, compiled: Callable[..., Tensor | None] | None = None) -> None:
    """Give a part its fast class, or its plain one again; parts of other classes stay as they are.

    Args:
        part: a part of a model, or the model.
        fast: whether it is to compute in the fast way.
        compiled: the function that the fast way calls, where it calls one.
    """
    for name in ("compiled", *WATCHES):
        part.__dict__.pop(name, None)
    plain = vars(type(part)).get("plain", type(part))  # as in `Way.knows`
    part.__class__ = FAST.get(plain, plain) if fast else plain
    if fast:
        part.__dict__ |= {name: Watch() for name in WATCHES}
    if fast and compiled is not None and plain in FAST:
        part.__dict__["compiled"] = compiled  # `setattr` would register a function that is a module


def embed_pixels(stem: PatchStem, pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Compute `stem((pixels - mean) / std)`, `(B, N, D)`, with the arithmetic on the weights instead.

    Args:
        stem: the linear patch projection.
        pixels: `(B, C, H, W)`, uint8.
        mean, std: `(C, 1, 1)`, of pixels in 0 to 255.
    """
    # sum(w * (x - mean) / std) + b is sum(v * (x - 128)) + b + sum(v * (128 - mean)), with v = w / std.
    # Pixels are centred, which bfloat16 holds exactly: of 0 to 255, two large sums would nearly cancel.
    centred = stem.cut(pixels).to(stem.weight.dtype).sub_(CENTRE)
    weight = stem.weight / std
    bias = stem.bias + (weight * (CENTRE - mean)).sum((1, 2, 3))
    return F.linear(centred, weight.flatten(1), bias)


def attend_first(attention: Attention, x: Tensor) -> Tensor:
    """Compute the first token `(B, 1, D)` that attention makes of tokens `(B, T, D)`, and no other.

    The products are taken in another order, in which neither keys nor values of all tokens are made: a head
    has one query q here, so that q (K y) = (q K) y and V y p = V (y p), where y are the tokens, K and V the
    projections and p the attention weights. The keys' bias adds the same number to all logits of a query,
    which softmax takes away again. Rotary positions turn each key by another angle, so that with them the
    keys are made. Forward and backward take about a quarter of the time that they take for all tokens.
    """
    batch, _, width = x.shape
    heads, size = attention.num_heads, width // attention.num_heads
    query, key, value = attention.qkv.weight.reshape(3, width, width).unbind()  # each (D, D)
    query_bias, key_bias, value_bias = attention.qkv.bias.reshape(3, width).unbind()
    q = F.linear(x[:, 0], query, query_bias) / math.sqrt(size)  # (B, D)
    q = q.reshape(batch, heads, size)
    if attention.rotary is None:
        q = (q.transpose(0, 1) @ key.reshape(heads, size, width)).transpose(0, 1)  # (B, h, D)
        weights = (q @ x.transpose(1, 2)).softmax(-1)  # (B, h, T)
    else:  # the class token is one of those that are not turned
        keys = F.linear(x, key, key_bias).reshape(batch, -1, heads, size).transpose(1, 2)
        weights = (attention.rotary(keys) @ q[..., None]).squeeze(-1).softmax(-1)
    weights = F.dropout(weights, attention.dropout if attention.training else 0.0)
    seen = (weights @ x).transpose(0, 1)  # (h, B, D)
    mixed = (seen @ value.reshape(heads, size, width).transpose(1, 2)).transpose(0, 1)  # (B, h, d)
    # Dropped weights do not sum to one, and the bias is in every value.
    mixed = mixed + weights.sum(-1, keepdim=True) * value_bias.reshape(heads, size)
    return attention.out(mixed.reshape(batch, 1, width))  # type: ignore[no-any-return]


def block_weights(block: Block) -> tuple[Tensor, ...]:
    """List a block's parameters in the order in which compiled blocks take them.

    They are weight and bias (of a norm scale and shift) of norm1, qkv, out, norm2, fc1 and fc2.
    """
    attention, mlp = block.attention, cast("MLP", block.mlp)  # `COMPILED_BLOCK` knows no other
    layers: tuple[Any, ...] = (block.norm1, attention.qkv, attention.out, block.norm2, mlp.fc1, mlp.fc2)
    scales = (block.attention_scale, block.mlp_scale)
    return (
        *(parameter for layer in layers for parameter in (layer.weight, layer.bias)),
        *(scale for scale in scales if scale is not None),
    )


def block_extras(block: Block, x: Tensor) -> dict[str, Any]:
    """Collect what a block computes beside its weights, and draw what training drops.

    Random numbers are drawn in the order of `Block.add_branches`, so that the same images and numbers are
    dropped.

    Returns:
        `form` of GELU; `paths`, the factors of both branches; `drops`, keys and rate of the three dropouts;
        `rotary`, `(T, d)` cosines and sines and whether pairs are neighbours.
    """
    mlp = cast("MLP", block.mlp)
    extras: dict[str, Any] = {"form": mlp.gelu}
    if block.training and (block.drop_path or block.dropout.rate or mlp.dropout.rate):

        def keys(part: Dropout) -> tuple[Tensor, float] | None:
            return (part.draw_keys(len(x)), part.rate) if part.rate else None

        def factors() -> Tensor | None:
            return path_factors(x, block.drop_path, block.batch_rows) if block.drop_path else None

        attended, first = keys(block.dropout), factors()
        hidden, refined, second = keys(mlp.dropout), keys(mlp.dropout), factors()
        extras |= {"paths": (first, second), "drops": (attended, hidden, refined)}
    if isinstance(rotary := block.attention.rotary, RotaryPosition2D):
        still = rotary.cos.new_ones(rotary.prefix_tokens, rotary.head_dim)  # tokens that are not turned
        cos, sin = torch.cat([still, rotary.cos]), torch.cat([still * 0, rotary.sin])
        extras["rotary"] = (cos, sin, rotary.config.pairs == "interleaved")
    return extras


def block_can_be_compiled(config: ViTConfig) -> bool:
    """Whether `kernels/block.c` computes a model's blocks, as long as no attention weights are dropped."""
    return COMPILED_BLOCK.computes(config) and config.head_dim % HEAD_MULTIPLE == 0
