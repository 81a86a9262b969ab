"""The options of few-shot evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from vitkit.config import AtLeastOne, Positive, require_valid
from vitkit.errors import VitkitError

Method = Literal["ridge", "knn", "logistic"]
"""The ways to learn the classes from the features of the shots."""
L2 = 1024.0
"""The original's penalty of ridge, the same for all data (big_vision `configs/common_fewshot.py`)."""
METHODS: tuple[Method, ...] = get_args(Method)
SHOTS = (1, 5, 10, 25)
"""The numbers of shots of the original code (big_vision `configs/common_fewshot.py`)."""

ALL_SHOTS = 2**31
"""A number of shots that no class has: all of its images are used, as in a linear probe."""


def listed(values: Sequence[object]) -> str:
    """Write values with commas between; "none" where there is no value."""
    return ", ".join(map(str, values)) or "none"


@dataclass(frozen=True)
class Learning:
    """The ways in which classes are learned from the shots."""

    shots: tuple[int, ...] = SHOTS
    seeds: AtLeastOne = 3
    methods: Sequence[Method] = METHODS
    l2: Positive = L2
    neighbours: AtLeastOne | None = None

    def __post_init__(self) -> None:
        if not self.shots or min(self.shots) < 1:
            raise VitkitError(f"shots of a few-shot evaluation are 1 or more, found {listed(self.shots)}.")
        if not self.methods or not set(self.methods) <= set(METHODS):
            raise VitkitError(f"methods are among {listed(METHODS)}, found {listed(self.methods)}.")
        require_valid(self)
