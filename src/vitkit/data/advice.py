"""Advice on a data set, given before anyone waits for a training."""

import shlex
from collections.abc import Sequence

from vitkit.data.sources import Samples, some_headers
from vitkit.text import pluralize

FEW_IMAGES = 2_000
FEW_PER_CLASS = 100
"""Training images, in all and of each class, below which to start from a checkpoint: rules of thumb of this
project. The paper's smallest training set from scratch has 1.3 million images, and a ViT does worse there
than a ResNet (Figure 3); its tasks of 1,000 images (VTAB) are all learned from a checkpoint."""
SMALL_SIDE = 64
"""Pixels: images up to this size are pictures for the recipe small-images, larger ones are photos."""
LOOKED_AT = 500
"""The most headers that are read to learn the sizes of images."""
LIKE_CIFAR = range(24, 49)
"""Pixels: images of about 32, on which small-images-conv was measured (CIFAR-10: 84.2 % in an hour of one
core; small-images: 50 % in ten minutes of two)."""


def advise_on_start(spec: str, count: int, classes: int) -> str:
    """Say that a training set is too small to train from scratch; empty if it is not.

    Args:
        spec: the name of the data, as it is given to `--data`. The built-in digits are a demonstration that
            needs no advice.
        count: training images.
        classes: of the training images.
    """
    if spec == "digits" or count >= max(FEW_IMAGES, FEW_PER_CLASS * classes):
        return ""
    per_class = "" if count < FEW_IMAGES else f" of {classes:,} classes, {count / classes:.0f} of each"
    return (
        f"{pluralize(count, 'training image')}{per_class}: do not train from scratch; start from a "
        f"checkpoint (vitkit finetune {shlex.quote(spec)} chooses one)."
    )


def where_to_ask(spec: str, start: str = "") -> str:
    """Name the command that measures what a start tells of these images, and what training costs.

    Without a start the command says which one to take, and how long it takes here. It stands last and without
    a full stop, which would be copied as a part of the path.
    """
    if not start:
        return f"Which one, and how long it takes here: vitkit advise {shlex.quote(spec)}"
    return f"What its features tell: vitkit advise {shlex.quote(spec)} {shlex.quote(start)}"


def suggest_recipe(sizes: Sequence[tuple[int, int]], has_model: bool = False) -> str:
    """Name the recipe that fits the median of these image sizes, (height, width) in pixels.

    Args:
        sizes: of some images.
        has_model: whether a model is chosen already, which the model of small-images-conv would replace.
    """
    side = usual_side(sizes)
    if side in LIKE_CIFAR and not has_model:
        return "small-images-conv"
    return "small-images" if 0 < side <= SMALL_SIDE else "photos"


def sample_sizes(samples: Samples) -> list[tuple[int, int]]:
    """Read the sizes (height, width) of some images, evenly spread; unreadable ones are skipped."""
    return [head.size for head in some_headers(samples, LOOKED_AT)]


def usual_side(sizes: Sequence[tuple[int, int]]) -> int:
    """Return the median of the longer sides of images, in pixels; 0 where there are none."""
    longer = sorted(max(size) for size in sizes)
    return longer[len(longer) // 2] if longer else 0
