"""Tell images from weights, without torch."""

import shlex

from vitkit.errors import VitkitError
from vitkit.runs.folder import contents_of, kind_of
from vitkit.weights.published import near_published


def sort_out(given: str) -> tuple[str, str]:
    """Tell whether a path that is given alone holds weights to begin from or images to train on.

    Args:
        given: a path, an address or the name of a published start.

    Returns:
        The start and the images, one of which is "".

    Raises:
        VitkitError: it holds both weights and images, or neither.
    """
    place = kind_of(given)
    contents, quoted = contents_of(place), shlex.quote(given)
    if contents == "both":
        raise VitkitError(
            f"{given} holds weights and class folders of images: expected one of them. To begin from its "
            f"weights: vitkit finetune {quoted} PATH. To train on its images: vitkit finetune --data "
            f"{quoted}."
        )
    if contents == "nothing":
        there = "neither" if place.path.exists() else "no such path"
        raise VitkitError(
            f"Expected images to train on or weights to begin from, found {there} at {given}."
            f"{near_published(place.path)} vitkit finetune PHOTOS takes a folder of class folders, a .csv or "
            "Parquet files; vitkit starts lists weights by name."
        )
    return ("", given) if contents == "images" else (given, "")
