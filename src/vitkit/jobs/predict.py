"""Predict the classes of images: `vitkit.Predictor` for a program, `predict_images` for many files."""

import base64
import hashlib
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack, overload
from urllib.parse import unquote_to_bytes

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.config import to_json
from vitkit.data.channels import from_rgb, from_units
from vitkit.data.decode.image import decode, decode_image
from vitkit.data.layouts.image_paths import NamedImage, find_images, refuse_address
from vitkit.data.transforms import preprocess
from vitkit.durable import hash_file
from vitkit.engines import folder, libraries
from vitkit.errors import DecodeError, VitkitError
from vitkit.evaluation.refusal import FEWEST, choose_share, typicality
from vitkit.jobs import engines, options
from vitkit.jobs.options import Cluster, ModelOptions, StrPath, StrPaths
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.result import Result
from vitkit.runs.config import StartConfig
from vitkit.runs.folder import kind_of
from vitkit.tasks import Answering, answering_of
from vitkit.tasks.answering import Answer
from vitkit.text import format_size, pluralize

if TYPE_CHECKING:
    import torch

    from vitkit.jobs.parts import Rows
    from vitkit.models.image_model import ImageModel

ImageLike: TypeAlias = (
    "str | os.PathLike[str] | bytes | IO[bytes] | Image.Image | NDArray[Any] | torch.Tensor"
)
"""A path, an address `data:image/...`, the bytes of a file, a file opened for reading bytes, a Pillow image,
or an array (height, width, C), (C, height, width) or (height, width), or a tensor of the same, with the C
channels of the model: of uint8, or with `unit_range` of floats from 0 to 1."""
Pixels: TypeAlias = NDArray[np.uint8]
MANY = 32
"""Images from which on it pays to compile the kernels of a prediction, which takes some two seconds."""
ENGINE_PAYS = 200
"""Images from which on OpenVINO is faster than PyTorch with the graph that it has to make: from 135 with
ViT-B/16 to 250 with ViT-Ti/16 (a core of a Zen 4, 24 November 2026)."""
READERS = 2
"""Threads that read images beside the computing: each has one whole photo in memory."""
CountDone: TypeAlias = Callable[[int], None]
"""A function that is called with the number of images that are done."""
SeveralImages: TypeAlias = "Sequence[ImageLike] | NDArray[Any] | torch.Tensor"
"""Several images, or an array or a tensor of four dimensions."""


@dataclass(frozen=True)
class PredictedImage:
    """An image and its guesses, or the reason why it cannot be read."""

    path: Path
    """Its file, or its place in an archive or a Parquet file: photos.zip/cats/1.jpg."""
    answering: Answering
    """The answering half of the model's task, which prints the guesses."""
    guesses: Answer
    """The most probable classes, best first, and whether it is none of them; none for a file that cannot be
    read."""
    reason: str | None = None
    """Why the file cannot be read; None if it can."""
    engine: str = "torch"
    """The program that computed them."""
    classes: int = 0
    """The number of the model's classes, of which `guesses` has the most probable."""

    @property
    def name(self) -> str:
        """Return the path as text; bytes that are not UTF-8 are shown as \\xff."""
        return os.fsencode(self.path).decode("utf-8", "backslashreplace")


