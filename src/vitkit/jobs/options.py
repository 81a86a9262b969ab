"""Options are written once: a frozen dataclass is a function's signature and Args, and a verb's help.

A job is a function of one value, its options. `from_options` makes the public function of it, whose
parameters are the fields, and the command line reads the same dataclass. First come the fields that verbs
share, then each verb's own options. The options of a study stand beside the study, and those of fine-tuning
in a file of their own: they need the configuration of a run, for which the help of other verbs need not wait.
None of it needs torch.
"""

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, is_dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeAlias, TypeVar

from vitkit.data.config import WORKER_TIMEOUT, DecodeRule, Splits
from vitkit.data.imagenet_config import ProtocolName
from vitkit.engines.libraries import Engine, EnginePrecision, GraphEngine
from vitkit.errors import VitkitError
from vitkit.listener import Listener, hushed
from vitkit.models.config.card import TaskName
from vitkit.models.config.compute_config import Precision
from vitkit.models.config.image_config import Size
from vitkit.models.config.vit_config import Interpolation
from vitkit.notebook import AUTOMATIC
from vitkit.weights.format_names import Format, Library, format_for
from vitkit.weights.load_options import LoadOptions
from vitkit.weights.published import is_address

StrPath: TypeAlias = str | Path
"""A file, a folder, an address, or the name of a published checkpoint."""
StrPaths: TypeAlias = StrPath | Sequence[StrPath]
"""One of them or several."""

P = ParamSpec("P")
Trained = TypeVar("Trained", bound="RunOptionsByName")
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
            return job(leave_alone(options(*args, **kwargs)))

        _describe(function, job, options)
        return function

    return publish


def from_training_options(
    options: type[Trained],
) -> Callable[[Callable[[Trained], Result]], Callable[..., Result]]:
    """Do the same for a job that trains: its function takes the options of training by their names too."""
    own = {field.name for field in fields(options)}

    def publish(job: Callable[[Trained], Result]) -> Callable[..., Result]:
        def function(*args: Any, **kwargs: Any) -> Result:
            given = {name: kwargs.pop(name) for name in list(kwargs) if name not in own - {"options"}}
            return job(leave_alone(options(*args, **kwargs, options=given)))

        _describe(function, job, options)
        return function

    return publish


def leave_alone(options: Options) -> Options:
    """Give the listener of a job's options nothing but warnings to hear, where they ask for quiet."""
    if isinstance(options, JobOptions) and options.quiet:
        return replace(options, listener=hushed(options.listener, options.quiet))
    return options


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
    of_job = inspect.signature(job).parameters.values()
    before = list(takewhile(lambda parameter: parameter.name != "options", of_job))  # self
    parameters = [
        parameter.replace(kind=parameter.VAR_KEYWORD, default=parameter.empty, annotation=Any)
        if parameter.name == "options"
        else parameter
        for parameter in inspect.signature(options).parameters.values()
    ]
    # Quiet and listener come last, as the least of what a caller cares for.
    ordered = sorted(
        parameters, key=lambda parameter: (parameter.kind, ("quiet", "listener").count(parameter.name))
    )
    result = inspect.signature(job).return_annotation
    function.__dict__["__signature__"] = inspect.Signature([*before, *ordered], return_annotation=result)
    function.__doc__ = _with_arguments(job.__doc__ or "", [parameter.name for parameter in ordered], options)


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
class QuietOptions:
    """The option to be left alone."""

    quiet: bool = False
    """say nothing while it is at work, except for warnings."""


Tracker = Literal["csv", "tensorboard", "wandb"]
"""The logs of other programs that the numbers of a run can be kept in."""


@dataclass(frozen=True, kw_only=True)
class HearingOptions(QuietOptions):
    """The options of whoever hears a training run at the terminal."""

    log: tuple[Tracker, ...] = ()
    """keep the numbers of the run in these logs too, with commas between them: csv (log.csv in the run
    folder), tensorboard and wandb, which are extras of the same names."""


