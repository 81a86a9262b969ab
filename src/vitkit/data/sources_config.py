"""The options for cutting splits from the images of a data set. They need no numpy."""

from dataclasses import dataclass

from vitkit.config import require_finite
from vitkit.errors import VitkitError

FIRST_RULE, NEWEST_RULE = 1, 3
"""The rules by which splits are cut in runs that record none, and in runs that begin now."""
DEALT_RULE = 3
"""The first rule by which every class is dealt round the folds."""


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

    group: str | None = None
    """Groups of images that stay in one split, such as those of a patient or a scene: the name of a column of
    the CSV or Parquet; for class folders a level below them, 1 for the p7 of cats/p7/1.jpg."""
    folds: int | None = None
    """Cut the images into so many parts, one of which is the test split; --splits.fold says which. Every
    class is dealt round them, so that they differ by one image at most, or by the largest group."""
    fold: int | None = None
    """The fold that is the test split, from 0."""
    rule: int | None = None
    """Version of the rule by which splits are cut. 1: image by image. 2: images of the same pixels stay
    together. 3: folds are dealt class by class; before, they were cut one after the other, and rare classes
    left some with few images or none. Left out: 3 in a run that begins; 1 in one that does not record it, as
    early versions."""

    def __post_init__(self) -> None:
        require_finite(self)
        if self.rule not in (None, *range(1, NEWEST_RULE + 1)):
            raise VitkitError(f"The rule of the splits is 1, 2 or 3, found {self.rule}: leave it out.")
        if (self.fold is None) != (self.folds is None):
            raise VitkitError("fold and folds go together: give both, say --splits.fold 0 --splits.folds 5.")
        if self.fold is not None and self.folds is not None and not 0 <= self.fold < self.folds:
            raise VitkitError(f"fold is from 0 to folds - 1, found {self.fold} of {self.folds}.")
        if self.folds is not None and self.folds < 2:
            raise VitkitError(f"folds is 2 or more, found {self.folds}.")
        if self.folds is not None and self.val_fraction > 1 - 1 / self.folds - 1e-9:
            raise VitkitError(
                f"A test split of one in {self.folds} and a val_fraction of {self.val_fraction} leave "
                "nothing to train on: give a smaller val_fraction."
            )
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
