"""Foreign checkpoints as tables of name pairs: each row one parameter of ours, the tensors it is made of, and
the way there and back. A format is a list of rows, how it is recognised, and what it cannot say.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.models.image_model import ImageModel
from vitkit.models.resnet_config import BackboneConfig
from vitkit.models.vit_config import ViTConfig
from vitkit.models.zoo import ModelConfig
from vitkit.weights.card import ModelCard
from vitkit.weights.files.checksum import Checksum
from vitkit.weights.files.source import Source


@dataclass(frozen=True)
class Row:
    """One of our parameters, the foreign tensors it is made of, and the way there and back."""

    ours: str
    theirs: tuple[str, ...]
    read: Callable[[list[Tensor]], Tensor] = lambda tensors: tensors[0]
    write: Callable[[Tensor], list[Tensor]] = lambda tensor: [tensor]


class NotRecordedError(VitkitError):
    """A file does not record what has to be known; the message names the argument that gives it."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"{message} On the command line, `vitkit convert FILE OUT` takes --num-heads and --image-size, "
            "and writes a model that every command can use."
        )


@dataclass(frozen=True)
class Hints:
    """What the user may have to tell the reader of a file."""

    image_size: tuple[int, int] | None = None
    """Wanted; where the file's grid of positions fits it, the size the weights were made for."""
    num_heads: int | None = None


@dataclass(frozen=True)
class Translation:
    """A file's architecture, parameters, card and notes, as a format reads them."""

    config: ModelConfig
    rows: list[Row]
    card: ModelCard
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Keys of the file that are left out on purpose, and why."""
    source: Source | None = None
    """Where the tensors are read from, if not from the file as it is."""
    checksum: Checksum | None = None
    """Of the file of weights, where something beside it says one."""
    as_stored: bool = False
    """Keep the tensors' types; otherwise all become float32, the type the original computes in."""


@dataclass(frozen=True)
class Holding:
    """How a format holds the models of one family; a configuration is of that family.

    write: (model, path, notes) -> the path written; the architecture is one that it has a name for, and what
        the file cannot say of the card is added to the notes.
    unsupported: what of an architecture the format has no name for, in words; none for what `write` takes.
    lost_numerics: what of a configuration's arithmetic the format has no place for, in words.
    """

    write: Callable[[ImageModel, Path, list[str]], Path]
    unsupported: Callable[[Any], list[str]] = lambda config: []
    lost_numerics: Callable[[Any], list[str]] = lambda config: []


@dataclass(frozen=True)
class CheckpointFormat:
    """One way to store a checkpoint.

    recognises: whether a file is of this kind, from names, shapes and settings alone.
    read: the architecture and the table; raises VitkitError for what cannot be known or is not ours.
    holdings: how it holds each family, by name; families that are not named it does not hold.
    others: what is to be said of those families, after their name.
    is_folder: whether `write` makes a folder; else a file.
    """

    name: str
    recognises: Callable[[Source], bool]
    read: Callable[[Source, Hints], Translation]
    holdings: Mapping[str, Holding]
    others: str = ""
    is_folder: bool = True

    def write(self, model: ImageModel, path: Path, notes: list[str]) -> Path:
        """Write a model of which nothing is unsupported, and return the path written."""
        return self.holdings[model.config.family].write(model, path, notes)

    def unsupported(self, config: ModelConfig) -> list[str]:
        """Name what of an architecture the format has no name for; nothing of what `write` takes."""
        holding = self.holdings.get(config.family)
        return [f"{config.family}s{self.others}"] if holding is None else holding.unsupported(config)

    def lost_numerics(self, config: ModelConfig) -> list[str]:
        """Name what of a configuration's arithmetic the format has no place for."""
        holding = self.holdings.get(config.family)
        return [] if holding is None else holding.lost_numerics(config)


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Of the pixels of ImageNet, in [0, 1]: what timm and torchvision take off where nothing else is said."""


def usual_heads(width: int) -> str:
    """Return a sentence that suggests the usual number of heads of a width; empty where there is none."""
    return f" The usual answer: num_heads={width // 64}, 64 numbers each." if width % 64 == 0 else ""


def same(ours: str, theirs: str) -> Row:
    """Return the row of a tensor that both sides store alike."""
    return Row(ours, (theirs,))


def pair(ours: str, theirs: str) -> list[Row]:
    """Weight and bias that both keep alike, under the names of PyTorch's modules."""
    return [same(f"{ours}.{part}", f"{theirs}.{part}") for part in ("weight", "bias")]


def stacked(ours: str, theirs: Iterable[str]) -> Row:
    """Tensors that we keep as one, along the first axis: q, k and v."""
    names = tuple(theirs)
    return Row(ours, names, torch.cat, lambda tensor: list(tensor.chunk(len(names))))


def convolution(ours: str, theirs: str) -> Row:
    """Name the kernel of a convolution, which Flax and TensorFlow keep as (height, width, in, out)."""
    return Row(
        ours,
        (theirs,),
        lambda arrays: arrays[0].permute(3, 2, 0, 1),
        lambda tensor: [tensor.permute(2, 3, 1, 0)],
    )


PLAIN: Mapping[str, Collection[Any]] = {
    "backbone": (None,),
    "stem_channels": ((),),
    "pool": ("token",),
    "register_tokens": (0,),
    "class_token_position": (True,),
    "position": ("learned",),
    "position_at": ("stem",),
    "attention": ("full",),
    "rotary": (None,),
    "extra_class_token": (False,),
    "layer_scale": (None,),
    "norm_before_blocks": (False,),
    "norm_after_pooling": (False,),
}
"""The ViT of the paper's section 3.1, which every layout has a name for."""


def departures(config: ViTConfig, known: Mapping[str, Collection[Any]]) -> list[str]:
    """List, in words, the fields in which a configuration differs from the values that a format assumes."""
    return [
        f"{name} {_word(getattr(config, name))} (only {' or '.join(map(_word, values))})"
        for name, values in known.items()
        if getattr(config, name) not in values
    ]


def _word(value: Any) -> str:
    if isinstance(value, BackboneConfig):
        return f"of {value.layers} units"
    return "none" if value is None or value == () else str(value)


def training_alone(config: ViTConfig) -> list[str]:
    """Name what of a ViT acts in training alone, which the arrays of a file do not tell."""
    words = []
    if config.dropout or config.attention_dropout:
        words.append(f"dropout {max(config.dropout, config.attention_dropout):g}, which training alone uses")
    if config.drop_path:
        words.append(f"stochastic depth {config.drop_path:g}, which training alone uses")
    return words


def to_theirs(tensors: Mapping[str, Tensor], rows: Iterable[Row]) -> dict[str, Tensor]:
    """Our tensors under their names and in their shapes: views where possible, so it costs no memory.

    Raises:
        VitkitError: a tensor has no row: without it the file would hold another model.
    """
    theirs: dict[str, Tensor] = {}
    rows = list(rows)
    left = tensors.keys() - {row.ours for row in rows}
    if left:
        raise VitkitError(
            f"This format has no name for {', '.join(sorted(left))}. Choose another, or vitkit's own, which "
            "keeps everything."
        )
    for row in rows:
        parts = row.write(tensors[row.ours].detach())
        theirs |= dict(zip(row.theirs, parts, strict=True))
    return theirs
