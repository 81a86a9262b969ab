"""Checkpoints in, checkpoints out: the format is recognised, every key is accounted for.

Names are loaded when first used, so that a part that needs no torch can be had without it.
"""

from typing import TYPE_CHECKING

from vitkit.lazy import load_lazily

if TYPE_CHECKING:
    from vitkit.weights.format_names import Format, LoadOptions
    from vitkit.weights.formats.recognise import FORMATS
    from vitkit.weights.loading import Identity, Loaded, identify, load
    from vitkit.weights.saving import Saved, lost_numerics, save, save_model, unsupported

_HOMES = {
    "FORMATS": "vitkit.weights.formats.recognise",
    "Format": "vitkit.weights.format_names",
    "Identity": "vitkit.weights.loading",
    "LoadOptions": "vitkit.weights.format_names",
    "Loaded": "vitkit.weights.loading",
    "Saved": "vitkit.weights.saving",
    "identify": "vitkit.weights.loading",
    "load": "vitkit.weights.loading",
    "lost_numerics": "vitkit.weights.saving",
    "save": "vitkit.weights.saving",
    "save_model": "vitkit.weights.saving",
    "unsupported": "vitkit.weights.saving",
}

__all__ = [
    "FORMATS",
    "Format",
    "Identity",
    "LoadOptions",
    "Loaded",
    "Saved",
    "identify",
    "load",
    "lost_numerics",
    "save",
    "save_model",
    "unsupported",
]


__getattr__, __dir__ = load_lazily(__name__, _HOMES, __all__)
