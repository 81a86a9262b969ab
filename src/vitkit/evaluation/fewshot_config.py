"""The options of few-shot evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from vitkit.errors import VitkitError

Method = Literal["ridge", "knn", "logistic"]
"""How the classes are learned from the features of the shots."""
L2 = 1024.0
"""The original's penalty of ridge, the same for all data (big_vision `configs/common_fewshot.py`)."""
METHODS: tuple[Method, ...] = get_args(Method)
SHOTS = (1, 5, 10, 25)
"""The numbers of shots of the original code (big_vision `configs/common_fewshot.py`)."""


@dataclass(frozen=True)
class FewShotTracking:
    """Few-shot accuracy on other images while the model is trained; it is logged and decides nothing."""

    data: str = ""
    """Images with labels, other ones than those trained on; left out, none is measured."""
    every: int | None = None
    """Steps between two measurements; left out, as often as the validation."""
    shots: tuple[int, ...] = SHOTS
    """Numbers of images of each class to learn from, with commas between."""
    seeds: int = 3
    """Number of times the shots are drawn, each with another seed."""

    def __post_init__(self) -> None:
        if not self.shots or min(self.shots) < 1 or self.seeds < 1:
            raise VitkitError(
                "The few-shot evaluation expects shots and seeds of 1 or more, found "
                f"{listed(self.shots)} and {self.seeds}."
            )
        if self.every is not None and self.every < 1:
            raise VitkitError(f"The few-shot evaluation is made every 1 or more steps, found {self.every}.")


def listed(values: Sequence[object]) -> str:
    """Write values with commas between; none in words."""
    return ", ".join(map(str, values)) or "none"
