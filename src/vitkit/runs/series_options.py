"""The options of a series of runs: a sweep over learning rates, several seeds, or all folds. They need no
torch."""

from dataclasses import dataclass
from typing import Annotated

from vitkit.config import Folds, Positive, Range, require_valid
from vitkit.errors import VitkitError

MOST_RUNS = 1_000
"""Far more runs than a mean and a standard deviation need."""


@dataclass(frozen=True)
class SeriesOptions:
    """Several runs in place of one; the members are run folders within the folder of the series.

    The checkpoints of a member are removed when it has finished; its model, log and report stay.
    """

    sweep: bool = False
    """Try learning rates first, on images that are held out of the training images (--splits.val-fraction);
    then train on all of them with the best rate. The test images are looked at once, by that run."""
    sweep_rates: tuple[Positive, ...] = ()
    """Learning rates to try, with or without --sweep. Left out: with a recipe of the paper's fine-tuning the
    rates of its Table 4, else 0.1, 0.3, 1 and 3 times the run's own rate."""
    runs: Annotated[int, Range(f"at least 1 and at most {MOST_RUNS:,}", 1, MOST_RUNS)] = 1
    """Number of runs, with seeds that follow one another from --seed, for mean and standard deviation; their
    splits are the same."""
    redraw: bool = False
    """Train each of several runs on another part of the training images, of the size of --subset: the spread
    is then over draws too. The test images are the same."""
    cross_validate: Folds | None = None
    """Cut the images into so many folds and train as many runs, each tested on another fold, so that every
    image is tested exactly once. Every class is dealt round the folds."""
    sweep_data: str = ""
    """Images to try the rates on, with validation images of their own (VTAB-1k: 800 and 200 of the 1,000);
    left out, the part of the training images that is not held out."""

    def __post_init__(self) -> None:
        require_valid(self)
        if len({f"{rate:g}" for rate in self.sweep_rates}) < len(self.sweep_rates):  # they name folders
            raise VitkitError(
                "sweep_rates has a rate twice, or two that agree in six digits: give each once."
            )
        if self.sweep_data and not self.sweeps:
            raise VitkitError("sweep_data has the images of a sweep: give --sweep as well, or leave it out.")
        if self.redraw and self.runs < 2:
            raise VitkitError("redraw draws another part for each of several runs: give --runs as well.")
        if self.cross_validate is not None and self.runs > 1:
            raise VitkitError("cross_validate and runs ask for different series: give one of the two.")
        if self.cross_validate is not None and self.sweeps:
            raise VitkitError(
                "A rate that is chosen once has seen the test images of all folds but one: sweep without "
                "--cross-validate, or cross-validate with a --learning-rate."
            )

    @property
    def sweeps(self) -> bool:
        """Whether learning rates are tried."""
        return self.sweep or bool(self.sweep_rates)

    @property
    def num_runs(self) -> int:
        """The number of all runs, those of the sweep included: a single rate needs no sweep."""
        tried = len(self.sweep_rates) if len(self.sweep_rates) > 1 else 0
        return tried + (self.cross_validate or self.runs)

    @property
    def is_series(self) -> bool:
        """Whether these options ask for more than one ordinary run."""
        return self.sweeps or self.runs > 1 or self.cross_validate is not None

    @property
    def ending(self) -> str:
        """The last part of the name of a folder that is not given."""
        return "-sweep" if self.sweeps else "-folds" if self.cross_validate else "-runs"
