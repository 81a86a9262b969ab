"""Name what is in images: `vitkit.Predictor` for a program, `predict_images` for many files."""

import hashlib
import json
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.config import to_json
from vitkit.data.channels import from_rgb
from vitkit.data.decode.image import decode, decode_image
from vitkit.data.layouts.image_paths import find_images, refuse_address
from vitkit.data.transforms import preprocess
from vitkit.durable import hash_file
from vitkit.engines.engine_model import EngineModel
from vitkit.engines.libraries import DESCRIPTION
from vitkit.errors import DecodeError, VitkitError
from vitkit.jobs.engines import load_ready
from vitkit.jobs.options import (
    PredictOptions,
    PredictorOptions,
    as_arguments,
    as_names,
    method_from_options,
)
from vitkit.models.config.image_config import height_and_width
from vitkit.runs.config import StartConfig
from vitkit.runs.folder import kind_of
from vitkit.tasks import answering_of
from vitkit.tasks.answering import Answering, Guess
from vitkit.text import format_size, pluralize, visible
from vitkit.weights.card import preprocessing_of

if TYPE_CHECKING:
    import torch

    from vitkit.jobs.parts import ComputeRows, PartsRecord

ImageLike: TypeAlias = (
    "str | os.PathLike[str] | bytes | IO[bytes] | Image.Image | NDArray[np.uint8] | torch.Tensor"
)
"""A path, the bytes of a file, a file opened for reading bytes, a Pillow image, an array (height, width, C)
or (height, width) of uint8, or a tensor (C, height, width) of uint8, with the C channels of the model."""


@dataclass(frozen=True)
class PredictedImage:
    """An image file and what it was found to show."""

    path: Path
    answering: Answering[Any, Any]
    """The model's, which knows how guesses are told."""
    guesses: list[Guess]
    """The most probable classes, best first; none of a file that cannot be read."""
    reason: str | None = None
    """Why the file cannot be read; None if it can."""
    classes: int = 0
    """The number of classes that the model knows, of which `guesses` names the first."""


def predict_images(options: PredictOptions) -> Generator[PredictedImage]:
    """Name what is in images, a batch at a time and in their order.

    Only files and folders are read here: a "-" among the names is for `vitkit.cli.options.read_names`.

    Raises:
        VitkitError: there is no such model, it cannot classify, or an image is named by address. Files that
            cannot be read are no error: they are yielded with the reason.
    """
    predictor, paths = _open(options)
    with options.listener.progress("predicting", len(paths)) as progress:
        for start in range(0, len(paths), options.batch_size):
            batch = paths[start : start + options.batch_size]
            yield from _predict_batch(predictor, batch, options.top)
            progress(start + len(batch))


def _open(options: PredictOptions) -> "tuple[Predictor, list[Path]]":
    """Load the model of a prediction, and list its images."""
    predictor = Predictor(**as_arguments(PredictorOptions, options))
    for note in predictor.notes:
        options.listener.note(f"{options.path}: {note}.")
    with options.listener.progress("listing images"):
        return predictor, list(find_images(as_names(options.images)))


def _predict_batch(predictor: "Predictor", paths: Sequence[Path], top: int) -> Iterator[PredictedImage]:
    """Predict those of the files that can be read, all at once."""
    pixels: dict[int, NDArray[np.uint8]] = {}
    reasons: dict[int, str] = {}
    for i, path in enumerate(paths):
        try:
            pixels[i] = decode(path, predictor.preprocessing.decode)
        except DecodeError as error:
            reasons[i] = str(error)
    guesses = dict(zip(pixels, predictor.many(list(pixels.values()), top), strict=True)) if pixels else {}
    classes = len(predictor.class_names)
    for i, path in enumerate(paths):
        yield PredictedImage(path, predictor.answering, guesses.get(i, []), reasons.get(i), classes)


