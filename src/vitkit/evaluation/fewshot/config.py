"""The options of few-shot evaluation."""

from collections.abc import Sequence
from typing import Literal, get_args

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