@dataclass(frozen=True, kw_only=True)
class JobOptions(QuietOptions):
    """The options that every job has."""

    listener: Listener = field(default=AUTOMATIC, repr=False, compare=False)
    """hears the progress and what is worth knowing; left out, a notebook shows it and a script is silent."""


@dataclass(frozen=True, kw_only=True)
class RunOptionsByName:
    """The options of training that a public function takes beside its own; on a command line they are
    options like any other."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """any other option of training by its name in `vitkit train --help`, with "_" for "-" and for ".":
    learning_rate=1e-3, splits_val_fraction=0.2."""


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
    return {field.name: getattr(given, field.name) for field in fields(options)}


def as_names(paths: StrPaths) -> tuple[str, ...]:
    """Return one path or several as text."""
    return (str(paths),) if isinstance(paths, str | Path) else tuple(map(str, paths))


@dataclass(frozen=True)
class CardOptions(CheckpointOptions, SourceOptions):
    """The options of `vitkit card`."""


@dataclass(frozen=True)
class StartsOptions:
    """The options of the list of published checkpoints; the texts below the fields are their help."""

    patterns: tuple[str, ...]
    """short names, or patterns such as 'vit-b16*'; left out, all are listed."""
    model: str | None = None
    """a model of vitkit models, or a pattern: ViT-B/16, 'BiT-*'."""
    data: str | None = None
    """the images that it was trained on: imagenet-21k, imagenet-1k, 'imagenet-21k, imagenet-1k', webli; or,
    where none has exactly that, a part of it."""


@dataclass(frozen=True)
class ModelsOptions(SizeOptions):
    """The options of the list of models; the texts below the fields are their help."""

    patterns: tuple[str, ...]
    """patterns such as 'ViT-B*', or parts of names; left out, all models are listed."""
    num_classes: int = 1000
    """number of classes of the head."""


@dataclass(frozen=True)
class RunsOptions(JobOptions):
    """The options of the list of runs; the texts below the fields are their help."""

    folder: StrPath = "runs"
    """folder to look into, and into folders in it; left out, runs/ in the working folder."""

    def __post_init__(self) -> None:
        if not Path(self.folder).is_dir():
            raise VitkitError(
                f"{self.folder} is no folder: expected one that holds run folders. Name another one; vitkit "
                "train makes runs/ where it is started."
            )


@dataclass(frozen=True)
class CostOptions(CheckpointOptions):
    """The options of a cost estimate; the texts below the fields are their help."""

    models: tuple[str, ...]
    """model names (ViT-B/16, R50+ViT-L/16, BiT-R152x4, ViT-96x6x3/4), run folders or checkpoints."""
    batch_size: int = 128
    """images of the batch whose memory is counted."""
    num_classes: int | None = None
    """number of classes of the head; left out, 1000 or the checkpoint's."""
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """optimiser: adamw stores two numbers for each weight, sgd one."""
    average: bool = False
    """count a running average of the weights too."""
    epochs: float | None = None
    """epochs of a training whose compute is estimated; give --images too."""
    images: int | None = None
    """images in the training set; give --epochs too."""
    utilization: float = 0.4
    """fraction of an H100's peak speed that training is assumed to reach."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise VitkitError(f"batch_size is at least 1, found {self.batch_size}.")
        if (self.epochs is None) != (self.images is None):
            raise VitkitError("A training is costed by --epochs and --images together; one is missing.")
        if self.epochs is not None and self.images is not None and min(self.epochs, self.images) <= 0:
            raise VitkitError(f"epochs and images are above 0, found {self.epochs:g} and {self.images}.")
        if not 0 < self.utilization <= 1:
            raise VitkitError(f"utilization is a fraction above 0 and at most 1, found {self.utilization}.")

    @property
    def images_seen(self) -> float | None:
        """Return the images that the training sees, repetitions counted; None where no training is
        estimated."""
        return None if self.epochs is None or self.images is None else self.epochs * self.images


@dataclass(frozen=True)
class ConvertOptions(CheckpointOptions, JobOptions, SourceOptions):
    """The options of a conversion; the texts below the fields are their help."""

    out: StrPath
    """file or folder to write; it must not exist yet."""
    to: Format | None = None
    """format to write; left out, official for a name ending in .npz, torchvision for .pth, else vitkit."""
    _: KW_ONLY
    num_classes: int | None = None
    """number of classes of a new head of zeros, which replaces the old one, as the original code
    fine-tunes."""
    head: Literal["keep", "new"] | None = None
    """keep the whole head, or replace it by a new one of zeros."""
    interpolation: Interpolation = "original"
    """how position embeddings are resized: by the original code's bilinear rule, or bicubic."""
    against: Library | None = None
    """compare with the model of another library, timm or huggingface, if it is installed."""
    accept_change: bool = False
    """keep a result that differs because the format cannot store all of the model's numerics."""
    image_mean: tuple[float, ...] | None = None
    """mean of pixels in 0..1, one for each channel or one for all, where the file does not record it."""
    image_std: tuple[float, ...] | None = None
    """standard deviation of pixels in 0..1, given in the same way."""

    @property
    def format(self) -> Format:
        """Return the format to write: the one named, or the one that the ending of `out` suggests."""
        return self.to or format_for(self.out)


