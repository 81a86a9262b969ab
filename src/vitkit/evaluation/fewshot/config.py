"""The options of few-shot evaluation, alone and while a model is trained: by it the paper follows
pre-training (4.1). The command line reads them without torch: `evaluation/fewshot/methods.py` measures.
"""

from collections.abc import Mapping, Sequence
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
