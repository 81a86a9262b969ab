"""The options of pre-training without labels, and of learning what it brought. They need no torch."""

from dataclasses import dataclass
from typing import Literal

from vitkit.config import AtLeastOne, require_valid
from vitkit.errors import VitkitError

Objective = Literal["masked-patches", "simmim", "mae"]
"""The tasks that need no labels."""


@dataclass(frozen=True, kw_only=True)
class ThenOptions:
    """The comparison of fine-tuning with and without the pre-training that comes before it."""

    then: str = ""
    """images with labels, to learn whether pre-training helps on them: the same fine-tuning with and without
    it, and a longer fine-tuning without it that takes as much time as both."""
    labels: AtLeastOne | None = None
    """number of labelled images to train on, of all classes together; each run draws other images. Left out,
    all."""
    draws: AtLeastOne = 5
    """fine-tunings of each kind, each with another seed, and other labelled images where --labels says how
    many."""
    tune_steps: AtLeastOne | None = None
    """steps of a fine-tuning; left out, they are fitted to the number of labelled images."""

    def __post_init__(self) -> None:
        require_valid(self)
        if not self.then and (self.labels or self.tune_steps):
            raise VitkitError("labels and tune_steps belong to --then: give labelled images with it.")
