"""The options of studies. They need no torch."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias

from vitkit.errors import VitkitError
from vitkit.jobs.options import JobOptions, MachineOptions, StrPath
from vitkit.runs.config import Run
from vitkit.runs.series_options import MOST_RUNS

Recipe: TypeAlias = str | Run
"""The name of a recipe, or a run that was made of one."""
Vary: TypeAlias = Mapping[str, Sequence[Any]] | Sequence[str]
"""Values by the name of an option of training; or texts "OPTION=VALUE,VALUE"."""
Axis: TypeAlias = Literal["data", "steps", "size"]
"""The quantity that grows along the points of a law."""
FEWEST_POINTS, MOST_POINTS = 5, 30
"""A law has three numbers, and five points leave two residuals; beyond thirty, neighbouring points are nearly
the same."""
_SECONDS_OF = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


@dataclass(frozen=True)
class StudyOptions(MachineOptions, JobOptions):
    """The options of every study: the part of the machine that trains its arms, and the listener."""


@dataclass(frozen=True)
class AblateOptions(StudyOptions):
    """The options of an ablation; the texts below the fields are their help."""

    recipe: Recipe
    """the base of all comparisons: a recipe, as vitkit recipes lists them; from Python also a Run."""
    vary: Vary = field(default_factory=dict)
    """an option of training and its values, as in position=learned,none,learned_2d; given once for each
    option. A + joins further settings to a value: optimizer=adamw,sgd+weight_decay=0. From Python a mapping
    of names to lists of values."""
    _: KW_ONLY
    grid: bool = False
    """train every combination of the values; left out, one option at a time is changed against the base."""
    seeds: int = 3
    """runs of each arm, with seeds that follow one another from --seed and are the same in all arms. One
    seed says something about these weights only, and nothing about other trainings."""
    fixed_rate: bool = False
    """train every arm at its own learning rate, that of the recipe unless an arm sets another. Left out,
    each arm tries several on held-out images first: the rates of the paper's recipe of fine-tuning, else 1/3,
    1 and 3 times its own."""
    rates: Sequence[float] | None = None
    """learning rates that each arm tries instead, with commas between."""
    out: StrPath | None = None
    """folder for the runs and the result; left out, runs/DATA-MODEL-ablation. The same command again
    continues there."""

    def __post_init__(self) -> None:
        if not self.vary:
            raise VitkitError(
                "Which option is to be varied? Give an option of training and its values: --vary "
                "position=learned,none."
            )
        if not 1 <= self.seeds <= MOST_RUNS:
            raise VitkitError(f"seeds is from 1 to {MOST_RUNS:,}, found {self.seeds}.")
        if self.rates is not None and self.fixed_rate:
            raise VitkitError("fixed_rate tries no rates, and rates names some: give one of the two.")
        if self.rates is not None and not (self.rates and all(0 < rate < math.inf for rate in self.rates)):
            raise VitkitError(
                f"rates are numbers above 0, found {', '.join(map(str, self.rates)) or 'none'}."
            )


@dataclass(frozen=True)
class ScaleOptions(StudyOptions):
    """The options of the scale lab; the texts below the fields are their help."""

    data: StrPath
    """images, as for vitkit train: digits (built in), a folder of class folders, a .csv, .parquet."""
    _: KW_ONLY
    recipe: Recipe = ""
    """recipe of each point, as vitkit recipes lists them; left out, the recipe that vitkit data check
    proposes for these images. From Python also a Run."""
    along: Axis = "data"
    """quantity that grows from point to point. data: the training images; the law is fitted on a third of
    them at most, and its prediction tested on all. steps: the updates of the weights, each point a complete
    training of its own. size: width and depth of the model, in constant proportion, against the FLOPs of its
    training."""
    points: int = 6
    """points that the law is fitted to, over a factor of 30 and by equal factors; another point, three times
    beyond the last, is predicted and then trained."""
    seeds: int = 1
    """runs at each point, with seeds that follow one another from --seed."""
    hold: Literal["steps", "epochs"] = "steps"
    """length of training that is equal at all points along data: the updates of the weights, or the passes
    over the images, with which few images also mean few updates."""
    budget: str | None = None
    """time for all points together, as in 45m, 2h or 1h30m: the speed is measured first, and chooses the
    number of steps once and for all. Left out, the length of the recipe."""
    start: StrPath = ""
    """weights that each point begins from, as for vitkit train --start; left out, new ones."""
    out: StrPath | None = None
    """folder for the runs and the result; left out, runs/DATA-MODEL-scale-AXIS, where the same command again
    goes on."""

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
        _ = self.budget_seconds  # for its error

    @property
    def budget_seconds(self) -> float | None:
        """Return the time for all points in seconds; None where it is not limited.

        Raises:
            VitkitError: it is no time above 0.
        """
        if self.budget is None:
            return None
        seconds = sum(float(number) * _SECONDS_OF[unit] for number, unit in _TIME.findall(self.budget))
        if _TIME.sub("", self.budget).strip() or not seconds > 0:
            raise VitkitError(f"budget is a time such as 45m, 2h or 1h30m, found {self.budget!r}.")
        return seconds
