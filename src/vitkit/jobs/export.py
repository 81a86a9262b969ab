"""Exporting a model to an inference engine: a folder with a graph, from which it predicts and evaluates.

What the engine computes is compared with PyTorch before anything is left on the disk, on the run's own images
where they are known. int8 is calibrated on real images, and its answers are counted on others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.engines.agreement import LOWEST_AGREEMENT, Agreement, Nearness, compare_logits
from vitkit.engines.engine_model import Runner, describe_gelu
from vitkit.engines.folder import write_description
from vitkit.engines.graph import example_images
from vitkit.engines.libraries import refuse_numbers
from vitkit.engines.serving import COMPARED, MADE_UP, make_runner, refuse_model, require_same
from vitkit.errors import VitkitError
from vitkit.evaluation.run_model import evaluation_mode
from vitkit.jobs.calibration import CalibrationImages, read_calibration, read_own_images
from vitkit.jobs.export_options import ExportOptions
from vitkit.jobs.options import from_options
from vitkit.listener import SILENT, Listener
from vitkit.models.image_model import ImageModel
from vitkit.runs.checkpoints import load_any
from vitkit.runs.destination import beside, refuse_taken
from vitkit.tasks import answering_of

CHECK_BATCH = 32
"""Images that are compared at a time."""


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    path: Path
    """The folder written."""
    agreement: Agreement | None
    """The comparison of the answers with float32's; None where no images were given, and none were needed."""
    nearness: Nearness | None
    """The distance of the logits from PyTorch's; None for int8, whose answers are compared."""
    calibration: str | None
    """The images that int8 was calibrated on, in words."""
    notes: tuple[str, ...]
    """Sentences that a user should know about the source, as `load_model` logs them."""
    departure: str | None
    """The operation that the engine computes in another form than the model, in words; None for none."""


def run_export(options: ExportOptions) -> Exported:
    """Write a model as the graph of an inference engine, which `vitkit.Predictor` and `evaluate` read.

    The graph is for images of one size.

    Raises:
        VitkitError: the engine is not installed or cannot compute the model; there are too few images; or the
            result answers otherwise than float32. Nothing is left at `out` then.
    """
    listener = options.listener
    out, engine, numbers = Path(options.out), options.engine, options.precision
    refuse_taken(out)
    refuse_numbers(engine, numbers)
    loaded = load_any(options.source, options.load_options)
    model = loaded.model
    reason = answering_of(model.card).explain_unfit(model.config)
    if reason:
        raise VitkitError(f"{options.source} {reason}.")
    refuse_model(engine, model.config)
    images = None
    if numbers == "int8" or options.calibration is not None:
        images = read_calibration(model, options, listener)
    calibrated = images if numbers == "int8" else None
    with beside(out) as place:
        folder = place / out.name
        folder.mkdir()
        with listener.progress(f"making the graph of {engine}"):
            known = () if calibrated is None else calibrated.calibration
            runner = make_runner(model, engine, numbers, torch.get_num_threads(), folder, known)
        agreement = nearness = None
        if numbers != "int8":
            named, some = _images_to_compare(model, images, listener)
            nearness = require_same(model, runner, engine, numbers, some, named)
        if images is not None:
            agreement = measure(model, runner, images.check, listener)
            _refuse_change(agreement, options, listener)
        words = None if calibrated is None else calibrated.words
        write_description(folder, model, engine, numbers, agreement, nearness, words)
        refuse_taken(out)
        folder.rename(out)
    departure = describe_gelu(model.config, numbers)
    return Exported(out, agreement, nearness, words, loaded.notes, departure)


export = from_options(ExportOptions)(run_export)


def _images_to_compare(
    model: ImageModel, given: CalibrationImages | None, listener: Listener
) -> tuple[str, NDArray[np.uint8]]:
    """Choose images to hold logits against PyTorch's on: those given, else the run's own, else made up.

    Returns:
        The images in words, and their pixels `(N, C, H, W)`.
    """
    if given is not None:
        return given.check_words, np.concatenate(given.check[:COMPARED])
    named, own = read_own_images(model, COMPARED, listener)
    if own:
        return named, np.concatenate(own)
    return MADE_UP, example_images(model, COMPARED).numpy()


def measure(
    model: ImageModel, runner: Runner, images: Sequence[NDArray[np.uint8]], listener: Listener = SILENT
) -> Agreement:
    """Compare an engine with the model in float32, computed in the plain way.

    Args:
        model: that the engine's graph was made of.
        runner: the engine.
        images: `(1, C, H, W)` each.
        listener: hears the progress.

    Raises:
        VitkitError: logits are not finite.
    """
    found, expected = [], []
    with (
        evaluation_mode(model),
        listener.progress("comparing with float32", len(images)) as progress,
    ):
        for start in range(0, len(images), CHECK_BATCH):
            batch = np.concatenate(images[start : start + CHECK_BATCH])
            found.append(runner(batch))
            expected.append(model(torch.from_numpy(batch)).numpy())
            progress(start + len(batch))
    logits, plain = np.concatenate(found), np.concatenate(expected)
    if not (np.isfinite(logits).all() and np.isfinite(plain).all()):
        raise VitkitError(
            "Logits are not finite (NaN or infinite), so nothing can be compared: the weights overflow or "
            "are damaged. Nothing was written."
        )
    answers = answering_of(model.card).answers
    return compare_logits(logits, plain, answers(logits), answers(plain))


def _refuse_change(agreement: Agreement, options: ExportOptions, listener: Listener) -> None:
    """Refuse a result that answers otherwise than float32 too often, unless the caller accepts it.

    Raises:
        VitkitError: it is refused.
    """
    if agreement.share >= LOWEST_AGREEMENT:
        return
    words = (
        f"In {options.precision} it is another model: {agreement}; expected {LOWEST_AGREEMENT:.0%} or more"
    )
    if not options.accept_change:
        raise VitkitError(
            f"{words}. Nothing is left at {options.out}. Give more images like those it will see with "
            "--calibration, take bfloat16 or float32, or add --accept-change to keep it."
        )
    listener.warn(f"{words}, kept because of --accept-change.")
