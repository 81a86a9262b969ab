"""The other ways to compute a Vision Transformer: each gives the plain way's results up to rounding, faster
on some machine or in some precision (`vitkit.runs.machine` has the rule).

Each is a subclass of a plain part that overrides a method (`FastViT` two) to compute the same in another way.
`compute_as` exchanges the classes of a model's parts (`part.__class__ = ...`) and hands compiled functions to
the parts that need one, as `compiled`; no parameter is added, removed or renamed. A copy or a pickle is of
the same classes and computes through its own weights. Functions stored in the parts as `forward` would be
simpler, but each would refer to its part and the part to it: such a circle stays in memory, with all weights,
until Python looks for circles. Parts of somebody else's classes stay as they are.

Callers hand in the functions compiled from C.

Shapes: B images, N patches, T tokens, D = width, h = num_heads, d = head_dim = D / h.
"""

import math
from collections.abc import Callable
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.config.compute_config import Compute
from vitkit.models.config.vit_config import ViTConfig
from vitkit.models.image_model import AttentionWeights, Grid, ImageModel, Taps
from vitkit.models.parts import MLP, Attention, Block, RelativeAttention
from vitkit.models.stem import PatchStem
from vitkit.models.vit import ViT

BlockFunction = Callable[[Tensor, tuple[Tensor, ...], int, float], Tensor | None]
"""A function that computes a whole block: (tokens `(B, T, D)`, `block_weights`, h, epsilon of the norms) ->
tokens `(B, T, D)`. It returns None where it cannot: for another type, device, size of a head or autocast."""

CENTRE = 128
"""The level subtracted from all pixels: a whole number, so that bfloat16 holds the differences exactly, and
near the middle of 0 to 255, so that sums stay small."""

HEAD_MULTIPLE = 16
"""A head's size in `kernels/block.c` is a multiple of this, which is `PADDING` there; models import no
kernels, so that a test compares the two."""


class ExplicitAttention(Attention):
    """Attention by two products and a softmax, which keeps the weights in memory for the backward pass.

    In bfloat16 on a CPU PyTorch's fused kernel is slower, up to `MOST_EXPLICIT_TOKENS` of
    `vitkit.runs.machine`. In float32 the fused one stays: this way is faster at 17 to 26 tokens, and slower
    at 10 and at 50.
    """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        # Scaled are the queries, which are fewer numbers than the logits: T * d of a head and not T * T.
        logits = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)  # (B, h, T, T)
        weights = (logits if bias is None else logits + bias).softmax(-1)
        return F.dropout(weights, dropout) @ v  # (B, h, T, d)


class ExplicitRelativeAttention(ExplicitAttention, RelativeAttention):
    """Relative attention by two products and a softmax: the bias is `RelativeAttention`'s."""


class CompiledMLP(MLP):
    """An MLP whose GELU is a compiled function of the tanh form: PyTorch's takes three times as long."""

    compiled: Callable[[Tensor], Tensor] | None
    """None where an MLP was unpickled on a machine that cannot compile it."""

    def activate(self, x: Tensor) -> Tensor:
        return super().activate(x) if self.compiled is None else self.compiled(x)


class CompiledBlock(Block):
    """A block that one function computes, products and all that is between them, wherever it can."""

    compiled: BlockFunction | None
    """None where a block was unpickled on a machine that cannot compile it."""

    def forward(
        self, x: Tensor, taps: Taps | None = None, name: str = "", attention_taps: bool = False
    ) -> Tensor:
        # The function drops nothing at random and writes no taps: both are left to the modules.
        rates = (self.dropout.p, self.attention.dropout, self.mlp.dropout.p, self.drop_path)
        if self.compiled is not None and taps is None and not (self.training and any(rates)):
            out = self.compiled(x, block_weights(self), self.attention.num_heads, self.norm1.eps or 0.0)
            if out is not None:
                return out
        return super().forward(x, taps, name, attention_taps)


