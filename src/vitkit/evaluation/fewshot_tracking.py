"""The few-shot accuracy that is followed while a model is trained: an evaluator's options, without torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot_config import SHOTS, listed

if TYPE_CHECKING:
    import torch

    from vitkit.data.transforms_config import Preprocessing
    from vitkit.models.precision_config import Precision
    from vitkit.weights.card import TrainingData


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

    def with_absolute_paths(self) -> "FewShotTracking":
        """Write paths down so that they hold from any folder."""
        from vitkit.data.listing import absolute_spec  # numpy: help texts do not wait for it

        return replace(self, data=absolute_spec(self.data))

    def check(self) -> None:
        """Refuse, before anything is made, what could not be measured.

        Raises:
            VitkitError: the images are not there, or leave nothing to test on.
        """
        from vitkit.evaluation.fewshot_data import open_fewshot_data

        open_fewshot_data(self.data)

    def build(
        self,
        preprocessing: "Preprocessing",
        *,
        device: "torch.device",
        precision: "Precision",
        batch_size: int,
        workers: int,
        trained_on: "Sequence[TrainingData]",
    ) -> "Callable[[Any, Any], Mapping[str, float]]":
        """Make the function of model and objective that measures; see `fewshot_evaluator`."""
        from vitkit.evaluation.fewshot_evaluator import fewshot_evaluator

        return fewshot_evaluator(
            self.data,
            preprocessing,
            shots=self.shots,
            seeds=self.seeds,
            device=device,
            precision=precision,
            batch_size=batch_size,
            workers=workers,
            trained_on=trained_on,
        )

    def line(self, measured: Mapping[str, float]) -> str:
        """Write the accuracy of the most shots in a few words: "25 shots 43.2%"."""
        name, accuracy = list(measured.items())[-1]
        return f"{name.split('_')[1]} shots {accuracy:.1%}"

    def describe(self) -> str:
        """Name what is measured, for a sentence: "few-shot accuracy on digits"."""
        return f"few-shot accuracy on {self.data}"