@dataclass(frozen=True)
class DataCheckOptions(JobOptions):
    """The options of a check of a data set; the texts below the fields are their help."""

    path: str
    """images to check: digits (built in), a folder of class folders or a .zip or .tar of one, a .csv, or a
    folder of .parquet files."""
    splits: Splits = field(default_factory=Splits)
    """how missing splits would be made."""
    decode: DecodeRule = field(default_factory=DecodeRule)
    """how files are read."""
    task: TaskName = "classification"
    """what will be learned: classification, one class for each image; multi-label, any number of labels."""


@dataclass(frozen=True)
class DataShowOptions(JobOptions):
    """The options of a page of training images as a model sees them; the texts below the fields are their
    help."""

    path: str
    """images to show: digits (built in), a folder of class folders or a .zip or .tar of one, a .csv, or a
    folder of .parquet files."""
    _: KW_ONLY
    start: str = ""
    """weights whose fine-tuning is shown: a run folder, a file, an address or a name of vitkit starts."""
    recipe: str = ""
    """recipe whose training is shown; without it and --start, fine-tuning by default options."""
    images: int = 6
    """number of images, the first ones that the run trains on."""
    versions: int = 5
    """augmented versions of each: those of the first epochs."""
    out: StrPath | None = None
    """file to write, .html or .png; left out, DATA-views.html."""

    def __post_init__(self) -> None:
        for name in ("images", "versions"):
            if not 1 <= getattr(self, name) <= 100:
                raise VitkitError(f"{name} is from 1 to 100, found {getattr(self, name)}.")
        if self.out is not None and Path(self.out).suffix.lower() not in (".html", ".png"):
            raise VitkitError(f"--out is a file that ends in .html or .png, found {self.out}.")


