"""The options of jobs: frozen dataclasses, each written once for a function and for its verb.

First come the options that verbs share, then each verb's own. The options of fine-tuning, of pre-training and
of the studies have files of their own: they need the configuration of a run, for which the help of other
verbs should not wait. None of it needs torch. `vitkit.jobs.functions` makes the functions.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from vitkit.data.config import WORKER_TIMEOUT, DecodeRule, Splits
from vitkit.data.imagenet_config import ProtocolName
from vitkit.engines.libraries import Engine, EnginePrecision, GraphEngine, GraphFormat
from vitkit.errors import VitkitError
from vitkit.listener import Listener
from vitkit.models.config.card import TaskName
from vitkit.models.config.compute_config import Precision
from vitkit.models.config.image_config import Size
from vitkit.models.config.vit_config import Interpolation
from vitkit.notebook import AUTOMATIC
from vitkit.weights.format_names import Format, Library, LoadOptions, format_for

StrPath: TypeAlias = str | Path
"""A file, a folder, an address, or the name of a published checkpoint."""
StrPaths: TypeAlias = StrPath | Sequence[StrPath]
"""A single one or several."""


@dataclass(frozen=True, kw_only=True)
class QuietOptions:
    """The option to hear warnings alone."""

    quiet: bool = False
    """print nothing but warnings."""


@dataclass(frozen=True, kw_only=True)
class JobOptions(QuietOptions):
    """The options that every job has.

    The listener is among them, because a signature that is made of a dataclass (ParamSpec) takes no keyword
    beside its fields.
    """

    listener: Listener = field(default=AUTOMATIC, repr=False, compare=False)
    """hears the progress and remarks; left out, a notebook shows them and a script is silent."""


@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """The size of a model's images."""

    image_size: Size | None = None
    """height and width in pixels, or one number for both: 384, or 224 320; left out, the size of the
    checkpoint, recipe or protocol, else 224. Position embeddings are resized."""


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(SizeOptions):
    """The options of loading a checkpoint."""

    num_heads: int | None = None
    """number of attention heads, where the file does not record it."""

    @property
    def load_options(self) -> LoadOptions:
        """Return them as options of loading."""
        return LoadOptions(image_size=self.image_size, num_heads=self.num_heads)


@dataclass(frozen=True, kw_only=True)
class LoadingOptions(CheckpointOptions):
    """The options of loading the weights of a checkpoint."""

    position_interpolation: Interpolation | None = None
    """library by whose rule position embeddings are resized; left out, the one that the weights come from."""

    @property
    def load_options(self) -> LoadOptions:
        """Return them as options of loading."""
        return replace(super().load_options, position_interpolation=self.position_interpolation)


@dataclass(frozen=True)
class SourceOptions:
    """A checkpoint. Named last among a dataclass's bases, so that `source` is its first field."""

    source: StrPath
    """a run folder, a checkpoint file or folder of any library, or an address (hf:OWNER/NAME,
    https://...)."""


@dataclass(frozen=True)
class PathOptions:
    """A model, exported or not. Named last among a dataclass's bases, so that `path` is its first field."""

    path: StrPath
    """a run folder, any checkpoint that vitkit convert reads, or a folder of vitkit export."""


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """The device of a computation."""

    device: str = "auto"
    """where to compute: auto (a GPU if there is one), cpu, gpu or cuda:1."""


@dataclass(frozen=True, kw_only=True)
class MachineOptions(DeviceOptions):
    """The part of the machine that trains."""

    threads: int | None = None
    """CPU threads; left out, as many as PyTorch chooses."""


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions(DeviceOptions):
    """The device of a model, and its number format."""

    precision: Precision = "auto"
    """number format of the computation: float32, bfloat16, or auto: bfloat16 on a GPU that has it, else
    float32."""


@dataclass(frozen=True)
class ModelOptions(LoadingOptions, PrecisionOptions, PathOptions):
    """The model of an evaluation or a prediction."""

    _: KW_ONLY
    exact: bool = False
    """compute in the plain way, without the faster ways to the same result."""
    engine: Engine | None = None
    """inference engine: torch, or an extra, openvino or onnxruntime; left out, the engine of a folder of
    vitkit export, else torch."""
    max_pixels: int | None = None
    """largest number of pixels of an image; larger images are refused. Left out, the limit that the model was
    saved with."""


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The batch size, and the processes that decode images."""

    batch_size: int = 128
    """images that are computed at a time."""
    workers: int = 0
    """processes that decode images; with 0 the main process decodes."""


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """The cache of features."""

    cache: bool = True
    """keep the features of images in the user's cache folder, and use the features that are there."""


