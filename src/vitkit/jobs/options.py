"""Types and options that the signatures of several jobs name, and the options of training that are none of
the run. None of it needs torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from vitkit.config import IN_PYTHON_ALONE, AtLeastOne, require_valid
from vitkit.engines.libraries import Engine
from vitkit.errors import VitkitError
from vitkit.jobs.trackers import Tracker, log_to
from vitkit.listener import AUTOMATIC, Listener, WarningsAlone, hushed
from vitkit.models.config import Interpolation, Precision, Size
from vitkit.runs.config import Run
from vitkit.runs.folder import require_folder
from vitkit.runs.run_options import RunOptions, SeriesOptions

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
    `vitkit export`, else torch; predictions of 200 images and more take openvino where it is installed."""
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


RESUMED = (
    "--resume continues a run with its own options, in the run's own folder: leave --recipe and --out out."
)
"""The error of a run to resume with another recipe or another folder."""


@dataclass(frozen=True, kw_only=True)
class Job(SeriesOptions):
    """The way in which a run is trained."""

    out: str | Path | None = None
    """run folder to write; left out, runs/DATA-MODEL. The same command again continues there."""
    device: str = "auto"
    """where to compute: auto (a GPU if there is one), cpu, gpu or cuda:1."""
    threads: int | None = None
    """CPU threads; left out, as many as PyTorch chooses. The same number gives the same bits."""
    from_scratch: bool = False
    """begin again at step 0 where every checkpoint of the run is damaged; they are kept."""
    log: Sequence[Tracker] = ()
    """write the numbers of the run into these logs too, with commas between them: tensorboard, wandb
    and trackio, which are extras of the same names."""
    quiet: bool = False
    """print nothing but warnings."""
    dry_run: bool = False
    """show data, splits, start, model, length, time, memory and folder, train nothing and write nothing."""
    command: str = field(default="", metadata=IN_PYTHON_ALONE)
    """the command line, which the run folder records."""
    listener: Listener = field(default=AUTOMATIC, repr=False, compare=False)
    """hears the progress; left out, a notebook shows it, and a script is silent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_folder(self.out)
        if self.is_series and self.from_scratch:
            raise VitkitError(
                "--from-scratch is for a single run: give it with --resume and that run folder."
            )
        if self.is_series and self.dry_run:
            raise VitkitError(
                "--dry-run shows a single run, found options for several: leave --runs, --sweep and "
                "--cross-validate out. The runs of a series differ from it in seed, rate or fold."
            )
        listener = WarningsAlone(self.listener) if self.quiet else self.listener
        if self.log:
            listener = log_to(*self.log, listener=listener)
        object.__setattr__(self, "listener", listener)

    @property
    def folder(self) -> Path | None:
        """Return the folder to write, if it is given."""
        return None if self.out is None else Path(self.out)

    @property
    def series(self) -> SeriesOptions:
        """Return the options of several runs."""
        return SeriesOptions(**{part.name: getattr(self, part.name) for part in fields(SeriesOptions)})


class MachineOptions(TypedDict, total=False):
    """The options of a job that no result depends on, but for rounding."""

    device: str
    """where to compute: auto (a GPU if there is one), cpu, gpu or cuda:1."""
    threads: int | None
    """CPU threads; left out, as many as PyTorch chooses."""
    quiet: bool
    """print nothing but warnings."""
    listener: Listener
    """hears the progress and remarks; left out, a notebook shows them and a script is silent."""


class TrainingOptions(RunOptions, MachineOptions, total=False):
    """The options of a run, and of a `Job`, by their names in Python."""

    sweep: bool
    sweep_rates: tuple[float, ...]
    runs: int
    redraw: bool
    cross_validate: int | None
    sweep_data: str
    from_scratch: bool
    log: Sequence[Tracker]
    dry_run: bool
    command: str


def split_options(given: Mapping[str, Any], **explicit: Any) -> tuple[Job, dict[str, Any]]:
    """Return the job of the options that are given, and the others.

    Args:
        given: options of a job and of a run, as `TrainingOptions`.
        explicit: further fields of the job.

    Raises:
        VitkitError: the options of the job contradict one another.
    """
    names = {part.name for part in fields(Job)}
    job = Job(**{name: value for name, value in given.items() if name in names}, **explicit)
    return job, {name: value for name, value in given.items() if name not in names}


Objective = Literal["masked-patches", "simmim", "mae"]
"""The tasks that need no labels."""


@dataclass(frozen=True, kw_only=True)
class ThenOptions:
    """The comparison of fine-tuning with and without the pre-training that comes before it."""

    then: str = ""
    """images with labels, to learn whether pre-training helps on them: the same fine-tuning with and without
    it, and a longer fine-tuning without it that takes as much time as both."""
    labels: AtLeastOne | None = None
    """number of labelled images to train on, of all classes together; each run draws other images. Left out,
    all."""
    pretrainings: AtLeastOne | None = None
    """number of pre-trainings, with seeds that follow one another: from several one learns what another one
    would bring. Left out, 3, or 1 where one takes longer than an hour."""
    draws: AtLeastOne = 5
    """fine-tunings of each kind after each pre-training, each with another seed, and other labelled images
    where --labels says how many."""
    tune_steps: AtLeastOne | None = None
    """steps of a fine-tuning; left out, they are fitted to the number of labelled images."""
    plan: bool = False
    """list what is trained for --then and the time it takes here, and train nothing."""

    def __post_init__(self) -> None:
        require_valid(self)
        if not self.then and (self.labels or self.pretrainings or self.tune_steps or self.plan):
            raise VitkitError(
                "labels, pretrainings, tune_steps and plan belong to --then: give labelled images with it."
            )


Recipe: TypeAlias = str | Run
"""The name of a recipe, or a run that was made of one."""
Vary: TypeAlias = Mapping[str, Sequence[Any]] | Sequence[str]
"""Values by the name of an option of training; or texts "OPTION=VALUE,VALUE"."""
Axis: TypeAlias = Literal["data", "steps", "size"]
"""The quantity that grows along the points of a law."""


ItemName: TypeAlias = Literal[
    "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10", "fig11", "fig13",
    "fig14", "table2", "table5", "table6", "table7", "table8", "table9", "ssl",
]  # fmt: skip
"""The figures and tables of the paper that are reproduced, and its self-supervision (4.6)."""


@dataclass(frozen=True)
class StudyOptions:
    """The machine that trains the arms of a study, who hears of it, and the command that continues it."""

    device: str = "auto"
    threads: int | None = None
    quiet: bool = False
    listener: Listener = field(default=AUTOMATIC, repr=False, compare=False)
    command: str = ""
    """Continues the study; its record has it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "listener", hushed(self.listener, self.quiet))
