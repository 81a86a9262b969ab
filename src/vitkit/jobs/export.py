"""Export a model to an inference engine: a folder with a graph, which predicts and evaluates.

The engine's logits are compared with PyTorch's before anything is left on the disk, on the run's own images
if its card records them. int8 is calibrated on real images, and its answers are compared on others.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.data.config import Preprocessing, Splits
from vitkit.data.decode.image import decode
from vitkit.data.layouts.folders import image_files
from vitkit.data.layouts.image_paths import refuse_address
from vitkit.data.paths import expand_home
from vitkit.data.sources import ImageData, Samples
from vitkit.data.transforms import preprocess
from vitkit.engines.agreement import LOWEST_AGREEMENT, Agreement, Nearness, compare_logits
from vitkit.engines.engine_model import Runner, describe_gelu
from vitkit.engines.folder import write_description
from vitkit.engines.graph import example_images
from vitkit.engines.libraries import EnginePrecision, GraphEngine, GraphFormat, refuse_precision
from vitkit.engines.serving import COMPARED, MADE_UP, make_runner, refuse_model, require_same
from vitkit.errors import DecodeError, VitkitError
from vitkit.evaluation.run_model import evaluation_mode
from vitkit.jobs.options import LoadingOptions, StrPath, require_at_least
from vitkit.listener import SILENT, Listener, hushed
from vitkit.models.config.compute_config import PLAIN
from vitkit.models.fast import compute_as
from vitkit.models.image_model import ImageModel
from vitkit.notebook import AUTOMATIC
from vitkit.result import Block, Facts, Result
from vitkit.runs.folder import beside, refuse_taken
from vitkit.runs.start import load_any
from vitkit.runs.trained_model import open_model_data
from vitkit.tasks import answering_of, task_of
from vitkit.text import without_places
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.model_card import card_of, preprocessing_of

FEWEST_IMAGES = 10
"""The fewest images to calibrate on and to check with: fewer say nothing of ranges or agreement."""
CHECK_BATCH = 32
"""Images that are compared at a time."""
SPLITS = {"test": "test", "val": "validation", "train": "training"}
"""The names of splits in sentences."""

Pixels = NDArray[np.uint8]
Unread = Callable[[], Pixels]
"""A function that decodes an image, `(height, width, C)`, or raises DecodeError."""


@dataclass(frozen=True)
class CalibrationImages:
    """The images of a model's size, each `(1, C, H, W)`."""

    calibration: tuple[Pixels, ...]
    check: tuple[Pixels, ...]
    """Other images than the calibration's."""
    source: str
    """The images of the calibration, as a phrase."""
    check_source: str
    """The images of the check, as a phrase without their number."""


@dataclass(frozen=True, repr=False)
class Exported(Result):
    """The result of an export."""

    source: str
    """The path or the address of the model."""
    path: Path
    """The folder written."""
    engine: GraphEngine
    """The engine that computes it."""
    precision: EnginePrecision
    agreement: Agreement | None
    """The comparison of the answers with float32's; None without images, which int8 alone needs."""
    nearness: Nearness | None
    """The distance of the logits from PyTorch's; None for int8, whose answers are compared."""
    calibration: str | None
    """The images that int8 was calibrated on, as a phrase."""
    notes: tuple[str, ...]
    """Remarks on the source, as `load_model` logs them."""
    departure: str | None
    """A sentence on the operation that the engine computes in another form than the model; None for none."""

    def summary(self) -> str:
        """Name the folder, the precision and the engine."""
        return f"{self.path} ({self.precision} by {self.engine})"

    def blocks(self) -> Sequence[Block]:
        """Return the remarks, and how the graph compares with the model."""
        rows = [("note", [f"{self.source}: {note}"]) for note in self.notes]
        facts = {
            "images": self.calibration and f"calibrated on {self.calibration}",
            "checked": self.nearness,
            "same": self.agreement,
            "note": self.departure,
            "to": self.summary(),
        }
        return (Facts((*rows, *((heading, [str(fact)]) for heading, fact in facts.items() if fact))),)

    def following(self) -> Sequence[str]:
        """Return the command that predicts by the graph."""
        return (f"vitkit predict {shlex.quote(str(self.path))} IMAGE_OR_FOLDER",)


