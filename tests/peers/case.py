"""One comparison of a model of ours with the same model in another library."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """What was compared, and how far apart the two are."""

    model: str
    direction: str
    """Which way the weights went: "timm -> vitkit", say."""
    size: str
    """Of the images, "224" or "224x160"."""
    difference: float
    """The largest absolute difference of two logits."""
    allowed: float
    agreement: float
    """The share of images for which both choose the same class, from 0 to 1."""

    @property
    def passed(self) -> bool:
        return self.difference <= self.allowed and self.agreement == 1
