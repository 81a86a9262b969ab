"""Types that the signatures of studies name, without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict

from vitkit.listener import Listener, hushed
from vitkit.notebook import AUTOMATIC
from vitkit.runs.config import Run

Recipe: TypeAlias = str | Run
"""The name of a recipe, or a run that was made of one."""
Vary: TypeAlias = Mapping[str, Sequence[Any]] | Sequence[str]
"""Values by the name of an option of training; or texts "OPTION=VALUE,VALUE"."""
Axis: TypeAlias = Literal["data", "steps", "size"]
"""The quantity that grows along the points of a law."""


ItemName: TypeAlias = Literal[
    "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10", "fig11", "fig12", "fig13",
    "fig14", "table2", "table5", "table6", "table7", "table8", "table9", "ssl",
]  # fmt: skip
"""The figures and tables of the paper that are reproduced, and its self-supervision (4.6)."""


class MachineOptions(TypedDict, total=False):
    """The options that no result of a study depends on."""

    device: str
    """where to compute: auto (a GPU if there is one), cpu, gpu or cuda:1."""
    threads: int | None
    """CPU threads; left out, as many as PyTorch chooses."""
    quiet: bool
    """print nothing but warnings."""
    listener: Listener
    """hears the progress and remarks; left out, a notebook shows them and a script is silent."""


@dataclass(frozen=True)
class StudyOptions:
    """The machine that trains the arms of a study, who hears of it, and the command that continues it."""

    device: str = "auto"
    threads: int | None = None
    quiet: bool = False
    listener: Listener = field(default=AUTOMATIC, repr=False, compare=False)
    command: str = ""
    """Continues the study; its record has it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "listener", hushed(self.listener, self.quiet))