class FastViT(ViT):
    """A ViT that folds the normalisation of pixels, and shortens its last block, where `chosen` says so."""

    def patches(self, images: Tensor, taps: Taps | None = None, any_size: bool = False) -> Tensor:
        stem, folds = self.stem, self.chosen.pixels == "folded" and images.dtype == torch.uint8
        # Folding normalises the weights in place of the pixels: it pays where the pixels are more numbers.
        if not (folds and isinstance(stem, PatchStem) and images.numel() > stem.weight.numel()):
            return super().patches(images, taps, any_size)
        self.require_size(images, any_size)
        patches = embed_pixels(stem, images, self.pixel_mean, self.pixel_std)
        if taps is not None:
            taps["stem"] = patches
        return patches

    def shortened_block(self) -> Block | None:
        """Return the last block if it computes the class token alone; None if it computes all tokens."""
        shortens = self.chosen.last_block == "class_token" and class_token_suffices(self.config)
        if not shortens or len(self.blocks) == 0:
            return None
        last = self.blocks[-1]
        return last if _is_ours(last) else None

    def encode_and_pool(
        self, tokens: Tensor, taps: Taps | None, attention_weights: AttentionWeights, grid: Grid | None
    ) -> Tensor:
        last = self.shortened_block()
        # Taps hold all tokens, so that with them all are computed.
        if last is None or taps is not None or attention_weights:
            return super().encode_and_pool(tokens, taps, attention_weights, grid)
        for i, block in enumerate(self.blocks[:-1]):
            tokens = self.through(block, self.before_layer(i, tokens, grid))
        token = first_token(last, self.before_layer(len(self.blocks) - 1, tokens, grid))  # (B, 1, D)
        return self.pool(token if self.config.norm_after_pooling else self.norm(token))


def _is_ours(block: nn.Module) -> TypeGuard[Block]:
    """Whether a block and its parts compute as `Block`, `Attention` and `MLP` do, if in another way."""
    return (
        isinstance(block, Block)
        and type(block) in (Block, CompiledBlock)
        and type(block.attention) in (Attention, ExplicitAttention)
        and block.attention.rotary is None
        and block.attention.q_norm is None
        and block.attention.qkv.bias is not None
        and type(block.mlp) in (MLP, CompiledMLP)
    )


def _can_be_compiled(block: Block) -> bool:
    """Whether `kernels/block.c` computes all that a block does. It checks the sizes itself, at each call."""
    return (
        _is_ours(block)
        and type(block.norm1) is nn.LayerNorm
        and block.mlp.gelu == "tanh"
        and block.layer_scale is None
    )


def compute_as(
    model: ImageModel,
    chosen: Compute,
    gelu: Callable[[Tensor], Tensor] | None = None,
    block: BlockFunction | None = None,
) -> None:
    """Have a model compute in the chosen ways from now on, as far as it has them.

    Results differ by rounding alone, except under dropout: the ways draw different random numbers. The
    precision is the caller's to set: models do not enter autocast by themselves.

    Args:
        model: a ViT; another family computes in the plain way and records `chosen`.
        chosen: the ways to compute.
        gelu: computes GELU's tanh form where `chosen.gelu` is "compiled".
        block: computes an encoder block where `chosen.block` is "compiled".
    """
    model.chosen = chosen
    for part in model.modules():
        if isinstance(part, Attention):
            _exchange(part, chosen.attention == "explicit")
        elif isinstance(part, MLP):
            _exchange(part, chosen.gelu == "compiled" and gelu is not None and part.gelu == "tanh", gelu)
        elif isinstance(part, Block):
            whole = chosen.block == "compiled" and block is not None and block_can_be_compiled(model.config)
            _exchange(part, whole and _can_be_compiled(part), block)
    _exchange(model, chosen.last_block == "class_token" or chosen.pixels == "folded")
    # The whole model is one graph, so that the sum at a block's end and the next norm are one kernel. PyTorch
    # has no method that undoes `compile`: the compiled call is removed as PyTorch does in copies of a model.
    model._compiled_call_impl = None
    if chosen.graph == "compiled":
        model.compile()