def as_arguments(options: type, source: Any) -> dict[str, Any]:
    """Return the arguments that make a dataclass of options, from an object that has all of its fields."""
    return {option.name: getattr(source, option.name) for option in fields(options)}


def as_names(paths: StrPaths) -> tuple[str, ...]:
    """Return one path or several as text."""
    return (str(paths),) if isinstance(paths, str | Path) else tuple(map(str, paths))


@dataclass(frozen=True)
class CostOptions(CheckpointOptions):
    """The options of a cost estimate; the texts below the fields are their help."""

    models: tuple[str, ...]
    """model names (ViT-B/16, R50+ViT-L/16, BiT-R152x4, ViT-96x6x3/4), run folders or checkpoints."""
    _: KW_ONLY
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
            missing = "--epochs" if self.epochs is None else "--images"
            raise VitkitError(f"A training is costed by --epochs and --images together: give {missing} too.")
        if self.epochs is not None and self.images is not None and min(self.epochs, self.images) <= 0:
            raise VitkitError(f"epochs and images are above 0, found {self.epochs:g} and {self.images}.")
        if not 0 < self.utilization <= 1:
            raise VitkitError(f"utilization is a fraction above 0 and at most 1, found {self.utilization}.")

    @property
    def images_seen(self) -> float | None:
        """Return the images that the training sees, repetitions counted; None without an estimate of it."""
        return None if self.epochs is None or self.images is None else self.epochs * self.images


@dataclass(frozen=True)
class ConvertOptions(LoadingOptions, JobOptions, SourceOptions):
    """The options of a conversion; the texts below the fields are their help."""

    out: StrPath
    """file or folder to write; it must not exist yet."""
    _: KW_ONLY
    to: Format | None = None
    """format to write; left out, official for a name ending in .npz, torchvision for .pth, else vitkit."""
    num_classes: int | None = None
    """number of classes of a new head of zeros, which replaces the old one, as the original code
    fine-tunes."""
    head: Literal["keep", "new"] | None = None
    """keep the whole head, or replace it by a new one of zeros."""
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
        """Return the format to write: `to`, else the format that the ending of `out` suggests."""
        return self.to or format_for(self.out)


@dataclass(frozen=True)
class DataCheckOptions(JobOptions):
    """The options of a check of a data set; the texts below the fields are their help."""

    path: str
    """images to check: digits (built in), a folder of class folders or a .zip or .tar of one, a .csv, or a
    folder of .parquet files."""
    _: KW_ONLY
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
    """augmented versions of each image, from the first epochs."""
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
    """other images than the model's own: digits, a folder, a .csv or .parquet files. Classes are matched by
    name."""
    _: KW_ONLY
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
    """with a protocol, the WordNet ids of the model's outputs in order: a file with an id at the beginning of
    each line, or a folder of class folders; left out, the model's class names or ImageNet's usual order."""


@dataclass(frozen=True)
class ProtocolOptions(ProtocolFiles, MeasuringOptions):
    """The options of an evaluation by the protocol of one of ImageNet's test sets."""

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
        """Refuse several processes without a cluster.

        Raises:
            VitkitError: there are several, and no cluster.
        """
        if self.on == "here" and self.processes != 1:
            raise VitkitError("Several --processes compute on Ray: give --on ray, or leave them out.")


class BuiltModel(Protocol):
    """A model of `vitkit.create_model` or `vitkit.load_model`, whose class this file does not import."""

    config: Any
    card: Any


@dataclass(frozen=True)
class PredictorOptions(ModelOptions):
    """The options of `vitkit.Predictor`."""

    path: StrPath | BuiltModel  # type: ignore[assignment] # a wider type than the command line's
    """a run folder, any checkpoint that `vitkit convert` reads, or a folder of `vitkit export`; or a model of
    `create_model` or `load_model`, which computes as it stands and where it stands."""
    _: KW_ONLY
    class_names: Sequence[str] | None = None
    """names of the classes in the order of the outputs; left out, the names that the model was saved with."""


