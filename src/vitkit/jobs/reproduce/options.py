"""The options of `vitkit reproduce`. They need no torch."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, TypeAlias, get_args

from vitkit.config import nearest
from vitkit.errors import VitkitError
from vitkit.jobs.options import StrPath, StrPaths, as_names
from vitkit.jobs.study.options import Recipe, StudyOptions
from vitkit.runs.series_options import MOST_RUNS

ItemName: TypeAlias = Literal[
    "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10", "fig11", "fig12", "fig13",
    "fig14", "table2", "table5", "table6", "table7", "table8", "table9", "ssl",
]  # fmt: skip
"""The figures and tables of the paper, and its self-supervision (4.6)."""
ITEM_NAMES: tuple[ItemName, ...] = get_args(ItemName)


@dataclass(frozen=True)
class ReproduceOptions(StudyOptions):
    """The options of a study of the paper; the texts below the fields are their help."""

    item: ItemName
    """the figure or table of the paper: fig2 to fig14, table2, table5 to table9, or ssl (4.6); --list
    describes each."""
    _: KW_ONLY
    data: str = "digits"
    """images with labels to train on: digits (built in), a folder of class folders, a .csv or a folder of
    .parquet; for table9 and fig2 the folder of VTAB-1k's tasks."""
    start: StrPaths = ()
    """a run folder or checkpoint, for items that train none from scratch; fig10 takes several."""
    images: Sequence[StrPath] = ()
    """image files or folders for pictures of attention; left out, test images of the run."""
    recipe: Recipe | None = None
    """the base of the runs, a ViT; left out, that of digits, with 32x32 pixels for other images; for table2
    and table5 the paper's fine-tuning. From Python also a Run."""
    minutes: float = 30.0
    """of all runs together: the speed of this machine is measured before the first one, and decides their
    steps once and for all."""
    steps: int | None = None
    """number of updates of the base, in place of --minutes."""
    seeds: int | None = None
    """runs of each arm; left out, 3, or 2 where there are very many arms."""
    only: Sequence[str] = ()
    """arms to train, with commas between, as --plan names them; left out, all. Conclusions about other arms
    are left out."""
    out: StrPath | None = None
    """folder for the runs and the page; left out, runs/reproduce-ITEM-DATA. The same command again continues
    there."""

    def __post_init__(self) -> None:
        if self.item not in ITEM_NAMES:
            raise VitkitError(
                f"No figure or table that can be reproduced is named '{self.item}'. "
                f"{nearest(self.item, ITEM_NAMES)}"
            )
        if not 0 < self.minutes < math.inf:
            raise VitkitError(f"minutes is a number above 0, found {self.minutes:g}.")
        if self.steps is not None and self.steps < 1:
            raise VitkitError(f"steps is at least 1, found {self.steps}.")
        if self.seeds is not None and not 1 <= self.seeds <= MOST_RUNS:
            raise VitkitError(f"seeds is from 1 to {MOST_RUNS:,}, found {self.seeds}.")
        if isinstance(self.only, str):
            raise VitkitError(f"only is a list of arms, found the text {self.only!r}: give [{self.only!r}].")

    @property
    def starts(self) -> tuple[str, ...]:
        """The checkpoints that were given."""
        return as_names(self.start)