def predict_images(
    path: StrPath,
    images: StrPaths,
    *,
    top: int = 5,
    refuse: float | None = None,
    batch_size: int = 32,
    out: StrPath | None = None,
    on: Cluster = "here",
    processes: int = 1,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
    **model: Unpack[ModelOptions],
) -> Generator[PredictedImage] | tuple[int, int, int]:
    """Name what is in images.

    Args:
        path: a run folder, any checkpoint that `vitkit convert` reads, or a folder of `vitkit export`.
        images: image files, folders, .zip or .tar files, Parquet files, a .csv of paths; or - for a list of
            paths on standard input.
        top: number of classes to name for each image; a multi-label model always names all labels.
        refuse: share of the model's own images that may be refused as none of its classes; left out, 0.02, or
            the smallest share that its held-out images can keep; 0 refuses nothing.
        batch_size: images that are read and computed at a time.
        out: folder of .parquet files for the predictions, in place of printing them. The same command again
            continues there.
        on: here: this process; ray: the processes of a Ray cluster, which RAY_ADDRESS names, else of this
            machine (the extra ray). All machines must see the images, the model and the files that are
            written.
        processes: processes on Ray, each with a GPU or a processor core of its own.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.
        model: as for `vitkit.evaluate`.

    Returns:
        The images with their guesses, one by one; with `out` the number of images, of unreadable ones, and of
        parts that were there before. The files have the columns image, classes, probabilities and error.

    Raises:
        VitkitError: there is no such model, it cannot classify, or an image is given by its web address; or
            the folder holds something else. A file that cannot be read is no error: it has the reason.
    """
    options.require_at_least(1, top=top, batch_size=batch_size)
    listener = hushed(listener, quiet)
    if out is not None:
        from vitkit.jobs.parts import computed_parts, read_part

        if Path(out).suffix.lower() in options.SINGLE_FILES:
            raise VitkitError(
                f"For predictions --out takes a folder for .parquet files, found {out}, the name of a single "
                "file: give the name of a folder."
            )
        rows = partial(open_rows, path, images, top, refuse, batch_size, model)
        with computed_parts(Path(out), rows, listener, on, processes) as (parts, continued):
            errors = [read_part(part, ["error"])["error"] for part in parts]
        count = sum(map(len, errors))
        return count, count - sum(column.null_count for column in errors), continued
    if (on, processes) != ("here", 1):
        raise VitkitError("On a cluster predictions are written to files: give --out FOLDER.")
    predictor, named = _open(path, images, refuse, listener, model)

    def predicted() -> Generator[PredictedImage]:
        with listener.progress("predicting", len(named)) as progress:
            yield from predict_named(predictor, named, top, batch_size, progress)

    return predicted()


def _open(
    path: StrPath, images: StrPaths, refuse: float | None, listener: Listener, model: ModelOptions
) -> "tuple[Predictor, list[NamedImage]]":
    """Load the model, and list the images."""
    if not (names := options.as_names(images)):
        raise VitkitError("Which model, and which images? vitkit predict MODEL IMAGE... (- for a list)")
    named, unlisted = list[NamedImage](), None
    try:
        with listener.progress("listing images"):
            named = list(find_images(names))
    except VitkitError as error:
        unlisted = error  # what there is to say of the model comes first
    few, chosen = len(named) < MANY, _choose_engine(path, len(named), model)
    try:
        ready = engines.load_ready(path, "prediction", few=few, **chosen)
    except VitkitError as error:
        if chosen == model:
            raise
        listener.note(f"{path}: OpenVINO is not used: {error}")
        chosen, ready = model, engines.load_ready(path, "prediction", few=few, **model)
    if chosen != model:
        listener.note("OpenVINO computes these in float32; --engine torch has PyTorch do it.")
    predictor = Predictor(ready, refuse=refuse)
    for note in predictor.notes:
        listener.note(f"{path}: {note}.")
    if unlisted is not None:
        raise unlisted
    return predictor, named


def _choose_engine(path: StrPath, count: int, model: ModelOptions) -> ModelOptions:
    """Choose OpenVINO where it is installed, nothing else was asked for, and the images are enough to pay."""
    given = {"engine", "exact", "precision", "device"}.intersection(
        name for name, value in model.items() if value not in (None, False, "auto")
    )
    if (
        given
        or count < ENGINE_PAYS
        or find_spec("openvino") is None
        or kind_of(path).kind == "exported model"
    ):
        return model
    from vitkit.runs.machine import find_device

    return model if find_device("auto").type != "cpu" else {**model, "engine": "openvino"}