@dataclass(frozen=True)
class PredictionRows:
    """The rows of predictions, as `vitkit.jobs.parts` computes them."""

    options: PredictOptions

    def open(self) -> "tuple[PartsRecord, ComputeRows]":
        """Load the model and list the images.

        Raises:
            VitkitError: as `predict_images`.
        """
        import pyarrow as pa

        from vitkit.jobs.parts import PartsRecord, part_rows

        options = self.options
        predictor, paths = _open(options)
        names = [os.fsencode(path).decode("utf-8", "backslashreplace") for path in paths]
        columns = pa.schema(
            {
                "image": pa.string(),
                "classes": pa.list_(pa.string()),
                "probabilities": pa.list_(pa.float64()),
                "error": pa.string(),
            }
        )

        def compute(first: int, last: int, progress: Callable[[int], None]) -> pa.Table:
            images: list[PredictedImage] = []
            for start in range(first, last, options.batch_size):
                batch = paths[start : min(start + options.batch_size, last)]
                images += _predict_batch(predictor, batch, options.top)
                progress(len(images))
            rows = {
                "image": names[first:last],
                "classes": [[guess.name for guess in image.guesses] for image in images],
                "probabilities": [[guess.probability for guess in image.guesses] for image in images],
                "error": [image.reason for image in images],
            }
            return pa.table(rows, columns)

        facts = {
            "model": _hash_model(options),
            "engine": options.engine,
            "precision": options.precision,
            "image_size": list(height_and_width(options.image_size) or ()),
            "max_pixels": predictor.preprocessing.decode.max_pixels,
            "images": _hash_images(paths),
            "top": options.top,
            "batch_size": options.batch_size,
        }
        return PartsRecord(facts, len(paths), part_rows(options.batch_size)), compute


def _hash_images(paths: Sequence[Path]) -> str:
    """Hash the places of images, their sizes and times of change: others are predicted anew."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            state = path.stat()
            facts = f"{state.st_size} {state.st_mtime_ns}"
        except (OSError, ValueError):
            facts = "missing"
        digest.update(os.fsencode(path.absolute()) + b"\0" + facts.encode() + b"\0")
    return digest.hexdigest()


def _hash_model(options: PredictOptions) -> str:
    """Hash a model: its weights, in however many files, its configuration, preprocessing and classes."""
    place = kind_of(options.path)
    if place.kind == "exported model":
        return hash_file(place.path / DESCRIPTION)[1]  # which holds the hashes of the graph
    from vitkit.runs.start import find_start, hash_weights

    start = find_start(StartConfig(str(options.path), num_heads=options.num_heads), place)
    facts = {
        "weights": sorted(hash_weights(start).values()),
        "config": to_json(start.config),
        "preprocessing": to_json(start.preprocessing),
        "class_names": start.card.class_names,
        "task": None if start.card.task is None else to_json(start.card.task),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def predict_to_files(options: PredictOptions) -> tuple[int, int, int]:
    """Name what is in images, and write it to Parquet files in the folder `out`.

    Their columns are image, classes, probabilities and error.

    Returns:
        The number of images, of those that could not be read, and of parts that were there before.

    Raises:
        VitkitError: as `predict_images`; or the folder holds something else.
    """
    import pyarrow.parquet as pq

    from vitkit.jobs.parts import computed_parts

    with computed_parts(Path(options.out or ""), PredictionRows(options), options) as (parts, continued):
        errors = [pq.read_table(part, columns=["error"])["error"] for part in parts]
    images = sum(len(column) for column in errors)
    return images, images - sum(column.null_count for column in errors), continued


class Predictor:
    """A model ready to name what is in an image, with the preprocessing it was trained with.

    >>> predictor = vitkit.Predictor("runs/digits")
    >>> predictor("scan.png")[0].name
    '7'

    `notes` holds what the user should know about the weights, as `vitkit.load_model` logs it.

    Raises:
        VitkitError: no checkpoint there, or a model that names no classes.
    """

    @method_from_options(PredictorOptions)
    def __init__(self, options: PredictorOptions) -> None:
        """Load a model, for predictions by PyTorch or by another engine."""
        ready = load_ready(
            options.path,
            options.load_options,
            device=options.device,
            engine=options.engine,
            precision=options.precision,
            exact=options.exact,
            phase="prediction",
        )
        self.notes, self.model = ready.notes, ready.model
        self.device, self.precision = ready.device, ready.precision
        self.answering = answering_of(self.model.card)
        reason = self.answering.explain_unfit(self.model.config)
        if reason:
            raise VitkitError(f"{options.path} {reason}.")
        self.preprocessing = preprocessing_of(self.model)
        if options.max_pixels is not None:
            rule = replace(self.preprocessing.decode, max_pixels=options.max_pixels)
            self.preprocessing = replace(self.preprocessing, decode=rule)
        count = self.model.config.num_classes
        self.class_names = self.model.card.class_names or tuple(f"class {i}" for i in range(count))

    def __repr__(self) -> str:
        name, classes = self.model.card.name, pluralize(len(self.class_names), "class", "classes")
        size = format_size(self.preprocessing.image_size)
        return f"<Predictor: {visible(name)}, {classes}, {size} pixels, on {self.device}>"

    def __call__(self, image: ImageLike, top: int = 5) -> list[Guess]:
        """Return the `top` most probable classes of one image, best first; all of them where an image has
        several labels, which are there from a probability of 0.5.

        Raises:
            DecodeError: the image cannot be read; the message names the file.
            VitkitError: it is no image, or the model's logits are not finite.
        """
        return self.many([image], top)[0]

    def many(self, images: Sequence[ImageLike], top: int = 5) -> list[list[Guess]]:
        """Do the same for several images at once: a list or tuple, an array or tensor of four dimensions."""
        if isinstance(images, str | bytes | os.PathLike | Image.Image) or getattr(images, "ndim", 4) != 4:
            raise VitkitError("many() takes several images: give a list, of one image too.")
        if top < 1:
            raise VitkitError(f"top is at least 1, found {top}.")
        if not len(images):
            return []
        pixels = np.stack([preprocess(self._pixels(image), self.preprocessing) for image in images])
        logits = self._logits(pixels.transpose(0, 3, 1, 2))
        wrong = int((~np.isfinite(logits).all(-1)).sum())
        if wrong:
            raise VitkitError(
                f"The model's logits are not finite (NaN or infinite) for {wrong} of {len(logits)} images, "
                "so it cannot name anything: its weights overflow or are damaged. Use another checkpoint."
            )
        return self.answering.guesses(logits, self.model.card, top)

    def _logits(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Compute the logits `(B, K)` of images `(B, C, H, W)`."""
        if isinstance(self.model, EngineModel):
            return self.model(images)
        import torch

        from vitkit.evaluation.run_model import output_function

        with output_function(self.model, torch.device(self.device), self.precision) as compute:
            return compute(torch.from_numpy(images))

    def _pixels(self, image: Any) -> NDArray[np.uint8]:
        """Return one image as `(height, width, C)`, whatever it is given as."""
        rule = self.preprocessing.decode
        if isinstance(image, Image.Image):
            return decode_image(image, rule)
        if _is_tensor(image):
            return _from_tensor(image, rule.channels)
        if isinstance(image, np.ndarray):
            return _from_array(image, rule.channels)
        if isinstance(image, str | os.PathLike):
            text = os.fspath(image)
            refuse_address(text)
            try:
                return decode(Path(text), rule)
            except DecodeError as error:
                raise DecodeError(f"{text}: {error}") from error
        if isinstance(image, bytes | bytearray | memoryview):
            return decode(bytes(image), rule)
        if hasattr(image, "read"):
            content = image.read()
            if not isinstance(content, bytes):
                raise VitkitError("The image is a file opened as text: open it as bytes, with mode 'rb'.")
            return decode(content, rule)
        several = " (many() takes several images)" if isinstance(image, list | tuple | set) else ""
        raise VitkitError(
            "An image is a path, the bytes of a file, a file opened with mode 'rb', a Pillow image, an array "
            f"or a tensor; found {type(image).__name__}{several}."
        )


