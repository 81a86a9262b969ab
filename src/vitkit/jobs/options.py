"""The options of jobs: frozen dataclasses, each written once for a function and for its verb.

First come the options that verbs share, then each verb's own. The options of fine-tuning, of pre-training and
of the studies have files of their own: they need the configuration of a run, for which the help of other
verbs should not wait. None of it needs torch. `vitkit.jobs.functions` makes the functions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

from vitkit.engines.libraries import Engine
from vitkit.errors import VitkitError
from vitkit.listener import Listener
from vitkit.models.config.compute_config import Precision
from vitkit.models.config.image_config import Size
from vitkit.models.config.vit_config import Interpolation
from vitkit.notebook import AUTOMATIC

StrPath: TypeAlias = str | Path
"""A file, a folder, an address, or the name of a published checkpoint."""
StrPaths: TypeAlias = StrPath | Sequence[StrPath]
"""A single one or several."""
Cluster: TypeAlias = Literal["here", "ray"]
"""The processes that compute the rows of a table: this one, or those of a Ray cluster."""
SINGLE_FILES = (".parquet", ".npy")
"""Endings of a file that holds the features of all images."""


class BuiltModel(Protocol):
    """A model of `vitkit.create_model` or `vitkit.load_model`, whose class this file does not import."""

    config: Any
    card: Any


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


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options that every job has.

    The listener is among them, because a signature that is made of a dataclass (ParamSpec) takes no keyword
    beside its fields.
    """

    quiet: bool = False
    """print nothing but warnings."""
    listener: Listener = field(default=AUTOMATIC, repr=False, compare=False)
    """hears the progress and remarks; left out, a notebook shows them and a script is silent."""


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """The size of a model's images."""

    image_size: Size | None = None
    """height and width in pixels, or one number for both: 384, or 224 320; left out, the size of the
    checkpoint, recipe or protocol, else 224. Position embeddings are resized."""


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """The part of the machine that trains."""

    device: str = "auto"
    """where to compute: auto (a GPU if there is one), cpu, gpu or cuda:1."""
    threads: int | None = None
    """CPU threads; left out, as many as PyTorch chooses."""


def as_arguments(options: type, source: Any) -> dict[str, Any]:
    """Return the arguments that make a dataclass of options, from an object that has all of its fields."""
    return {option.name: getattr(source, option.name) for option in fields(options)}


def as_names(paths: StrPaths) -> tuple[str, ...]:
    """Return one path or several as text."""
    return (str(paths),) if isinstance(paths, str | Path) else tuple(map(str, paths))