FAST: dict[type[nn.Module], type[nn.Module]] = {
    Attention: ExplicitAttention,
    RelativeAttention: ExplicitRelativeAttention,
    MLP: CompiledMLP,
    Block: CompiledBlock,
    ViT: FastViT,
}
"""The fast class of each plain part, which computes the same in another way."""
PLAIN_CLASSES = {fast: plain for plain, fast in FAST.items()}
"""The plain class of each fast one."""


def _exchange(part: nn.Module, fast: bool, compiled: Callable[..., Tensor | None] | None = None) -> None:
    """Give a part its fast class, or its plain one again; parts of other classes stay as they are.

    Args:
        part: a part of a model, or the model.
        fast: whether it is to compute in the fast way.
        compiled: the function that the fast way calls, where it calls one.
    """
    part.__dict__.pop("compiled", None)
    plain = PLAIN_CLASSES.get(type(part), type(part))
    part.__class__ = FAST.get(plain, plain) if fast else plain
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


def first_token(block: Block, x: Tensor) -> Tensor:
    """Compute the first token `(B, 1, D)` that a block makes of tokens `(B, T, D)`, and no other."""
    return block.add_branches(x[:, :1], attend_first(block.attention, block.norm1(x)))


def attend_first(attention: Attention, x: Tensor) -> Tensor:
    """Compute the first token `(B, 1, D)` that attention makes of tokens `(B, T, D)`, and no other.

    The products are taken in another order, in which neither keys nor values of all tokens are made: a head
    has one query q here, so that q (K y) = (q K) y and V y p = V (y p), where y are the tokens, K and V the
    projections and p the attention weights. The keys' bias adds the same number to all logits of a query,
    which softmax takes away again. This holds only without positions inside the attention (rotary, bias).
    Forward and backward of ViT-Ti's attention take 5.3 ms so, and 22.9 for all tokens.
    """
    batch, _, width = x.shape
    heads, size = attention.num_heads, width // attention.num_heads
    query, key, value = attention.qkv.weight.reshape(3, width, width).unbind()  # each (D, D)
    query_bias, _, value_bias = attention.qkv.bias.reshape(3, width).unbind()
    q = F.linear(x[:, 0], query, query_bias) / math.sqrt(size)  # (B, D)
    q = q.reshape(batch, heads, size).transpose(0, 1)  # (h, B, d)
    q = (q @ key.reshape(heads, size, width)).transpose(0, 1)  # (B, h, D)
    weights = (q @ x.transpose(1, 2)).softmax(-1)  # (B, h, T)
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
    attention, mlp = block.attention, block.mlp
    layers = (block.norm1, attention.qkv, attention.out, block.norm2, mlp.fc1, mlp.fc2)
    return tuple(parameter for layer in layers for parameter in layer.parameters())


def class_token_suffices(config: ViTConfig) -> bool:
    """Whether the last block of a model may compute its class token alone.

    There must be no positions inside the attention: `attend_first` has neither the bias of the first query
    nor the rotation of keys.
    """
    return config.pool == "token" and _plain_attention(config)


def block_can_be_compiled(config: ViTConfig) -> bool:
    """Whether `kernels/block.c` computes a model's blocks, as long as they drop nothing at random."""
    plain = (
        config.gelu == "tanh"
        and config.layer_scale is None
        and _plain_attention(config)
        and config.norm == "layer"
    )
    return plain and config.head_dim % HEAD_MULTIPLE == 0


def _plain_attention(config: ViTConfig) -> bool:
    """Whether all tokens attend to all tokens, by their content and not by their positions."""
    own = not config.qk_norm and config.qkv_bias
    return own and config.attention == "full" and config.position != "relative" and config.rotary is None
