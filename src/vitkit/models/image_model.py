"""The base of every model: images in, logits out, with a head that fine-tuning replaces.

Float images are normalised already; uint8 images are normalised here, by the mean and std that travel with
the weights.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitkit.errors import VitkitError
from vitkit.models.config import PLAIN, Card, Compute, Interpolation, Precision, ResNetConfig, ViTConfig
from vitkit.models.novelty import Novelty

Taps = dict[str, Tensor]
"""The dictionary into which a model writes its own intermediate tensors, by name."""
Grid = tuple[int, int]
"""Rows and columns of an image's tokens."""
AttentionWeights = bool | Collection[int]
"""Whether attention weights are written into it, of all layers or of those with these numbers, from 0."""


@dataclass(frozen=True)
class BatchRows:
    """The images of a larger batch that a model computes at a time in training.

    The images that skip a branch, and the keys of dropout, are drawn for the whole batch, so that they do not
    depend on how it is divided. Dropout of attention weights draws a number for each of them, too many to be
    drawn for other processes: it follows from `seed`.
    """

    start: int
    stop: int
    total: int
    """Images of the larger batch, of which these are `start` to `stop - 1`."""
    seed: int
    """The seed of dropout of attention weights."""


class ImageModel(nn.Module):
    """Base of ViT and ResNet: configuration, card, pixels, head.

    A family adds `features`, and its own way to draw weights.
    """

    card: Card = Card()
    """The name and the classes; a `vitkit.weights.model_card.ModelCard` where more is recorded."""
    config: Any
    """The family's configuration, a `ModelConfig`."""
    head: nn.Linear | nn.Identity
    """The classifier; an identity with 0 classes, so that the logits are the features."""
    chosen: Compute = PLAIN
    """The way in which it computes: the plain one, unless `fast.compute_as` was called. It is not saved with
    the weights."""
    recompute: bool = False
    """Whether autograd stores the input of each layer alone, and the backward pass computes the layer again:
    less memory for about a third more time, and the same gradients (Chen et al. 2016)."""
    batch_rows: BatchRows | None = None
    """The larger batch that the images of a training step are a part of; None where they are all of it."""
    novelty: Novelty | None
    """Scores how unlike its training images an image is; None where that was never computed."""
    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, config: ViTConfig | ResNetConfig) -> None:
        super().__init__()
        self.config = config
        self.novelty = None
        self.compute_buffers()

    def through(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Pass a tensor through a layer; with `recompute`, autograd stores its input alone."""
        if self.recompute and torch.is_grad_enabled():
            recomputed: Tensor = checkpoint(layer, x, use_reentrant=False)
            return recomputed
        out: Tensor = layer(x)
        return out

    def take_rows(self, rows: BatchRows | None) -> None:
        """Treat the next training images as these rows of a larger batch; None: as all of it."""
        self.batch_rows = rows

    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Draw new weights, as the original of the family does."""
        raise NotImplementedError

    def compute_buffers(self) -> None:
        """Compute the buffers, once more where the model was built without memory.

        Mean and std of the pixels, `(C, 1, 1)` each, are buffers so that they follow the model to its device.
        They are in levels from 0 to 255; the configuration has them in [0, 1]. A part has a method
        `make_buffers` for those that follow from its sizes and stand in no file.
        """
        for name, values in (("pixel_mean", self.config.image_mean), ("pixel_std", self.config.image_std)):
            # No arithmetic on tensors: on the meta device it makes PyTorch import its compiler, for seconds.
            levels = torch.tensor([255 * value for value in values]).view(-1, 1, 1)
            self.register_buffer(name, levels, persistent=False)
        for part in self.modules():
            if make_buffers := getattr(part, "make_buffers", None):
                make_buffers()

    def position_embedding(self) -> Tensor | None:
        """Return the position embedding added first, `(1, P + N, D)`; None for a model that adds none."""
        return None

    def fit_positions(
        self, tensors: Mapping[str, Tensor], old_size: tuple[int, int], interpolation: Interpolation
    ) -> dict[str, Tensor]:
        """Resize the parameters that depend on the image size to this model's (paper 3.2).

        A part has a method `fit_positions` for its own, by their names in it.

        Args:
            tensors: the parameters of a model that is like this one but for the image size.
            old_size: the size that its positions depend on, as its `config.position_extent` gives it.
            interpolation: the rule.

        Returns:
            The tensors that were resized, by name.
        """
        fitted: dict[str, Tensor] = {}
        for name, part in self.named_modules():
            if name and (fit_positions := getattr(part, "fit_positions", None)):  # without a name: this model
                own = {key: tensors[f"{name}.{key}"] for key, _ in part.named_parameters(recurse=False)}
                resized = fit_positions(own, old_size, interpolation)
                fitted |= {f"{name}.{key}": value for key, value in resized.items()}
        return fitted

    @torch.no_grad()
    def init_head(self) -> None:
        """Set the head to zero, as fine-tuning starts (paper 3.1)."""
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def normalize(self, images: Tensor, any_size: bool = False) -> Tensor:
        """Turn uint8 images into floats as the weights were trained on; floats are taken to be normalised.

        Args:
            images: `(B, C, H, W)`.
            any_size: whether images of another height and width than the model's are let through.

        Raises:
            VitkitError: images of another size, number of channels or type than the model's.
        """
        self.require_size(images, any_size)
        if images.dtype == torch.uint8:
            pixels = images.to(self.pixel_mean.dtype)
            return (pixels - self.pixel_mean) / self.pixel_std
        if not images.is_floating_point():
            raise VitkitError(f"Images are uint8 (0 to 255) or normalised floats, found {images.dtype}.")
        return images

    def require_size(self, images: Tensor, any_size: bool = False) -> None:
        """Refuse images `(B, C, H, W)` of another shape than the model's; see `normalize`."""
        expected = (self.config.in_channels, *self.config.image_size)
        shape = tuple(images.shape[1:])
        if images.ndim != 4 or (shape[:1] != expected[:1] if any_size else shape != expected):
            raise VitkitError(
                f"This model takes images of shape (B, {expected[0]}, {expected[1]}, {expected[2]}), found "
                f"{tuple(images.shape)}. Resize them, or load the model with image_size=(height, width)."
            )

    def features(self, images: Tensor, taps: Taps | None = None) -> Tensor:
        """Compute the features that the head sees, `(B, D)`, also for few-shot evaluation and embeddings."""
        raise NotImplementedError

    def layers(self) -> list[nn.Module]:
        """List the blocks, or residual units, first to last; a backbone's units are not among them."""
        raise NotImplementedError

    def feature_maps(self, images: Tensor, layers: Sequence[int] = (-1,)) -> list[Tensor]:
        """Give feature maps `(B, C, rows, columns)` of some layers, for detection and segmentation.

        Args:
            images: `(B, C, H, W)`, uint8 pixels or normalised floats.
            layers: numbers of blocks (ViT) or stages (ResNet) after which to take them, from 0; negative ones
                count from the end.
        """
        raise NotImplementedError

    def _layer_numbers(self, layers: Sequence[int], count: int) -> list[int]:
        """Resolve negative layer numbers.

        Raises:
            VitkitError: there is no such layer.
        """
        if not all(-count <= layer < count for layer in layers):
            raise VitkitError(
                f"This model has {count} layers, numbered 0 to {count - 1} (or -{count} to -1 from the end), "
                f"found {list(layers)}."
            )
        return [layer % count for layer in layers]

    def forward(
        self, images: Tensor, taps: Taps | None = None, attention_weights: AttentionWeights = False
    ) -> Tensor:
        """Compute logits `(B, K)` of images `(B, C, H, W)`, uint8 pixels or floats normalised by mean and
        std.

        Args:
            images: as above.
            taps: a dictionary that receives every intermediate tensor.
            attention_weights: of Vision Transformers; no other model has any.

        Raises:
            VitkitError: images of another size or type than the model's; or `attention_weights` is set.
        """
        if attention_weights:
            raise VitkitError(f"A {type(self).__name__} has no attention weights to give.")
        return tapped(taps, "logits", self.head(self.features(images, taps)))


def tapped(taps: Taps | None, name: str, value: Tensor) -> Tensor:
    """Write an intermediate into taps, if there are any, and return it."""
    if taps is not None:
        taps[name] = value
    return value


def lecun_normal(weight: Tensor, fan_in: int, generator: torch.Generator | None) -> None:
    """Draw weights as Flax's default does: normal, cut off at two deviations, of variance 1/fan_in."""
    # The constant is the standard deviation of the standard normal distribution cut off at -2 and 2; dividing
    # by it restores the variance that cutting takes away.
    std = math.sqrt(1 / fan_in) / 0.87962566103423978
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """Return the context in which models on a device compute in a precision.

    "auto" is bfloat16 on a GPU that has it, else float32.
    """
    auto = precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, torch.bfloat16, enabled=auto or precision == "bfloat16")


def copy_to_processor(tensor: Tensor) -> Callable[[], Tensor]:
    """Begin to copy a tensor to the CPU.

    Returns:
        A function that waits for the copy and gives it: until it is called, a GPU computes and the caller
        goes on.
    """
    copied = tensor.to("cpu", non_blocking=True)
    if tensor.device.type != "cuda":
        return lambda: copied
    make_event: Any = torch.cuda.Event  # its constructor and its methods have no type hints
    event = make_event()
    # On the stream of the tensor's device: another device may be the current one of the process.
    event.record(torch.cuda.current_stream(tensor.device))

    def wait() -> Tensor:
        event.synchronize()
        return copied

    return wait
