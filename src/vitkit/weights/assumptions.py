"""Assumptions about the images of a file that does not record them."""

from dataclasses import dataclass
from typing import Literal

from vitkit.data.config import Preprocessing


@dataclass(frozen=True)
class Assumption:
    """A property of images that a file does not record, and the value that was assumed."""

    what: Literal["pixel statistics", "resizing"]
    taken: str
    """The assumed value and the library whose custom it is, as text."""

    def sentence(self) -> str:
        """State the assumed value and the command that records another, as a clause after the file's path."""
        remedy = (
            "vitkit convert FILE OUT --image-mean R G B --image-std R G B"
            if self.what == "pixel statistics"
            else "vitkit convert FILE OUT, then edit preprocessing in OUT/model.json and empty its assumed"
        )
        return f"its file does not say its {self.what}; assumed: {self.taken}. To state others: {remedy}"


def assumed_statistics(mean: tuple[float, ...], std: tuple[float, ...], custom: str) -> Assumption:
    """Record that the mean and std of pixels are not in the file."""
    return Assumption("pixel statistics", f"pixel mean {_values(mean)} and std {_values(std)}, {custom}")


def assumed_resizing(preprocessing: Preprocessing, custom: str) -> Assumption:
    """Record that the resizing to the model's size is not in the file."""
    kind = f"by {preprocessing.interpolation} interpolation"
    if preprocessing.resize == "stretch":
        return Assumption("resizing", f"images stretched {kind}, {custom}")
    side = preprocessing.resized(0)
    way = f"the shortest side resized to {side} {kind} and the middle cut out"
    return Assumption("resizing", f"{way}, {custom}")


def _values(numbers: tuple[float, ...]) -> str:
    return f"{numbers[0]:g}" if len(set(numbers)) == 1 else ", ".join(f"{number:g}" for number in numbers)
