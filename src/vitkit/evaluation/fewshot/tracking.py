"""Measure few-shot accuracy while a model is trained: by it the paper follows pre-training (4.1).

The command line reads these options without torch: `evaluation/fewshot/data.py` measures.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vitkit.config import AtLeastOne, require_valid
from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot.config import ALL_SHOTS, METHODS, SHOTS, Method, listed


@dataclass(frozen=True)
class FewShotTracking:
    """Few-shot accuracy on other images while the model is trained; it is logged and decides nothing."""

    data: str = ""
    """Images with labels, other than the training images; left out, it is not measured."""
    every: AtLeastOne | None = None
    """Steps between two measurements; left out, as often as the validation."""
    shots: tuple[int, ...] = SHOTS
    """Numbers of images of each class to learn from, with commas between."""

    def __post_init__(self) -> None:
        if not self.shots or min(self.shots) < 1:
            raise VitkitError(f"shots of a few-shot evaluation are 1 or more, found {listed(self.shots)}.")
        require_valid(self)

    def line(self, measured: Mapping[str, float]) -> str:
        """Write the accuracy of the most shots in short: "25 shots 43.2%", of several methods "25 shots
        43.2% knn 40.1%"."""
        most = max(self.shots)
        first, *others = (method for method in METHODS if accuracy_name(method, most) in measured)
        beside = "".join(f" {method} {measured[accuracy_name(method, most)]:.1%}" for method in others)
        label = "linear probe" if most == ALL_SHOTS else f"{most} shots"
        return f"{label} {measured[accuracy_name(first, most)]:.1%}{beside}"


SEEDS = 3
"""Number of times the shots are drawn, each with another seed."""
AT_THE_END = 10**12
"""More steps than any run has: after the last step every evaluator measures."""


def linear_probe(data: str) -> FewShotTracking:
    """Measure a classifier on the features of all training images of `data`, once, after the last step."""
    return FewShotTracking(data, every=AT_THE_END, shots=(ALL_SHOTS,))


def accuracy_name(method: Method, shots: int) -> str:
    """Name an accuracy in the metrics log: "ridge_5_shots", or "logistic_all" of all images."""
    return f"{method}_all" if shots == ALL_SHOTS else f"{method}_{shots}_shots"