def _is_tensor(image: object) -> "TypeGuard[torch.Tensor]":
    """Whether an image is a tensor; there are none where PyTorch was not imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(image, torch.Tensor)


def _from_array(image: NDArray[Any], channels: int) -> NDArray[np.uint8]:
    if image.dtype == np.uint8 and image.size:
        if image.ndim == 3 and image.shape[2] == channels:
            return image
        grey = image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image
        if grey.ndim == 2 and channels in (1, 3, 4):
            return from_rgb(np.repeat(grey[:, :, None], 3, axis=2), channels)
    raise VitkitError(
        f"An array is an image if it is (height, width, {channels}){_or_grey(channels)}, of uint8 in 0..255; "
        f"found {image.shape} of {image.dtype}."
    )


def _from_tensor(image: "torch.Tensor", channels: int) -> NDArray[np.uint8]:
    kind = str(image.dtype).removeprefix("torch.")
    if kind == "uint8" and image.numel():
        if image.ndim == 3 and image.shape[0] in (1, channels):
            return _from_array(image.permute(1, 2, 0).cpu().numpy(), channels)
        if image.ndim == 2:
            return _from_array(image.cpu().numpy(), channels)
    raise VitkitError(
        f"A tensor is an image if it is ({channels}, height, width){_or_grey(channels)}, of uint8 in 0..255; "
        f"found {tuple(image.shape)} of {kind}."
    )


def _or_grey(channels: int) -> str:
    return ", or (height, width) of grey" if channels in (1, 3, 4) else ""
