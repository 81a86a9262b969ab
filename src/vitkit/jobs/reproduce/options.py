"""The options of `vitkit reproduce`. They need no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from vitkit.config import nearest
from vitkit.errors import VitkitError
from vitkit.jobs.options import StrPath, StrPaths, as_names, require_at_least
from vitkit.jobs.study.options import Recipe, StudyOptions
from vitkit.runs.series_options import MOST_RUNS

ItemName: TypeAlias = Literal[
    "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10", "fig11", "fig12", "fig13",
    "fig14", "table2", "table5", "table6", "table7", "table8", "table9", "ssl",
]  # fmt: skip
"""The figures and tables of the paper, and its self-supervision (4.6)."""
ITEM_NAMES: tuple[ItemName, ...] = get_args(ItemName)


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(StudyOptions):
    """The options of a study of the paper, as `vitkit.reproduce` explains them."""

    item: ItemName
    data: str = "digits"
    start: StrPaths = ()
    images: Sequence[StrPath] = ()
    recipe: Recipe | None = None
    minutes: float = 30.0
    steps: int | None = None
    seeds: int | None = None
    only: Sequence[str] = ()
    out: StrPath | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.item not in ITEM_NAMES:
            raise VitkitError(
                f"No figure or table that can be reproduced is named '{self.item}'. "
                f"{nearest(self.item, ITEM_NAMES)}"
            )
        if not 0 < self.minutes < math.inf:
            raise VitkitError(f"minutes is a number above 0, found {self.minutes:g}.")
        require_at_least(1, steps=self.steps)
        if self.seeds is not None and not 1 <= self.seeds <= MOST_RUNS:
            raise VitkitError(f"seeds is from 1 to {MOST_RUNS:,}, found {self.seeds}.")
        if isinstance(self.only, str):
            raise VitkitError(f"only is a list of arms, found the text {self.only!r}: give [{self.only!r}].")

    @property
    def starts(self) -> tuple[str, ...]:
        """The checkpoints that were given."""
        return as_names(self.start)

    @property
    def kind(self) -> str:
        """The kind of the study in its record."""
        return f"reproduction of {self.item}"
