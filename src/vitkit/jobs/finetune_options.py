"""The options of fine-tuning. They need no torch."""

from dataclasses import KW_ONLY, dataclass

from vitkit.jobs.options import JobOptions, MachineOptions, RunOptionsByName, SizeOptions, StrPath
from vitkit.runs.config import StartConfig
from vitkit.runs.series_options import SeriesOptions


@dataclass(frozen=True)
class FinetuneRunOptions(RunOptionsByName, SizeOptions):
    """The options of the run that fine-tunes a start on images."""

    start: str | StartConfig
    """a run folder, a file or folder of weights, or an address such as hf:org/name; a `StartConfig` says
    more."""
    data: str
    """images with labels, as for `vitkit.train`."""
    _: KW_ONLY
    recipe: str = ""
    """a name, "paper" for the paper's; left out, what suits the number of images."""


@dataclass(frozen=True)
class OutOptions:
    """The folder of a run or of a series of them."""

    out: StrPath | None = None
    """the run folder; left out, one below runs/."""


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(MachineOptions, JobOptions, SeriesOptions, OutOptions, FinetuneRunOptions):
    """The options of fine-tuning. `start`, `data` and `out` come first, because their classes come last."""

    minutes: float | None = None
    """of training, in place of the number of steps that suits the images or the recipe has."""
