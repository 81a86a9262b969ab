"""Evaluators, which measure a model while it is trained, and the monitor, which chooses the best weights."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from vitkit.errors import VitkitError
from vitkit.training.config import VALIDATION

if TYPE_CHECKING:
    from torch import nn

    from vitkit.training.checkpoint import Progress

Measure = Callable[["nn.Module", "nn.Module"], Mapping[str, float]]
"""A function that measures a model, with the objective that it is trained by: names and values. It neither
trains the two nor changes their modes."""


@dataclass(frozen=True)
class Evaluator:
    """A measurement that is repeated while a model is trained, at an interval of its own."""

    measure: Measure
    every: int | None = None
    """Steps between two measurements; None: the run's validation interval. After the last step of a run every
    evaluator measures."""
    line: Callable[[Mapping[str, float]], str] = lambda measured: ""
    """Writes the last measurement in a word or two, for the progress line of a run: "val 97.2%"."""
    together: bool = False
    """Whether all processes that train together measure, each a part; else the first one measures alone and
    tells the others."""

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise VitkitError(f"An evaluator measures every 1 or more steps, found {self.every}.")


@dataclass(frozen=True)
class Monitor:
    """The number that decides which weights are the best: a run may end with them, or soon after them."""

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

    def rank(self, value: float | None, tie: float | None) -> tuple[bool, float, float]:
        """Return what is greater for better numbers, and least where there is none, or no number."""
        if value is None or math.isnan(value):  # compared with which nothing would ever be better
            return False, 0.0, 0.0
        sign, tie_sign = (1 if each == "max" else -1 for each in (self.direction, self.tie_direction))
        return True, sign * value, -math.inf if tie is None else tie_sign * tie


def judge(monitor: Monitor, numbers: Mapping[str, float], step: int, progress: "Progress") -> "Progress":
    """Compare the numbers of the monitored evaluator after `step` updates with the best before.

    Returns:
        The progress, with this as the best or with one more measurement since.

    Raises:
        VitkitError: the evaluator does not measure what the monitor watches.
    """
    metrics = {monitor.metric, monitor.tie_breaker or monitor.metric}
    if not metrics <= numbers.keys():
        raise VitkitError(
            f"The monitor expects the evaluator {monitor.evaluator!r} to measure "
            f"{' and '.join(sorted(metrics))}, found {', '.join(numbers) or 'nothing'}."
        )
    value = numbers[monitor.metric]
    tie = None if monitor.tie_breaker is None else numbers[monitor.tie_breaker]
    if not monitor.rank(value, tie) > monitor.rank(progress.best_value, progress.best_tie):
        return replace(progress, evaluations_since_best=progress.evaluations_since_best + 1)
    return replace(progress, best_value=value, best_tie=tie, best_step=step, evaluations_since_best=0)
