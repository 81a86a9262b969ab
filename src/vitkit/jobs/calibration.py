"""Real images for quantising a model and for comparing the result with it: decoded and preprocessed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vitkit.data.decode import DecodeError, decode
from vitkit.data.folders import image_files
from vitkit.data.image_paths import refuse_address
from vitkit.data.listing import expand_home
from vitkit.data.sources import ImageData, Samples
from vitkit.data.sources_config import Splits
from vitkit.data.transforms import preprocess
from vitkit.data.transforms_config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.jobs.export_options import FEWEST, ExportOptions
from vitkit.listener import Listener
from vitkit.models.image_model import ImageModel
from vitkit.runs.trained_model import open_model_data
from vitkit.tasks import task_of
from vitkit.text import without_places
from vitkit.weights.card import card_of
from vitkit.weights.preprocessing import preprocessing_of

Pixels = NDArray[np.uint8]
Unread = Callable[[], Pixels]
"""A function that decodes an image, `(height, width, C)`, or raises DecodeError."""


SPLITS = {"test": "test", "val": "validation", "train": "training"}
"""The names of splits as people say them."""


@dataclass(frozen=True)
class CalibrationImages:
    """The images of a model's size, each `(1, C, H, W)`."""

    calibration: tuple[Pixels, ...]
    check: tuple[Pixels, ...]
    """Others than those."""
    words: str
    """The images that it was calibrated on, in words."""
    check_words: str
    """The images that it is compared on, in words, without their number."""


def read_calibration(model: ImageModel, options: ExportOptions, listener: Listener) -> CalibrationImages:
    """Draw images for calibration and for checking, the same at every call, and read them.

    Data with a test or validation split is checked on that; of images without splits, some are kept apart.

    Raises:
        VitkitError: there are no images, or too few that can be read.
    """
    with listener.progress("listing images"):
        name, known, apart, check_words = _list(model, options)
    rule, wanted = preprocessing_of(model), options.calibration_images
    if apart:
        calibration = _read(known, wanted, rule, "reading images to calibrate on", listener)
        check = _read(apart, options.check_images, rule, "reading images to check with", listener)
    else:
        together = wanted + options.check_images
        found = _read(known, together, rule, "reading images to calibrate on and to check with", listener)
        cut = len(found) * wanted // together
        calibration, check = found[:cut], found[cut:]
    if min(len(calibration), len(check)) < FEWEST:
        raise VitkitError(
            f"Expected at least {FEWEST} readable images to calibrate on and {FEWEST} others to check with, "
            f"found {len(calibration)} and {len(check)} in {name}. Give more images with --calibration."
        )
    words = f"{len(calibration):,} images of {without_places(name)}"
    return CalibrationImages(tuple(calibration), tuple(check), words, check_words)


def read_own_images(model: ImageModel, count: int, listener: Listener) -> tuple[str, list[Pixels]]:
    """Read some of the images that a model was trained with, of its test split if there is one.

    Returns:
        The images in words, and each `(1, C, H, W)`. None where the model does not say where they are, or
        where they cannot be read any more, which the listener hears.
    """
    record = card_of(model).data
    if record is None or not record.has_place:
        return "", []
    try:
        with listener.progress("listing images"):
            name, images = _own_images(open_model_data(model))
        pixels = _read(images, count, preprocessing_of(model), "reading images to compare on", listener)
    except (VitkitError, OSError) as error:
        listener.note(f"The images that the model was trained with cannot be compared on: {error}")
        return "", []
    return name, pixels


def _own_images(data: ImageData) -> tuple[str, list[Unread]]:
    split = next(split for split in ("test", "val", "train") if split in data.splits)
    return f"{SPLITS[split]} images of {data.name}", _unread(data.splits[split])


def _list(model: ImageModel, options: ExportOptions) -> tuple[str, list[Unread], list[Unread], str]:
    """List the images to calibrate on, and those that the data itself keeps apart from them, if any.

    Returns:
        The first in words, both, and the images to compare on in words.
    """
    spec, rule = options.calibration, preprocessing_of(model).decode
    if spec is None:
        record = card_of(model).data
        if record is None or not record.has_place:
            raise VitkitError(
                f"{options.source} does not say where the images are that it was trained on, and int8 is "
                "calibrated on images: give a folder of some hundred like those it will see with "
                "--calibration."
            )
        data = open_model_data(model)
        name = f"the training images of {data.name}"
    else:
        refuse_address(spec)
        files = image_files(expand_home(spec)) if expand_home(spec).is_dir() else []
        if files:
            words = f"images of {without_places(spec)}"
            return spec, [partial(decode, path, rule) for path in sorted(files)], [], words
        whole = Splits(val_fraction=0, test_fraction=0)
        data, name = task_of(model.card).learning.open_data(spec, whole, rule), spec
    check_words, apart = _own_images(data)
    if not {"test", "val"} & data.splits.keys():
        apart = []
    return name, _unread(data.splits["train"]), apart, check_words


def _unread(samples: Samples) -> list[Unread]:
    return [partial(samples.decode, index) for index in range(len(samples))]


def _read(
    images: Sequence[Unread], count: int, rule: Preprocessing, what: str, listener: Listener
) -> list[Pixels]:
    """Read up to `count` images in an order that is drawn once and for all; those that cannot be are left
    out."""
    found: list[Pixels] = []
    with listener.progress(what, min(count, len(images))) as progress:
        for index in np.random.default_rng(0).permutation(len(images)):
            if len(found) == count:
                break
            try:
                pixels = preprocess(images[index](), rule)
            except DecodeError:
                continue
            found.append(np.ascontiguousarray(pixels.transpose(2, 0, 1)[None]))
            progress(len(found))
    return found