def predict_named(
    predictor: "Predictor", images: Sequence[NamedImage], top: int, batch_size: int, progress: CountDone
) -> Iterator[PredictedImage]:
    """Predict the readable images of each batch all at once; while it is computed, the next one is read."""
    classes, rule = len(predictor.class_names), predictor.preprocessing
    has_levels = predictor.card.levels is not None

    def read(image: NamedImage) -> Pixels | DecodeError:
        try:
            # Shrunk at once: as many large photos are in memory as threads read them.
            return preprocess(decode(image.content(), rule.decode), rule)
        except DecodeError as error:
            return error

    # Decoding and resizing release Python's lock. Archives and Parquet files have one reader.
    threads = READERS if all(image.files is None for image in images) else 1
    with closing(_read_ahead(images, batch_size, read, threads)) as batches:
        for start, results in zip(range(0, len(images), batch_size), batches, strict=True):
            readable = [pixels for pixels in results if isinstance(pixels, np.ndarray)]
            guesses = iter(predictor.guess(readable, top) if readable else [])
            for image, pixels in zip(images[start : start + batch_size], results, strict=True):
                is_bad = isinstance(pixels, DecodeError)
                unread = Answer([], has_levels=has_levels), str(pixels)
                answer, reason = unread if is_bad else (next(guesses), None)
                engine = predictor.engine
                yield PredictedImage(image.path, predictor.answering, answer, reason, engine, classes)
            progress(start + len(results))


Given = TypeVar("Given")
Read = TypeVar("Read")


def _read_ahead(
    images: Iterable[Given], batch_size: int, read: Callable[[Given], Read], threads: int = 1
) -> Generator[list[Read]]:
    """Yield what is read of each batch of images; the next batch is read while the caller computes one."""
    given, readers = iter(images), ThreadPoolExecutor(threads)
    most = min(batch_size, sys.maxsize)  # `islice` counts no further
    try:
        following = [readers.submit(read, image) for image in islice(given, most)]
        while following:
            batch, following = following, [readers.submit(read, image) for image in islice(given, most)]
            yield [future.result() for future in batch]
    finally:  # after Ctrl-C, or where nobody wants more, no other photo is read
        readers.shutdown(cancel_futures=True)


def open_rows(
    path: StrPath,
    paths: StrPaths,
    top: int,
    refuse: float | None,
    batch_size: int,
    model: ModelOptions,
    listener: Listener,
) -> "Rows":
    """Load the model and list the images of a table of predictions.

    Raises:
        VitkitError: as `predict_images`.
    """
    import pyarrow as pa

    from vitkit.jobs.parts import PartsRecord, part_rows

    predictor, images = _open(path, paths, refuse, listener, model)
    text, numbers = pa.string(), pa.list_(pa.float64())
    fields = {"image": text, "classes": pa.list_(text), "probabilities": numbers, "error": text}
    fields |= {"none_of_these": pa.bool_(), "typicality": pa.float64()}
    columns = pa.schema({**fields, "answer": text, "answer_probability": pa.float64(), "level": pa.int64()})

    def compute(first: int, last: int, progress: CountDone) -> pa.Table:
        predicted = list(predict_named(predictor, images[first:last], top, batch_size, progress))
        rows = {
            "image": [image.name for image in predicted],
            "classes": [[guess.name for guess in image.guesses] for image in predicted],
            "probabilities": [[guess.probability for guess in image.guesses] for image in predicted],
            "error": [image.reason for image in predicted],
            "none_of_these": [
                None if image.guesses.typicality is None else image.guesses.refused for image in predicted
            ],
            "typicality": [image.guesses.typicality for image in predicted],
            "answer": [getattr(image.guesses.sure, "name", None) for image in predicted],
            "answer_probability": [getattr(image.guesses.sure, "probability", None) for image in predicted],
            "level": [image.guesses.level if image.reason is None else None for image in predicted],
        }
        return pa.table(rows, columns)

    digest = hashlib.sha256()  # of the paths of images, and the sizes and times of change of their files
    for image in images:
        try:
            state = image.holder.stat()
            version = f"{state.st_size} {state.st_mtime_ns}"
        except (OSError, ValueError):
            version = "missing"
        digest.update(os.fsencode(image.path.absolute()) + b"\0" + version.encode() + b"\0")
    facts = {
        "model": _hash_model(path, model.get("num_heads")),
        "engine": predictor.engine,
        "precision": model.get("precision", "auto"),
        "image_size": list(predictor.preprocessing.image_size),
        "position_interpolation": model.get("position_interpolation"),
        "max_pixels": predictor.preprocessing.decode.max_pixels,
        "images": digest.hexdigest(),
        "top": top,
        "refuse": predictor.refuse,
        "batch_size": batch_size,
    }
    return PartsRecord(facts, len(images), part_rows(batch_size)), columns, compute


