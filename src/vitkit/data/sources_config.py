"""The options for cutting splits from the images of a data set. They need no numpy."""

from dataclasses import dataclass

from vitkit.config import require_finite
from vitkit.errors import VitkitError


@dataclass(frozen=True)
class Splits:
    """The cutting of splits that the data lacks from its training images."""

    val_fraction: float = 0.1
    """Fraction of all training images, counted before any cut, for validation; 0 for no validation split."""
    test_fraction: float = 0.2
    """Fraction of all training images, counted before any cut, for testing; 0 for no test split."""
    seed: int = 0
    """Seed of the cut; the same seed cuts the same images."""
    label_separator: str | None = None
    """Character that separates several labels of an image in a cell of the CSV; left out, ";" or "|",
    whichever is found."""

    def __post_init__(self) -> None:
        require_finite(self)
        if min(self.val_fraction, self.test_fraction) < 0 or self.val_fraction + self.test_fraction >= 1:
            raise VitkitError(
                "val_fraction and test_fraction must be 0 or more and leave something to train on, found "
                f"{self.val_fraction} and {self.test_fraction}."
            )
        if not 0 <= self.seed < 2**63:
            raise VitkitError(f"The seed of the splits must be in 0..2^63 - 1, found {self.seed}.")
        if self.label_separator is not None and not self.label_separator.strip("\r\n"):
            raise VitkitError(
                f"label_separator is what stands between two labels in a cell, found "
                f"{self.label_separator!r}. Give a character, or leave it out."
            )


DEFAULT_SPLITS = Splits()
