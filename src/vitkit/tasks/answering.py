"""The half of a task that a finished model needs: what its outputs mean, how good they are, the report.

Outputs are arrays of numpy: nothing here imports torch, so that an exported model answers without it.
`vitkit.tasks.Answering` names the classes of all tasks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitkit.config import read
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import explain_no_classes
from vitkit.models.zoo import ModelConfig
from vitkit.result import Plot, Table
from vitkit.text import visible


@dataclass(frozen=True)
class Guess:
    """A class and how probable the model finds it."""

    name: str
    probability: float

    def __repr__(self) -> str:
        return f"Guess(name={visible(self.name)!r}, probability={self.probability:.4g})"


@dataclass(frozen=True)
class Pooled:
    """The right answers on several parts of the images together, each part with a model of its own."""

    right: int
    images: int
    interval: tuple[float, float]
    """95 % interval of the fraction that is right: over other images, not over other trainings."""


class LabelAnswering(ABC):
    """Answers with labels. `ClassificationAnswering` describes the methods that tasks have of their own."""

    numbers: type[Any]
    """The numbers of a split, a `vitkit.result.Result` that `measure` counts."""
    measure: Callable[..., Any]

    @abstractmethod
    def load(self, path: Path, result: Any) -> Any:
        """Read the predictions beside `path`, from which `result` was counted."""

    def explain_unfit(self, config: ModelConfig) -> str:
        """Say why a model of this configuration has no answers, as a clause after its name; "" if it has: it
        needs a head and one row of logits for each image."""
        return explain_no_classes(config)

    def read_evaluation(self, path: Path) -> tuple[Any, Any]:
        """Read numbers from `path`, a `.json` file, and the predictions that were saved beside it.

        Raises:
            FileNotFoundError: there is no such `.json` file.
            VitkitError: a file is damaged, or the numbers do not belong to the predictions.
        """
        result = read(self.numbers, path)
        if result is None:
            raise FileNotFoundError(path)
        # The numbers may say what the logits mean, so they are read before them.
        predictions = self.load(path, result)
        images, outputs = predictions.logits.shape
        names, repeated = len(result.class_names), 0 if result.repeated is None else result.repeated.count
        if names != outputs or repeated > images or not images:
            raise VitkitError(
                f"{path}: expected numbers of {outputs:,} classes and {images:,} images, as in the "
                f"predictions beside it, found {names:,} classes and {repeated:,} repeated images. Run the "
                "evaluation again to write it anew."
            )
        # Counted anew, which takes no longer than a check: somebody may have given the file away.
        return replace(self.measure(predictions, result.class_names), repeated=result.repeated), predictions

    def pool(self, parts: Sequence[tuple[float, int]]) -> Pooled | None:
        """Count the right answers on several parts of the images together, such as folds; None where the
        metric counts none.

        Args:
            parts: the monitor's metric and the number of images of each part.
        """
        return None

    def compare_sureness(self, first: Any, second: Any, labels: tuple[str, str]) -> Plot | None:
        """Draw how well two models are calibrated; None where the task has no such figure.

        Args:
            first, second: the numbers of both on the same images.
            labels: the names of the models.
        """
        return None

    def details(self, result: Any) -> Table | None:
        """Make the table of every class, where the summary alone would hide which are bad; None: the summary
        is all that is printed."""
        return None

    def guess_json(self, guesses: Sequence[Guess]) -> dict[str, Any]:
        """Make the part of a line of JSON that holds an image's prediction: the classes, best first."""
        shown = [{"class": guess.name, "probability": round(guess.probability, 6)} for guess in guesses]
        return {"predictions": shown}
