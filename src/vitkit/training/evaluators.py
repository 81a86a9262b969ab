"""What is measured while a model is trained, and which of the numbers decides what is best."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import nn

VALIDATION = "validation"
"""The evaluator that decides what is best, unless a monitor names another."""

Measure = Callable[[nn.Module], Mapping[str, float]]
"""Names and values of what is measured of a model; it neither trains the model nor changes its mode."""


@dataclass(frozen=True)
class Evaluator:
    """Something that is measured again and again while a model is trained."""

    measure: Measure
    every: int | None = None
    """Steps between two measurements; None: the run's validation interval. After the last step of a run every
    evaluator measures."""


@dataclass(frozen=True)
class Monitor:
    """Which measured number decides what is best: that a run ends with, and that patience waits for."""

    metric: str
    """The name of a number that the evaluator measures."""
    direction: Literal["max", "min"]
    """Whether larger or smaller numbers are better."""
    tie_breaker: str | None = None
    """Another number of the same evaluator, which decides between equals; None: the earlier one stays the
    best."""
    tie_direction: Literal["max", "min"] = "min"
    evaluator: str = VALIDATION
    """The evaluator whose numbers decide; others are logged and decide nothing."""

    def is_better(self, found: Mapping[str, float], best: float | None, best_tie: float | None) -> bool:
        """Whether what was found is better than the best before.

        Args:
            found: the evaluator's numbers.
            best: the metric of the best before; None: there is none.
            best_tie: the tie breaker of the best before; None: it is not known, and anything is better.
        """
        value = found[self.metric]
        if math.isnan(value):
            return False  # compared with it, nothing would ever be better
        if best is None:
            return True
        ranked, ranked_best = _ranked(value, self.direction), _ranked(best, self.direction)
        if self.tie_breaker is None:
            return ranked > ranked_best
        if best_tie is None:
            return True
        tie = _ranked(found[self.tie_breaker], self.tie_direction)
        return (ranked, tie) > (ranked_best, _ranked(best_tie, self.tie_direction))


def _ranked(value: float, direction: Literal["max", "min"]) -> float:
    """Turn a value so that the larger one is the better."""
    return value if direction == "max" else -value
