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
    pretrainings: AtLeastOne | None = None
    """number of pre-trainings, with seeds that follow one another: from several one learns what another one
    would bring. Left out, 3, or 1 where one takes longer than an hour."""
    draws: AtLeastOne = 5
    """fine-tunings of each kind after each pre-training, each with another seed, and other labelled images
    where --labels says how many."""
    tune_steps: AtLeastOne | None = None
    """steps of a fine-tuning; left out, they are fitted to the number of labelled images."""
    plan: bool = False
    """list what is trained for --then and the time it takes here, and train nothing."""

    def __post_init__(self) -> None:
        require_valid(self)
        if not self.then and (self.labels or self.pretrainings or self.tune_steps or self.plan):
            raise VitkitError(
                "labels, pretrainings, tune_steps and plan belong to --then: give labelled images with it."
            )