@dataclass(frozen=True)
class MeasuringOptions(ModelOptions, BatchOptions, JobOptions):
    """The options of every evaluation; the texts below the fields are their help."""

    _: KW_ONLY
    worker_timeout: float = WORKER_TIMEOUT
    """seconds to wait for a batch before the process that loads it is considered stuck; 0 waits for ever."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise VitkitError(f"workers is 0 or more, found {self.workers}.")
        if not 0 <= self.worker_timeout < math.inf:
            raise VitkitError(
                f"Expected a worker_timeout of 0 seconds (no limit) or more, found {self.worker_timeout}."
            )


@dataclass(frozen=True)
class EvaluateOptions(MeasuringOptions):
    """The options of an evaluation on images with labels."""

    data: str | None = None
    """other images than those the model was trained with: digits, a folder, a .csv or .parquet files. Classes
    are matched by name."""
    split: str | None = None
    """images to evaluate on: test, val or train, or a part of them such as "test[:10%]" or "train[-500:]",
    which has the same fraction of every class; left out, test if there is one."""


@dataclass(frozen=True, kw_only=True)
class ProtocolFiles:
    """The files that a protocol reads beside the images."""

    labels: StrPath | None = None
    """with a protocol, real.json of imagenet-real or the folder mappings of objectnet; left out, beside the
    images."""
    wnids: StrPath | None = None
    """with a protocol, the WordNet ids of the model's outputs in order: a file with one at the beginning of
    each line, or a folder of class folders; left out, the model's class names or ImageNet's usual order."""


@dataclass(frozen=True)
class ProtocolOptions(ProtocolFiles, MeasuringOptions):
    """The options of an evaluation as one of ImageNet's test sets is scored."""

    data: StrPath
    """the folder of the test set's images."""
    protocol: ProtocolName
    """the test set: imagenet-real, imagenet-a, objectnet and so on."""


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The processes that compute the rows of a table."""

    on: Literal["here", "ray"] = "here"
    """here: this process; ray: the processes of a Ray cluster, which RAY_ADDRESS names, else of this machine
    (the extra ray). All machines must see the images, the model and the files that are written."""
    processes: int = 1
    """processes on Ray, each with a GPU or a processor core of its own."""

    def refuse_processes(self) -> None:
        """Refuse several processes where there is no cluster.

        Raises:
            VitkitError: it is so.
        """
        if self.on == "here" and self.processes != 1:
            raise VitkitError("Several --processes compute on Ray: give --on ray, or leave them out.")


@dataclass(frozen=True)
class PredictingOptions(ModelOptions):
    """The options of the model of a prediction."""

    device: str = "auto"  # by position too


class BuiltModel(Protocol):
    """A model of `vitkit.create_model` or `vitkit.load_model`, of which this file imports no class."""

    config: Any
    card: Any


@dataclass(frozen=True)
class PredictorOptions(PredictingOptions):
    """The options of `vitkit.Predictor`."""

    path: StrPath | BuiltModel  # type: ignore[assignment] # a wider type than the command line's
    """a run folder, any checkpoint that `vitkit convert` reads, or a folder of `vitkit export`; or a model of
    `create_model` or `load_model`, which computes as it stands and where it stands."""
    _: KW_ONLY
    class_names: Sequence[str] | None = None
    """names of the classes in the order of the outputs; left out, those that the model was saved with."""


SINGLE_FILES = (".parquet", ".npy")
"""Endings of a file that holds the features of all images."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions(PredictingOptions, ClusterOptions, JobOptions):
    """The options of a prediction; the texts below the fields are their help."""

    images: Sequence[StrPath]
    """image files, folders, .zip or .tar files, Parquet files, a .csv of paths; or - for a list of those on
    standard input."""
    top: int = 5
    """number of classes to name for each image; a multi-label model always names all labels."""
    batch_size: int = 32
    """images that are read and computed at a time."""
    out: StrPath | None = None
    """folder of .parquet files for the predictions, in place of printing them. The same command again
    continues there."""

    def __post_init__(self) -> None:
        if not self.images:
            raise VitkitError("Which images? Give files, folders, or - to read paths from standard input.")
        for name in ("top", "batch_size", "processes"):
            if getattr(self, name) < 1:
                raise VitkitError(f"{name} is at least 1, found {getattr(self, name)}.")
        self.refuse_processes()
        if self.out is not None and Path(self.out).suffix.lower() in SINGLE_FILES:
            raise VitkitError(
                f"For predictions --out takes a folder for .parquet files, found {self.out}, the name of a "
                "single file: give the name of a folder."
            )
        if self.out is None and self.on != "here":
            raise VitkitError("On a cluster predictions are written to files: give --out FOLDER.")


