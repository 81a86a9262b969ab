"""Check a stored evaluation of a classifier, which anybody may have edited or a disk may have damaged."""

import math
from collections.abc import Iterator
from typing import Any

from vitkit.errors import VitkitError
from vitkit.evaluation.classify import Classification
from vitkit.evaluation.predictions import Predictions


def check_evaluation(result: Classification, predictions: Predictions, where: str) -> None:
    """Refuse numbers that cannot be those of the predictions beside them.

    Raises:
        VitkitError: the first field that is wrong, what was expected and what was found.
    """
    for name, expected, found, right in _checks(result, predictions):
        if not right:
            raise VitkitError(
                f"{where}: {name}: expected {expected}, found {str(found)[:200]}. Run the evaluation "
                "again to write it anew."
            )


def _checks(result: Classification, predictions: Predictions) -> Iterator[tuple[str, str, Any, bool]]:
    """Yield each field with what is expected, what it holds and whether that is right, the simplest first."""
    count, unreadable, classes = len(predictions), len(predictions.bad), predictions.classes
    yield "count", f"{count}, as in the .npz file", result.count, result.count == count > 0
    yield "bad", f"{unreadable}, as in the .npz file", result.bad, result.bad == unreadable
    yield "correct", f"0 to {count}", result.correct, 0 <= result.correct <= count
    yield "per_class", f"{classes} classes", len(result.per_class), len(result.per_class) == classes
    yield "loss", "0 or more", result.loss, -1e-9 <= result.loss < math.inf
    for name in ("accuracy", "top5_accuracy", "balanced_accuracy", "macro_f1", "calibration_error"):
        share = getattr(result, name)
        yield name, "a share from 0 to 1", share, _is_share(share)
    interval = result.accuracy_interval
    yield "accuracy_interval", "two shares from 0 to 1", interval, all(map(_is_share, interval))
    for i, score in enumerate(result.per_class):
        counts = 0 <= score.correct <= min(score.count, score.predicted)
        shares = all(map(_is_share, (score.precision, score.recall, score.f1)))
        yield f"per_class: {i}", "counts and shares of one class", score, counts and shares
    for i, one in enumerate(result.calibration):
        means = (one.confidence, one.accuracy)
        known = all(mean is not None if one.count > 0 else mean is None for mean in means)
        edges = 0 <= one.lower < one.upper <= 1 and one.count >= 0
        yield f"calibration: {i}", "a bin of confidences", one, edges and known and all(map(_is_share, means))
    for i, (true, predicted, cell) in enumerate(result.confusion_cells):
        inside = 0 <= true < classes and 0 <= predicted < classes and cell > 0
        yield f"confusion_cells: {i}", "two classes and a count", (true, predicted, cell), inside
    for name, total in (
        ("per_class", sum(score.count for score in result.per_class)),
        ("calibration", sum(one.count for one in result.calibration)),
        ("confusion_cells", sum(cell for _, _, cell in result.confusion_cells)),
    ):
        yield name, f"counts that sum to {count}", total, total == count


def _is_share(value: float | None) -> bool:
    """Whether a fraction is from 0 to 1, or not defined; rounding may leave it a little above."""
    return value is None or 0 <= value <= 1 + 1e-9