def export(
    source: StrPath,
    out: StrPath,
    *,
    format: GraphFormat = "openvino",
    precision: EnginePrecision = "float32",
    calibration: str | None = None,
    calibration_images: int = 300,
    check_images: int = 500,
    accept_change: bool = False,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
    **load: Unpack[LoadingOptions],
) -> Exported:
    """Write a model for an inference engine, OpenVINO or ONNX Runtime, into a folder that predict and
    evaluate read.

    Args:
        source: a run folder, a checkpoint file or folder of any library, or an address (hf:OWNER/NAME,
            https://...).
        out: folder of the graph, which must not exist yet.
        format: format of the graph, and so the engine that computes it: openvino (the extra openvino), or
            onnx (the extra onnxruntime).
        precision: numbers of matrix products: float32, bfloat16 or int8. OpenVINO has all three; int8 is
            calibrated on images.
        calibration: images for int8, like the images it will see: a folder of images, labels or not, or any
            data to train on; left out, the training images of a run. Some of them are kept apart to compare
            int8 with float32.
        calibration_images: most images to measure ranges on.
        check_images: most other images to compare the result with float32 on.
        accept_change: keep a result that answers otherwise than float32 on more than 1 % of the images.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.
        load: how the checkpoint is read, as `vitkit.jobs.options.LoadingOptions` describes it. The graph is
            for images of one size.

    Raises:
        VitkitError: the engine is not installed or cannot compute the model; there are too few images; or the
            engine answers otherwise than float32. Nothing is left at `out` then.
    """
    require_at_least(FEWEST_IMAGES, calibration_images=calibration_images, check_images=check_images)
    listener, out = hushed(listener, quiet), Path(out)
    engine: GraphEngine = "onnxruntime" if format == "onnx" else "openvino"
    refuse_taken(out)
    refuse_precision(engine, precision)
    loaded = load_any(source, LoadOptions(**load))
    model = loaded.model
    reason = answering_of(model.card).explain_unfit(model.config)
    if reason:
        raise VitkitError(f"{source} {reason}.")
    refuse_model(engine, model.config)
    images = None
    if precision == "int8" or calibration is not None:
        images = read_calibration(model, calibration, calibration_images, check_images, listener)
    calibrated = images if precision == "int8" else None
    with beside(out) as place:
        folder = place / out.name
        folder.mkdir()
        with listener.progress(f"making the graph of {engine}"):
            ranges = () if calibrated is None else calibrated.calibration
            runner = make_runner(model, engine, precision, torch.get_num_threads(), folder, ranges)
        agreement = nearness = None
        if precision != "int8":
            compared, pixels = _images_to_compare(model, images, listener)
            nearness = require_same(model, runner, engine, precision, pixels, compared)
        if images is not None:
            agreement = measure(model, runner, images.check, listener)
            _refuse_change(agreement, precision, out, accept_change, listener)
        calibration_source = None if calibrated is None else calibrated.source
        write_description(folder, model, engine, precision, agreement, nearness, calibration_source)
        refuse_taken(out)
        folder.rename(out)
    departure = describe_gelu(model.config, precision)
    return Exported(
        str(source), out, engine, precision, agreement, nearness, calibration_source, loaded.notes, departure
    )


def _images_to_compare(
    model: ImageModel, given: CalibrationImages | None, listener: Listener
) -> tuple[str, NDArray[np.uint8]]:
    """Choose images to compare logits with PyTorch's on: given, else the run's own, else made up.

    The run's own are of its test split if there is one. Where they cannot be read any more, the listener
    hears it.

    Returns:
        A phrase for the images, and their pixels `(N, C, H, W)`.
    """
    if given is not None:
        return given.check_source, np.concatenate(given.check[:COMPARED])
    record = card_of(model).data
    if record is not None and record.has_place:
        try:
            with listener.progress("listing images"):
                named, images = _own_images(open_model_data(model))
            rule = preprocessing_of(model)
            if own := _read(images, COMPARED, rule, "reading images to compare on", listener):
                return named, np.concatenate(own)
        except (VitkitError, OSError) as error:
            listener.note(f"The images that the model was trained with cannot be compared on: {error}")
    return MADE_UP, example_images(model, COMPARED).numpy()


def measure(
    model: ImageModel, runner: Runner, images: Sequence[NDArray[np.uint8]], listener: Listener = SILENT
) -> Agreement:
    """Compare an engine with the model in float32, computed in the plain way.

    Args:
        model: the model of the engine's graph.
        runner: the engine.
        images: `(1, C, H, W)` each.
        listener: hears the progress.

    Raises:
        VitkitError: logits are not finite.
    """
    outputs, expected = [], []
    compute_as(model, PLAIN)
    with (
        evaluation_mode(model),
        listener.progress("comparing with float32", len(images)) as progress,
    ):
        for start in range(0, len(images), CHECK_BATCH):
            batch = np.concatenate(images[start : start + CHECK_BATCH])
            outputs.append(runner(batch))
            expected.append(model(torch.from_numpy(batch)).numpy())
            progress(start + len(batch))
    logits, plain = np.concatenate(outputs), np.concatenate(expected)
    if not (np.isfinite(logits).all() and np.isfinite(plain).all()):
        raise VitkitError(
            "Logits are not finite (NaN or infinite), so nothing can be compared: the weights overflow or "
            "are damaged. Nothing was written."
        )
    answers = answering_of(model.card).answers
    return compare_logits(logits, plain, answers(logits), answers(plain))


