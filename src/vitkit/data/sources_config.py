"""How splits are cut from the images of a data set. It needs no numpy."""

from dataclasses import dataclass

from vitkit.config import require_finite
from vitkit.errors import VitkitError


@dataclass(frozen=True)
class Splits:
    """How splits that the data lacks are cut from its training images."""

    val_fraction: float = 0.1
    """Part of all the training images there were before any cut; 0 for no validation split."""
    test_fraction: float = 0.2
    """Part of all the training images there were before any cut; 0 for no test split."""
    seed: int = 0
    """Another seed, other images."""

    def __post_init__(self) -> None:
        require_finite(self)
        if min(self.val_fraction, self.test_fraction) < 0 or self.val_fraction + self.test_fraction >= 1:
            raise VitkitError(
                "val_fraction and test_fraction must be 0 or more and leave something to train on, found "
                f"{self.val_fraction} and {self.test_fraction}."
            )
        if not 0 <= self.seed < 2**63:
            raise VitkitError(f"The seed of the splits must be in 0..2^63 - 1, found {self.seed}.")


DEFAULT_SPLITS = Splits()
