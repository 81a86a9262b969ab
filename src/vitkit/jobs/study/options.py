"""The options of studies. They need no torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias

from vitkit.errors import VitkitError
from vitkit.jobs.options import JobOptions, MachineOptions, StrPath
from vitkit.jobs.vtab.options import Rates
from vitkit.runs.config import Run
from vitkit.runs.series_options import MOST_RUNS

Recipe: TypeAlias = str | Run
"""The name of a recipe, or a run that was made of one."""
Vary: TypeAlias = Mapping[str, Sequence[Any]] | Sequence[str]
"""Values by the name of an option of training; or texts "OPTION=VALUE,VALUE"."""


@dataclass(frozen=True)
class AblateOptions(MachineOptions, JobOptions):
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
    each arm tries several on held-out images first: those of the paper's recipes of fine-tuning, else 1/3, 1
    and 3 times its own."""
    rates: Rates | None = None
    """learning rates that each arm tries, with commas between, in place of those."""
    out: StrPath | None = None
    """folder for the runs and the result; left out, runs/DATA-MODEL-ablation. The same command again
    continues there."""

    def __post_init__(self) -> None:
        if not self.vary:
            raise VitkitError(
                "What is to be varied? Give an option of training and its values: --vary "
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
