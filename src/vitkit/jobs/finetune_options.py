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
    """a run folder, a file or folder of weights, or an address such as hf:org/name; a `StartConfig` says
    more. Left out, one of the published starts that this machine fine-tunes on these images within an
    hour."""
    data: str = ""
    """images with labels, as for `vitkit.train`. They may stand alone, in the place of the start."""
    _: KW_ONLY
    download: bool = False
    """fetch the start that was chosen, where it is not on this machine."""
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


def sort_out(given: str) -> tuple[str, str]:
    """Tell whether what stands alone are the weights to begin from or the images to train on.

    Args:
        given: a path, an address or the name of a published start.

    Returns:
        The start and the images, one of which is "".

    Raises:
        VitkitError: it holds both, or neither.
    """
    place = kind_of(given)
    held, quoted = contents_of(place), shlex.quote(given)
    if held == "both":
        raise VitkitError(
            f"{given} holds weights and class folders of images: expected one of them. To begin from its "
            f"weights: vitkit finetune {quoted} --data PATH. To train on its images: vitkit finetune --data "
            f"{quoted}."
        )
    if held == "nothing":
        there = "neither" if place.path.exists() else "no such path"
        raise VitkitError(
            f"Expected images to train on or weights to begin from, found {there} at {given}."
            f"{near_published(place.path)} vitkit finetune PHOTOS takes a folder of class folders, a .csv or "
            "Parquet files; vitkit starts lists weights by name."
        )
    return ("", given) if held == "images" else (given, "")
