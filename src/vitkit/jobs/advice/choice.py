"""The advice before training, as plain data: ways to train, what they cost and what to expect of them."""

import math
from dataclasses import dataclass
from typing import Any

from vitkit import config
from vitkit.data.advice import advise_on_start
from vitkit.data.check import DataCheck
from vitkit.data.listing import pluralize
from vitkit.evaluation.fewshot_folds import Folded
from vitkit.models.image_config import format_size
from vitkit.runs.config import Run
from vitkit.runs.records import AdviceRecord, Forecast
from vitkit.text import format_bytes, format_duration

MARGIN = 0.01
"""Accuracies that differ by less are no reason to compute more."""


@dataclass(frozen=True)
class Option:
    """A way to train on the images: what it begins from, how long it takes, and what is to be expected."""

    start: str
    """The start as it was given; "" for new weights, or where a start is still to be found."""
    run: Run
    """The options of the run, with the name of its model."""
    steps: int
    seconds: float
    """Seconds of the whole run, as far as this machine's speed tells it."""
    memory: int
    """Bytes that a training step needs at most, beside PyTorch's own."""
    flops: float
    """FLOPs of the forward pass of one image."""
    folded: Folded | None = None
    """The probe: how well frozen features, or pixels, tell the classes apart. None where there is none."""
    forecast: Forecast | None = None
    """The forecast of the accuracy on the test images."""
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Model and size in words: "ViT-S/16 at 224x224"."""
        return f"{self.run.model} at {format_size(self.run.preprocessing.image_size)}"

    @property
    def cost(self) -> str:
        """Steps, time and memory in words."""
        return (
            f"{pluralize(self.steps, 'step')} of {pluralize(self.run.training.batch_size, 'image')}, about "
            f"{format_duration(self.seconds)}, {format_bytes(self.memory)} of memory"
        )


@dataclass(frozen=True)
class Advice:
    """The result of `advise`: plain data, to be printed or written as JSON."""

    data: str
    name: str
    classes: int
    images: int
    """Training images."""
    tested: int
    """Test images; 0 where there are none."""
    check: DataCheck | None
    """None where there are too many images to look at each."""
    options: tuple[Option, ...]
    """The starts that were given, each at its sizes; without a start, models to look for."""
    chosen: Option | None
    """The one that is advised; None where a start must be found first."""
    scratch: Option
    """Training from scratch by the recipe that fits the images; nothing was measured that foretells it."""
    sentences: tuple[str, ...]
    """The advice in words."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return config.to_json(self)

    @property
    def can_go(self) -> bool:
        """Whether it can be followed: it names a start, or none was given and there are enough images to do
        without."""
        given = any(option.start for option in self.options)
        return self.chosen is not None or not (given or advise_on_start(self.data, self.images, self.classes))

    @property
    def record(self) -> AdviceRecord | None:
        """The record for the folder of a run that follows the advice; None where nothing is foretold."""
        if self.chosen is None or self.chosen.forecast is None:
            return None
        return AdviceRecord(self.chosen.forecast, self.chosen.seconds, self.sentences)


def choose(options: tuple[Option, ...], pixels: Folded | None = None) -> Option | None:
    """Choose among options: of those that cannot be told from the most accurate one, the cheapest.

    A point, or one standard error of the best one's probe where that is more, is no difference. Cost is
    counted in FLOPs, not in seconds, so that the same command chooses the same every time.

    Args:
        options: starts, each at a size.
        pixels: the probe of small pictures.

    Returns:
        The option; None where nothing is foretold, or where small pictures alone tell more than is expected
        of the most accurate one.
    """
    foretold = [one for one in options if one.forecast is not None]
    if not foretold:
        return None
    best = max(foretold, key=_accuracy)
    share, images = _accuracy(best), best.folded.images if best.folded is not None else 0
    if pixels is not None and pixels.interval[0] > share:
        return None
    error = math.sqrt(share * (1 - share) / images) if images else 0.0
    close = [one for one in foretold if _accuracy(one) >= share - max(MARGIN, error)]
    return min(close, key=lambda one: one.flops)


def _accuracy(option: Option) -> float:
    return 0.0 if option.forecast is None else option.forecast.accuracy
