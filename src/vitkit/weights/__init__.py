"""Checkpoints in, checkpoints out: the format is found by itself, every key is accounted for."""

from vitkit.weights.formats.known import FORMATS, Format
from vitkit.weights.loading import Identity, Loaded, LoadOptions, identify, load, load_model
from vitkit.weights.saving import Saved, lost_numerics, save, save_model, unsupported

__all__ = [
    "FORMATS",
    "Format",
    "Identity",
    "LoadOptions",
    "Loaded",
    "Saved",
    "identify",
    "load",
    "load_model",
    "lost_numerics",
    "save",
    "save_model",
    "unsupported",
]
