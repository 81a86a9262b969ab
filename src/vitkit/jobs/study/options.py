"""Types that the signatures of studies name, without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from vitkit.listener import Listener
from vitkit.notebook import AUTOMATIC
from vitkit.runs.config import Run

Recipe: TypeAlias = str | Run
"""The name of a recipe, or a run that was made of one."""
Vary: TypeAlias = Mapping[str, Sequence[Any]] | Sequence[str]
"""Values by the name of an option of training; or texts "OPTION=VALUE,VALUE"."""
Axis: TypeAlias = Literal["data", "steps", "size"]
"""The quantity that grows along the points of a law."""


@dataclass(frozen=True)
class StudyOptions:
    """The options that no result of a study depends on: what trains its arms, and who hears of it."""

    device: str = "auto"
    threads: int | None = None
    listener: Listener = field(default=AUTOMATIC, repr=False, compare=False)
