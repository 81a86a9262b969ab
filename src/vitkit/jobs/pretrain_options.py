"""The options of pre-training without labels. They need no torch."""

from dataclasses import dataclass
from typing import Literal

from vitkit.errors import VitkitError
from vitkit.jobs.finetune_options import OutOptions
from vitkit.jobs.options import JobOptions, MachineOptions, RunOptionsByName

Objective = Literal["masked-patches", "simmim", "mae"]
"""The tasks that need no labels."""


@dataclass(frozen=True)
class PretrainRunOptions(RunOptionsByName):
    """The options of the run that pre-trains on images without labels."""

    data: str
    """images, with labels or without: a folder of any depth, a .csv, or .parquet files."""
    objective: Objective = "masked-patches"
    """what is learned: masked-patches (the paper, 4.6), simmim (arXiv 2111.09886), or mae (arXiv 2111.06377).
    """
    start: str = ""
    """a run folder, a file or folder of weights, or an address to begin from; left out, new weights."""
    recipe: str = ""
    """the name of a recipe; left out, the objective's for two cores, fitted to the image size."""


@dataclass(frozen=True, kw_only=True)
class PretrainOptions(MachineOptions, JobOptions, OutOptions, PretrainRunOptions):
    """The options of pre-training. `data` comes first, because its class comes last."""

    minutes: float | None = None
    """minutes of training, in place of the recipe's number of steps."""


@dataclass(frozen=True, kw_only=True)
class ThenOptions:
    """The comparison of fine-tuning with and without the pre-training that comes before it."""

    then: str = ""
    """images with labels, to learn whether pre-training helps on them: the same fine-tuning with and without
    it, and a longer fine-tuning without it that takes as much time as both."""
    labels: int | None = None
    """number of labelled images to train on, of all classes together; each run draws other images. Left out,
    all."""
    draws: int = 5
    """fine-tunings of each kind, each with another seed, and other labelled images where --labels says how
    many."""
    tune_steps: int | None = None
    """steps of a fine-tuning; left out, they are fitted to the number of labelled images."""

    def __post_init__(self) -> None:
        for name in ("labels", "draws", "tune_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise VitkitError(f"{name} is 1 or more, found {value}.")
        if not self.then and (self.labels or self.tune_steps):
            raise VitkitError("labels and tune_steps belong to --then: give labelled images with it.")