def _refuse_change(
    agreement: Agreement, precision: EnginePrecision, out: Path, accept_change: bool, listener: Listener
) -> None:
    """Refuse a result that answers otherwise than float32 too often, unless the caller accepts it.

    Raises:
        VitkitError: it answers otherwise on more than 1 %, and `accept_change` is off.
    """
    if agreement.fraction_same >= LOWEST_AGREEMENT:
        return
    difference = f"In {precision} it is another model: {agreement}; expected {LOWEST_AGREEMENT:.0%} or more"
    if not accept_change:
        raise VitkitError(
            f"{difference}. Nothing is left at {out}. Give more images like those it will see with "
            "--calibration, take bfloat16 or float32, or add --accept-change to keep it."
        )
    listener.warn(f"{difference}, kept because of --accept-change.")


def read_calibration(
    model: ImageModel, spec: str | None, count: int, check_count: int, listener: Listener
) -> CalibrationImages:
    """Draw images for calibration and for checking, the same at every call, and read them.

    Data with a test or validation split is checked on that split; of other data some images are kept apart.

    Args:
        model: the model.
        spec: the images; None for those that it was trained on.
        count, check_count: most images to calibrate on and to check with.
        listener: hears the progress.

    Raises:
        VitkitError: there are no images, or too few that can be read.
    """
    with listener.progress("listing images"):
        name, samples, apart, check_source = _list(model, spec)
    rule = preprocessing_of(model)
    if apart:
        calibration = _read(samples, count, rule, "reading images to calibrate on", listener)
        check = _read(apart, check_count, rule, "reading images to check with", listener)
    else:
        together = count + check_count
        pixels = _read(samples, together, rule, "reading images to calibrate on and to check with", listener)
        cut = len(pixels) * count // together
        calibration, check = pixels[:cut], pixels[cut:]
    if min(len(calibration), len(check)) < FEWEST_IMAGES:
        raise VitkitError(
            f"Expected at least {FEWEST_IMAGES} readable images to calibrate on and {FEWEST_IMAGES} others "
            f"to check with, found {len(calibration)} and {len(check)} in {name}. Give more images with "
            "--calibration."
        )
    source = f"{len(calibration):,} images of {without_places(name)}"
    return CalibrationImages(tuple(calibration), tuple(check), source, check_source)


def _own_images(data: ImageData) -> tuple[str, list[Unread]]:
    split = next(split for split in ("test", "val", "train") if split in data.splits)
    return f"{SPLITS[split]} images of {data.name}", _unread(data.splits[split])


def _list(model: ImageModel, spec: str | None) -> tuple[str, list[Unread], list[Unread], str]:
    """List the images to calibrate on, and the images of a test or validation split, if there is one.

    Returns:
        A phrase for the images to calibrate on, these images, the images to check on, and a phrase for them.
    """
    rule = preprocessing_of(model).decode
    if spec is None:
        record = card_of(model).data
        if record is None or not record.has_place:
            raise VitkitError(
                "The model does not say where the images are that it was trained on, and int8 is calibrated "
                "on images: give a folder of some hundred like those it will see with --calibration."
            )
        data = open_model_data(model)
        name = f"the training images of {data.name}"
    else:
        refuse_address(spec)
        files = image_files(expand_home(spec)) if expand_home(spec).is_dir() else []
        if files:
            source = f"images of {without_places(spec)}"
            return spec, [partial(decode, path, rule) for path in sorted(files)], [], source
        whole = Splits(val_fraction=0, test_fraction=0)
        data, name = task_of(model.card).learning.open_data(spec, whole, rule), spec
    check_source, apart = _own_images(data)
    if not {"test", "val"} & data.splits.keys():
        apart = []
    return name, _unread(data.splits["train"]), apart, check_source


def _unread(samples: Samples) -> list[Unread]:
    return [partial(samples.decode, index) for index in range(len(samples))]


def _read(
    images: Sequence[Unread], count: int, rule: Preprocessing, what: str, listener: Listener
) -> list[Pixels]:
    """Read up to `count` images in a fixed random order; unreadable ones are left out."""
    decoded: list[Pixels] = []
    with listener.progress(what, min(count, len(images))) as progress:
        for index in np.random.default_rng(0).permutation(len(images)):
            if len(decoded) == count:
                break
            try:
                pixels = preprocess(images[index](), rule)
            except DecodeError:
                continue
            decoded.append(np.ascontiguousarray(pixels.transpose(2, 0, 1)[None]))
            progress(len(decoded))
    return decoded
