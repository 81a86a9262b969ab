"""Checkpoints in, checkpoints out: the format is found by itself, every key is accounted for."""

from vitkit.weights.formats.known import DIALECTS, Format
from vitkit.weights.loading import Identity, Loaded, identify, load, load_model
from vitkit.weights.saving import Saved, absent, save, save_model, unsaid

__all__ = [
    "DIALECTS",
    "Format",
    "Identity",
    "Loaded",
    "Saved",
    "absent",
    "identify",
    "load",
    "load_model",
    "save",
    "save_model",
    "unsaid",
]
