"""The other ways to compute a Vision Transformer: the plain way's results up to rounding, faster somewhere.

Each is a subclass of a plain part, in which one method computes the same otherwise. `compute_as` exchanges
the classes of a model's parts (`part.__class__ = ...`): their methods change and nothing else, no parameter,
no name. A copy or a pickle is of the same classes and computes through its own weights. A function bound to a
part and stored in it as `forward` would make a circle, which keeps the weights of a model that nobody holds
in memory. Parts of somebody else's classes stay as they are.

Callers hand in the functions compiled from C; `vitkit.runs.machine` knows which way is fast on a machine.

Shapes: B images, N patches, T tokens, D = width, h = num_heads, d = head_dim = D / h.
"""

import math
from collections.abc import Callable, Collection
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitkit.models.compute_config import Compute
from vitkit.models.image_model import ImageModel, Taps
from vitkit.models.parts import MLP, Attention, Block, RelativeAttention
from vitkit.models.stem import PatchStem
from vitkit.models.vit import ViT
from vitkit.models.vit_config import ViTConfig

BlockFunction = Callable[[Tensor, tuple[Tensor, ...], int, float], Tensor | None]
"""A whole block: tokens `(B, T, D)`, its `block_weights`, h and the norms' epsilon to the tokens after it, or
None for tensors that it does not compute, by type, device, size of a head or autocast."""

CENTRE = 128
"""A whole number near the middle of the levels 0 to 255, so that no difference to it is rounded."""

HEAD_MULTIPLE = 16
"""A head's size in `kernels/block.c` is a multiple of this: the float32 numbers of its longest vector."""


class ExplicitAttention(Attention):
    """Attention by two products and a softmax, which keeps the weights in memory for the backward pass.

    In bfloat16 on a processor PyTorch's fused kernel is the slower one.
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
    """None where a block was unpickled on such a machine."""

    def forward(
        self, x: Tensor, taps: Taps | None = None, name: str = "", attention_taps: bool = False
    ) -> Tensor:
        # The function drops nothing at random and writes no taps: both are left to the modules.
        rates = (self.dropout.p, self.attention.dropout, self.mlp.dropout.p, self.drop_path)
        if self.compiled is not None and taps is None and not (self.training and any(rates)):
            out = self.compiled(x, block_weights(self), self.attention.num_heads, self.norm1.eps)
            if out is not None:
                return out
        return super().forward(x, taps, name, attention_taps)


class FastViT(ViT):
    """A ViT that folds the normalisation of pixels, and shortens its last block, where `chosen` says so."""

    def patches(self, images: Tensor, taps: Taps | None = None, any_size: bool = False) -> Tensor:
        stem, folds = self.stem, self.chosen.pixels == "folded" and images.dtype == torch.uint8
        # Folding normalises the weights in place of the pixels: it pays where these are more numbers.
        if not (folds and isinstance(stem, PatchStem) and images.numel() > stem.weight.numel()):
            return super().patches(images, taps, any_size)
        self.require_size(images, any_size)
        patches = embed_pixels(stem, images, self.pixel_mean, self.pixel_std)
        if taps is not None:
            taps["stem"] = patches
        return patches

    def features(
        self,
        images: Tensor,
        taps: Taps | None = None,
        attention_weights: bool | Collection[int] = False,
        *,
        any_size: bool = False,
    ) -> Tensor:
        shortens = self.chosen.last_block == "class_token" and class_token_suffices(self.config)
        last = self.blocks[-1]
        # Taps show all tokens, so that with them none is left out; nor is one of a block of another class.
        if not shortens or taps is not None or attention_weights or not _is_ours(last):
            return super().features(images, taps, attention_weights, any_size=any_size)
        grid = self.grid_of(images) if any_size else None
        tokens = self.place(self.patches(images, any_size=any_size), grid=grid)
        for i, block in enumerate(self.blocks[:-1]):
            tokens = self.through(block, self.before_layer(i, tokens, grid))
        token = first_token(last, self.before_layer(len(self.blocks) - 1, tokens, grid))  # (B, 1, D)
        return self.pool(token if self.config.norm_after_pooling else self.norm(token))


def _is_ours(block: nn.Module) -> TypeGuard[Block]:
    """Whether a block's `forward` is that of `Block`, or computes the same."""
    return type(block) in (Block, CompiledBlock)


def compute_as(
    model: ImageModel,
    chosen: Compute,
    gelu: Callable[[Tensor], Tensor] | None = None,
    block: BlockFunction | None = None,
) -> None:
    """Compute as chosen from now on, where the model knows that way; results differ by rounding alone.

    The precision is the caller's to set: models do not enter autocast by themselves.

    Args:
        model: a ViT; another family has the plain way alone, and records what was chosen.
        chosen: how.
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
            _exchange(part, whole, block)
    _exchange(model, chosen.last_block == "class_token" or chosen.pixels == "folded")
    # The whole model is one graph, so that the sum at a block's end and the next norm are one kernel. PyTorch
    # has `compile` and no way back; its copies leave the compiled call behind, and so does this.
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
"""The plain parts, and those that compute the same in another way."""
PLAIN = {fast: plain for plain, fast in FAST.items()}


def _exchange(part: nn.Module, fast: bool, compiled: Callable[..., Tensor | None] | None = None) -> None:
    """Have a part compute in its other way, or in the plain one again; `compiled` is what it needs for it."""
    part.__dict__.pop("compiled", None)
    plain = PLAIN.get(type(part), type(part))
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
    """Compute the first token of what a block makes of `(B, T, D)`, `(B, 1, D)`, and no other."""
    return block.after_attention(x[:, :1], attend_first(block.attention, block.norm1(x)))


def attend_first(attention: Attention, x: Tensor) -> Tensor:
    """Compute the first token of what attention makes of `(B, T, D)`, `(B, 1, D)`, without the others' work.

    The products are taken in another order, in which neither keys nor values of all tokens are made: a head
    has one query q here, so that q (K y) = (q K) y and V y p = V (y p), where y are the tokens, K and V the
    projections and p the attention weights. The keys' bias adds the same number to all logits of a query,
    which softmax takes away again. Only where there are no positions inside the attention.
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
    """List a block's parameters as compiled blocks take them, scale or weight before shift or bias.

    The layers are norm1, qkv, out, norm2, fc1, fc2.
    """
    attention, mlp = block.attention, block.mlp
    first: tuple[nn.LayerNorm | nn.Linear, ...] = (block.norm1, attention.qkv, attention.out)
    layers = (*first, block.norm2, mlp.fc1, mlp.fc2)
    return tuple(parameter for layer in layers for parameter in (layer.weight, layer.bias))


def class_token_suffices(config: ViTConfig) -> bool:
    """Whether the last block of a model may compute its class token alone.

    Attention between class token and patches must be plain: positions inside the attention would need rows
    and turns of their own.
    """
    return config.pool == "token" and _plain_attention(config)


def block_can_be_compiled(config: ViTConfig) -> bool:
    """Whether `kernels/block.c` computes a model's blocks, as long as they drop nothing at random."""
    plain = config.gelu == "tanh" and config.layer_scale is None and _plain_attention(config)
    return plain and config.head_dim % HEAD_MULTIPLE == 0


def _plain_attention(config: ViTConfig) -> bool:
    """Whether all tokens attend to all tokens, by what they hold alone."""
    return config.attention == "full" and config.position != "relative" and config.rotary is None