SINGLE_FILES = (".parquet", ".npy")
"""Endings of a file that holds the features of all images."""


@dataclass(frozen=True)
class PredictOptions(ModelOptions, ClusterOptions, JobOptions):
    """The options of a prediction; the texts below the fields are their help."""

    images: Sequence[StrPath]
    """image files, folders, .zip or .tar files, Parquet files, a .csv of paths; or - for a list of paths on
    standard input."""
    _: KW_ONLY
    top: int = 5
    """number of classes to name for each image; a multi-label model always names all labels."""
    batch_size: int = 32
    """images that are read and computed at a time."""
    out: StrPath | None = None
    """folder of .parquet files for the predictions, in place of printing them. The same command again
    continues there."""

    def __post_init__(self) -> None:
        for name in ("top", "batch_size", "processes"):
            if getattr(self, name) < 1:
                raise VitkitError(f"{name} is at least 1, found {getattr(self, name)}.")
        if not self.images:
            raise VitkitError("Which model, and which images? vitkit predict MODEL IMAGE... (- for a list)")
        self.refuse_processes()
        if self.out is not None and Path(self.out).suffix.lower() in SINGLE_FILES:
            raise VitkitError(
                f"For predictions --out takes a folder for .parquet files, found {self.out}, the name of a "
                "single file: give the name of a folder."
            )
        if self.out is None and self.on != "here":
            raise VitkitError("On a cluster predictions are written to files: give --out FOLDER.")


@dataclass(frozen=True)
class ModelAndImages:
    """A model, and images to compute."""

    path: StrPath
    """the model: a run folder, or a checkpoint of any library."""
    data: StrPath
    """images: digits (built in), a folder of images, a .csv, or .parquet files."""


@dataclass(frozen=True)
class EmbedOptions(
    LoadingOptions, PrecisionOptions, ClusterOptions, BatchOptions, JobOptions, ModelAndImages
):
    """The options of features in files; the texts below the fields are their help."""

    out: StrPath | None = None
    """folder of .parquet files, or a file that ends in .parquet or .npy; left out, one below features/, named
    by the images and the model. The same command again continues there."""

    def __post_init__(self) -> None:
        if not self.data or not self.path:
            raise VitkitError("Features need a model and images: vitkit embed MODEL DATA.")
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
        # The working folder, ".", has no name.
        names = (Path(str(path)).name or "images" for path in (self.data, self.path))
        return Path("features") / re.sub(r"[/:\\]", "-", "-".join(names))


FEWEST_IMAGES = 10
"""The fewest images to calibrate on and to check with: fewer say nothing of ranges or agreement."""


@dataclass(frozen=True)
class ExportOptions(LoadingOptions, JobOptions, SourceOptions):
    """The options of an export; the texts below the fields are their help."""

    out: StrPath
    """folder of the graph, which must not exist yet."""
    _: KW_ONLY
    format: GraphFormat = "openvino"
    """format of the graph, and so the engine that computes it: openvino (the extra openvino), or onnx (the
    extra onnxruntime)."""
    precision: EnginePrecision = "float32"
    """numbers of matrix products: float32, bfloat16 or int8. OpenVINO has all three; int8 is calibrated on
    images."""
    calibration: str | None = None
    """images for int8, like the images it will see: a folder of images, labels or not, or any --data; left
    out, the training images of a run. Some of them are kept apart to compare int8 with float32."""
    calibration_images: int = 300
    """most images to measure ranges on."""
    check_images: int = 500
    """most other images to compare the result with float32 on."""
    accept_change: bool = False
    """keep a result that answers otherwise than float32 on more than 1 % of the images."""

    @property
    def engine(self) -> GraphEngine:
        """Return the engine that computes the graph."""
        return "onnxruntime" if self.format == "onnx" else self.format

    def __post_init__(self) -> None:
        if min(self.calibration_images, self.check_images) < FEWEST_IMAGES:
            raise VitkitError(
                f"calibration_images and check_images are at least {FEWEST_IMAGES}, found "
                f"{self.calibration_images} and {self.check_images}."
            )
