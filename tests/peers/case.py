"""One comparison of a model of ours with the same model in another library."""

from collections import Counter
from collections.abc import Iterable
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


def tally(outcomes: Iterable[tuple[str, str, str]]) -> int:
    """Print what became of models ("DIFFERS", say), their names and why, and the counts; 1 if one differs."""
    counts = Counter[str]()
    for outcome, name, why in outcomes:
        counts[outcome] += 1
        print(f"{outcome:8} {name}: {' '.join(why.split())[:200]}", flush=True)
    print(f"{counts.total()} models: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}")
    return 1 if counts["DIFFERS"] else 0
