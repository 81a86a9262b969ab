"""The graph that engines are handed: uint8 images in, logits out, and nothing computed that nobody reads.

A compiler of graphs does not know that only the class token is read after the last block, nor that the
normalisation of pixels can be part of the patch embedding. Both are written into the graph here, by which it
is smaller than the one that other libraries export; and the rest is put in the form that OpenVINO fuses best.

Shapes: B images, T tokens, D = width, h = num_heads, d = D / h.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vitkit.engines.engine_config import Numbers
from vitkit.errors import VitkitError
from vitkit.models.card import Card
from vitkit.models.compute_config import Compute
from vitkit.models.fast import CENTRE, compute_as
from vitkit.models.image_model import ImageModel, Taps
from vitkit.models.parts import MLP, Attention, Block
from vitkit.models.stem import PatchStem
from vitkit.models.vit_config import Gelu
from vitkit.models.zoo import ModelConfig

Runner = Callable[[NDArray[np.uint8]], NDArray[np.float32]]
"""A function of an engine: images `(B, C, H, W)`, contiguous, to logits `(B, K)`. B may change."""


@dataclass(frozen=True)
class GraphShape:
    """The inputs and outputs of a graph."""

    inputs: tuple[tuple[str, tuple[int | None, ...]], ...]
    """The type of each input's numbers, and its sizes; None is a size that may change."""
    outputs: tuple[tuple[int | None, ...], ...]
    """The sizes of each output."""

    def __str__(self) -> str:
        def words(sizes: tuple[int | None, ...]) -> str:
            return "x".join("N" if size is None else str(size) for size in sizes)

        taken = " and ".join(f"{name} {words(sizes)}" for name, sizes in self.inputs)
        return f"{taken} to {' and '.join(map(words, self.outputs))}"


def shape_of(config: ModelConfig) -> GraphShape:
    """Return what the graph of a model takes and gives."""
    images = (None, config.in_channels, *config.image_size)
    return GraphShape((("uint8", images),), ((None, config.num_classes),))


class EngineModel(ImageModel):
    """A model whose logits an engine computes. It has no parameters: it can neither be trained nor looked
    into.

    Args:
        config, card: of the model that the engine's graph was made of.
        runner: computes the logits.
    """

    def __init__(self, config: ModelConfig, card: Card, runner: Runner) -> None:
        super().__init__(config)
        self.card = card
        self._runner = runner

    def forward(self, images: Tensor, taps: Taps | None = None, attention_weights: object = False) -> Tensor:
        """Compute logits `(B, K)` of uint8 images `(B, C, H, W)`.

        Raises:
            VitkitError: images of another size or type; or something between images and logits is asked for.
        """
        if taps is not None or attention_weights:
            raise VitkitError(
                "An inference engine gives logits alone: features, taps and attention weights need engine "
                "torch."
            )
        self.require_size(images)
        if images.dtype != torch.uint8:
            raise VitkitError(f"An inference engine takes uint8 images (0 to 255), found {images.dtype}.")
        return torch.from_numpy(self._runner(np.ascontiguousarray(images.numpy())))


class SplitAttention(Attention):
    """Attention whose queries, keys and values come of three products in place of one.

    OpenVINO then fuses the transposition into heads with the attention; of one product with 3D outputs it
    copies them first.

    Args:
        attention: whose weights it shares.
    """

    def __init__(self, attention: Attention) -> None:
        width = attention.out.in_features
        with torch.device("meta"):  # weights come below
            super().__init__(width, attention.num_heads, rotary=attention.rotary)
            self.projections = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.qkv, self.out = attention.qkv, attention.out
        weights, biases = self.qkv.weight.detach().chunk(3), self.qkv.bias.detach().chunk(3)
        for linear, weight, bias in zip(self.projections, weights, biases, strict=True):
            linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x: Tensor, taps: Taps | None = None, name: str = "") -> Tensor:
        """Attend, `(B, T, D) -> (B, T, D)`."""
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.num_heads, width // self.num_heads)
        q, k, v = (linear(x).reshape(shape).transpose(1, 2) for linear in self.projections)  # (B, h, T, d)
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


def computed_gelu(config: ModelConfig, numbers: Numbers) -> Gelu | None:
    """Return the form of GELU in the graph of a model; None where the model has none.

    The tanh form becomes the exact one where numbers are short: the two differ by 5e-4 at most, less than
    numbers of 8 bits do from each other, and OpenVINO computes the exact one in half the time.
    """
    gelu: Gelu | None = getattr(config, "gelu", None)
    return "erf" if gelu == "tanh" and numbers != "float32" else gelu


def describe_gelu(config: ModelConfig, numbers: Numbers) -> str | None:
    """Say that the graph of a model has another form of GELU than the model; None where it has the same."""
    own, computed = computed_gelu(config, "float32"), computed_gelu(config, numbers)
    if own == computed:
        return None
    return (
        f"in {numbers} its GELU is computed in the exact form ({computed}), the model's is the {own} form: "
        "the two differ by 5e-4 at most"
    )


def graph_of(model: ImageModel, numbers: Numbers = "float32") -> ImageModel:
    """Give a model in the form that engines are handed; it shares the weights with the one given.

    Args:
        model: with its weights.
        numbers: that it will be computed in.

    Returns:
        A module from uint8 images `(B, C, H, W)` to logits `(B, K)`, in evaluation mode.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    gelu = computed_gelu(model.config, numbers)
    graph: ImageModel = copy.deepcopy(model, shared).eval()
    # Pixels are folded below, once: `Compute.pixels` folds them at every call.
    compute_as(graph, Compute(last_block="class_token"))
    for module in list(graph.modules()):
        if isinstance(module, Block) and type(module.attention) is Attention:
            module.attention = SplitAttention(module.attention)
        elif isinstance(module, MLP) and gelu is not None:
            module.gelu = gelu
    stem = getattr(graph, "stem", None)
    if isinstance(stem, PatchStem):
        _fold_normalisation(graph, stem)
    return graph


@torch.no_grad()
def _fold_normalisation(graph: ImageModel, stem: PatchStem) -> None:
    """Have the patch embedding read pixels - 128 in place of (pixels - mean) / std.

    These are whole numbers from -128 to 127, which bfloat16 and int8 hold exactly. Stems of several layers
    keep the normalisation: around an image they see zeros, which are its mean.
    """
    mean, std = graph.pixel_mean.double(), graph.pixel_std.double()
    weight = stem.weight.double() / std
    bias = stem.bias.double() + (weight * (CENTRE - mean)).sum((1, 2, 3))
    stem.weight, stem.bias = nn.Parameter(weight.float()), nn.Parameter(bias.float())
    graph.pixel_mean = torch.full_like(graph.pixel_mean, CENTRE)
    graph.pixel_std = torch.ones_like(graph.pixel_std)


def example_images(model: ImageModel, count: int = 2) -> Tensor:
    """Make images of the size of a model, `(B, C, H, W)` uint8, the same at every call.

    Two, because tracing takes one for a number that never changes.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (count, model.config.in_channels, *model.config.image_size)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
