"""A model that an engine computes: its graph takes pixels and gives logits, arrays of numpy both."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.engines.libraries import EnginePrecision
from vitkit.errors import VitkitError
from vitkit.models.config.card import Card
from vitkit.models.config.vit_config import Gelu
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
        def product(sizes: tuple[int | None, ...]) -> str:
            return "x".join("N" if size is None else str(size) for size in sizes)

        inputs = " and ".join(f"{name} {product(sizes)}" for name, sizes in self.inputs)
        return f"{inputs} to {' and '.join(map(product, self.outputs))}"


def shape_of(config: ModelConfig) -> GraphShape:
    """Return the inputs and outputs of the graph of a model."""
    images = (None, config.in_channels, *config.image_size)
    return GraphShape((("uint8", images),), ((None, config.num_classes),))


@dataclass(frozen=True)
class EngineModel:
    """A model whose logits an engine computes: images in, logits out, and nothing between them."""

    config: ModelConfig
    """The configuration of the model that the engine's graph was made of."""
    card: Card
    runner: Runner

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Compute logits `(B, K)` of uint8 images `(B, C, H, W)`.

        Raises:
            VitkitError: images of another size or type.
        """
        expected = (self.config.in_channels, *self.config.image_size)
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != expected:
            raise VitkitError(
                f"This model takes uint8 images (B, {', '.join(map(str, expected))}), found "
                f"{images.shape} of {images.dtype}."
            )
        return self.runner(np.ascontiguousarray(images))


def computed_gelu(config: ModelConfig, precision: EnginePrecision) -> Gelu | None:
    """Return the form of GELU in the graph of a model; None where the model has none.

    The tanh form becomes the exact one where numbers are short: the two differ by 5e-4 at most, less than
    numbers of 8 bits do from each other, and OpenVINO computes the exact form in half the time.
    """
    gelu: Gelu | None = getattr(config, "gelu", None)
    return "erf" if gelu == "tanh" and precision != "float32" else gelu


def describe_gelu(config: ModelConfig, precision: EnginePrecision) -> str | None:
    """Say that the graph of a model has another form of GELU than the model; None where it has the same."""
    own, computed = computed_gelu(config, "float32"), computed_gelu(config, precision)
    if own == computed:
        return None
    return (
        f"in {precision} its GELU is computed in the exact form ({computed}), the model's is the {own} form: "
        "the two differ by 5e-4 at most"
    )
