"""The graph that engines are handed: uint8 images in, logits out, and nothing computed that nobody reads.

A compiler of graphs does not know that only the class token is read after the last block, nor that the
normalisation of pixels can be part of the patch embedding. Both are written into the graph here, so that it
is smaller than other libraries' graphs; and the rest is put in the form that OpenVINO fuses best. Attention
as products and softmax gained nothing there, nor did GELU as x * sigmoid(...) beside the fused tanh form.

Shapes: B images, T tokens, D = width, h = num_heads, d = D / h.
"""

import copy

import torch
from torch import Tensor, nn

from vitkit.engines.engine_model import computed_gelu
from vitkit.engines.libraries import EnginePrecision
from vitkit.models.config.compute_config import Compute
from vitkit.models.fast import CENTRE, FOLDED_PIXELS, ROTARY, can_fold_pixels, compute_as
from vitkit.models.image_model import ImageModel
from vitkit.models.known_parts import ANY, Way
from vitkit.models.parts import MLP, Attention, Block
from vitkit.models.stem import PatchStem

SPLIT_ATTENTION = Way(ROTARY, {"norm": ANY, "qk_norm": ANY})


class SplitAttention(Attention):
    """Attention whose queries, keys and values come of three products in place of one.

    OpenVINO then fuses the transposition into heads with the attention; of one product with 3D outputs it
    copies them first.

    Args:
        attention: the attention whose weights it uses.
    """

    def __init__(self, attention: Attention) -> None:
        width = attention.out.in_features
        with torch.device("meta"):  # the weights come below, parts of those of `attention.qkv`
            super().__init__(width, attention.num_heads, rotary=attention.rotary)
            self.projections = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.qkv, self.out = attention.qkv, attention.out
        self.q_norm, self.k_norm = attention.q_norm, attention.k_norm
        weights, biases = self.qkv.weight.detach().chunk(3), self.qkv.bias.detach().chunk(3)
        for linear, weight, bias in zip(self.projections, weights, biases, strict=True):
            linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.num_heads, width // self.num_heads)
        q, k, v = (linear(x).reshape(shape).transpose(1, 2) for linear in self.projections)
        return q, k, v


def graph_of(model: ImageModel, precision: EnginePrecision = "float32") -> ImageModel:
    """Copy a model in the form that engines are handed; weights that stay as they are take no more memory.

    Args:
        model: with its weights.
        precision: the type that it will be computed in.

    Returns:
        A module from uint8 images `(B, C, H, W)` to logits `(B, K)`, in evaluation mode.
    """
    # `deepcopy` takes these tensors for copied already: the copy shares them.
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    gelu = computed_gelu(model.config, precision)
    graph: ImageModel = copy.deepcopy(model, shared).eval()
    # Pixels are folded below, once: `Compute.pixels` folds them at every call.
    compute_as(graph, Compute(last_block="class_token"))
    # A block that computes the class token alone reads the weights of `qkv` itself (`fast.attend_first`).
    find_shortened = getattr(graph, "shortened_block", None)
    shortened = None if find_shortened is None else find_shortened()
    for module in list(graph.modules()):
        if (
            isinstance(module, Block)
            and module is not shortened
            and SPLIT_ATTENTION.computes(model.config)
            and SPLIT_ATTENTION.knows(module.attention)
        ):
            module.attention = SplitAttention(module.attention)
        elif isinstance(module, MLP) and gelu is not None:
            module.gelu = gelu
    stem = getattr(graph, "stem", None)
    if isinstance(stem, PatchStem) and FOLDED_PIXELS.computes(model.config) and can_fold_pixels(graph):
        _fold_normalisation(graph, stem)
    return graph


@torch.no_grad()
def _fold_normalisation(graph: ImageModel, stem: PatchStem) -> None:
    """Have the patch embedding read pixels - 128 in place of (pixels - mean) / std.

    These are whole numbers from -128 to 127, which bfloat16 and int8 hold exactly. Stems of several layers
    keep the normalisation: around an image they see zeros, which are its mean.
    """
    # In float64, so that the folded weights are rounded once.
    mean, std = graph.pixel_mean.double(), graph.pixel_std.double()
    weight = stem.weight.double() / std
    bias = stem.bias.double() + (weight * (CENTRE - mean)).sum((1, 2, 3))
    stem.weight, stem.bias = nn.Parameter(weight.float()), nn.Parameter(bias.float())
    graph.pixel_mean = torch.full_like(graph.pixel_mean, CENTRE)
    graph.pixel_std = torch.ones_like(graph.pixel_std)


def example_images(model: ImageModel, count: int = 2) -> Tensor:
    """Make images of the size of a model, `(count, C, H, W)` uint8, the same at every call.

    Two unless asked otherwise, because tracing takes a batch of one for a number that never changes.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (count, model.config.in_channels, *model.config.image_size)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
