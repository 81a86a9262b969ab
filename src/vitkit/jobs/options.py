"""Options are written once: a frozen dataclass is a function's signature and Args, and a verb's help.

A job is a function of one value, its options. `from_options` makes the public function of it, whose
parameters are the fields, and the command line reads the same dataclass. The fields that verbs share are
here. None of it needs torch.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from vitkit.engines.engine_config import Engine
from vitkit.listener import SILENT, Listener
from vitkit.models.config.compute_config import Precision
from vitkit.models.config.image_config import Size
from vitkit.weights.load_options import LoadOptions

StrPath: TypeAlias = str | Path
"""A file, a folder, an address, or the name of a published checkpoint."""
StrPaths: TypeAlias = StrPath | Sequence[StrPath]
"""One of them or several."""

P = ParamSpec("P")
Options = TypeVar("Options")
Result = TypeVar("Result")
Self = TypeVar("Self")


def from_options(
    options: Callable[P, Options],
) -> Callable[[Callable[[Options], Result]], Callable[P, Result]]:
    """Turn a job, a function of its options, into the public function whose parameters are their fields.

    Args:
        options: a dataclass. The texts below its fields become the Args of the docstring, which is the job's.

    Returns:
        A decorator. The function has the name of the job without the "run_" that may stand before it.
    """

    def publish(job: Callable[[Options], Result]) -> Callable[P, Result]:
        def function(*args: P.args, **kwargs: P.kwargs) -> Result:
            return job(options(*args, **kwargs))

        _describe(function, job, options)
        return function

    return publish


def method_from_options(
    options: Callable[P, Options],
) -> Callable[[Callable[[Self, Options], None]], Callable[Concatenate[Self, P], None]]:
    """Do the same for a method that takes the options beside `self`."""

    def publish(job: Callable[[Self, Options], None]) -> Callable[Concatenate[Self, P], None]:
        def function(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> None:
            job(self, options(*args, **kwargs))

        _describe(function, job, options)
        return function

    return publish


def _describe(function: Callable[..., Any], job: Callable[..., Any], options: Callable[..., Any]) -> None:
    """Give a function the name of its job, the parameters of its options, and a docstring of both."""
    function.__name__ = function.__qualname__ = job.__name__.removeprefix("run_")
    function.__module__ = job.__module__
    before = list(inspect.signature(job).parameters.values())[:-1]  # self
    parameters = inspect.signature(options).parameters.values()
    # The listener comes last, as the least of what a caller cares for.
    ordered = sorted(parameters, key=lambda one: (one.kind, one.name == "listener"))
    result = inspect.signature(job).return_annotation
    function.__dict__["__signature__"] = inspect.Signature([*before, *ordered], return_annotation=result)
    function.__doc__ = _with_arguments(job.__doc__ or "", [one.name for one in ordered], options)


def _with_arguments(text: str, names: Sequence[str], options: Any) -> str:
    """Put the texts of the fields into a docstring, before what is returned and raised."""
    texts = read_field_texts(options)
    lines = [
        textwrap.fill(f"    {name}: {texts[name]}", 108, subsequent_indent=" " * 8, break_on_hyphens=False)
        for name in names
        if name in texts
    ]
    head, heading, rest = re.split(
        r"(^(?:Returns|Raises):\n|\Z)", inspect.cleandoc(text), maxsplit=1, flags=re.MULTILINE
    )
    return "\n".join([head.rstrip(), "", "Args:", *lines, "", heading + rest]).rstrip() + "\n"


def read_field_texts(options: type) -> dict[str, str]:
    """Read the string below each field of a dataclass and of those that it extends, from their source.

    Returns:
        The texts by the names of the fields; none where the source is not there.
    """
    texts = {}
    for owner in reversed(options.__mro__):
        if not is_dataclass(owner):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        except OSError:
            return {}
        for statement, below in pairwise(getattr(tree.body[0], "body", [])):
            if isinstance(statement, ast.AnnAssign) and isinstance(below, ast.Expr):
                texts[ast.unparse(statement.target)] = " ".join(ast.literal_eval(below.value).split())
    return texts


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The option that every job has and no command line shows."""

    listener: Listener = field(default=SILENT, repr=False, compare=False)
    """hears the progress and what is worth knowing; silent unless one is given."""


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """The size of a model's images."""

    image_size: Size | None = None
    """height and width in pixels, or one number for both: 384, or 224 320; left out, that of the checkpoint,
    recipe or protocol, else 224. Position embeddings are resized."""


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(SizeOptions):
    """The options of loading a checkpoint."""

    num_heads: int | None = None
    """number of attention heads, where the file does not record it."""

    @property
    def load_options(self) -> LoadOptions:
        """The options of loading that these stand for."""
        return LoadOptions(image_size=self.image_size, num_heads=self.num_heads)


@dataclass(frozen=True)
class SourceOptions:
    """A checkpoint. As the last class that a dataclass extends, its field comes first."""

    source: StrPath
    """a run folder, a checkpoint file or folder of any library, or an address (hf:OWNER/NAME,
    https://...)."""


@dataclass(frozen=True)
class PathOptions:
    """A model, which may be an exported one. Its field comes first in the same way."""

    path: StrPath
    """a run folder, any checkpoint that vitkit convert reads, or a folder of vitkit export."""


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """The device of a computation."""

    device: str = "auto"
    """where to compute: auto (a GPU if there is one), cpu, cuda or cuda:1."""


@dataclass(frozen=True, kw_only=True)
class MachineOptions(DeviceOptions):
    """The part of the machine that trains."""

    threads: int | None = None
    """CPU threads; left out, as many as PyTorch chooses."""


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions(DeviceOptions):
    """The device of a model, and the numbers it computes in."""

    precision: Precision = "auto"
    """number format of the computation: float32, bfloat16, or auto: bfloat16 on a GPU that has it, else
    float32."""


@dataclass(frozen=True)
class ModelOptions(CheckpointOptions, PrecisionOptions, PathOptions):
    """The model that an evaluation and a prediction have in common."""

    _: KW_ONLY
    exact: bool = False
    """compute with the operations of the first version of vitkit, without the faster ways to the same
    result."""
    engine: Engine | None = None
    """what computes: torch, or an extra, openvino or onnxruntime; left out, the one that a folder of vitkit
    export is for, else torch."""
    max_pixels: int | None = None
    """largest number of pixels of an image; larger ones are refused. Left out, the limit that the model was
    saved with."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The number of images that a model is given, and of processes that read them."""

    batch_size: int = 128
    """images that are computed at a time."""
    workers: int = 0
    """processes that decode images; with 0 the main process decodes."""


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """The cache of features."""

    cache: bool = True
    """keep the features of images in the user's cache folder, and use those that are there."""


def as_arguments(options: type, given: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, with the values that options of more fields have for them."""
    return {one.name: getattr(given, one.name) for one in fields(options)}


def as_names(paths: StrPaths) -> tuple[str, ...]:
    """Return one path or several as text."""
    return (str(paths),) if isinstance(paths, str | Path) else tuple(map(str, paths))
