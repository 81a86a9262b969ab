"""The options of pre-training without labels. They need no torch."""

from dataclasses import dataclass
from typing import Literal

from vitkit.jobs.finetune_options import OutOptions
from vitkit.jobs.options import JobOptions, MachineOptions

Objective = Literal["masked-patches", "simmim", "mae"]
"""The tasks that need no labels."""


@dataclass(frozen=True)
class PretrainRunOptions:
    """The options of the run that pre-trains on images without labels."""

    data: str
    """images, with labels or without: a folder of any depth, a .csv, or .parquet files."""
    objective: Objective = "masked-patches"
    """what is learned: masked-patches (the paper, 4.6), simmim (arXiv 2111.09886), or mae (arXiv 2111.06377).
    """
    start: str = ""
    """a run folder, a file or folder of weights, or an address to begin from; left out, new weights."""
    recipe: str = ""
    """a name; left out, the objective's recipe for two cores, fitted to the size of the images."""


@dataclass(frozen=True, kw_only=True)
class PretrainOptions(MachineOptions, JobOptions, OutOptions, PretrainRunOptions):
    """The options of pre-training. `data` comes first, because its class comes last."""

    minutes: float | None = None
    """of training, in place of the number of steps of the recipe."""
