"""Types and options that the signatures of several jobs name. None of it needs torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict

from vitkit.engines.libraries import Engine
from vitkit.errors import VitkitError
from vitkit.models.config.compute_config import Precision
from vitkit.models.config.image_config import Size
from vitkit.models.config.vit_config import Interpolation

StrPath: TypeAlias = str | Path
"""A file, a folder, an address, or the name of a published checkpoint."""
StrPaths: TypeAlias = StrPath | Sequence[StrPath]
"""A single one or several."""
Cluster: TypeAlias = Literal["here", "ray"]
"""The processes that compute the rows of a table: this one, or those of a Ray cluster."""
SINGLE_FILES = (".parquet", ".npy")
"""Endings of a file that holds the features of all images."""


class LoadingOptions(TypedDict, total=False):
    """The options of reading a checkpoint."""

    image_size: Size | None
    """height and width in pixels, or one number for both; left out, the checkpoint's. Position embeddings are
    resized."""
    num_heads: int | None
    """number of attention heads, where the file does not record it."""
    position_interpolation: Interpolation | None
    """library by whose rule position embeddings are resized; left out, the one that the weights come from."""


class ModelOptions(LoadingOptions, total=False):
    """The options of a model that answers: how it is read, and how it computes."""

    device: str
    """where to compute: cpu, gpu or cuda:1; left out, auto: a GPU if there is one."""
    precision: Precision
    """number format of the computation: float32, bfloat16, or auto: bfloat16 on a GPU that has it, else
    float32; left out, auto."""
    engine: Engine | None
    """inference engine: torch, or an extra, openvino or onnxruntime; left out, the engine of a folder of
    `vitkit export`, else torch."""
    exact: bool
    """compute in the plain way, without the faster ways to the same result."""
    max_pixels: int | None
    """largest number of pixels of an image; larger images are refused. Left out, the limit that the model was
    saved with."""


def require_at_least(least: int, **numbers: int | None) -> None:
    """Refuse numbers, given by their names, that are below a bound.

    Raises:
        VitkitError: one is; None is no number.
    """
    for name, number in numbers.items():
        if number is not None and number < least:
            raise VitkitError(f"{name} is at least {least}, found {number}.")


def as_names(paths: StrPaths) -> tuple[str, ...]:
    """Return one path or several as text."""
    return (str(paths),) if isinstance(paths, str | Path) else tuple(map(str, paths))