@dataclass(frozen=True)
class ImagesAndModel:
    """Images and the model that computes something of them."""

    data: StrPath
    """images: digits (built in), a folder of images, a .csv, or .parquet files."""
    path: StrPath
    """the model that computes them: a run folder, or a checkpoint of any library."""


@dataclass(frozen=True)
class EmbedOptions(
    CheckpointOptions, PrecisionOptions, ClusterOptions, BatchOptions, JobOptions, ImagesAndModel
):
    """The options of features that are kept; the texts below the fields are their help."""

    out: StrPath | None = None
    """folder of .parquet files, or a file that ends in .parquet or .npy; left out, one below features/, named
    by the images and the model. The same command again continues there."""

    def __post_init__(self) -> None:
        if not self.data or not self.path:
            raise VitkitError("Features need images and a model: vitkit embed DATA MODEL.")
        for name, least in (("batch_size", 1), ("workers", 0), ("processes", 1)):
            if getattr(self, name) < least:
                raise VitkitError(f"{name} is {least} or more, found {getattr(self, name)}.")
        self.refuse_processes()

    @property
    def file_ending(self) -> str:
        """Return the ending of the single file for the features, in small letters; "" for a folder."""
        ending = self.destination.suffix.lower()
        return ending if ending in SINGLE_FILES else ""

    @property
    def destination(self) -> Path:
        """Return the folder or file for the features."""
        if self.out is not None:
            return Path(self.out)
        names = (Path(str(path)).name or "images" for path in (self.data, self.path))
        return Path("features") / re.sub(r"[/:\\]", "-", "-".join(names))


@dataclass(frozen=True)
class InspectOptions(CheckpointOptions, JobOptions):
    """The options of an inspection; the texts below the fields are their help."""

    path: StrPath
    """a run folder, or any checkpoint that vitkit convert reads."""
    images: Sequence[StrPath] | None = None
    """image files, folders, or what vitkit predict takes, for the attention pictures; left out, test images
    of the run."""
    out: StrPath | None = None
    """folder to write the pictures to; left out, inspect/ in the run folder or beside the checkpoint."""

    @property
    def folder(self) -> Path:
        """Return the folder for the pictures; for a model given by address, in the working folder."""
        if self.out is not None:
            return Path(self.out)
        if is_address(self.path):
            return Path("inspect")
        path = Path(self.path)
        return (path if path.is_dir() else path.parent) / "inspect"


FEWEST = 10
"""Images below which neither ranges nor agreement say anything."""


@dataclass(frozen=True)
class ExportOptions(CheckpointOptions, JobOptions, SourceOptions):
    """The options of an export; the texts below the fields are their help."""

    out: StrPath
    """folder of the graph, which must not exist yet."""
    engine: GraphEngine = "openvino"
    """what is to compute it: openvino or onnxruntime, extras of the same names."""
    precision: EnginePrecision = "float32"
    """numbers of matrix products: float32, bfloat16 or int8. OpenVINO has all three; int8 is calibrated on
    images."""
    _: KW_ONLY
    calibration: str | None = None
    """images for int8, like those it will see: a folder of images, labels or not, or any --data; left out,
    the training images of a run. Some of them are kept apart to compare the result with float32."""
    calibration_images: int = 300
    """most images that ranges are found on."""
    check_images: int = 500
    """most images, others than those, that the result is compared with float32 on."""
    accept_change: bool = False
    """keep a result that answers otherwise than float32 on more than 1 % of the images."""

    def __post_init__(self) -> None:
        if min(self.calibration_images, self.check_images) < FEWEST:
            raise VitkitError(
                f"calibration_images and check_images are at least {FEWEST}, found {self.calibration_images} "
                f"and {self.check_images}."
            )
