"""The options of the scale lab. They need no torch."""

import re
from dataclasses import KW_ONLY, dataclass
from typing import Literal, TypeAlias

from vitkit.errors import VitkitError
from vitkit.jobs.options import JobOptions, MachineOptions, StrPath
from vitkit.runs.config import Run
from vitkit.runs.series_options import MOST_RUNS

Axis: TypeAlias = Literal["data", "steps", "size"]
"""The quantity that grows along the points of a law."""
FEWEST_POINTS, MOST_POINTS = 5, 30
"""A law has three numbers, and five points leave two residuals; more than thirty would be nearly the same."""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


@dataclass(frozen=True)
class ScaleOptions(MachineOptions, JobOptions):
    """The options of the scale lab; the texts below the fields are their help."""

    data: StrPath
    """images, as for vitkit train --data: digits (built in), a folder of class folders, a .csv, .parquet."""
    recipe: str | Run = ""
    """what each point is trained by: a recipe, as vitkit recipes lists them; left out, what vitkit train
    takes without one. From Python also a Run."""
    _: KW_ONLY
    along: Axis = "data"
    """what grows from point to point. data: the training images, a third of them at most, and then all.
    steps: the updates of the weights, each point a whole training of its own. size: width and depth of the
    model, in constant proportion, against the FLOPs of its training."""
    points: int = 6
    """points that the law is fitted to, evenly spaced over a factor of 30; another one, three times beyond
    the last, is predicted and then trained."""
    seeds: int = 1
    """runs at each point, with seeds that follow one another from --seed."""
    hold: Literal["steps", "epochs"] = "steps"
    """what is equal at all points along data: the updates of the weights, or the passes over the images, with
    which few images also mean few updates."""
    budget: str | None = None
    """time for all points together, as in 45m, 2h or 1h30m: the speed is measured first, and chooses the
    number of steps once and for all. Left out, the length of the recipe."""
    start: StrPath = ""
    """weights that each point begins from, as for vitkit train --start; left out, new ones."""
    out: StrPath | None = None
    """folder for the runs and the result; left out, runs/scale-DATA-AXIS. The same command again continues
    there."""

    def __post_init__(self) -> None:
        if not self.data:
            raise VitkitError("Which images? vitkit scale DATA, such as digits or a folder of class folders.")
        if not FEWEST_POINTS <= self.points <= MOST_POINTS:
            raise VitkitError(f"points is from {FEWEST_POINTS} to {MOST_POINTS}, found {self.points}.")
        if not 1 <= self.seeds <= MOST_RUNS:
            raise VitkitError(f"seeds is from 1 to {MOST_RUNS:,}, found {self.seeds}.")
        if self.hold != "steps" and self.along != "data":
            raise VitkitError("hold epochs is for --along data: leave it out.")
        if self.start and self.along == "size":
            raise VitkitError(
                "Along size every point is a new model, which no start fits: leave --start out."
            )
        _ = self.budget_seconds  # refuses what is no time

    @property
    def budget_seconds(self) -> float | None:
        """Return the time for all points in seconds; None where it is not limited.

        Raises:
            VitkitError: it is no time above 0.
        """
        if self.budget is None:
            return None
        text = self.budget.strip()
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _TIME.findall(text))
        if re.sub(r"\s", "", _TIME.sub("", text)) or not seconds > 0:
            raise VitkitError(f"budget is a time such as 45m, 2h or 1h30m, found {self.budget!r}.")
        return seconds