def _hash_model(path: StrPath, num_heads: int | None) -> str:
    """Hash a model: its weights, configuration, preprocessing, classes and task."""
    place = kind_of(path)
    if place.kind == "exported model":
        # The description holds the hashes of the graph.
        return hash_file(place.path / libraries.DESCRIPTION)[1]
    from vitkit.runs.start import find_start, hash_weights

    start = find_start(StartConfig(str(path), num_heads=num_heads), place)
    facts = {
        "weights": sorted(hash_weights(start).values()),
        "config": to_json(start.config),
        "preprocessing": to_json(start.preprocessing),
        "class_names": start.card.class_names,
        "task": None if start.card.task is None else to_json(start.card.task),
        "refusal": None if start.card.refusal is None else to_json(start.card.refusal),
        "levels": None if start.card.levels is None else to_json(start.card.levels),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class Predictor(Result):
    """A model that predicts the classes of images, with the preprocessing it was trained with.

    >>> predictor = vitkit.Predictor("runs/digits")
    >>> predictor("scan.png")[0].name
    '7'
    >>> [guesses[0].name for guesses in predictor(["one.png", "two.png"])]
    ['1', '2']

    `notes` holds remarks on the weights, which are logged as `vitkit.load_model` logs them.

    Raises:
        VitkitError: there is no checkpoint, the model has no classes, or `class_names` has another number.
    """

    def __init__(
        self,
        path: "StrPath | ImageModel | engines.Ready",
        *,
        class_names: Sequence[str] | None = None,
        refuse: float | None = None,
        **model: Unpack[ModelOptions],
    ) -> None:
        """Load a model, for predictions by PyTorch or by another engine.

        Args:
            path: a run folder, any checkpoint that `vitkit convert` reads, or a folder of `vitkit export`; or
                a model of `create_model` or `load_model`, which computes as it stands and where it stands; or
                what `vitkit.jobs.engines.load_ready` made ready.
            class_names: names of the classes in the order of the outputs; left out, the names that the model
                was saved with.
            refuse: share of the model's own images that may be refused as none of its classes, as for
                `vitkit.predict_images`; `refused` of an answer says so.
            model: as for `vitkit.evaluate`.
        """
        if isinstance(path, engines.Ready):
            ready = path
        elif isinstance(path, str | os.PathLike):
            ready = engines.load_ready(path, "prediction", few=True, **model)
        else:
            ready = engines.take_built(path, **model)
        self.notes, self.model = ready.notes, ready.model
        self.device, self.precision = ready.device, ready.precision
        self.engine = ready.engine
        self.answering = answering_of(self.model.card)
        self.preprocessing = ready.preprocessing
        count = self.model.config.num_classes
        self.card = self.model.card
        if class_names is not None:
            # Other names need not be paths in a tree.
            self.card = replace(self.card, class_names=tuple(class_names), levels=None)
            if len(self.card.class_names) != count:
                raise VitkitError(
                    f"Expected the names of {count} classes, found {len(self.card.class_names)}: give one "
                    "for each output, in their order."
                )
        self.class_names = self.card.class_names or tuple(f"class {i}" for i in range(count))
        if self.card.refusal is not None:
            self.refuse = choose_share(self.card.refusal, refuse)
        else:
            self.refuse = 0.0
            if refuse:
                self.require_refusal()

    def require_refusal(self) -> None:
        """Refuse a model that has not learned which images are none of its classes."""
        if self.card.refusal is None:
            raise VitkitError(
                "This model has not learned which images are none of its classes, so it refuses none: vitkit "
                f"train and finetune teach it, where {FEWEST} images or more, of one class each, are held "
                "out. Leave refuse (--refuse) and others (--others) out."
            )

    def summary(self) -> str:
        """Describe the model, its number of classes, its image size and its device."""
        name, classes = self.model.card.name, pluralize(len(self.class_names), "class", "classes")
        return f"{name}, {classes}, {format_size(self.preprocessing.image_size)} pixels, on {self.device}"

    @overload
    def __call__(
        self, image: list[Any] | tuple[Any, ...], top: int = 5, *, unit_range: bool = False
    ) -> list[Answer]: ...
    @overload
    def __call__(self, image: ImageLike, top: int = 5, *, unit_range: bool = False) -> Answer: ...
    @overload
    def __call__(
        self, image: Generator[Any], top: int = 5, *, unit_range: bool = False
    ) -> Iterator[Answer]: ...
    def __call__(self, image: Any, top: int = 5, *, unit_range: bool = False) -> Any:
        """Return the `top` most probable classes of an image, best first; a multi-label model returns all
        labels, of which the ones with a probability of 0.5 or more are predicted.

        A list or tuple of images gives a list of such answers, a generator gives a generator of answers
        (`stream`), and `many` takes an array or tensor of several images.

        Args:
            image: a path, an address `data:image/...`, the bytes of a file, a file that was opened as bytes,
                a Pillow image, an array or a tensor; or several of them.
            top: number of classes.
            unit_range: whether arrays and tensors hold floats from 0 to 1, in place of uint8 from 0 to 255.

        Raises:
            DecodeError: an image cannot be read; the message names the file.
            VitkitError: it is no image, or the model's logits are not finite.
        """
        if isinstance(image, list | tuple):
            return list(self.stream(image, top, unit_range=unit_range))
        if isinstance(image, Iterator) and not hasattr(image, "read"):
            return self.stream(image, top, unit_range=unit_range)
        return self.many([image], top, unit_range=unit_range)[0]

    def many(self, images: SeveralImages, top: int = 5, *, unit_range: bool = False) -> list[Answer]:
        """Return the classes of several images at once: a list, a tuple, or an array of four dimensions."""
        _check_arguments(images, top, "many")
        return self.guess(self._read(images, unit_range), top) if len(images) else []

    def stream(
        self,
        images: "SeveralImages | Iterable[ImageLike]",
        top: int = 5,
        *,
        batch_size: int = 32,
        unit_range: bool = False,
    ) -> Iterator[Answer]:
        """Yield the classes of any number of images, from a generator say, with two batches in memory.

        While a batch is computed, the next one is decoded. The generator runs in the caller's thread, two
        batches ahead: `batch_size=1` answers soonest.
        """
        _check_arguments(images, top, "stream")
        options.require_at_least(1, batch_size=batch_size)

        def read(image: ImageLike) -> Pixels:
            return preprocess(self._pixels(image, unit_range), self.preprocessing)

        def predicted() -> Iterator[Answer]:
            with closing(_read_ahead(images, batch_size, read)) as batches:
                for pixels in batches:
                    yield from self.guess(pixels, top)

        return predicted()

    def guess(self, pixels: Sequence[Pixels], top: int) -> list[Answer]:
        """Compute the guesses of preprocessed images."""
        return self.answers(self.compute(np.stack(pixels).transpose(0, 3, 1, 2)), top)

    def compute(self, images: Pixels) -> NDArray[np.float32]:
        """Compute the logits of preprocessed images `(B, C, H, W)`, `(B, K)`, with the scores of a model that
        has a `Novelty` behind them `(B, K + 1)`."""
        if isinstance(self.model, folder.EngineModel):
            return self.model.with_novelty(images)
        import torch

        from vitkit.evaluation.run_model import output_function

        device = torch.device(self.device)
        with output_function(self.model, device, self.precision, novelty=True) as compute:
            return compute(torch.from_numpy(images))()

    def answers(self, outputs: NDArray[np.float32], top: int) -> list[Answer]:
        """Turn outputs of `compute` into the guesses of each image.

        Raises:
            VitkitError: logits are not finite.
        """
        logits, scores = np.split(outputs, [self.model.config.num_classes], axis=1)
        if damaged := int((~np.isfinite(logits).all(-1)).sum()):
            raise VitkitError(
                f"The model's logits are not finite (NaN or infinite) for {damaged} of {len(logits)} images, "
                "so it cannot name anything: its weights overflow or are damaged. Use another checkpoint."
            )
        guesses, sure = self.answering.guesses(logits, self.card, top), self.answering.sure(logits, self.card)
        typical = [None] * len(logits)
        if self.card.refusal is not None and scores.size:
            typical = typicality(scores[:, 0], self.card.refusal.scores).tolist()
        has_levels = self.card.levels is not None
        return [
            Answer(each, own, self.refuse, of_level, has_levels)
            for each, own, of_level in zip(guesses, typical, sure, strict=True)
        ]

    def _read(self, images: Iterable[Any], unit_range: bool) -> list[Pixels]:
        """Preprocess images: `(height, width, C)` at the model's size."""
        return [preprocess(self._pixels(image, unit_range), self.preprocessing) for image in images]

    def _pixels(self, image: Any, unit_range: bool) -> Pixels:
        """Return the pixels `(height, width, C)` of an image that is given in any of the ways."""
        rule = self.preprocessing.decode
        if isinstance(image, Image.Image):
            return decode_image(image, rule)
        torch = sys.modules.get("torch")  # there are no tensors where it was not imported
        if torch is not None and isinstance(image, torch.Tensor):
            image = image.detach().cpu()
            if image.is_floating_point() and image.dtype.itemsize < 4:
                image = image.float()  # numpy has no bfloat16
            return _from_array(image.numpy(), rule.channels, unit_range, channels_first=True)
        if isinstance(image, np.ndarray):
            return _from_array(image, rule.channels, unit_range, channels_first=False)
        if isinstance(image, str) and image[:5].lower() == "data:":
            return decode(_data_of(image), rule)
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
        raise VitkitError(
            "An image is a path, an address data:image/..., the bytes of a file, a file opened with mode "
            f"'rb', a Pillow image, an array or a tensor; found {type(image).__name__}."
        )


def _check_arguments(images: Any, top: int, function: str) -> None:
    """Refuse a single image, whose rows or letters would be taken for images."""
    one_image = (str, bytes, bytearray, os.PathLike, Image.Image)
    if isinstance(images, one_image) or hasattr(images, "read") or getattr(images, "ndim", 4) != 4:
        raise VitkitError(f"{function}() takes several images: give a list, of one image too.")
    if function == "many" and not hasattr(images, "__len__"):
        raise VitkitError("many() takes a list: give a generator to stream().")
    options.require_at_least(1, top=top)


def _data_of(address: str) -> bytes:
    """Return the bytes in an address `data:image/png;base64,...` (RFC 2397).

    Raises:
        DecodeError: the address has no bytes, or no valid base64.
    """
    head, comma, body = address.partition(",")
    content = unquote_to_bytes(body)
    if head.lower().endswith(";base64"):
        try:
            content = base64.b64decode(content, validate=True)
        except ValueError as error:
            raise DecodeError(f"the address {address[:40]}... holds no base64: {error}") from error
    if not comma or not content:
        raise DecodeError(f"the address {address[:40]} holds no image: expected data:image/png;base64,...")
    return content


def _from_array(image: NDArray[Any], channels: int, unit_range: bool, channels_first: bool) -> Pixels:
    """Return an array, or the numbers of a tensor, as `(height, width, C)` of uint8."""
    if image.size and (unit_range or image.dtype == np.uint8):
        # Where both ends could be channels, tensors have them first and arrays last.
        ends = (0, 2) if channels_first else (2, 0)
        ordered = image[:, :, None] if image.ndim == 2 else None
        if image.ndim == 3:
            axes = [end for count in (channels, 1) for end in ends if image.shape[end] == count]
            ordered = np.moveaxis(image, axes[0], 2) if axes else None
        if ordered is not None:
            levels = from_units(ordered) if unit_range else ordered
            if levels.shape[2] == channels:
                return levels
            if channels in (1, 3, 4):
                return from_rgb(np.repeat(levels, 3, axis=2), channels)
    order = f"({channels}, height, width)" if channels_first else f"(height, width, {channels})"
    grey = ", or (height, width) of grey" if channels in (1, 3, 4) else ""
    raise VitkitError(
        f"{'A tensor' if channels_first else 'An array'} is an image if it is {order}{grey}, of uint8 in "
        f"0..255, or with unit_range=True of floats in 0..1; found {image.shape} of {image.dtype}."
        + (" many() takes several images." if image.ndim == 4 else "")
    )
