"""Parts of a split: `train[:10%]`, `test[-500:]`, or a fraction such as 0.1.

The notation is that of TensorFlow Datasets, which the configurations of the original code use.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from vitkit.errors import VitkitError

_BOUND = r"-?\d+(?:\.\d+)?%|-?\d+|"
_SLICE = re.compile(rf"({_BOUND}):({_BOUND})")
_SPLIT = re.compile(r"(\w+)\s*\[(.*)\]")
_EXAMPLES = "[:10%] (the first tenth), [10%:] (the rest), [-500:] (the last 500) or [100:200]"


@dataclass(frozen=True)
class Slice:
    """A part of a split, from one place to another in the order of its images."""

    start: str
    """A number of images, or a percentage with its sign; below 0: from the end; empty: from the beginning."""
    stop: str
    """The place after the last image, in the same notation; empty: to the end."""

    def __str__(self) -> str:
        return f"[{self.start}:{self.stop}]"

    def of(self, count: int) -> tuple[int, int]:
        """Return the first place and the place after the last one, in a split of `count` images.

        Percentages are rounded to whole images, so that [:10%] and [10%:] overlap in none and leave none out.

        Raises:
            VitkitError: the split has no such images.
        """
        first = _place(self.start, count) if self.start else 0
        last = _place(self.stop, count) if self.stop else count
        if not 0 <= first < last <= count:
            raise VitkitError(
                f"The slice {self} goes from image {first:,} to {last:,} of {count:,}: expected at least one "
                f"image, and none beyond the last. Slices are {_EXAMPLES}."
            )
        return first, last


def _place(bound: str, count: int) -> int:
    """Turn a bound of a slice into a number of images from the beginning."""
    value = Fraction(bound.removesuffix("%"))
    images = int(abs(value) * count / 100 + Fraction(1, 2)) if bound.endswith("%") else int(abs(value))
    return count - images if bound.startswith("-") else images


WHOLE = Slice("", "")
"""The slice that holds all images."""


def parse_slice(text: str) -> Slice:
    """Read a slice, with or without its brackets; [0:010.0%] is the same value as [:10%].

    Raises:
        VitkitError: it is no slice.
    """
    match = _SLICE.fullmatch(text.removeprefix("[").removesuffix("]").replace(" ", ""))
    if match is None:
        raise VitkitError(f"Expected a part of a split such as {_EXAMPLES}, found {text!r}.")
    start, stop = (_shortest(bound) for bound in match.groups())
    return Slice("" if start in ("0", "0%", "-100%") else start, "" if stop == "100%" else stop)


def _shortest(bound: str) -> str:
    """Write a bound without needless zeros: 10.0% as 10%, 010 as 10."""
    sign = "%" if bound.endswith("%") else ""
    return f"{Decimal(bound.removesuffix('%')).normalize():f}{sign}" if bound else ""


def parse_subset(text: str) -> Slice:
    """Read a part of the training images: a fraction such as 0.1, or a slice.

    Raises:
        VitkitError: it is neither.
    """
    if not isinstance(text, str):
        raise VitkitError(f'subset is a text such as "0.1" or "[:10%]", found {text!r}.')
    if re.fullmatch(r"\d*\.?\d+", text):
        fraction = Decimal(text)
        if not 0 < fraction <= 1:
            raise VitkitError(
                f"subset is a fraction above 0 and at most 1, found {text}. For a number of images write "
                "[:500]."
            )
        return parse_slice(f":{100 * fraction:f}%")
    return parse_slice(text)


def parse_split(name: str) -> tuple[str, Slice | None]:
    """Read the name of a split or of a part of it: "test", or "train[:10%]"; spaces around it are left out.

    Raises:
        VitkitError: it has brackets that are not a pair at its end, or that hold no slice.
    """
    match = _SPLIT.fullmatch(name.strip())
    if match is not None:
        part = parse_slice(match[2])
        return match[1], None if part == WHOLE else part
    if "[" in name or "]" in name:
        raise VitkitError(
            'Expected the name of a split such as test, or a part of one such as "test[:10%]" with both '
            f"brackets at its end, found {name!r}."
        )
    return name.strip(), None
