"""The table of checkpoint formats, and the options of loading a checkpoint. It needs no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from vitkit.models.config import Interpolation

Format = Literal["vitkit", "official", "big_vision", "huggingface", "timm", "torchvision"]

MODULES: dict[Format, str] = {name: "native" if name == "vitkit" else name for name in get_args(Format)}
"""The module below `vitkit.weights.formats` that holds each format's `CHECKPOINT_FORMAT`."""
READ = ("native", "big_vision", "official", "huggingface", "authors", "timm", "torchvision")
"""The modules of formats that are read: those and files of other authors. The order matters: the first format
that recognises a file reads it."""

TORCH_ENDINGS = (".pth", ".pt", ".bin", ".ckpt", ".pth.tar")
ENDINGS = (".safetensors", ".npz", *TORCH_ENDINGS)
"""Endings of files of weights."""

_FORMAT_OF_ENDING: dict[str, Format] = {".npz": "official", ".pth": "torchvision", ".pt": "torchvision"}
"""The format of a file to write by its ending, where no format is named."""


def format_for(path: str | Path) -> Format:
    """Choose the format of a path to write by its ending; vitkit's own, a folder, if it suggests none."""
    return _FORMAT_OF_ENDING.get(Path(path).suffix, "vitkit")


Library = Literal["timm", "huggingface"]


@dataclass(frozen=True)
class LoadOptions:
    """The options of loading a checkpoint; `vitkit.load_model` describes each field."""

    num_classes: int | None = None
    image_size: int | tuple[int, int] | None = None
    head: Literal["keep", "new"] | None = None
    num_heads: int | None = None
    position_interpolation: Interpolation | None = None
    image_mean: tuple[float, ...] | None = None
    image_std: tuple[float, ...] | None = None
    channels: int | None = None
    """Channels of the images; left out, the weights'. `fit_channels` of `loading.py` fits the filters."""
