"""Whether a classifier does better than one that never looks at the images."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitkit.evaluation.intervals import sign_test

SIGNIFICANT = 0.05
"""Above this p a difference is not told from chance; the level that goes with 95% intervals."""


@dataclass(frozen=True)
class Guessing:
    """A model beside the guess that is right most often: always the most frequent class of these images."""

    class_name: str
    """The largest class; the first where several are equally large."""
    accuracy: float
    """Its share of the images."""
    model_only: int
    """Images that the model alone is right on."""
    guess_only: int
    """Images that the guess alone is right on."""
    p_value: float
    """Two-sided, of McNemar's exact test on the same images."""

    @property
    def verdict(self) -> str:
        """Whether the model is better than the guess, worse, or not told from it."""
        if self.p_value >= SIGNIFICANT:
            return "not distinguishable from guessing"
        return "better than guessing" if self.model_only > self.guess_only else "worse than guessing"

    def sentence(self) -> str:
        """Tell the verdict and what it rests on, in words without a full stop."""
        p = "p < 0.001" if self.p_value < 0.001 else f"p = {self.p_value:.2g}"
        return (
            f"{self.verdict}: always answering {self.class_name!r} is right on {self.accuracy:.1%} "
            f"(McNemar's exact test, {p})"
        )


def compare_with_guessing(class_names: Sequence[str], counts: Sequence[int], hits: Sequence[int]) -> Guessing:
    """Compare a model with always answering the most frequent class.

    Args:
        class_names: K names.
        counts: images of each class, not all 0.
        hits: those of them that the model is right on.
    """
    most = max(range(len(counts)), key=counts.__getitem__)  # the first of several
    model_only, guess_only = sum(hits) - hits[most], counts[most] - hits[most]
    return Guessing(
        class_names[most],
        counts[most] / sum(counts),
        model_only,
        guess_only,
        sign_test(model_only, guess_only),
    )
