"""The options of fine-tuning. They need no torch."""

import shlex
from dataclasses import KW_ONLY, dataclass

from vitkit.errors import VitkitError
from vitkit.jobs.options import JobOptions, MachineOptions, RunOptionsByName, SizeOptions, StrPath
from vitkit.runs.config import StartConfig
from vitkit.runs.folder import contents_of, kind_of
from vitkit.runs.series_options import SeriesOptions
from vitkit.weights.published import near_published


@dataclass(frozen=True)
class FinetuneRunOptions(RunOptionsByName, SizeOptions):
    """The options of the run that fine-tunes a start on images."""

    start: str | StartConfig | None = None
    """a run folder, a file or folder of weights, or an address such as hf:org/name; a `StartConfig` has
    more options. Left out, one of the published starts that this machine fine-tunes on these images within an
    hour."""
    data: str = ""
    """images with labels, as for `vitkit.train`. Images alone may be given in the place of the start."""
    _: KW_ONLY
    download: bool = False
    """fetch the chosen start, where it is not on this machine."""
    recipe: str = ""
    """the name of a recipe, "paper" for the paper's; left out, options are fitted to the number of images."""


@dataclass(frozen=True)
class OutOptions:
    """The folder of a run or of a series of runs."""

    out: StrPath | None = None
    """the run folder; left out, one below runs/."""


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(MachineOptions, JobOptions, SeriesOptions, OutOptions, FinetuneRunOptions):
    """The options of fine-tuning. `start`, `data` and `out` come first, because their classes come last."""

    minutes: float | None = None
    """minutes of training, in place of the number of steps."""


def sort_out(given: str) -> tuple[str, str]:
    """Tell whether a path that is given alone holds weights to begin from or images to train on.

    Args:
        given: a path, an address or the name of a published start.

    Returns:
        The start and the images, one of which is "".

    Raises:
        VitkitError: it holds both weights and images, or neither.
    """
    place = kind_of(given)
    contents, quoted = contents_of(place), shlex.quote(given)
    if contents == "both":
        raise VitkitError(
            f"{given} holds weights and class folders of images: expected one of them. To begin from its "
            f"weights: vitkit finetune {quoted} PATH. To train on its images: vitkit finetune --data "
            f"{quoted}."
        )
    if contents == "nothing":
        there = "neither" if place.path.exists() else "no such path"
        raise VitkitError(
            f"Expected images to train on or weights to begin from, found {there} at {given}."
            f"{near_published(place.path)} vitkit finetune PHOTOS takes a folder of class folders, a .csv or "
            "Parquet files; vitkit starts lists weights by name."
        )
    return ("", given) if contents == "images" else (given, "")
